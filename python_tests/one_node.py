"""One node of the library's operators: its model, a session of it, and calls with random rows in scattered slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
from kvcache_ops import DOMAIN, Cache, CacheSpec, _native, step_indices
from kvcache_ops.ops._cache_spec import ONNX_TYPES
from onnx import TensorProto, helper, numpy_helper

from compare import Arrays, assert_same_arrays, assert_same_outputs
from sessions import IR_VERSION, OPSET, RUNTIME, element_type, model_of, run_node, session_of

DOMAINS = (DOMAIN, "pmx.dynamic_batching")
# The domains of static batching, in which `KeyValueCache` has other inputs.
STATIC_DOMAINS = ("opmx", "pmx")
STATIC_INPUTS = ("current_key", "current_value", "start_pos", "cache", "scale")
# The inputs and outputs of each operator of dynamic batching, by position.
OPERATORS = {
    name: (tuple(_native.input_names(name)), tuple(_native.output_names(name)))
    for name in ("KeyValueCache", "MultiHeadAttention", "MultiHeadCacheAttention")
}
INPUTS, PACKED_INPUTS, FUSED_INPUTS = (inputs for inputs, _ in OPERATORS.values())
FLOAT, HALF, INT8, INT4 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.INT4
# As ONNX text has them.
TEXT_TYPES = {FLOAT: "float", HALF: "float16", INT8: "int8", INT4: "int4", TensorProto.INT64: "int64"}
ROWS = ("query", "key", "value", "current_key", "current_value")
OPTIONAL = ("attn_mask", "head_sink")


def node_types(t1: int, t2: int, t3: int | None = None) -> dict[str, int]:
    """The element type of each input of `KeyValueCache`, by name; without T3 there is no scale."""
    types = dict.fromkeys(INPUTS, TensorProto.INT64) | dict(current_key=t1, current_value=t1, cache=t2, scale=t3)
    return {name: type_ for name, type_ in types.items() if type_ is not None}


def types_for(operator: str, **changed: int) -> dict[str, int]:
    """The types of a float32 node's required inputs, some of them changed."""
    required = [name for name in OPERATORS[operator][0] if name not in ("scale", *OPTIONAL)]
    return {name: FLOAT if name in (*ROWS, "cache") else TensorProto.INT64 for name in required} | changed


def node_model(
    types: dict[str, int],
    attributes: dict,
    *,
    operator: str = "KeyValueCache",
    domain: str = DOMAIN,
    shapes: dict[str, list] | None = None,
    initializers: tuple[TensorProto, ...] = (),
    empty_scale: bool = False,
) -> bytes:
    """The model of a node named "cached", whose outputs have the type of its first input unless `types` names them."""
    signature, results = OPERATORS[operator]
    if domain in STATIC_DOMAINS:
        signature = STATIC_INPUTS
    results = [*results, *types.keys() & {"attention_mass"}]
    held = {tensor.name for tensor in initializers}
    last = max(index for index, name in enumerate(signature) if name in types or name in held)
    if RUNTIME < (1, 24):  # these crash on an empty name, so what is left out in the middle has no elements
        left_out = [name for name in signature[:last] if name not in types and name not in held]
        initializers += tuple(numpy_helper.from_array(np.zeros(0, np.float16), name) for name in left_out)
        held |= {*left_out}
    names = [name if name in types or name in held else "" for name in signature[: last + 1]] + [""] * empty_scale
    node = helper.make_node(operator, names, results, "cached", domain=domain, **attributes)
    types = dict.fromkeys(results, types[names[0]]) | types
    return model_of(node, types, shapes=shapes, initializers=initializers).SerializeToString()


def text_model(
    inputs: str, outputs: str, nodes: str, functions: str = "", initializers: Arrays | None = None, domain: str = DOMAIN
) -> bytes:
    """A model in ONNX text, but for its initializers."""
    opsets = ", ".join(f'"{name}": {version}' for name, version in (("", OPSET), (domain, 1), ("local", 1)))
    header = f"<ir_version: {IR_VERSION}, opset_import: [{opsets}]>"
    made = onnx.parser.parse_model(f"{header} graph ({inputs}) => ({outputs}) {{ {nodes} }} {functions}")
    made.graph.initializer.extend(numpy_helper.from_array(x, name) for name, x in (initializers or {}).items())
    return made.SerializeToString()


