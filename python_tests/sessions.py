"""Models of one node, sessions of the library under test, and runs through a binding."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import kvcache_ops
import numpy as np
import onnxruntime
import pytest
from kvcache_ops import Cache
from onnx import ModelProto, NodeProto, TensorProto, helper

from compare import Arrays

OPSET = 21
IR_VERSION = 10  # what ONNX Runtime 1.20 reads
RUNTIME = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])


def find_library() -> Path:
    """The operator library of `kvcache_ops`, or another build of it that `KVCACHE_ORT_LIB` names."""
    library = Path(os.environ.get("KVCACHE_ORT_LIB") or kvcache_ops.library_path())
    if not library.is_file():
        raise FileNotFoundError(f"no file at {library}, where KVCACHE_ORT_LIB names the operator library")
    return library


def quiet_options(threads: int = 1) -> onnxruntime.SessionOptions:
    """Options under which an expected error is not printed as well as raised; `threads` work inside an operator."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # tests share the processors
    return options


def create_session(
    model: bytes | ModelProto | Path, options: onnxruntime.SessionOptions | None = None
) -> onnxruntime.InferenceSession:
    """A session on the CPU that knows the operators; `options` are `quiet_options()` unless they are given."""
    options = options or quiet_options()
    options.register_custom_ops_library(str(find_library()))
    model = str(model) if isinstance(model, Path) else model if isinstance(model, bytes) else model.SerializeToString()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


# A session of the model, made once.
session_of = lru_cache(maxsize=64)(create_session)


def refusal_of(model: bytes) -> str:
    """The message with which a session of the model is refused."""
    with pytest.raises(Exception) as refusal:
        create_session(model)
    return str(refusal.value)


def model_of(
    node: NodeProto,
    types: dict[str, int],
    *,
    shapes: dict[str, Any] | None = None,
    initializers: Iterable[TensorProto] = (),
    opset: int = OPSET,
    ir_version: int = IR_VERSION,
) -> ModelProto:
    """The model of a node, whose inputs are the graph's unless they are initializers.

    A tensor that `types` does not name has a type for the runtime to infer; one without an entry in `shapes` has an
    open rank, so that every call reaches the operator.
    """

    def value(name: str) -> Any:
        if name not in types:
            return helper.make_empty_tensor_value_info(name)
        return helper.make_tensor_value_info(name, types[name], (shapes or {}).get(name))

    held = {tensor.name: tensor for tensor in initializers}
    inputs = [value(name) for name in node.input if name and name not in held]
    graph = helper.make_graph([node], "node", inputs, [value(name) for name in node.output], held.values())
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(node.domain, 1)]
    return helper.make_model(graph, ir_version=ir_version, opset_imports=opsets)


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """The node's attributes, by name."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def element_type(array: np.ndarray) -> int:
    """ONNX's number of the array's type."""
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def bind_address(binding: onnxruntime.IOBinding, name: str, array: np.ndarray) -> None:
    """Binds an input by its type, shape and address."""
    binding.bind_input(name, "cpu", 0, element_type(array), array.shape, array.ctypes.data)


def run_node(
    session: onnxruntime.InferenceSession,
    inputs: Arrays,
    memory: Cache | None = None,
    *,
    outputs: Arrays | None = None,
    bind: Callable[[onnxruntime.IOBinding, str, Any], None] = onnxruntime.IOBinding.bind_cpu_input,
) -> list[np.ndarray]:
    """Runs the model on the arrays' own memory: its outputs, which are written into `outputs` if these are given."""
    binding = session.io_binding()
    for name, array in inputs.items():
        bind(binding, name, array)
    if memory is not None:
        memory.bind(binding)
    for name in (output.name for output in session.get_outputs()):
        if outputs is None:
            binding.bind_output(name, "cpu")
        else:
            array = outputs[name]
            binding.bind_output(name, "cpu", 0, element_type(array), array.shape, array.ctypes.data)
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu() if outputs is None else list(outputs.values())
