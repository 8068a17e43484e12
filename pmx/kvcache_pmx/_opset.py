"""Lifting a model to a later opset of ONNX's default domain."""

from __future__ import annotations

from math import prod

from kvcache_ops import KvCacheError
from onnx import GraphProto, ModelProto, TensorProto, helper, version_converter

# IR 8 is the first with model-local functions; IR 10 is what ONNX Runtime 1.20 reads.
LOWEST_IR, HIGHEST_IR = 8, 10
# A tensor beyond this many elements is a weight, not the axes or the shape that an operator's newer form may need.
_SMALL = 64


def opset_of(model: ModelProto) -> int:
    """The version of the default domain."""
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    return versions[0] if versions else 1


def lift(model: ModelProto, opset: int) -> None:
    """Changes the model's nodes to those of `opset`, unless it has that or a later one.

    Weights are left out of what is converted, so that neither their number nor where they are stored matters.
    """
    model.ir_version = min(max(model.ir_version, LOWEST_IR), HIGHEST_IR)
    if opset_of(model) >= opset:
        return
    lean = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    _copy_without_weights(model.graph, lean.graph)
    try:
        converted = version_converter.convert_version(lean, opset)
    except Exception as error:
        raise KvCacheError(f"the model cannot be lifted to opset {opset}: {error}", "opset") from error
    del model.graph.node[:]
    model.graph.node.extend(converted.graph.node)
    # What the newer forms need as tensors.
    known = {tensor.name for tensor in model.graph.initializer}
    model.graph.initializer.extend(t for t in converted.graph.initializer if t.name not in known)
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = opset


def _copy_without_weights(graph: GraphProto, lean: GraphProto) -> None:
    """The graph with its weights as graph inputs of the same types and shapes."""
    lean.name = graph.name
    lean.node.extend(graph.node)
    lean.input.extend(graph.input)
    lean.output.extend(graph.output)
    inputs = {value.name for value in graph.input}
    for tensor in graph.initializer:
        if prod(tensor.dims) <= _SMALL and tensor.data_location != TensorProto.EXTERNAL:
            lean.initializer.append(tensor)
        elif tensor.name not in inputs:
            lean.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
