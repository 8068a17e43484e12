"""Nodes of the operators for ONNX graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kvcache_ops import _native
from kvcache_ops._errors import KvCacheError
from kvcache_ops._operators import FLOATS, Attributes, node_attributes
from kvcache_ops._optional import load

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


def _are_names(values: object) -> bool:
    """Whether this is a list of names, and not one name."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        return False
    return all(isinstance(value, str) for value in values)
