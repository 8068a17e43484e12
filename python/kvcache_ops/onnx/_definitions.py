"""The operators' schemas as `onnx` has them: checker, printer and onnxscript go by these."""

from __future__ import annotations

import atexit
from dataclasses import replace

from onnx import defs, helper

from kvcache_ops.ops._schemas import OPERATORS, Attribute, Operator, Tensor

_TYPES = {"float32": "tensor(float)", "float16": "tensor(float16)"}


def register() -> None:
    """Registers every operator in each of its domains, but for those that are registered already."""
    for operator in OPERATORS:
        for domain in operator.domains:
            if not defs.has(operator.name, operator.version, domain):
                defs.register_schema(_schema(operator, domain))
                # onnx 1.19 to 1.22 free a schema's Python function after the interpreter: a hang, or a crash.
                atexit.register(defs.deregister_schema, operator.name, operator.version, domain)


def scripted(operator: Operator, domain: str) -> defs.OpSchema:
    """The schema without attributes that have an input's name, which onnxscript refuses in one signature."""
    inputs = {tensor.name for tensor in operator.inputs}
    attributes = tuple(attribute for attribute in operator.attributes if attribute.name not in inputs)
    return _schema(replace(operator, attributes=attributes), domain)


def _schema(operator: Operator, domain: str) -> defs.OpSchema:
    return defs.OpSchema(
        operator.name,
        domain,
        operator.version,
        operator.text,
        inputs=[_parameter(tensor) for tensor in operator.inputs],
        outputs=[_parameter(tensor) for tensor in operator.outputs],
        type_constraints=[
            (name, [_type(element) for element in elements], f"{name}: {', '.join(elements)}")
            for name, elements in operator.types.items()
        ],
        attributes=[_attribute(attribute) for attribute in operator.attributes],
    )


def _parameter(tensor: Tensor) -> defs.OpSchema.FormalParameter:
    options = defs.OpSchema.FormalParameterOption
    shape = tensor.shape if isinstance(tensor.shape, str) else f"({', '.join(map(str, tensor.shape))})"
    return defs.OpSchema.FormalParameter(
        tensor.name,
        _type(tensor.type) if tensor.type in ("int64", "float32", "uint8") else tensor.type,
        f"{tensor.meaning}{' Written in place.' if tensor.in_out else ''} Shape: {shape}.",
        param_option=options.Optional if tensor.optional else options.Single,
    )


def _attribute(attribute: Attribute) -> defs.OpSchema.Attribute:
    if attribute.default is None:
        kind = defs.OpSchema.AttrType.INT
        return defs.OpSchema.Attribute(attribute.name, kind, attribute.meaning, required=True)
    default = helper.make_attribute(attribute.name, attribute.default)
    return defs.OpSchema.Attribute(attribute.name, default, attribute.meaning)


def _type(element: str) -> str:
    return _TYPES.get(element, f"tensor({element})")
