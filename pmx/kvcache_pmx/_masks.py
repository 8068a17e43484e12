"""What exports give in place of inputs that they do not use: tensors without elements."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from kvcache_ops import KvCacheError
from onnx import GraphProto, ModelProto, NodeProto, TensorShapeProto, ValueInfoProto

from kvcache_pmx._call import Shapes
from kvcache_pmx._operators import DYNAMIC_DOMAINS

# Where each operator takes a mask, and where a scale.
_MASKS = {"ALiBiMask": 2, "MultiHeadAttention": 8, "MultiHeadCacheAttention": 12}
_SCALES = {"KeyValueCache": 9, "MultiHeadCacheAttention": 11}


def known_shapes(graph: GraphProto) -> dict[str, list[int | str | None]]:
    """The shapes of graph inputs, initializers and constants, by name."""
    shapes: dict[str, list[int | str | None]] = {}
    for value in graph.input:
        if value.type.tensor_type.HasField("shape"):
            shapes[value.name] = [_length(dim) for dim in value.type.tensor_type.shape.dim]
    for tensor in graph.initializer:
        shapes[tensor.name] = list(tensor.dims)
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                shapes[node.output[0]] = list(attribute.t.dims)
    return shapes


def without_absent(node: NodeProto, shapes: Shapes) -> NodeProto:
    """The node without masks and scales that have no elements, as far as they come last.

    Before a mask such a scale stays, which the library takes as none: ONNX Runtime 1.20 crashes on the empty name.
    """
    copy = NodeProto()
    copy.CopyFrom(node)
    optional = _optional(node)
    for index in reversed(range(len(node.input))):
        name = node.input[index]
        if name and not (index in optional and 0 in shapes.get(name, ())):
            break
        del copy.input[index]
    return copy


def open_masks(model: ModelProto, rank: int | None) -> None:
    """Gives masks that are graph inputs without elements the shape of a real mask, so that a caller can give one.

    Without `rank` it is 2 where the attention has no mask of its own (is_causal 0), and others remain as they are.
    """
    shapes = known_shapes(model.graph)
    empty = {value.name: value for value in model.graph.input if 0 in shapes.get(value.name, ())}
    masks = {node.input[index]: node for node, index in _masked(model.graph.node) if node.input[index] in empty}
    if rank is not None and not masks:
        raise KvCacheError(f"mask_rank is {rank}, but the model has no mask without elements", "mask")
    for name, node in masks.items():
        flags = {attribute.name: attribute.i for attribute in node.attribute}
        needed = node.op_type != "ALiBiMask" and not flags.get("is_causal", 1) and not flags.get("is_alibi", 0)
        if rank is not None or needed:
            _open(empty[name], rank or 2)


def _masked(nodes: Collection[NodeProto]) -> Iterator[tuple[NodeProto, int]]:
    for node in nodes:
        index = _MASKS.get(node.op_type)
        if node.domain in DYNAMIC_DOMAINS and index is not None and index < len(node.input):
            yield node, index


def _optional(node: NodeProto) -> list[int]:
    if node.domain not in DYNAMIC_DOMAINS:
        return []
    return [index for index in (_MASKS.get(node.op_type), _SCALES.get(node.op_type)) if index is not None]


def _open(value: ValueInfoProto, rank: int) -> None:
    del value.type.tensor_type.shape.dim[:]
    for name in ["num_heads", "total_seqlen", "mask_columns"][-rank:]:
        value.type.tensor_type.shape.dim.add().dim_param = name


def _length(dim: TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return str(dim.dim_param) if dim.HasField("dim_param") else None
