"""Nodes of the operators in ONNX graphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING

from kvcache_ops import _native
from kvcache_ops._errors import KvCacheError
from kvcache_ops._optional import load
from kvcache_ops.ops._operators import FLOATS, Attributes, node_attributes
from kvcache_ops.ops._schemas import BY_DOMAIN_AND_NAME

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

DOMAIN = "opmx.dynamic_batching"
"""The domain of current exports. Older exports have the same operators in "pmx.dynamic_batching"."""


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
    """Checks what ONNX Runtime does not tell the operators about their nodes in an ONNX model, also in functions.

    An attribute that the library does not know is one that it does not ask for: a library that is older than the model
    computes without it. And what a node writes must be an input of the graph. A value that another node gives, such as
    the Cast that a converter to float16 puts before `cache`, is a copy, in which all that is stored is lost.

    Needs the package onnx. Raises KvCacheError: "attribute_unknown" and "state_computed", which name all such nodes;
    "package_missing".
    """
    check_nodes(load("onnx", "check_model").load(path, load_external_data=False), path)


def check_nodes(model: ModelProto, path: str | PathLike[str]) -> None:
    """Checks a model that was read from `path` as `check_model` does."""
    unknown = []
    for node in all_nodes([*model.graph.node, *(node for function in model.functions for node in function.node)]):
        operator = BY_DOMAIN_AND_NAME.get((node.domain, node.op_type))
        known = {attribute.name for attribute in operator.attributes} if operator else set()
        names = [attribute.name for attribute in node.attribute if operator and attribute.name not in known]
        if names:
            unknown.append(f"{node.op_type} node {node.name!r} has {', '.join(names)}")
    if model.functions:
        model = load("onnx.inliner", "check_model").inline_local_functions(model)
    computed = list(_computed_states(model.graph, {}))
    problems = []
    if unknown:
        message = f"attributes that kvcache_ops {_native.__version__} does not know: {'; '.join(unknown)}"
        problems.append((message, "attribute_unknown"))
    if computed:
        message = f"states that are no inputs of the graph, so that what is stored is lost: {'; '.join(computed)}"
        problems.append((message, "state_computed"))
    if problems:
        raise KvCacheError(f"{path} has {'; and '.join(message for message, _ in problems)}", problems[0][1])


def _computed_states(graph: GraphProto, outside: Mapping[str, str], within: str = "the model") -> Iterator[str]:
    """What is written and yet no input of the model, in a graph and the graphs in it; `outside`: what gives a value.

    An input of the model is given by "". An initializer that is an input, too, is the session's unless it is fed.
    """
    givers = dict(outside)
    givers |= {value.name: "" if within == "the model" else f"an input of a graph in {within}" for value in graph.input}
    givers |= {tensor.name: "an initializer" for tensor in graph.initializer}
    for node in graph.node:
        giver = f"the output of {_called(node)}"
        if node.input:
            giver += f", whose inputs are {', '.join(filter(None, node.input))}"
        givers |= {name: giver for name in node.output if name}
    for node in graph.node:
        operator = BY_DOMAIN_AND_NAME.get((node.domain, node.op_type))
        static = any(attribute.name == "quant_type" and attribute.i == 2 for attribute in node.attribute)
        for tensor, value in zip(operator.inputs if operator else (), node.input):
            is_written = tensor.in_out and value and not (static and tensor.name == "scale")
            if is_written and (giver := givers.get(value, "a value that nothing gives")):
                yield f"{_called(node)} gets {tensor.name} from {value}, {giver}"
        for inner in graphs_in(node):
            yield from _computed_states(inner, givers, _called(node))


def _called(node: NodeProto) -> str:
    name = repr(node.name) if node.name else f"of {next(iter(node.output), '')}"
    return f"{node.op_type} node {name}"


def graphs_in(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs in a node's attributes, as the branches of an If."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """These nodes, and the nodes of the graphs in them."""
    for node in nodes:
        yield node
        for graph in graphs_in(node):
            yield from all_nodes(graph.node)


def _are_names(values: object) -> bool:
    """Whether this is a list of names, and not one name."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        return False
    return all(isinstance(value, str) for value in values)
