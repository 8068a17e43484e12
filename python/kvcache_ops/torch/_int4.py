"""Exported graphs with int4 caches: torch has packed bytes in the place of ONNX's type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx


def int4_inputs(model: onnx.ModelProto, names: Sequence[str] = ("cache",)) -> None:
    """Makes graph inputs that were exported as packed uint8 what they hold: INT4, twice as many in the last axis.

    The memory stays the same: two elements in a byte, the first in the low nibble.

    Raises ValueError for a name that is no graph input of uint8.
    """
    from onnx import TensorProto

    inputs = {value.name: value.type.tensor_type for value in model.graph.input}
    for name in names:
        if name not in inputs or inputs[name].elem_type != TensorProto.UINT8:
            bytes_ = [name for name, tensor in inputs.items() if tensor.elem_type == TensorProto.UINT8]
            raise ValueError(f"{name!r} is no graph input of uint8, expected one of {bytes_}")
    for name in names:
        inputs[name].elem_type = TensorProto.INT4
        last = inputs[name].shape.dim[-1]
        if last.HasField("dim_value"):
            last.dim_value *= 2
        else:
            last.Clear()
