"""A model of one node of the library's operators, and one call of it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import onnx
import onnxruntime
import pytest
from kvcache_ops import _native
from ml_dtypes import bfloat16, float8_e4m3fn
from onnx import TensorProto, helper, numpy_helper

from compare import Arrays
from graph import IR_VERSION, OPSET
from kvcache import DOMAIN, create_session
from kvcache import ELEMENT_TYPES as OF_NUMPY

# Of the package ml_dtypes; ONNX Runtime takes no such arrays.
OF_ML_DTYPES = {np.dtype(bfloat16): TensorProto.BFLOAT16, np.dtype(float8_e4m3fn): TensorProto.FLOAT8E4M3FN}
ELEMENT_TYPES = OF_NUMPY | OF_ML_DTYPES
RUNTIME = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
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


def node_types(t1: int, t2: int, t3: int | None = None) -> dict[str, int]:
    """The element type of each input of `KeyValueCache`, by name; without T3 there is no scale."""
    types = dict.fromkeys(INPUTS, TensorProto.INT64) | dict(current_key=t1, current_value=t1, cache=t2, scale=t3)
    return {name: element_type for name, element_type in types.items() if element_type is not None}


def types_for(operator: str, **changed: int) -> dict[str, int]:
    """The types of a float32 node's required inputs, some of them changed."""
    rows = ("query", "key", "value", "current_key", "current_value", "cache")
    required = [name for name in OPERATORS[operator][0] if name not in ("scale", "attn_mask")]
    return {name: TensorProto.FLOAT if name in rows else TensorProto.INT64 for name in required} | changed


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
    """The model; what `shapes` does not name has an open rank, so that every call reaches the operator."""
    shapes = shapes or {}
    signature, results = OPERATORS[operator]
    if domain in STATIC_DOMAINS:
        signature = STATIC_INPUTS
    given = types.keys() | {tensor.name for tensor in initializers}
    last = max(index for index, name in enumerate(signature) if name in given)
    if RUNTIME < (1, 24):  # these crash on an empty name, so what is left out in the middle has no elements
        left_out = (name for name in signature[:last] if name not in given)
        initializers += tuple(numpy_helper.from_array(np.zeros(0, np.float16), name) for name in left_out)
    held = {tensor.name for tensor in initializers}
    names = [name if name in types or name in held else "" for name in signature[: last + 1]]
    node = helper.make_node(
        operator, names + [""] * empty_scale, list(results), name="cached", domain=domain, **attributes
    )
    fed = [name for name in names if name and name not in held]
    inputs = [helper.make_tensor_value_info(name, types[name], shapes.get(name)) for name in fed]
    outputs = [helper.make_tensor_value_info(name, types[names[0]], shapes.get(name)) for name in results]
    graph = helper.make_graph([node], "node", inputs, outputs, list(initializers))
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets).SerializeToString()


def with_mass(model: bytes) -> bytes:
    """The model of an attention operator that also gives the attention's mass."""
    changed = onnx.load_from_string(model)
    changed.graph.node[0].output.append("attention_mass")
    changed.graph.output.append(helper.make_tensor_value_info("attention_mass", TensorProto.FLOAT, None))
    return changed.SerializeToString()


@lru_cache(maxsize=64)
def session_of(model: bytes) -> onnxruntime.InferenceSession:
    """A session of the model, made once."""
    return create_session(model, quiet_options())


def refusal_of(model: bytes) -> str:
    """The message with which a session of the model is refused."""
    with pytest.raises(Exception) as refusal:
        create_session(model, quiet_options())
    return str(refusal.value)


def quiet_options(threads: int = 1) -> onnxruntime.SessionOptions:
    """Options under which an expected error is not printed as well as raised; `threads` work inside an operator."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # tests share the processors
    return options


def run_node(
    session: onnxruntime.InferenceSession, inputs: Arrays, int4_shape: tuple[int, ...] | None = None
) -> list[np.ndarray]:
    """Runs the model on the arrays' own memory: its outputs. With `int4_shape` the cache is packed int4."""
    binding = session.io_binding()
    for name, array in inputs.items():
        if name == "cache" and int4_shape is not None:
            binding.bind_input(name, "cpu", 0, TensorProto.INT4, int4_shape, array.ctypes.data)
        else:
            binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name, "cpu")
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()


def types_of(inputs: Arrays, int4_cache: bool) -> dict[str, int]:
    """The element types of a call's arrays."""
    return {
        name: TensorProto.INT4 if name == "cache" and int4_cache else ELEMENT_TYPES[array.dtype]
        for name, array in inputs.items()
    }
