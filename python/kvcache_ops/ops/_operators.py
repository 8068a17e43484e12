"""The operators on numpy arrays and torch tensors, in place, without ONNX Runtime.

Tensors are numpy arrays, or others of the CPU that export versioned DLPack (`__dlpack__(max_version=(1, 0))`), as torch
tensors do since torch 2.8. They are borrowed, never copied: contiguous, and writable where they are written. Index
inputs may also be ints and lists of them. The GIL is released while bytes move; until then the arrays are kept. Other
threads may read and write the cache's other slots meanwhile, but nobody may resize a tensor of the call. A call that
has begun is completed: Ctrl-C raises KeyboardInterrupt when it is over, and the cache has all of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol

import numpy as np
from numpy.typing import NDArray

from kvcache_ops import _native
from kvcache_ops._errors import KvCacheError
from kvcache_ops.ops._cache_spec import CacheSpec, Operand
from kvcache_ops.ops._indices import AttentionIndices


class Tensor(Protocol):
    """A numpy array, a torch tensor: what exports DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """The capsule."""

    def __dlpack_device__(self) -> Any:
        """Where the memory is."""


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # An output is what was given for it, or a new array.
    _Key = TypeVar("_Key", bound=Tensor, default=NDArray[np.number[Any]])
    _Value = TypeVar("_Value", bound=Tensor, default=NDArray[np.number[Any]])
    _Attended = TypeVar("_Attended", bound=Tensor, default=NDArray[np.floating[Any]])

_Arguments = ParamSpec("_Arguments")

# The names of the inputs, and which of them are indices.
_OPERATORS = ("KeyValueCache", "MultiHeadAttention", "MultiHeadCacheAttention")
_INPUTS = {op_type: _native.input_names(op_type) for op_type in _OPERATORS}
_INDICES = frozenset(AttentionIndices.__annotations__)

FLOATS = frozenset({"scale", "softcap"})
"""The attributes that are floats."""

Indices = Tensor | int | Sequence[int] | Sequence[Sequence[int]]
"""int64: a tensor, an int, or a list of ints."""

Attributes = CacheSpec | Mapping[str, float]
"""A node's attributes, or the cache that they describe, to which further attributes are given by keyword."""


def node_attributes(op_type: str, given: Attributes | None, more: Mapping[str, float]) -> dict[str, float]:
    """The attributes of a node: of a CacheSpec, those that the operator has; `more` replaces them."""
    more = {"scale" if name == "attention_scale" else name: value for name, value in more.items()}
    if given is None or isinstance(given, Mapping):
        return {**(given or {}), **more}
    if not isinstance(given, CacheSpec):
        message = f"attributes are a {type(given).__name__}, expected a CacheSpec or ints by name"
        raise KvCacheError(message, "attribute_type")
    facts = given.attributes() | {"num_kv_heads": given.num_kv_heads, "head_dim": given.head_dim}
    return {name: facts[name] for name in _native.attribute_names(op_type) if name in facts} | dict(more)


def run(
    attributes: Attributes,
    current_key: Tensor,
    current_value: Tensor,
    seqstarts: Indices,
    kvstarts: Indices,
    cachestarts: Indices,
    start_pos: Indices,
    max_seqlen: Indices,
    max_kvlen: Indices,
    cache: Tensor,
    scale: Tensor | None = None,
    *,
    key: _Key | None = None,
    value: _Value | None = None,
    **more: int,
) -> tuple[_Key, _Value]:
    """KeyValueCache: stores the current tokens into `cache`, returns keys and values of all tokens.

        key, value = kvcache_ops.run(spec, current_key, current_value, *indices, cache, scale, layer_idx=3)

    attributes: a CacheSpec, which the tensors are then checked against, or the node's attributes by name. more: further
    attributes, such as num_repeat, and layer_idx (0 if not given).
    current_key, current_value: T1, (seqstarts[B], H, Dh). seqstarts, kvstarts: int64 (B + 1). cachestarts: int64 (B),
    or (B, MaxP) in cache_mode 1. start_pos: int64 (B). max_seqlen, max_kvlen: int64, upper bounds of the lengths.
    cache, scale: as `CacheSpec` says, written in place (static scales are only read); int4 is uint8 with two elements
    in a byte, the first in the low nibble, and head_dim / 2 in the last axis.
    key, value: where to write the outputs, T1 (kvstarts[B], H * num_repeat, Dh); new numpy arrays if they are None.

    Returns key and value. Raises KvCacheError with the library's sentence and its `kind`; nothing is then written.
    """
    inputs = [current_key, current_value, seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen]
    outputs: tuple[_Key, _Value] = _call("KeyValueCache", attributes, more, [*inputs, cache, scale], [key, value])
    return outputs


