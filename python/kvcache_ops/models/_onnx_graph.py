"""The graph of an ONNX export, rewritten over our cache.

It gets our attention and our products with quantized matrices, whose weights are written anew, and loses its pasts,
presents and masks; other weights stay where they are:

    find the attention nodes; settle what depends on a sequence's length
    write ours in their place; gather the rows of logits before the head; write products
    keep what the logits need; refuse what then still needs an input that is gone
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from kvcache_ops._errors import KvCacheError
from kvcache_ops.models._graph_reader import REMEDY, LengthChoice, Values, called, rename, unsupported
from kvcache_ops.models._graph_writer import MICROSOFT
from kvcache_ops.models._layer_groups import INDICES, LayerGroups
from kvcache_ops.models._onnx_attention import INPUTS, Attention, Replacement
from kvcache_ops.models._onnx_products import Products
from kvcache_ops.ops._cache_spec import T1, CacheSpec
from kvcache_ops.ops._nodes import DOMAIN, all_nodes
from kvcache_ops.ops._quantized import OWN_DOMAIN

_OURS = ("token_ids", "positions", *INDICES, "logit_rows", "cache", "scale")
_OF_A_GROUP = re.compile(r"(cachestarts|cache|scale)\.\d+")  # as LayerGroups names them
_LAST = "num_logits_to_keep"  # an input that says of how many last tokens the logits are; 0 are all
_INPUTS = ("input_ids", "attention_mask", "position_ids", "block_table", "logits_indices", _LAST)
# What the head's result may go through: each logit by itself.
_ELEMENTWISE = ("Add", "Cast", "Clip", "Div", "Identity", "Max", "Min", "Mul", "Neg", "Sub", "Tanh", "Where")


class ExportGraph:
    """The graph in a file, checked by `settle`, `find_attention` and `element_type`, in this order, then rewritten.

    inputs, outputs: the names that its inputs and outputs have instead of the usual ones. `attentions` has a node
    for each layer; `products` are those that `rewrite` has replaced.
    """

    def __init__(self, file: Path, model: ModelProto, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        self.model, self._file = model, file
        self._names = self._renamed(inputs, outputs.get("logits", "logits"))
        self.values = Values(model.graph, file.parent)
        self.attentions: list[Attention] = []
        self.products: Products | None = None

    @property
    def logits(self) -> ValueInfoProto:
        """The output that has the logits."""
        [found] = (value for value in self.model.graph.output if value.name == self._names["logits"])
        output: ValueInfoProto = found
        return output

    def _renamed(self, inputs: dict[str, Any], wanted: Any) -> dict[str, str]:
        """Frees the names that the new graph's inputs and outputs have; what the export's are called now."""
        graph = self.model.graph
        if all(value.name != wanted for value in graph.output):
            raise unsupported(f"{self._file} has no output {wanted}: {REMEDY}")
        every = {name for node in all_nodes(graph.node) for name in (*node.input, *node.output)}
        taken = [name for name in every if _OF_A_GROUP.fullmatch(name)]
        names = {name: f"export/{name}" for name in (*_OURS, *taken, "attn_mask", "logits", wanted)}
        rename(graph, names)
        found = {kind: str(inputs.get(kind, kind)) for kind in _INPUTS} | {"logits": str(wanted)}
        return {kind: names.get(name, name) for kind, name in found.items()}

    def settle(self, declared: int, block: int, rope: str, context: int | None) -> tuple[int, str]:
        """Replaces `If`s by length with the branch for the context.

        declared: the context of the model's configuration. block: tokens of a page. Returns the greatest context, and
        which rotary factors were chosen; an empty text where there is no choice.
        """
        choice = LengthChoice(self.model, self.values, partial(_fed, self._names, block))
        first, last = choice.at(1), choice.at(declared)
        if first == last and rope != "auto":
            raise KvCacheError(f"rope is {rope!r}, expected auto: the graph has no choice by length", "option_unknown")
        wanted = choice.at(min(context or declared, declared))
        short = first != last and (rope == "short" or (rope == "auto" and wanted == first))
        most, chosen = declared, ""
        if first != last:
            limit = choice.last_like_first(declared)
            most = limit if short else declared
            kind, side = ("short", "up to") if short else ("long", "above")
            chosen = f"the {kind} rotary factors, which are for contexts {side} {limit}"
        choice.settle(1 if short else declared)
        self.values = Values(self.model.graph, self._file.parent)
        return most, chosen

    def find_attention(self) -> None:
        """Finds the attention nodes, one for a layer, all of one size."""
        values = self.values
        places, _ = values.needed([self._names["logits"]])
        live = [values.nodes[place] for place in sorted(places)]
        every = [node for node in all_nodes(live) if "Attention" in node.op_type]
        kinds = {node.op_type for node in every}
        if len(kinds) > 1:
            raise unsupported(f"the graph has {' and '.join(sorted(kinds))}, expected one kind of attention: {REMEDY}")
        outside = sum("Attention" in node.op_type for node in live)
        if not kinds & INPUTS.keys() or outside != len(every):
            got = next(iter(kinds), "by MatMul and Softmax, or there is none")
            got += " in an inner graph" if outside != len(every) else ""
            message = f"attention of {self._file} is {got}, expected {' or '.join(INPUTS)} of com.microsoft"
            raise unsupported(f"{message}: {REMEDY}")
        found = self.attentions = [Attention(node, values) for node in live if node.op_type in kinds]
        pasts = [attention.inputs["past_key"] for attention in found]
        for past in pasts:
            if pasts.count(past) > 1:
                raise unsupported(f"{past} is the past of {pasts.count(past)} nodes, expected a past for each")
        first = found[0]
        for other in found:
            if (other.heads, other.head_dim()) != (first.heads, first.head_dim()):
                sizes = [f"{called(a.node)} has heads {a.heads} of {a.head_dim()}" for a in (first, other)]
                raise unsupported(f"{', '.join(sizes)}: expected one size in all layers")

    def element_type(self) -> T1:
        """The type of keys and values."""
        types = {self.values.inputs[a.inputs["past_key"]].type.tensor_type.elem_type for a in self.attentions}
        known: dict[int, T1] = {TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "float16"}
        if len(types) > 1 or not types <= known.keys():
            got = ", ".join(TensorProto.DataType.Name(kind) for kind in sorted(types))
            raise unsupported(f"keys and values have the type {got}, expected FLOAT or FLOAT16: {REMEDY}")
        return known[types.pop()]

    def rewrite(
        self, spec: CacheSpec, groups: LayerGroups, kind: str, activations: str | None, vocab_size: int
    ) -> None:
        """Turns `model` into a graph over caches of `spec`, one for each group of layers; only once.

        activations: of our products; None keeps the export's products.
        """
        values, names, graph = self.values, self._names, self.model.graph
        paged = self.attentions[0].node.op_type == "PagedAttention"
        write = Replacement(values, spec, groups, kind, paged, names["position_ids"])
        replaced: dict[str, list[NodeProto]] = {}
        for layer, attention in enumerate(self.attentions):
            replaced[attention.node.output[0]] = write.attention(attention, layer)
        for node in values.nodes:
            if (node.op_type, node.domain) == ("RotaryEmbedding", "com.microsoft"):
                if node.input[1:2] == [names["position_ids"]]:
                    replaced[node.output[0]] = write.rotary(node)
        head, gather = self._head(write)
        replaced[head.output[0]] = [*gather, head]
        nodes = self._prelude(write)
        for node in values.nodes:
            nodes.extend(replaced.pop(next(iter(node.output), ""), [node]))
        if activations is not None:
            self.products = Products(values, activations)
            quantized = ("MatMulNBits", MICROSOFT)
            nodes = [
                made
                for node in nodes
                for made in (self.products.product(node) if (node.op_type, node.domain) == quantized else [node])
            ]
            graph.initializer.extend(self.products.initializers)
        by_rows = write.constant("logits_shape", np.array([-1, vocab_size]))
        rows = helper.make_node("Reshape", [names["logits"], by_rows], ["kvcache/logits"])
        nodes += [rows, helper.make_node("Cast", ["kvcache/logits"], ["logits"], to=TensorProto.FLOAT)]
        mine = {name for node in nodes for name in node.output}
        inputs = [value for value in graph.input if value.name not in mine]
        for field, entries in (("node", nodes), ("input", inputs), ("output", [])):
            graph.ClearField(field)
            getattr(graph, field).extend(entries)
        ours = [helper.make_tensor_value_info(*value) for value in groups.graph_inputs(spec, masked=False)]
        self._check(finished := Values(graph, self._file.parent), {value.name for value in ours})
        finished.only(["logits"])
        graph.input.extend(ours)
        shape: list[str | int] = ["R", vocab_size]
        graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape))
        for domain in (DOMAIN, MICROSOFT, OWN_DOMAIN):
            if all(opset.domain != domain for opset in self.model.opset_import):
                self.model.opset_import.append(helper.make_opsetid(domain, 1))

    def _prelude(self, write: Replacement) -> list[NodeProto]:
        """The export's inputs, from the step's: as a batch of one, or in a row, as the export has them."""
        nodes = []
        taken_by = {"input_ids": "token_ids", "position_ids": "positions", "logits_indices": "logit_rows", _LAST: ""}
        for kind, ours in taken_by.items():
            value = self.values.inputs.get(self._names[kind])
            if value is None:
                continue
            rank, taken = len(value.type.tensor_type.shape.dim), ours
            if kind == _LAST:
                taken = write.constant("every_row", np.zeros([1] * rank, np.int64))
            elif rank == 2:
                taken = f"kvcache/{kind}"
                nodes.append(helper.make_node("Unsqueeze", [ours, write.constant("batch", np.array([0]))], [taken]))
            elif rank != 1:
                raise unsupported(f"{value.name} has {rank} axes, expected (batch, sequence) or (tokens)")
            nodes.append(helper.make_node("Cast", [taken], [value.name], to=value.type.tensor_type.elem_type))
        return nodes

    def _head(self, write: Replacement) -> tuple[NodeProto, list[NodeProto]]:
        """The product that gives the logits, and the node that gathers its rows, unless the export gathers them."""
        values, name = self.values, self._names["logits"]
        while True:
            node = values.maker(name)
            data = [] if node is None else [i for i, x in enumerate(node.input) if x and values.inputs_of(x)]
            if node is not None and data == [0] and (node.op_type.startswith("MatMul") or node.op_type == "Gemm"):
                break
            if node is None or len(data) != 1 or node.op_type not in _ELEMENTWISE:
                got = "no node" if node is None else called(node)
                raise unsupported(f"the logits come from {got}, expected a MatMul, and what scales or caps its result")
            name = node.input[data[0]]
        if self._names["logits_indices"] in values.inputs_of(node.input[0]):
            return node, []
        name = hidden = node.input[0]
        while (last := values.maker(name)) is not None:
            if self._prunes(last):
                hidden = last.input[0]
            elif last.op_type not in ("Unsqueeze", "Squeeze", "Reshape", "Identity"):
                break
            name = last.input[0]
        node.input[0] = "kvcache/logit_rows"
        return node, [helper.make_node("Gather", [hidden, "logit_rows"], ["kvcache/logit_rows"], axis=-2)]

    def _prunes(self, node: NodeProto) -> bool:
        """Whether a node before the head takes the same tokens' rows in every run, as the last one's."""
        values = self.values
        if node.op_type not in ("Gather", "Slice") or any(values.inputs_of(name) for name in node.input[1:]):
            return False
        axes = values.constant(node.input[3]) if node.op_type == "Slice" and len(node.input) > 3 else None
        return axes is None or not {-1, 2}.issuperset(values.array(axes).flat)  # of (batch, sequence, hidden)

    def _check(self, finished: Values, ours: set[str]) -> None:
        """Refuses a graph whose logits need a removed input, or a node that sees all tokens as one sequence."""
        places, leaves = finished.needed(["logits"])
        left = leaves - {tensor.name for tensor in finished.graph.initializer} - ours
        for name in sorted(left):
            reader = called(finished.reader(name, places))
            what = "inputs of tokens and positions alone" if name in finished.inputs else "a node that computes it"
            raise unsupported(f"{reader} needs {name}, not for attention alone; expected {what}: {REMEDY}")
        for node in (finished.nodes[place] for place in sorted(places)):
            counts = node.op_type in ("Range", "CumSum")
            if counts or node.op_type.startswith("Reduce"):
                of = finished.needed(node.output)[1] & ours
                if (counts and of) or of == {"positions"}:
                    raise unsupported(f"{called(node)} takes a step's tokens for one sequence, expected none: {REMEDY}")


def _fed(names: dict[str, str], block: int, value: ValueInfoProto, length: int) -> NDArray[Any] | None:
    """An input's value for a sequence of `length` tokens, if that determines it."""
    kinds = {name: kind for kind, name in names.items()}
    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    row = {
        "attention_mask": np.ones(length),
        "input_ids": np.zeros(length),
        "position_ids": np.arange(length),
        "block_table": np.zeros(-(-length // block)),
    }.get(kinds.get(value.name, ""))
    if row is None:
        return None
    return row.astype(dtype).reshape([1] * (len(value.type.tensor_type.shape.dim) - 1) + [-1])
