"""What is refused when a session is made, in which words; and what is not."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper

from compare import assert_same_arrays, assert_same_bits, assert_same_outputs
from kvcache import DOMAIN, create_session, find_library
from node import call, node_model, node_types, quiet_options, session_of
from ragged import RaggedCache
from setting import FLOAT, HALF, INT4, INT8, LEGAL_TYPES, TYPE_NAMES, Setting

DOMAINS = (DOMAIN, "pmx.dynamic_batching")
DEFAULTS = dict(
    num_layer=1, layer_idx=0, quant_bit=0, quant_group=8, num_repeat=1, cache_mode=0, cache_layout=0, page_size=128
)
OUT_OF_RANGE = [
    ("num_layer", 0),
    ("num_layer", -3),
    ("layer_idx", -1),
    ("layer_idx", 1),
    ("quant_bit", 2),
    ("quant_bit", -8),
    ("quant_group", 0),
    ("num_repeat", 0),
    ("cache_mode", 2),
    ("cache_mode", -1),
    ("cache_layout", 4),
    ("cache_layout", -1),
    ("page_size", 0),
    ("page_size", -(2**63)),
]
RUNTIME = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])


def refusal_of(model: bytes) -> str:
    """The message with which making a session of the model fails."""
    with pytest.raises(Exception) as refusal:
        create_session(model, quiet_options())
    return str(refusal.value)


def one_call(setting: Setting) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs of a call of two sequences, and the in-out tensors."""
    random = np.random.default_rng(14)
    ragged = RaggedCache(random, [3, 2], setting.page_size if setting.cache_mode else None)
    memory = setting.memory(random, ragged.max_t)
    return setting.current(random, 4) | ragged.step(random, [0, 1], [3, 1]), memory.arrays


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_an_attribute_out_of_range(domain: str, name: str, value: int) -> None:
    """The message names the attribute and its value."""
    message = refusal_of(node_model(node_types(FLOAT, FLOAT), {name: value}, domain=domain))
    assert name in message and str(value) in message


def test_an_odd_quant_group_for_int4() -> None:
    """A group of packed nibbles has an even number of elements."""
    message = refusal_of(node_model(node_types(FLOAT, INT4, FLOAT), dict(quant_bit=4, quant_group=3)))
    assert "quant_group" in message and "3" in message


@pytest.mark.parametrize("value", [2.0, "2", [1, 1], [1.5]], ids=["float", "string", "ints", "floats"])
@pytest.mark.parametrize("name", DEFAULTS)
def test_an_attribute_of_a_wrong_type(name: str, value: object) -> None:
    """It is refused, never replaced by the default, and the message says what it should be."""
    message = refusal_of(node_model(node_types(FLOAT, FLOAT), {name: value}))
    assert name in message and "int" in message


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("quant_bit", [0, 4, 8])
@pytest.mark.parametrize("t3", [None, FLOAT, HALF], ids=lambda t: TYPE_NAMES.get(t, "no scale"))
@pytest.mark.parametrize(("t1", "t2"), list(product((FLOAT, HALF, INT8), (FLOAT, HALF, INT8, INT4))))
def test_types(t1: int, t2: int, t3: int | None, quant_bit: int, domain: str) -> None:
    """The legal combinations of types and quant_bit load; each other one is refused by its names."""
    model = node_model(node_types(t1, t2, t3), dict(quant_bit=quant_bit), domain=domain)
    if (t1, t2, t3, quant_bit) in LEGAL_TYPES:
        assert [output.name for output in create_session(model, quiet_options()).get_outputs()] == ["key", "value"]
        return
    message = refusal_of(model)
    if t3 is None and any((t1, t2, t, quant_bit) in LEGAL_TYPES for t in (FLOAT, HALF)):
        assert "scale" in message and str(quant_bit) in message
    else:
        for named in ("T1", "T2", TYPE_NAMES[t1], TYPE_NAMES[t2], "quant_bit", str(quant_bit)):
            assert named in message
        if t3 is not None:
            assert "T3" in message and TYPE_NAMES[t3] in message


@pytest.mark.parametrize(("key", "value"), [(a, b) for a in (FLOAT, HALF, INT8) for b in (FLOAT, HALF, INT8) if a != b])
def test_a_value_of_another_type_than_the_key(key: int, value: int) -> None:
    """Both are of T1: the message names the one that differs, its type, and the type it should have."""
    cache = INT8 if key == INT8 else FLOAT
    message = refusal_of(node_model(node_types(key, cache) | {"current_value": value}, {}))
    assert f"current_value is of type {TYPE_NAMES[value]}, expected {TYPE_NAMES[key]}" in message


@pytest.mark.parametrize("held", ["cache", "scale"])
def test_a_cache_that_is_an_initializer(held: str) -> None:
    """It would be the session's own state, which no caller can see: refused."""
    setting = Setting(HALF, INT8, HALF, quant_bit=8)
    _, arrays = one_call(setting)
    types = node_types(setting.t1, setting.t2, setting.t3)
    model = node_model(types, setting.attributes, initializers=(numpy_helper.from_array(arrays[held], held),))
    message = refusal_of(model)
    assert held in message and "initializer" in message


def test_a_legacy_page_table() -> None:
    """Paged mode with a rank-1 `cachestarts`, declared or fed, is a graph from before pages existed: refused."""
    setting = Setting(cache_mode=1, page_size=4)
    inputs, arrays = one_call(setting)
    inputs["cachestarts"] = np.arange(4)
    before = {name: array.copy() for name, array in arrays.items()}
    for shapes in ({}, {"cachestarts": ["slots"]}):
        model = node_model(node_types(FLOAT, FLOAT), setting.attributes, shapes=shapes)
        with pytest.raises(Exception) as refusal:
            call(create_session(model, quiet_options()), inputs | arrays)
        assert "cachestarts" in str(refusal.value) and "rank 1" in str(refusal.value)
        assert_same_arrays(arrays, before)