def multi_head_attention(
    attributes: Attributes,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seqstarts: Indices,
    kvstarts: Indices,
    decoding_batches: Indices,
    max_seqlen: Indices,
    max_kvlen: Indices,
    attn_mask: Tensor | None = None,
    head_sink: Tensor | None = None,
    *,
    attn_output: _Attended | None = None,
    attention_mass: Tensor | None = None,
    **more: float,
) -> _Attended:
    """MultiHeadAttention: each sequence's queries attend over its packed keys and values.

    attributes: a CacheSpec, which gives num_kv_heads and head_dim, or the node's attributes by name; num_heads (Hq) has
    no default. more: further attributes, as is_causal (1 if not given), is_alibi (0), local_window_size (-1: no
    window), scale (0: 1 / sqrt(head_dim)) and softcap (0: none).
    query: T1 (float32 or float16), (seqstarts[B], Hq, Dh). key, value: T1, (kvstarts[B], Hk, Dh). decoding_batches:
    int64, this many first sequences are not masked by is_causal; 0 is right where each of them has one query.
    attn_mask: T1, (seqstarts[B], W) or (Hq, seqstarts[B], W) with W >= kvstarts[B], added to the scores.
    head_sink: T1, (Hq), a score of each query head that has no key and no value.
    attn_output: where to write the output, of query's type and shape.
    attention_mass: where to write, if anywhere, the sum of the probabilities that the queries of its sequence give each
    key in each query head, float32 (Hq, kvstarts[B]). Scores are computed twice for that.

    Returns attn_output. Raises KvCacheError; nothing has then been written.
    """
    inputs = [query, key, value, seqstarts, kvstarts, decoding_batches, max_seqlen, max_kvlen, attn_mask, head_sink]
    (output,) = _call("MultiHeadAttention", attributes, more, inputs, [attn_output, attention_mass])
    attended: _Attended = output
    return attended


def multi_head_cache_attention(
    attributes: Attributes,
    query: Tensor,
    current_key: Tensor,
    current_value: Tensor,
    seqstarts: Indices,
    kvstarts: Indices,
    cachestarts: Indices,
    start_pos: Indices,
    decoding_batches: Indices,
    max_seqlen: Indices,
    max_kvlen: Indices,
    cache: Tensor,
    scale: Tensor | None = None,
    attn_mask: Tensor | None = None,
    head_sink: Tensor | None = None,
    *,
    attn_output: _Attended | None = None,
    attention_mass: Tensor | None = None,
    **more: float,
) -> _Attended:
    """MultiHeadCacheAttention: `run`, then `multi_head_attention`, straight over the cache.

    query: T1 (float32 or float16), (seqstarts[B], Hq, Dh), rotary embedding applied; the other inputs are as theirs.
    more: further attributes, as num_heads, which has no default, and layer_idx, 0 if not given; num_repeat is none.
    The attribute `scale` has the name of an input: as a keyword it is attention_scale.

    Returns attn_output, T1 (seqstarts[B], Hq, Dh). Raises KvCacheError; nothing has then been written.
    """
    step = [seqstarts, kvstarts, cachestarts, start_pos, decoding_batches, max_seqlen, max_kvlen]
    inputs = [query, current_key, current_value, *step, cache, scale, attn_mask, head_sink]
    (output,) = _call("MultiHeadCacheAttention", attributes, more, inputs, [attn_output, attention_mass])
    attended: _Attended = output
    return attended


def _call(
    op_type: str, attributes: Attributes, more: Mapping[str, float], inputs: list[Any], outputs: list[Any]
) -> Any:
    """The outputs: given ones, new arrays for the others. Tensors are checked against the CacheSpec, if it is one."""
    tensors = _tensors(op_type, inputs)
    return _native.run(op_type, node_attributes(op_type, attributes, more), tensors, outputs, _operands(attributes))


def _check_of(name: str, op_type: str, call: Callable[_Arguments, Any]) -> Callable[_Arguments, tuple[int, int, int]]:
    """The check of a call: a function of its parameters but the outputs, which are by keyword."""
    parameters = signature(call).parameters.values()
    without_outputs = Signature([parameter for parameter in parameters if parameter.kind != Parameter.KEYWORD_ONLY])

    def check(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> tuple[int, int, int]:
        bound = without_outputs.bind(*args, **kwargs)
        bound.apply_defaults()
        attributes, *inputs, more = bound.arguments.values()
        tensors = _tensors(op_type, inputs)
        return _native.check(op_type, node_attributes(op_type, attributes, more), tensors, _operands(attributes))

    check.__name__ = check.__qualname__ = name
    check.__doc__ = f"""Checks a call of `{call.__name__}` and writes nothing.

    Gives the shape of the outputs; raises what the call raises.
    """
    vars(check)["__signature__"] = without_outputs.replace(return_annotation=tuple[int, int, int])
    return check


check = _check_of("check", "KeyValueCache", run)
check_multi_head_attention = _check_of("check_multi_head_attention", "MultiHeadAttention", multi_head_attention)
check_multi_head_cache_attention = _check_of(
    "check_multi_head_cache_attention", "MultiHeadCacheAttention", multi_head_cache_attention
)


def _operands(attributes: Attributes) -> dict[str, Operand] | None:
    """The types and shapes of tensors that a CacheSpec requires, if one is given."""
    return attributes._operands if isinstance(attributes, CacheSpec) else None


def _tensors(op_type: str, inputs: list[Any]) -> list[Any]:
    """The inputs, indices as tensors: an int or a list becomes an array of int64."""
    return [
        _array(name, given) if name in _INDICES and isinstance(given, int | np.integer | list | tuple) else given
        for name, given in zip(_INPUTS[op_type], inputs, strict=True)
    ]


def _array(name: str, numbers: Any) -> Any:
    try:
        array = np.asarray(numbers)
    except ValueError as error:
        raise KvCacheError(f"{name} is {numbers!r}, expected rows of one length", "ragged") from error
    # Whatever is no int stays what it is, and is refused with its type.
    return array.astype(np.int64) if array.size == 0 or array.dtype.kind == "i" else array
