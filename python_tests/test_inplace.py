"""The cache and the scale are written in the caller's own memory, however they are handed over."""

from __future__ import annotations

import ctypes

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

from compare import assert_same_arrays, assert_same_bits, assert_same_outputs
from graph import Graph
from kvcache import DOMAIN, ELEMENT_TYPES, bind, create_session
from layers import layers_model, run_layers, run_layers_one_by_one
from node import node_types, quiet_options, session_of
from ragged import RaggedCache
from setting import FLOAT, HALF, INT4, INT8, Memory, Setting

SETTINGS = [
    Setting(FLOAT, FLOAT, num_layer=2, layer_idx=1),
    Setting(HALF, HALF, cache_mode=1, page_size=3, cache_layout=2),
    Setting(INT8, INT8, cache_layout=1),
    Setting(HALF, INT8, HALF, quant_bit=8, cache_mode=1, page_size=2, cache_layout=3),
]
INT4_SETTING = Setting(HALF, INT4, FLOAT, quant_bit=4, num_layer=2, layer_idx=1, cache_mode=1, page_size=4)


class Example:
    """A call of two sequences and what it leads to: outputs and memory, from a call through a pointer binding."""

    def __init__(self, setting: Setting):
        random = np.random.default_rng(7)
        ragged = RaggedCache(random, [5, 4], setting.page_size if setting.cache_mode else None)
        self.setting = setting
        self.before = setting.memory(random, ragged.max_t)
        self.inputs = setting.current(random, 6) | ragged.step(random, [0, 1], [4, 2])
        self.expected = self.before.copy()
        self.key, self.value = setting.run(self.inputs, self.expected)
        assert (self.expected.cache != self.before.cache).any(), "the example writes something"

    @property
    def session(self) -> onnxruntime.InferenceSession:
        """The session of the setting."""
        return session_of(self.setting.model)

    def check(self, memory: Memory, outputs: list[np.ndarray]) -> None:
        """Outputs and memory are as expected."""
        for name, got, expected in zip(("key", "value"), outputs, (self.key, self.value)):
            assert_same_bits(name, got, expected)
        assert_same_arrays(memory.arrays, self.expected.arrays)


@pytest.fixture(params=SETTINGS, ids=str)
def example(request: pytest.FixtureRequest) -> Example:
    """An example of each setting that numpy has types for."""
    return Example(request.param)


def test_stored_values_are_where_the_specification_says() -> None:
    """The pointer binding itself, by hand: token t of sequence b of layer 1 is at slot cachestarts[b] + t."""
    example = Example(SETTINGS[0])
    cache, inputs = example.expected.cache, example.inputs
    slots = [start + t for start, count in zip(inputs["cachestarts"], (4, 2)) for t in range(count)]
    expected = example.before.cache.copy()
    expected[slots, 1, 0] = inputs["current_key"]
    expected[slots, 1, 1] = inputs["current_value"]
    assert_same_bits("cache", cache, expected)
    assert_same_bits("key", example.key, inputs["current_key"])
    assert_same_bits("value", example.value, inputs["current_value"])


def test_numpy_arrays_in_run(example: Example) -> None:
    """`session.run` writes a contiguous numpy array."""
    memory = example.before.copy()
    example.check(memory, example.session.run(["key", "value"], example.inputs | memory.arrays))


def test_ort_values(example: Example) -> None:
    """`run_with_ort_values` writes the array that an OrtValue was made from."""
    memory = example.before.copy()
    values = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy(array)
        for name, array in (example.inputs | memory.arrays).items()
    }
    outputs = example.session.run_with_ort_values(["key", "value"], values)
    example.check(memory, [output.numpy() for output in outputs])
    assert_same_bits("cache by its OrtValue", values["cache"].numpy(), example.expected.cache)


