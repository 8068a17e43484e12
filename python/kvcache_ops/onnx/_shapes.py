"""Shape inference: the shapes in the operators' schemas, with what is known of a node's inputs put in."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

from onnx import AttributeProto, TensorProto, TypeProto

from kvcache_ops._schemas import Dimensions, Operator

if TYPE_CHECKING:
    from onnx.shape_inference import InferenceContext

# A dimension as TensorShapeProto has it: a length, a name, or not known.
_Dimension = int | str | None


def inference(operator: Operator) -> Callable[[InferenceContext], None]:
    """The inference function of the operator. It never raises: what cannot be known stays open.

    onnx hands an exception of such a function to anyone who infers shapes, also where it is asked not to be strict.
    """

    def infer(context: InferenceContext) -> None:
        known = _known(operator, context)
        for index, output in enumerate(operator.outputs):
            if index >= context.get_num_outputs():
                return  # the others are left out
            element = next((i for i, tensor in enumerate(operator.inputs) if tensor.type == output.type), None)
            given = None if element is None else _tensor_type(context, element)
            element_type = TensorProto.FLOAT if output.type == "float32" else given and given.elem_type
            if element_type:
                context.set_output_type(index, _type(element_type, output.shape, known))

    def quietly(context: InferenceContext) -> None:
        try:
            infer(context)
        except Exception:  # a malformed node is the checker's to name
            return

    return quietly


def _known(operator: Operator, context: InferenceContext) -> dict[str, _Dimension]:
    """What each symbol of the schema stands for in this node: dimensions of inputs, and integer attributes."""
    known: dict[str, _Dimension] = {}
    for attribute in operator.attributes:
        if isinstance(attribute.default, float):
            continue
        given = context.get_attribute(attribute.name)
        known[attribute.name] = given.i if given and given.type == AttributeProto.INT else attribute.default
    for index, tensor in enumerate(operator.inputs):
        given_type = _tensor_type(context, index)
        if given_type is None or not given_type.HasField("shape") or isinstance(tensor.shape, str):
            continue
        dims = given_type.shape.dim
        if len(dims) != len(tensor.shape):
            continue
        for symbol, dim in zip(tensor.shape, dims, strict=True):
            length = dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
            if known.get(str(symbol)) is None or isinstance(length, int):
                known[str(symbol)] = length
    return known


def _tensor_type(context: InferenceContext, index: int) -> TypeProto.Tensor | None:
    if index >= context.get_num_inputs():
        return None
    given = context.get_input_type(index)
    return given.tensor_type if given is not None and given.HasField("tensor_type") else None


def _type(element: int, shape: Dimensions, known: dict[str, _Dimension]) -> TypeProto:
    result = TypeProto()
    result.tensor_type.elem_type = element
    if isinstance(shape, str):
        return result
    dims = result.tensor_type.shape.dim
    for symbol in shape:
        length = _length(str(symbol), known)
        if isinstance(length, int):
            dims.add().dim_value = length
        elif length is not None:
            dims.add().dim_param = length
        else:
            dims.add()
    return result


def _length(symbol: str, known: dict[str, _Dimension]) -> _Dimension:
    """A symbol, a number, or a product of such."""
    factors = [int(factor) if factor.isdigit() else known.get(factor) for factor in symbol.split("*")]
    if len(factors) == 1:
        return factors[0]
    numbers = [factor for factor in factors if isinstance(factor, int)]
    if len(numbers) == len(factors):
        return prod(numbers)
    # A name times 1 is that name.
    names = [factor for factor in factors if not isinstance(factor, int)]
    return names[0] if len(names) == 1 and prod(numbers) == 1 else None
