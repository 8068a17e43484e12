"""The numbers in the weights of an export, checked in chunks where they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, TensorProto, helper

from kvcache_ops.models._graph_reader import Values, all_nodes
from kvcache_ops.models._weights import check_finite

_FLOATS: tuple[int, ...] = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
# What these operators read is no mask, whose -inf is meant.
_WEIGHTED = (
    "MatMul", "Gemm", "MatMulNBits", "Gather", "GatherBlockQuantized", "DequantizeLinear", "LayerNormalization",
    "SimplifiedLayerNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "RMSNormalization",
)  # fmt: skip


def check_values(graph: GraphProto, folder: Path, made: set[str]) -> None:
    """Refuses NaN in any float tensor of the graph, and infinity in weights.

    folder: where their files are. made: names of tensors that are not written yet.

    Raises KvCacheError "tensor_values".
    """
    values, weights = Values(graph, folder), set()
    for node in all_nodes(graph.node):
        if node.op_type in _WEIGHTED:
            weights.update(node.input)
    for tensor in graph.initializer:
        if tensor.data_type not in _FLOATS or tensor.name in made:
            continue
        array = _array(tensor, values, folder)
        check_finite(tensor.name, array, np.inf if tensor.name in weights else None)


def _array(tensor: TensorProto, values: Values, folder: Path) -> NDArray[Any]:
    """The elements of a tensor; of one in a file of its own they are not read yet."""
    if tensor.data_location != TensorProto.EXTERNAL or not all(tensor.dims):
        return values.array(tensor)
    where = {entry.key: entry.value for entry in tensor.external_data}
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    place, shape = int(where.get("offset", 0)), tuple(tensor.dims)
    return np.memmap(folder / where["location"], dtype, "r", place, shape)
