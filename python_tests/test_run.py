"""`run` and `check`: whose memory is taken, and what is refused."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import kvcache_ops
import numpy as np
import pytest
from kvcache_ops import CacheSpec, KvCacheError, step_indices

from borrowed import CUDA, IS_COPIED, PINNED, READ_ONLY, Exporter, OldExporter
from compare import assert_same_bits, refused

SPEC = CacheSpec(max_tokens=32, num_kv_heads=2, head_dim=8, dtype="float32", num_layers=2, quant_bit=4)
INDICES = step_indices([3, 1], [0, 5], cachestarts=[0, 10])


def operands(spec: CacheSpec = SPEC) -> dict[str, Any]:
    """The inputs of a call, by name."""
    random = np.random.default_rng(7)
    shape = (int(INDICES.seqstarts[-1]), spec.num_kv_heads, spec.head_dim)
    current = {name: random.standard_normal(shape).astype(spec.dtype) for name in ("current_key", "current_value")}
    cache, scale = spec.allocate()
    return current | INDICES._asdict() | {"cache": cache} | ({} if scale is None else {"scale": scale})


def copies(inputs: dict[str, Any]) -> dict[str, Any]:
    """The same numbers in other memory."""
    return {name: array.copy() if isinstance(array, np.ndarray) else array for name, array in inputs.items()}


@pytest.fixture
def expected() -> dict[str, np.ndarray]:
    """What the call makes of numpy arrays: outputs, and the cache after it."""
    inputs = operands()
    key, value = kvcache_ops.run(SPEC, **inputs, layer_idx=1, num_repeat=2)
    assert inputs["cache"].any() and inputs["scale"].any()
    return {"key": key, "value": value, "cache": inputs["cache"], "scale": inputs["scale"]}


@pytest.mark.parametrize(
    "how", [{}, dict(no_strides=True), dict(offset=8, device=PINNED)], ids=["plain", "no strides", "pinned"]
)
def test_tensors_of_other_libraries(expected: dict, how: dict) -> None:
    """What exports versioned DLPack is read and written in place, outputs too."""
    inputs = operands()
    exported = {name: Exporter(array, **how) for name, array in inputs.items()}
    outputs = {name: np.full_like(expected[name], np.nan) for name in ("key", "value")}
    given = {name: Exporter(array, **how) for name, array in outputs.items()}
    got = kvcache_ops.run(SPEC, **exported, **given, layer_idx=1, num_repeat=2)
    assert got == tuple(given.values())
    for name, array in outputs.items():
        assert_same_bits(name, array, expected[name])
    for name in ("cache", "scale"):
        assert_same_bits(name, inputs[name], expected[name])


def test_other_ways_to_say_the_same(expected: dict) -> None:
    """One output may be given; indices may be ints and lists, as they are copied anyway; attributes may come by name,
    and what is given by keyword replaces them."""
    value = np.empty_like(expected["value"])
    lists = {name: array.tolist() for name, array in INDICES._asdict().items()}
    lists |= {"max_seqlen": 3, "max_kvlen": np.int64(6)}
    attributes = SPEC.attributes(layer_idx=0, num_repeat=2)
    got = kvcache_ops.run(attributes, **operands() | lists, value=value, layer_idx=1)
    assert got[1] is value
    for name, array in zip(("key", "value"), got):
        assert_same_bits(name, array, expected[name])


def read_only(array: np.ndarray) -> np.ndarray:
    """A view that must not be written."""
    view = array.view()
    view.flags.writeable = False
    return view


def strided(array: np.ndarray) -> np.ndarray:
    """The same numbers, not next to each other."""
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def shifted(array: np.ndarray) -> np.ndarray:
    """The same numbers at an odd address."""
    memory = np.zeros(array.nbytes + 1, np.uint8)[1:]
    memory[:] = array.reshape(-1).view(np.uint8)
    return memory.view(array.dtype).reshape(array.shape)


FLOATS = "expected float32, float16, int8"
# What is given for which operand, the kind of the refusal, and a part of its text.
REFUSALS = [
    ("cache", read_only, "read_only", "cache is read-only, expected writable memory"),
    ("key", read_only, "read_only", "key is read-only"),
    ("cache", lambda x: Exporter(x, flags=READ_ONLY), "read_only", "cache is read-only"),
    ("cache", lambda x: Exporter(x, flags=IS_COPIED), "copied", "exports a copy of its memory"),
    ("cache", strided, "not_contiguous", "cache is not contiguous (shape [32, 2, 2, 2, 8])"),
    ("cache", np.ndarray.tolist, "not_a_tensor", "cache is a list, expected a numpy array"),
    ("cache", lambda _: None, "input_missing", "cache is absent"),
    ("cache", lambda x: Exporter(x, device=CUDA), "device", "cache is on device cuda:0"),
    ("cache", OldExporter, "dlpack_version", "does not export versioned DLPack"),
    ("cache", lambda x: Exporter(x, version=(2, 0)), "dlpack_version", "exports DLPack 2.0"),
    ("cache", lambda x: Exporter(x, name=b"dltensor"), "dlpack_version", "versioned DLPack"),
    ("cache", lambda x: Exporter(x, code=0, bits=4), "type_mismatch", "cache is of type int4"),
    ("scale", shifted, "misaligned", "expected a multiple of 4"),
    ("scale", lambda x: Exporter(x, code=4, bits=16), "type_mismatch", "scale is of type bfloat16"),
    ("scale", lambda x: x.astype(">f4"), "type_mismatch", f"scale is of type >f4, {FLOATS}"),
    ("current_key", strided, "not_contiguous", "order without gaps; np.ascontiguousarray(x) or x.contiguous() makes"),
    ("current_key", np.float64, "type_mismatch", f"current_key is of type float64, {FLOATS}"),
    ("start_pos", lambda _: [0.5, 1.0], "type_mismatch", "start_pos is of type float64, expected int64"),
    ("start_pos", lambda _: [0, 2**70], "type_mismatch", "start_pos is of type object, expected int64"),
    ("max_kvlen", lambda _: 6.0, "not_a_tensor", "max_kvlen is a float, expected an int, a list of ints"),
    ("cachestarts", lambda _: [[0], [1, 2]], "ragged", "cachestarts is [[0], [1, 2]], expected rows of one length"),
    ("key", lambda x: x[:-1], "shape_mismatch", "key has 8 in axis 0"),
    ("key", strided, "not_contiguous", "key is not contiguous"),
]


@pytest.mark.parametrize(("name", "change", "kind", "text"), REFUSALS, ids=[row[3] for row in REFUSALS])
def test_what_is_refused(name: str, change: Callable[[np.ndarray], Any], kind: str, text: str) -> None:
    """Refused by kind and text, before the first byte of the cache is written; nothing is copied."""
    inputs = operands() | {"key": np.zeros((9, 2, 8), np.float32)}
    before = copies(inputs)
    given = inputs | {name: change(inputs[name])}
    assert_refused(kind, text, kvcache_ops.run, SPEC, **given)
    if name != "key":
        del given["key"]
        assert_refused(kind, text, kvcache_ops.check, SPEC, **given)
    for written in ("cache", "scale", "key"):
        assert_same_bits(written, inputs[written], before[written])


def assert_refused(kind: str, text: str, function: Callable[..., Any], *arguments: Any, **more: Any) -> None:
    """The call raises a KvCacheError of this kind, with this text."""
    with refused(kind, text):
        function(*arguments, **more)


@pytest.mark.parametrize(
    ("attributes", "kind", "text"),
    [
        ({"num_repaet": 2}, "attribute_unknown", 'KeyValueCache has no attribute "num_repaet"'),
        ({"page_size": 3.0}, "attribute_type", "attribute page_size is 3.0, expected an int"),
        ({"page_size": 2**70}, "attribute_out_of_range", "expected an int of 64 bits"),
        ({1: 2}, "attribute_unknown", "an attribute is called 1, expected a str"),
    ],
)
def test_attributes_that_are_refused(attributes: dict, kind: str, text: str) -> None:
    """Misspelt ones too, which ONNX Runtime lets pass."""
    assert_refused(kind, text, kvcache_ops.run, SPEC.attributes() | attributes, **operands())


def test_bytes_that_are_no_int8() -> None:
    """They are packed int4 where quant_bit is 4; elsewhere the error calls them uint8."""
    inputs = operands() | {"cache": np.zeros((32, 2, 2, 2, 8), np.uint8)}
    attributes = SPEC.attributes() | {"quant_bit": 8}
    assert_refused("illegal_types", "; cache is an array of uint8, which", kvcache_ops.run, attributes, **inputs)
    spec = replace(SPEC, quant_bit=8, cache_dtype=None)
    assert_refused("type_mismatch", "cache is of type uint8, expected int8", kvcache_ops.run, spec, **inputs)


def test_an_interrupt_while_a_tensor_is_borrowed_stays_one() -> None:
    """An exception of another library becomes a refusal; KeyboardInterrupt and SystemExit stay."""

    class Failing(Exporter):
        error: BaseException = KeyboardInterrupt()

        def __dlpack__(self, **_: object) -> object:
            raise self.error

    inputs = operands()
    inputs["cache"] = Failing(inputs["cache"])
    with pytest.raises(KeyboardInterrupt):
        kvcache_ops.run(SPEC, **inputs)
    Failing.error = BufferError("not today")
    with pytest.raises(
        KvCacheError, match="the memory of the Failing cannot be borrowed: BufferError: not today"
    ) as refusal:
        kvcache_ops.run(SPEC, **inputs)
    assert refusal.value.kind == "not_borrowed" and refusal.value.__cause__ is Failing.error


def test_arrays_are_not_kept_after_a_call() -> None:
    """Neither by a call that succeeds nor by one that is refused."""
    inputs = operands()
    outputs = kvcache_ops.run(SPEC, **inputs)
    with pytest.raises(KvCacheError):
        kvcache_ops.run(SPEC, **inputs | {"max_kvlen": 1})
    weak = [weakref.ref(array) for array in (inputs["current_key"], *outputs)]
    del inputs, outputs
    gc.collect()
    assert [ref() for ref in weak] == [None] * 3


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="numpy before 2.1 has no versioned DLPack")
def test_memory_that_an_export_alone_keeps() -> None:
    """Exported memory lives until the call is over, even if nobody else holds it."""

    class Temporary:
        def __init__(self, array: np.ndarray):
            self.array = array

        def __dlpack__(self, **how: Any) -> object:
            return self.array.copy().__dlpack__(**how)

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    spec = CacheSpec(max_tokens=1000, num_kv_heads=4, head_dim=64, dtype="float32")
    current = Temporary(np.ones((1000, 4, 64), np.float32))
    key, _ = kvcache_ops.run(spec, current, current, *step_indices([1000], [0], cachestarts=[0]), spec.allocate().cache)
    assert (key == 1).all()


def test_an_output_of_attention_that_is_given() -> None:
    """A given output is written and returned; missing or misspelled attributes are named."""
    query = np.random.default_rng(3).standard_normal((4, 4, 8)).astype(np.float32)
    inputs = {"query": query, "decoding_batches": INDICES.decoding_batches} | operands()
    expected = kvcache_ops.multi_head_cache_attention(SPEC, **copies(inputs), num_heads=4)
    output = np.empty_like(query)
    assert kvcache_ops.multi_head_cache_attention(SPEC, **copies(inputs), attn_output=output, num_heads=4) is output
    assert_same_bits("attn_output", output, expected)
    for function in (kvcache_ops.multi_head_cache_attention, kvcache_ops.check_multi_head_cache_attention):
        assert_refused("attribute_missing", "num_heads", function, SPEC, **inputs)
        assert_refused("attribute_unknown", 'no attribute "num_haeds"', function, SPEC, **inputs, num_haeds=4)


@pytest.mark.parametrize(
    "empty",
    [np.zeros(0, bool), np.zeros((0, 7), "U4"), Exporter(np.zeros(0, np.uint16), code=4, bits=16, flags=READ_ONLY)],
    ids=["bool", "strings of rank 2", "bfloat16 that is read-only"],
)
def test_optional_inputs_without_elements_count_as_not_given(empty: Any) -> None:
    """A mask, and a scale where nothing is quantized, also of types that no tensor of the operators has."""
    plain = replace(SPEC, quant_bit=0, cache_dtype=None, scale_dtype=None)
    query = np.random.default_rng(5).standard_normal((4, 2, 8), np.float32)
    fused = operands(plain) | {"query": query, "decoding_batches": 0}
    without = kvcache_ops.multi_head_cache_attention(plain, **copies(fused), num_heads=2)
    given = fused | {"scale": empty, "attn_mask": empty}
    assert kvcache_ops.check_multi_head_cache_attention(plain, **given, num_heads=2) == query.shape
    got = kvcache_ops.multi_head_cache_attention(plain, **given, num_heads=2)
    assert_same_bits("attn_output", got, without)
