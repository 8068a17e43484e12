"""A graph that another program has written: which node computes a value, what it depends on, and which branch runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from kvcache_ops._errors import KvCacheError
from kvcache_ops.ops._nodes import all_nodes, graphs_in

REMEDY = (
    "export the model with `python -m onnxruntime_genai.models.builder -e cpu`, or build from its checkpoint, a GGUF "
    "file or a folder of safetensors"
)
"""What to do with a graph of another exporter."""


def unsupported(message: str) -> KvCacheError:
    """The refusal of a graph that cannot be rewritten."""
    return KvCacheError(message, "graph_unsupported")


def called(node: NodeProto) -> str:
    """A node in an error."""
    return f"{node.op_type} {node.name or next(iter(node.output), '')}"


def attributes(node: NodeProto) -> dict[str, Any]:
    """The values of a node's attributes by name; texts as str."""
    found = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in found.items()}


def shape_of(value: ValueInfoProto) -> list[int | None]:
    """The lengths of a value's axes, None for those that are not fixed."""
    return [dim.dim_value or None for dim in value.type.tensor_type.shape.dim]


class Values:
    """The values of a graph by their names."""

    def __init__(self, graph: GraphProto, folder: Path) -> None:
        self.graph, self._folder = graph, folder
        self.nodes = list(graph.node)
        self._makers = {name: place for place, node in enumerate(self.nodes) for name in node.output if name}
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.inputs = {value.name: value for value in graph.input if value.name not in self._initializers}

    def maker(self, name: str) -> NodeProto | None:
        """The node whose output this is."""
        place = self._makers.get(name)
        return None if place is None else self.nodes[place]

    def needed(self, names: Iterable[str]) -> tuple[set[int], set[str]]:
        """The indices of the nodes that compute these values, and the values needed for them that no node makes."""
        places: set[int] = set()
        leaves: set[str] = set()
        wanted = list(names)
        while wanted:
            name = wanted.pop()
            place = self._makers.get(name)
            if place is None:
                leaves.add(name)
            elif place not in places:
                places.add(place)
                wanted.extend(_reads(self.nodes[place]))
        return places, leaves

    def inputs_of(self, name: str) -> set[str]:
        """The inputs of the graph that a value depends on."""
        return self.needed([name])[1] & self.inputs.keys()

    def reader(self, name: str, places: set[int]) -> NodeProto:
        """The first of these nodes that reads a value."""
        found: NodeProto = next(node for place in sorted(places) if name in _reads(node := self.nodes[place]))
        return found

    def constant(self, name: str) -> TensorProto | None:
        """The tensor that a value has in every run, if the model contains it."""
        while (node := self.maker(name)) is not None and node.op_type == "Identity":
            name = node.input[0]
        if node is None:
            return self._initializers.get(name)
        return next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)

    def array(self, tensor: TensorProto) -> NDArray[Any]:
        """The elements of a tensor of the model."""
        whole = TensorProto()
        whole.CopyFrom(tensor)
        if tensor.data_location == TensorProto.EXTERNAL:  # onnx reads no file that has hard links, which `build` makes
            where = {entry.key: entry.value for entry in tensor.external_data}
            with (self._folder / where["location"]).open("rb") as data:
                data.seek(int(where.get("offset", 0)))
                whole.raw_data = data.read(bytes_of(tensor))
            whole.ClearField("external_data")
            whole.data_location = TensorProto.DEFAULT
        try:
            array: NDArray[Any] = numpy_helper.to_array(whole)
        except Exception as error:  # numpy's, for elements that are not as many as the dimensions say, or of no type
            raise KvCacheError(f"{tensor.name} is no tensor: {error}", "source_damaged") from error
        return array

    def only(self, keep: Iterable[str]) -> None:
        """Leaves what is needed for these values."""
        places, leaves = self.needed(keep)
        graph = self.graph
        kept = [self.nodes[place] for place in sorted(places)]
        tensors = [tensor for tensor in graph.initializer if tensor.name in leaves]
        inputs = [value for value in graph.input if value.name in leaves]
        for field, values in (("node", kept), ("initializer", tensors), ("input", inputs), ("value_info", [])):
            graph.ClearField(field)
            getattr(graph, field).extend(values)


def bytes_of(tensor: TensorProto) -> int:
    """The bytes of a tensor's elements."""
    try:
        kind = TensorProto.DataType.Name(tensor.data_type)
        bits = 4 if "INT4" in kind or "T4E" in kind else 2 if "INT2" in kind else 0
        bits = bits or 8 * np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).itemsize
    except (KeyError, ValueError) as error:
        raise KvCacheError(
            f"{tensor.name} has the type {tensor.data_type}, expected one of ONNX", "source_damaged"
        ) from error
    return int(prod(tensor.dims) * bits + 7) // 8


