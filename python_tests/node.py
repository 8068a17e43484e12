"""A model of one `KeyValueCache` node, and one call of it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from graph import IR_VERSION, OPSET
from kvcache import DOMAIN, ELEMENT_TYPES, bind, create_session

INPUTS = (
    "current_key",
    "current_value",
    "seqstarts",
    "kvstarts",
    "cachestarts",
    "start_pos",
    "max_seqlen",
    "max_kvlen",
    "cache",
    "scale",
)


def node_types(t1: int, t2: int, t3: int | None = None) -> dict[str, int]:
    """The element type of each input, by name; without T3 there is no scale."""
    types = dict.fromkeys(INPUTS, TensorProto.INT64) | dict(current_key=t1, current_value=t1, cache=t2, scale=t3)
    return {name: element_type for name, element_type in types.items() if element_type is not None}


def node_model(
    types: dict[str, int],
    attributes: dict,
    *,
    domain: str = DOMAIN,
    shapes: dict[str, list] | None = None,
    initializers: tuple[TensorProto, ...] = (),
    empty_scale: bool = False,
) -> bytes:
    """The model; what `shapes` does not name has an open rank, so that every call reaches the operator."""
    shapes = shapes or {}
    held = {tensor.name for tensor in initializers}
    names = [name for name in INPUTS if name in types or name in held]
    node = helper.make_node(
        "KeyValueCache", names + [""] * empty_scale, ["key", "value"], name="cached", domain=domain, **attributes
    )
    inputs = [helper.make_tensor_value_info(name, types[name], shapes.get(name)) for name in names if name not in held]
    outputs = [helper.make_tensor_value_info(name, types["current_key"], shapes.get(name)) for name in ("key", "value")]
    graph = helper.make_graph([node], "node", inputs, outputs, list(initializers))
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets).SerializeToString()


@lru_cache(maxsize=64)
def session_of(model: bytes) -> onnxruntime.InferenceSession:
    """A session of the model, made once."""
    return create_session(model, quiet_options())


def quiet_options(threads: int = 1) -> onnxruntime.SessionOptions:
    """Options under which an expected error is not printed as well as raised; `threads` work inside an operator."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    return options


def bind_inputs(
    binding: onnxruntime.IOBinding, inputs: dict[str, np.ndarray], int4_shape: tuple[int, ...] | None = None
) -> None:
    """Binds the arrays' own memory. With `int4_shape` the cache is packed int4 of that shape."""
    for name, array in inputs.items():
        if name == "cache" and int4_shape is not None:
            bind(binding, name, array, TensorProto.INT4, int4_shape)
        else:
            bind(binding, name, array)


def call(
    session: onnxruntime.InferenceSession, inputs: dict[str, np.ndarray], int4_shape: tuple[int, ...] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Runs the node on the arrays' own memory: key and value."""
    binding = session.io_binding()
    bind_inputs(binding, inputs, int4_shape)
    binding.bind_output("key", "cpu")
    binding.bind_output("value", "cpu")
    session.run_with_iobinding(binding)
    key, value = binding.copy_outputs_to_cpu()
    return key, value


def types_of(inputs: dict[str, np.ndarray], int4_cache: bool) -> dict[str, int]:
    """The element types of a call's arrays."""
    return {
        name: TensorProto.INT4 if name == "cache" and int4_cache else ELEMENT_TYPES[array.dtype]
        for name, array in inputs.items()
    }