def types_of(inputs: Arrays, int4_cache: bool) -> dict[str, int]:
    """The element types of a call's arrays."""
    return {
        name: TensorProto.INT4 if name == "cache" and int4_cache else element_type(array)
        for name, array in inputs.items()
    }


def arrays_of(memory: Cache) -> Arrays:
    """The cache and the scale that there is, by name."""
    return {name: array for name, array in zip(("cache", "scale"), memory) if array is not None}


def copy_of(memory: Cache) -> Cache:
    """The same contents in other memory."""
    made = memory.spec.allocate()
    for name, array in arrays_of(memory).items():
        arrays_of(made)[name][...] = array
    return made


def random_values(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Random finite values of many magnitudes, whose products stay in the range of float16; all values of int8."""
    if dtype == "int8":
        return random.integers(-128, 128, shape, np.int8)
    values = random.standard_normal(shape) * 2.0 ** random.integers(-6, 7, shape)
    return np.clip(values, -64, 64).astype(dtype)


@dataclass(frozen=True)
class Node:
    """A `KeyValueCache` of a layer, or with `group` a `MultiHeadCacheAttention` of so many query heads on each head."""

    spec: CacheSpec
    layer_idx: int = 0
    num_repeat: int = 1
    group: int = 0

    def __str__(self) -> str:
        spec, mode = self.spec, ("offset", "paged")[self.spec.cache_mode]
        types = [name for name in (spec.dtype, spec.cache_dtype, spec.scale_dtype) if name]
        return "-".join([*types, f"{mode}{spec.cache_layout}", *([f"heads{self.num_heads}"] if self.group else [])])

    @property
    def operator(self) -> str:
        """The operator's name."""
        return "MultiHeadCacheAttention" if self.group else "KeyValueCache"

    @property
    def num_heads(self) -> int:
        """Heads of the query; of the cache where there is no query."""
        return self.spec.num_kv_heads * (self.group or 1)

    @property
    def heads(self) -> dict[str, int]:
        """The attributes of attention alone."""
        heads = dict(num_heads=self.num_heads, head_dim=self.spec.head_dim, num_kv_heads=self.spec.num_kv_heads)
        return heads | dict(is_causal=1, is_alibi=0)

    @property
    def attributes(self) -> dict[str, int]:
        """All attributes."""
        found = self.spec.attributes(self.layer_idx, self.num_repeat)
        if self.group:
            del found["num_repeat"]
        return found | (self.heads if self.group else {})

    def types(self, given: Arrays | None = None, operator: str | None = None) -> dict[str, int]:
        """The element types of the inputs, by name; the mask and the sinks are there if they are given."""
        spec = self.spec
        known = dict.fromkeys((*ROWS, *OPTIONAL), spec.dtype) | dict(cache=spec.cache_dtype, scale=spec.scale_dtype)
        found = {name: known.get(name, "int64") for name in OPERATORS[operator or self.operator][0]}
        left_out = set(OPTIONAL) - (given or {}).keys()
        return {name: ONNX_TYPES[type_] for name, type_ in found.items() if type_ and name not in left_out}

    def model(self, given: Arrays | None = None) -> bytes:
        """The model of this one node, with a mask if `given` has one."""
        return node_model(self.types(given), self.attributes, operator=self.operator)

    def memory(self, random: np.random.Generator) -> Cache:
        """A cache with something in every slot, for showing what a call leaves alone."""
        memory = self.spec.allocate()
        if memory.cache.dtype == np.uint8:
            memory.cache[...] = random.integers(0, 256, memory.cache.shape, np.uint8)
        else:
            memory.cache[...] = random_values(random, memory.cache.shape, self.spec.cache_dtype)
        if memory.scale is not None:
            memory.scale[...] = random.random(memory.scale.shape) + 0.01
        return memory

    def inputs(self, random: np.random.Generator, step: Arrays) -> Arrays:
        """Random rows for the index inputs of a call, and those."""
        spec, tokens = self.spec, int(step["seqstarts"][-1])
        rows = dict(current_key=spec.num_kv_heads, current_value=spec.num_kv_heads)
        if self.group:
            rows |= dict(query=self.num_heads)
            step = step | dict(decoding_batches=np.zeros(step["max_seqlen"].shape, np.int64))
        return {
            n: random_values(random, (tokens, heads, spec.head_dim), spec.dtype) for n, heads in rows.items()
        } | step

    def run(
        self, inputs: Arrays, memory: Cache, session: onnxruntime.InferenceSession | None = None
    ) -> list[np.ndarray]:
        """One call on the memory itself: its outputs."""
        return run_node(session or session_of(self.model(inputs)), inputs, memory)


def node(
    dtype: str = "float32", *types: str, layer_idx: int = 0, num_repeat: int = 1, group: int = 0, **sizes: Any
) -> Node:
    """A node of T1, T2 and T3, over a cache of two heads with room for 768 tokens if `sizes` do not say else."""
    given = dict(zip(("cache_dtype", "scale_dtype"), types)) | dict(max_tokens=768, num_kv_heads=2, head_dim=16) | sizes
    return Node(CacheSpec(dtype=dtype, **given), layer_idx, num_repeat, group)


class RaggedCache:
    """Sequences that share a cache of `max_t` slots: scattered pages, or one run each if `page_size` is None."""

    def __init__(self, random: np.random.Generator, capacities: list[int], page_size: int | None = None):
        self.page_size, self.capacities, self.lengths = page_size, capacities, [0] * len(capacities)
        pages = [-(-capacity // page_size) if page_size else 1 for capacity in capacities]
        self.starts = [[0] * count for count in pages]
        # One block of slots for each page (or sequence), in random order with random gaps: starts are not aligned.
        blocks = [(b, i) for b, count in enumerate(pages) for i in range(count)]
        slot = int(random.integers(0, 3))
        for b, i in (blocks[j] for j in random.permutation(len(blocks))):
            self.starts[b][i] = slot
            slot += (page_size or capacities[b]) + int(random.integers(0, 3))
        self.max_t = slot

    def step(self, random: np.random.Generator, members: list[int], seqlens: list[int]) -> dict[str, np.ndarray]:
        """The index inputs of a call that stores that many tokens for each member; counts them as stored."""
        start_pos, starts = [self.lengths[member] for member in members], [self.starts[member] for member in members]
        for member, new in zip(members, seqlens):
            self.lengths[member] += new
            assert self.lengths[member] <= self.capacities[member], "more tokens than the sequence has slots"
        if self.page_size is None:
            indices = step_indices(seqlens, start_pos, cachestarts=[first for (first,) in starts])._asdict()
        else:
            max_p = max(map(len, starts), default=0) + int(random.integers(0, 3))
            pages = dict(page_slots=starts, page_size=self.page_size, aligned=False, max_pages=max_p)
            indices = step_indices(seqlens, start_pos, **pages)._asdict()
        # max_seqlen and max_kvlen are bounds, exact ones or larger, and come as a scalar or as shape [1].
        shape = [(), (1,)][random.integers(2)]
        bounds = {name: (indices[name] + random.integers(0, 2)).reshape(shape) for name in ("max_seqlen", "max_kvlen")}
        return indices | bounds


def one_call(node: Node, seqlens: list[int], past: list[int] | None = None) -> tuple[Arrays, Cache]:
    """The inputs of a call behind `past` tokens, and the memory as it is before."""
    random, everyone, past = np.random.default_rng(7), list(range(len(seqlens))), past or [0] * len(seqlens)
    page_size = node.spec.page_size if node.spec.cache_mode else None
    ragged = RaggedCache(random, [a + b for a, b in zip(past, seqlens)], page_size)
    assert ragged.max_t <= node.spec.max_tokens
    memory = node.memory(random)
    node.run(node.inputs(random, ragged.step(random, everyone, past)), memory)
    return node.inputs(random, ragged.step(random, everyone, seqlens)), memory


class Example:
    """A call, and its outputs and memory after the node alone has run it."""

    def __init__(self, node: Node, seqlens: list[int], past: list[int] | None = None):
        self.node = node
        self.inputs, self.before = one_call(node, seqlens, past)
        self.expected = copy_of(self.before)
        self.outputs = node.run(self.inputs, self.expected)
        assert (self.expected.cache != self.before.cache).any(), "it writes something"

    def check(self, outputs: list[np.ndarray], memory: Cache) -> None:
        """A call has given the same."""
        assert_same_outputs([outputs], [self.outputs])
        assert_same_arrays(arrays_of(memory), arrays_of(self.expected))