@pytest.mark.parametrize("way", ["bind_cpu_input", "bind_ortvalue_input", "bind_input"])
def test_io_binding(example: Example, way: str) -> None:
    """Every way of binding an input hands over the memory itself."""
    memory = example.before.copy()
    binding = example.session.io_binding()
    for name, array in (example.inputs | memory.arrays).items():
        if way == "bind_cpu_input":
            binding.bind_cpu_input(name, array)
        elif way == "bind_ortvalue_input":
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        else:
            bind(binding, name, array)
    binding.bind_output("key", "cpu")
    binding.bind_output("value", "cpu")
    example.session.run_with_iobinding(binding)
    example.check(memory, binding.copy_outputs_to_cpu())


def test_a_binding_serves_many_calls() -> None:
    """A cache bound once keeps what each call stores: the second call's keys begin with the first's."""
    setting = Setting(num_repeat=1)
    random = np.random.default_rng(8)
    ragged = RaggedCache(random, [6])
    memory = setting.memory(random, ragged.max_t)
    binding = session_of(setting.model).io_binding()
    bind(binding, "cache", memory.cache)
    stored = []
    for seqlen in (3, 1, 2):
        inputs = setting.current(random, seqlen) | ragged.step(random, [0], [seqlen])
        for name, array in inputs.items():
            bind(binding, name, array)
        binding.bind_output("key", "cpu")
        binding.bind_output("value", "cpu")
        session_of(setting.model).run_with_iobinding(binding)
        stored.append(inputs["current_key"])
        assert_same_bits("key", binding.copy_outputs_to_cpu()[0], np.concatenate(stored))


def test_int4_by_pointer() -> None:
    """Packed bytes are bound with INT4 and the shape in elements; `Example` does that. Low nibble first, sign kept."""
    setting = Setting(FLOAT, INT4, FLOAT, quant_bit=4, quant_group=8, num_heads=1, head_dim=8)
    random = np.random.default_rng(9)
    ragged = RaggedCache(random, [1])
    memory = setting.memory(random, ragged.max_t)
    current = np.array([[[7, -7, 1, -1, 0, 3, -4, 2]]], np.float32)  # the scale is 1
    inputs = dict(current_key=current, current_value=-current) | ragged.step(random, [0], [1])
    key, value = setting.run(inputs, memory)
    assert_same_bits("key", key, current)
    assert_same_bits("value", value, -current + np.float32(0))  # code 0 has no sign
    codes = np.concatenate([current.ravel(), -current.ravel()]).astype(np.int8).view(np.uint8) & 15
    slot = inputs["cachestarts"][0]
    assert_same_bits("bytes", memory.cache[slot * 8 : slot * 8 + 8], codes[::2] | codes[1::2] << 4)


def test_int4_by_ort_value() -> None:
    """An int4 OrtValue that ONNX Runtime allocated is filled and read through its `data_ptr`."""
    example = Example(INT4_SETTING)
    memory = example.before.copy()
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(memory.int4_shape, TensorProto.INT4)
    ctypes.memmove(value.data_ptr(), memory.cache.ctypes.data, memory.cache.nbytes)
    binding = example.session.io_binding()
    for name, array in (example.inputs | {"scale": memory.scale}).items():
        bind(binding, name, array)
    binding.bind_ortvalue_input("cache", value)
    binding.bind_output("key", "cpu")
    binding.bind_output("value", "cpu")
    example.session.run_with_iobinding(binding)
    ctypes.memmove(memory.cache.ctypes.data, value.data_ptr(), memory.cache.nbytes)
    example.check(memory, binding.copy_outputs_to_cpu())


def test_int4_in_a_plain_run() -> None:
    """`run` takes int4 as an OrtValue over a view of the logical shape, of which only the pointer is used."""
    example = Example(INT4_SETTING)
    memory = example.before.copy()
    view = np.lib.stride_tricks.as_strided(memory.cache, memory.int4_shape, [0] * 5)
    value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(view, TensorProto.INT4)
    outputs = example.session.run(["key", "value"], example.inputs | {"scale": memory.scale, "cache": value})
    example.check(memory, outputs)


def output_shapes(example: Example) -> dict[str, list[int]]:
    """The shapes of key and value."""
    return {"key": list(example.key.shape), "value": list(example.value.shape)}


