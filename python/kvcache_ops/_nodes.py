"""Nodes of the operators in ONNX graphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING

from kvcache_ops import _native
from kvcache_ops._errors import KvCacheError
from kvcache_ops._operators import FLOATS, Attributes, node_attributes
from kvcache_ops._optional import load
from kvcache_ops._schemas import BY_DOMAIN_AND_NAME

if TYPE_CHECKING:
    from onnx import NodeProto

DOMAIN = "opmx.dynamic_batching"
"""The domain of current exports. That of older ones, "pmx.dynamic_batching", has the same operators."""


def make_node(
    op_type: str,
    inputs: Mapping[str, str] | Sequence[str],
    outputs: Sequence[str],
    attributes: Attributes | None = None,
    *,
    domain: str = DOMAIN,
    name: str = "",
    **more: float,
) -> NodeProto:
    """A node of an ONNX graph, checked: "KeyValueCache", "MultiHeadAttention" or "MultiHeadCacheAttention".

        make_node("KeyValueCache", {"current_key": "k", "current_value": "v", "seqstarts": "seqstarts", ...},
                  ["key", "value"], spec, layer_idx=3)

    inputs: the graph's values by the operator's names of its inputs, or in its order, "" for what is left out.
    outputs: names for key and value, or for attn_output and perhaps attention_mass. attributes: by name, or the
    CacheSpec of the cache; more: further ones, as layer_idx, num_repeat, num_heads, scale. `cache` must be an
    input of the graph, and `scale`, too, unless it is only read (`quant_type` 2).

    Needs the package onnx. Raises KvCacheError: "package_missing", "operator_unknown", "domain_unknown",
    "input_unknown", "input_missing", "scale_missing", "output_count", "attribute_unknown", "attribute_missing",
    "attribute_type", "attribute_out_of_range".
    """
    helper = load("onnx.helper", "make_node")
    names = _native.input_names(op_type)
    if domain not in _native.domains():
        expected = ", ".join(_native.domains())
        raise KvCacheError(f"domain is {domain!r}, expected one of {expected}", "domain_unknown")
    if not isinstance(inputs, Mapping):
        if not _are_names(inputs) or len(inputs) > len(names):
            message = f"{op_type} gets inputs {inputs!r}, expected names for at most {len(names)}: {', '.join(names)}"
            raise KvCacheError(message, "input_unknown")
        inputs = dict(zip(names, inputs))
    elif not _are_names(list(inputs.values())):
        raise KvCacheError(f"{op_type} gets inputs {inputs!r}, expected names by names", "input_unknown")
    given = {input_name: value for input_name, value in inputs.items() if value}
    chosen = node_attributes(op_type, attributes, more)
    _native.check_node(op_type, chosen, list(given))
    results = _native.output_names(op_type)
    optional = op_type != "KeyValueCache"  # attention_mass
    if not _are_names(outputs) or not len(results) <= len(outputs) <= len(results) + optional:
        message = f"{op_type} gets outputs {outputs!r}, expected names for {', '.join(results)}"
        raise KvCacheError(message, "output_count")
    values = [given.get(input_name, "") for input_name in names]
    while not values[-1]:  # a runtime before 1.24 does not take an empty name at the end
        values.pop()
    chosen |= {attribute: float(chosen[attribute]) for attribute in FLOATS & chosen.keys()}
    node: NodeProto = helper.make_node(op_type, values, list(outputs), name=name, domain=domain, **chosen)
    return node


def check_model(path: str | PathLike[str]) -> None:
    """Checks that the library knows every attribute of its operators' nodes in an ONNX model, also in functions.

    ONNX Runtime does not tell an operator of an attribute that it does not ask for: a library that is older than the
    model computes without it.

    Needs the package onnx. Raises KvCacheError: "attribute_unknown", which names all such nodes; "package_missing".
    """
    model = load("onnx", "check_model").load(path, load_external_data=False)
    unknown = []
    for node in _nodes_in([*model.graph.node, *(node for function in model.functions for node in function.node)]):
        operator = BY_DOMAIN_AND_NAME.get((node.domain, node.op_type))
        known = {attribute.name for attribute in operator.attributes} if operator else set()
        names = [attribute.name for attribute in node.attribute if operator and attribute.name not in known]
        if names:
            unknown.append(f"{node.op_type} node {node.name!r} has {', '.join(names)}")
    if unknown:
        message = f"{path} has attributes that kvcache_ops {_native.__version__} does not know: {'; '.join(unknown)}"
        raise KvCacheError(message, "attribute_unknown")


def _nodes_in(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """These nodes, and those in their graphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _nodes_in(graph.node)


def _are_names(values: object) -> bool:
    """Whether this is a list of names, and not one name."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        return False
    return all(isinstance(value, str) for value in values)