def test_absent_attributes_are_the_defaults() -> None:
    """A node without attributes does what one with each default written out does."""
    inputs, arrays = one_call(Setting())
    results = []
    for attributes in ({}, DEFAULTS):
        memory = {name: array.copy() for name, array in arrays.items()}
        model = node_model(node_types(FLOAT, FLOAT), attributes)
        results.append((call(session_of(model), inputs | memory), memory))
    (outputs, memory), (wanted_outputs, wanted_memory) = results
    assert_same_outputs([outputs], [wanted_outputs])
    assert_same_arrays(memory, wanted_memory)


@pytest.mark.parametrize(("quant_bit", "t2"), [(8, INT8), (4, INT4)])
def test_absent_quant_group_and_page_size_are_the_defaults(quant_bit: int, t2: int) -> None:
    """The defaults that the other attributes must switch on: groups of 8, pages of 128."""
    setting = Setting(FLOAT, t2, FLOAT, quant_bit=quant_bit, cache_mode=1)
    random = np.random.default_rng(15)
    ragged = RaggedCache(random, [300], setting.page_size)
    inputs = setting.current(random, 300) | ragged.step(random, [0], [300])
    memory = setting.memory(random, ragged.max_t)
    wanted_memory = memory.copy()
    wanted = setting.run(inputs, wanted_memory)
    model = node_model(node_types(FLOAT, t2, FLOAT), dict(quant_bit=quant_bit, cache_mode=1))
    assert_same_outputs([setting.run(inputs, memory, session_of(model))], [wanted])
    assert_same_arrays(memory.arrays, wanted_memory.arrays)


@pytest.mark.parametrize(
    "setting", [Setting(num_repeat=2), Setting(HALF, INT8, FLOAT, quant_bit=8, cache_layout=3)], ids=str
)
def test_both_domains_are_one_operator(setting: Setting) -> None:
    """A graph of the older domain gets the same bits."""
    inputs, arrays = one_call(setting)
    results = []
    for domain in DOMAINS:
        memory = {name: array.copy() for name, array in arrays.items()}
        model = node_model(node_types(setting.t1, setting.t2, setting.t3), setting.attributes, domain=domain)
        results.append((call(session_of(model), inputs | memory), memory))
    assert_same_outputs([results[0][0]], [results[1][0]])
    assert_same_arrays(results[0][1], results[1][1])


def test_an_unneeded_scale_is_left_alone() -> None:
    """Without quantization a scale may be given, of any shape, and keeps its bytes."""
    inputs, arrays = one_call(Setting())
    scale = np.array([1.5, -2.5, np.inf], np.float16)
    before = scale.copy()
    model = node_model(node_types(FLOAT, FLOAT, HALF), {})
    key, _ = call(session_of(model), inputs | arrays | {"scale": scale})
    assert_same_bits("key", key, inputs["current_key"])
    assert_same_bits("scale", scale, before)


@pytest.mark.skipif(RUNTIME < (1, 24), reason="ONNX Runtime before 1.24 itself crashes on an empty-named last input")
def test_an_empty_named_scale_is_an_absent_one() -> None:
    """Exporters write "" for an optional input that is left out."""
    inputs, arrays = one_call(Setting())
    key, _ = call(session_of(node_model(node_types(FLOAT, FLOAT), {}, empty_scale=True)), inputs | arrays)
    assert_same_bits("key", key, inputs["current_key"])
    message = refusal_of(node_model(node_types(FLOAT, INT8), dict(quant_bit=8), empty_scale=True))
    assert "scale" in message


def test_a_refused_call_does_not_spoil_the_session() -> None:
    """After an error the same session serves the same caller, and the cache is as it was."""
    setting = Setting()
    inputs, arrays = one_call(setting)
    before = {name: array.copy() for name, array in arrays.items()}
    for wrong in (dict(start_pos=inputs["start_pos"] - 1), dict(cache=arrays["cache"][..., :8].copy())):
        with pytest.raises(Exception, match="|".join(wrong)):
            call(session_of(setting.model), inputs | arrays | wrong)
        assert_same_arrays(arrays, before)
    key, _ = call(session_of(setting.model), inputs | arrays)
    assert_same_bits("key", key, inputs["current_key"])


def test_the_library_registered_twice() -> None:
    """ONNX Runtime itself refuses that, and says which domain it knows already."""
    options = quiet_options()
    options.register_custom_ops_library(str(find_library()))
    with pytest.raises(Exception, match=r"(?i)domain already set"):
        create_session(Setting().model, options)


def test_sessions_and_options_of_their_own() -> None:
    """Any number of sessions register the library, and it outlives each of them."""
    inputs, arrays = one_call(Setting())
    for _ in range(3):
        session = create_session(Setting().model, quiet_options())
        key, _ = call(session, inputs | arrays)
        del session
        assert_same_bits("key", key, inputs["current_key"])


def test_index_tensors_are_int64() -> None:
    """ONNX Runtime checks that by the operator's signature; its message names the input and the type."""
    for name in ("seqstarts", "kvstarts", "cachestarts", "start_pos", "max_seqlen", "max_kvlen"):
        message = refusal_of(node_model(node_types(FLOAT, FLOAT) | {name: TensorProto.INT32}, {}))
        assert name in message and "int32" in message