def run_with_outputs(example: Example, memory: Memory, outputs: dict[str, np.ndarray]) -> None:
    """A call that writes its outputs into the arrays given."""
    binding = example.session.io_binding()
    for name, array in (example.inputs | memory.arrays).items():
        bind(binding, name, array)
    for name, array in outputs.items():
        binding.bind_output(name, "cpu", 0, ELEMENT_TYPES[array.dtype], array.shape, array.ctypes.data)
    example.session.run_with_iobinding(binding)


def test_outputs_bound_by_the_caller(example: Example) -> None:
    """key and value go into memory that the caller bound."""
    memory = example.before.copy()
    outputs = {name: np.zeros(shape, example.key.dtype) for name, shape in output_shapes(example).items()}
    run_with_outputs(example, memory, outputs)
    example.check(memory, list(outputs.values()))


@pytest.mark.parametrize("wrong", ["key", "value"])
def test_outputs_of_a_wrong_shape_leave_the_cache_alone(example: Example, wrong: str) -> None:
    """ONNX Runtime refuses an output of another shape when the operator asks for it; nothing is written by then."""
    memory = example.before.copy()
    shapes = output_shapes(example)
    shapes[wrong][0] += 1
    outputs = {name: np.zeros(shape, example.key.dtype) for name, shape in shapes.items()}
    with pytest.raises(Exception, match=r"(?i)shape"):
        run_with_outputs(example, memory, outputs)
    assert_same_arrays(memory.arrays, example.before.arrays)
    example.check(memory, example.session.run(["key", "value"], example.inputs | memory.arrays))


@pytest.mark.parametrize(
    "setting",
    [Setting(num_layer=3), Setting(HALF, INT8, FLOAT, quant_bit=8, num_layer=3, cache_layout=1)],
    ids=str,
)
def test_layers_share_one_cache(setting: Setting) -> None:
    """Three nodes of one model on one cache input write their layers, as three models of a node each do."""
    random = np.random.default_rng(10)
    ragged = RaggedCache(random, [4, 3])
    before = setting.memory(random, ragged.max_t)
    index = ragged.step(random, [0, 1], [4, 1])
    currents = [setting.current(random, 5) for _ in range(setting.num_layer)]

    memory, expected = before.copy(), before.copy()
    outputs = run_layers(create_session(layers_model(setting), quiet_options()), currents, index, memory)
    assert_same_outputs(outputs, run_layers_one_by_one(setting, currents, index, expected))
    assert_same_arrays(memory.arrays, expected.arrays)


def test_an_output_that_nobody_uses_is_stored_all_the_same() -> None:
    """A graph that gives out only the key still stores the values."""
    example = Example(SETTINGS[0])
    setting, memory = example.setting, example.before.copy()
    types = node_types(setting.t1, setting.t2, setting.t3)
    graph = Graph()
    inputs = [graph.input(name, element_type) for name, element_type in types.items()]
    key, _ = graph.nodes("KeyValueCache", 2, *inputs, domain=DOMAIN, **setting.attributes)
    graph.output("key", key, setting.t1)
    outputs = create_session(graph.serialize(), quiet_options()).run(None, example.inputs | memory.arrays)
    example.check(memory, outputs)


@pytest.mark.parametrize("name", ["current_key", "seqstarts", "cache", "scale"])
def test_the_runtime_refuses_a_tensor_of_another_type(name: str) -> None:
    """The operator takes the types from the model, and is never called with a tensor of another one."""
    example = Example(SETTINGS[3])
    memory = example.before.copy()
    binding = example.session.io_binding()
    for input_name, array in (example.inputs | memory.arrays).items():
        # A smaller type: the array has fewer bytes than the operator would use.
        bind(binding, input_name, array.view(np.uint8).astype(np.int8) if input_name == name != "cache" else array)
    if name == "cache":
        binding.bind_input(name, "cpu", 0, INT4, memory.cache.shape, memory.cache.ctypes.data)
    binding.bind_output("key", "cpu")
    binding.bind_output("value", "cpu")
    with pytest.raises(Exception, match=r"(?i)unexpected input data type"):
        example.session.run_with_iobinding(binding)
    assert_same_arrays(memory.arrays, example.before.arrays)