def _reads(node: NodeProto) -> Iterator[str]:
    """The values that a node reads, also in the graphs inside it, where no name is one of outside."""
    yield from filter(None, node.input)
    for graph in graphs_in(node):
        own = {value.name for value in (*graph.initializer, *graph.input)}
        own.update(name for inner in graph.node for name in inner.output)
        for inner in graph.node:
            yield from (name for name in _reads(inner) if name not in own)
        yield from (value.name for value in graph.output if value.name not in own)


def sort(graph: GraphProto) -> None:
    """Puts every node after those that it reads from, as ONNX requires; ONNX Runtime takes any order."""
    nodes = list(graph.node)
    for node in nodes:
        for inner in graphs_in(node):
            sort(inner)
    makers = {name: place for place, node in enumerate(nodes) for name in node.output}
    reads = {place: {makers[name] for name in _reads(node) if name in makers} for place, node in enumerate(nodes)}
    if all(other < place for place, others in reads.items() for other in others):
        return
    try:
        order = list(TopologicalSorter(reads).static_order())
    except CycleError as error:
        raise unsupported(f"{called(nodes[error.args[1][0]])} needs what it computes itself") from error
    del graph.node[:]
    graph.node.extend(nodes[place] for place in order)


def check_texts(graph: GraphProto) -> None:
    """Reads the names in a graph: protobuf says only then which are no text."""
    for node in all_nodes(graph.node):
        for text in (node.name, node.op_type, node.domain, *node.input, *node.output):
            if not isinstance(text, str):
                raise ValueError(f"{text!r} is no text")
    for value in (*all_tensors(graph), *graph.input, *graph.output, *graph.value_info):
        if not isinstance(value.name, str):
            raise ValueError(f"{value.name!r} is no text")


def all_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """The tensors of a graph, also in attributes and inner graphs."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            yield from attribute.tensors
        for inner in graphs_in(node):
            yield from all_tensors(inner)


def rename(graph: GraphProto, names: dict[str, str]) -> None:
    """Gives values other names, also in inner graphs."""
    for value in (*graph.initializer, *graph.input, *graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
    for node in all_nodes(graph.node):
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for inner in graphs_in(node):
            for value in (*inner.initializer, *inner.output):
                value.name = names.get(value.name, value.name)


class LengthChoice:
    """The `If`s of a graph whose condition is about how long a sequence is, as LongRoPE has them.

    feeds(name, length) gives what an input of the graph is when a sequence has that many tokens; None if it cannot say.
    """

    def __init__(
        self, model: ModelProto, values: Values, feeds: Callable[[ValueInfoProto, int], NDArray[Any] | None]
    ) -> None:
        self._model, self._values, self._feeds = model, values, feeds
        self._choices = [
            node
            for node in values.nodes
            if node.op_type == "If" and len(list(graphs_in(node))) == 2 and values.inputs_of(node.input[0])
        ]

    def at(self, length: int) -> tuple[bool, ...]:
        """Which branches run: the first ones, or the others."""
        return tuple(self._condition(node, length) for node in self._choices)

    def last_like_first(self, most: int) -> int:
        """The greatest length up to `most` that gives the branches of length 1."""
        first, low, high = self.at(1), 1, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.at(middle) == first else (low, middle - 1)
        return low

    def settle(self, length: int) -> None:
        """Replaces the nodes with their branches for this length."""
        branches = dict(zip((node.output[0] for node in self._choices), self.at(length)))
        graph, nodes = self._values.graph, []
        for node in self._values.nodes:
            if node.op_type != "If" or node.output[0] not in branches:
                nodes.append(node)
                continue
            branch = attributes(node)["then_branch" if branches[node.output[0]] else "else_branch"]
            graph.initializer.extend(branch.initializer)
            nodes.extend(branch.node)
            outputs = zip(branch.output, node.output)
            nodes.extend(helper.make_node("Identity", [value.name], [name]) for value, name in outputs)
        del graph.node[:]
        graph.node.extend(nodes)

    def _condition(self, node: NodeProto, length: int) -> bool:
        from onnx.reference import ReferenceEvaluator

        values, feeds = self._values, {}
        places, leaves = values.needed([node.input[0]])
        for name in sorted(leaves & values.inputs.keys()):
            fed = self._feeds(values.inputs[name], length)
            if fed is None:
                raise unsupported(f"{called(node)} depends on {name}, expected on the length of a sequence alone")
            feeds[name] = fed
        known = [tensor for name in leaves if (tensor := values.constant(name)) is not None]
        tensors = [numpy_helper.from_array(values.array(tensor), tensor.name) for tensor in known]
        condition = helper.make_tensor_value_info(node.input[0], TensorProto.BOOL, None)
        nodes = [values.nodes[place] for place in sorted(places)]
        graph = helper.make_graph(nodes, "condition", [values.inputs[name] for name in feeds], [condition], tensors)
        try:
            model = helper.make_model(graph, opset_imports=self._model.opset_import)
            [found] = ReferenceEvaluator(model).run(None, feeds)
        except Exception as error:  # of whatever operator
            raise unsupported(f"the condition of {called(node)} cannot be computed: {error}") from error
        return bool(np.all(found))
