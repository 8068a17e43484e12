"""Models of one node, as ONNX has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kvcache_ops._optional import load
from kvcache_ops.ops._cache_spec import ONNX_TYPES
from kvcache_ops.ops._nodes import DOMAIN
from kvcache_ops.ops._schemas import BY_DOMAIN_AND_NAME, Operator

if TYPE_CHECKING:
    from onnx import ModelProto

IR_VERSION, OPSET = 10, 21
"""The opset and IR version that every supported ONNX Runtime reads."""

_NO_SHAPES: Mapping[str, Sequence[int | None] | None] = {}


def operator(op_type: str, inputs: Mapping[str, object]) -> Operator:
    """The operator of a call with these inputs: `seqstarts` are an input of dynamic batching alone."""
    return BY_DOMAIN_AND_NAME[DOMAIN if "seqstarts" in inputs else "opmx", op_type]


def node_model(
    of: Operator,
    attributes: Mapping[str, float],
    types: Mapping[str, str],
    *,
    domain: str,
    outputs: Sequence[str] | None = None,
    shapes: Mapping[str, Sequence[int | None] | None] = _NO_SHAPES,
    about: str = "",
    fill: bool = False,
) -> ModelProto:
    """A model of one node, with the node's inputs, of these types, and its outputs.

    outputs: their names, if it gives others than it always gives. What `shapes` does not name may have any rank. An
    input that is left out before one that is given has the empty name, or, with `fill`, is a constant without elements:
    ONNX Runtime before 1.24 crashes on the name.
    """
    helper = load("onnx.helper", "a model")
    given = of.required_outputs if outputs is None else outputs
    of_float32 = {tensor.name for tensor in of.outputs if tensor.type == "float32"}
    names = [tensor.name for tensor in of.inputs]
    while names[-1] not in types:
        names.pop()
    left_out = [name for name in names if name not in types]
    node = helper.make_node(
        of.name,
        [name if fill or name in types else "" for name in names],
        given,
        name="the node",
        domain=domain,
        **{a.name: attributes[a.name] for a in of.attributes if attributes.get(a.name, a.default) != a.default},
    )

    def value(name: str, element: str) -> object:
        return helper.make_tensor_value_info(name, ONNX_TYPES[element], shapes.get(name))

    graph = helper.make_graph(
        [node],
        "the graph",
        [value(name, types[name]) for name in names if name in types],
        # The others have the type of the first input, which is never left out.
        [value(name, "float32" if name in of_float32 else types[names[0]]) for name in given],
        [helper.make_tensor(name, ONNX_TYPES["float16"], [0], []) for name in left_out if fill],
        about,
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(domain, of.version)]
    options = {"ir_version": IR_VERSION, "opset_imports": opsets, "producer_name": "kvcache_ops"}
    model: ModelProto = helper.make_model(graph, **options)
    return model
