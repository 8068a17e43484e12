"""The conformance suites of the operators, on an implementation in Python: `run` gives it numpy arrays.

    from kvcache_ops import conformance

    def key_value_cache(attributes, inputs, cache, scale):
        ...
        return key, value

    report = conformance.run(key_value_cache)
    print(report.text(rules=True))
    report.raise_for_failures()

or `python -m kvcache_ops conformance MODULE:CALLABLE`; with `--program COMMAND` the command tests a program, with
`--ort-library FILE` a library of custom operators of ONNX Runtime, and with `--export-onnx DIR` it writes the cases as
ONNX's backend tests. A case is a
node, its state, and some calls; the implementation is called for each of them, with

- attributes: the node's attributes by name, with its default if the case has left it out: ints, and of attention two
  floats, scale and softcap;
- inputs: numpy arrays by the names of the specification;
- cache and scale: what the calls before have made of them. scale is None if the case has none.

It gives the outputs as `(key, value)` and has then written cache and scale in place; or it gives
`(key, value, cache, scale)`, as a functional implementation does, and what it was given does not count. Outputs may be
of any class that numpy makes an array of without converting the numbers: torch tensors on the CPU, JAX arrays.

The inputs by suite:

- "key-value-cache": current_key, current_value: T1 (seqstarts[B], H, Dh). seqstarts, kvstarts: int64 (B + 1).
  cachestarts: int64 (B), or (B, MaxP) in cache_mode 1. start_pos: int64 (B). max_seqlen, max_kvlen: int64 () or (1).
  Outputs: T1 (kvstarts[B], H * num_repeat, Dh). cache: T2 (MaxT, L, 2, H, Dh), its axes in the order of cache_layout.
- "static": current_key, current_value: T1 (B, S, H, Dh). start_pos: int64 () or (1). Outputs: T1 (B, start_pos + S,
  H * num_repeat, Dh). cache: T2 (MaxB, L, 2, MaxS, H, Dh), its axes in the order of cache_layout.
- "attention": query: T1 (seqstarts[B], Hq, Dh). MultiHeadCacheAttention: what "key-value-cache" has.
  MultiHeadAttention: key, value: T1 (kvstarts[B], Hk, Dh); seqstarts, kvstarts, max_seqlen, max_kvlen; no cache.
  decoding_batches: int64 () or (1). attn_mask, which may be missing: T1 (seqstarts[B], W) or (Hq, seqstarts[B], W).
  head_sink, which may be missing: T1 (Hq).
  Output: T1, of query's shape.

scale is T3, of cache's shape but for its last axis, Dh / quant_group. A cache of int4 is uint8 of (..., Dh / 2),
element 2i in the low nibble of byte i; with `int4="unpacked"` it is an Int4Array of (..., Dh).

The suite "attention" has two operators, so that the name of the operator comes first: `attend(op_type, attributes,
inputs, cache, scale)`, which gives `attn_output` or `(attn_output, cache, scale)`. A few cases ask for the attention's
mass, an extension: to an implementation that takes a keyword `outputs` it is then ["attn_output", "attention_mass"],
and it gives both, the second float32 (Hq, kvstarts[B]). For others these cases are unsupported.

Some calls are illegal: types, shapes or numbers that the operator must refuse. Then the implementation raises, having
written nothing. If the exception has a text `kind`, it must be the case's (kinds as in
kvcache_ops.KvCacheError); with `messages=True`, what it says must mention the inputs and numbers that are wrong.
NotImplementedError says that the implementation does not do what the case needs, which is reported as unsupported. The
exceptions of BUGS (AttributeError, NameError, ...) are no refusals: the case fails.

Only some cases are run with conditions: types, attributes, sizes (batch, cache_heads, head_dim), the operator, or
whether they have head_sink or attention_mass (1) or not (0).

    conformance.run(key_value_cache, only={"T1": ["float16"], "cache_mode": [1], "num_repeat": [1, 2, 4, 8]})
"""

from kvcache_ops.conformance._call import BUGS, Int4Array
from kvcache_ops.conformance._report import (
    CaseResult,
    ConformanceError,
    Difference,
    Flaw,
    Report,
    RuleResult,
)
from kvcache_ops.conformance._run import SUITES, AttentionImplementation, Implementation, run

__all__ = [
    "BUGS",
    "SUITES",
    "AttentionImplementation",
    "CaseResult",
    "ConformanceError",
    "Difference",
    "Flaw",
    "Implementation",
    "Int4Array",
    "Report",
    "RuleResult",
    "run",
]
