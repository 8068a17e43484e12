"""The cache and the scale are written in the caller's own memory, however they are handed over."""

from __future__ import annotations

import ctypes

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnxruntime import IOBinding, OrtValue

from compare import assert_same_arrays, assert_same_bits
from one_node import Example, arrays_of, copy_of, node
from sessions import bind_address, run_node, session_of

pytestmark = pytest.mark.runtime

NODES = [
    node(num_layers=2, layer_idx=1),
    node("int8", "int8", cache_layout=1),
    node("float16", quant_bit=8, cache_mode=1, page_size=2, cache_layout=3),
]
PAGES = dict(cache_mode=1, page_size=4)
INT4_NODE = node("float16", "int4", "float32", quant_bit=4, num_layers=2, layer_idx=1, **PAGES)


@pytest.fixture(params=NODES, ids=str)
def example(request: pytest.FixtureRequest) -> Example:
    """A call of two sequences, of each setting that numpy has types for."""
    return Example(request.param, [4, 2])


@pytest.mark.parametrize("way", ["run", "run_with_ort_values", "bind_cpu_input", "bind_ortvalue_input", "bind_input"])
def test_every_way_hands_over_the_memory_itself(example: Example, way: str) -> None:
    """Contiguous numpy arrays, OrtValues that were made from them, and every way of binding an input."""
    memory, session = copy_of(example.before), session_of(example.node.model())
    arrays = example.inputs | arrays_of(memory)
    if way == "run":
        outputs = session.run(["key", "value"], arrays)
    elif way == "run_with_ort_values":
        values = {name: OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
        outputs = [output.numpy() for output in session.run_with_ort_values(["key", "value"], values)]
        assert_same_bits("cache by its OrtValue", values["cache"].numpy(), example.expected.cache)
    else:
        ways = {
            "bind_cpu_input": IOBinding.bind_cpu_input,
            "bind_ortvalue_input": lambda self, name, array: self.bind_ortvalue_input(
                name, OrtValue.ortvalue_from_numpy(array)
            ),
            "bind_input": bind_address,
        }
        outputs = run_node(session, arrays, bind=ways[way])
    example.check(outputs, memory)


def test_int4_by_ort_value() -> None:
    """ONNX Runtime's own int4 memory is filled and read through its `data_ptr`; a plain `run` takes an OrtValue over a
    view of the logical shape, and uses only its pointer."""
    example = Example(INT4_NODE, [4, 2])
    memory = copy_of(example.before)
    value = OrtValue.ortvalue_from_shape_and_type(memory.spec.cache_shape, TensorProto.INT4)
    ctypes.memmove(value.data_ptr(), memory.cache.ctypes.data, memory.cache.nbytes)
    values = {
        name: OrtValue.ortvalue_from_numpy(array) for name, array in (example.inputs | {"scale": memory.scale}).items()
    }
    outputs = run_node(session_of(INT4_NODE.model()), values | {"cache": value}, bind=IOBinding.bind_ortvalue_input)
    ctypes.memmove(memory.cache.ctypes.data, value.data_ptr(), memory.cache.nbytes)
    example.check(outputs, memory)

    memory = copy_of(example.before)
    view = np.lib.stride_tricks.as_strided(memory.cache, memory.spec.cache_shape, [0] * 5)
    value = OrtValue.ortvalue_from_numpy_with_onnx_type(view, TensorProto.INT4)
    feeds = example.inputs | {"scale": memory.scale, "cache": value}
    example.check(session_of(INT4_NODE.model()).run(["key", "value"], feeds), memory)


def test_outputs_bound_by_the_caller(example: Example) -> None:
    """key and value go into memory that the caller bound; one of a wrong shape is refused, and nothing is written."""
    memory, session = copy_of(example.before), session_of(example.node.model())
    arrays = example.inputs | arrays_of(memory)
    for wrong in ("key", "value"):
        shapes = {name: list(array.shape) for name, array in zip(("key", "value"), example.outputs)}
        shapes[wrong][0] += 1
        wrong_outputs = {name: np.zeros(x, example.outputs[0].dtype) for name, x in shapes.items()}
        with pytest.raises(Exception, match=r"(?i)shape"):
            run_node(session, arrays, outputs=wrong_outputs)
        assert_same_arrays(arrays_of(memory), arrays_of(example.before))
    outputs = {name: np.zeros_like(array) for name, array in zip(("key", "value"), example.outputs)}
    example.check(run_node(session, arrays, outputs=outputs), memory)


def test_an_output_that_nobody_uses_is_stored_all_the_same() -> None:
    """A graph that gives out only the key still stores the values."""
    example = Example(NODES[0], [4, 2])
    model, memory = onnx.load_from_string(example.node.model()), copy_of(example.before)
    del model.graph.output[1]
    [got] = session_of(model.SerializeToString()).run(None, example.inputs | arrays_of(memory))
    example.check([got, example.outputs[1]], memory)
