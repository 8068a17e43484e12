"""Makes a PMX export run in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Literal

import numpy as np
from kvcache_ops import KvCacheError
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
    version_converter,
)

from kvcache_pmx._body import Function
from kvcache_pmx._call import Call, Refusal
from kvcache_pmx._masks import known_shapes, open_masks, without_absent
from kvcache_pmx._operators import (
    DYNAMIC_DOMAINS,
    PACKED_ATTENTION,
    STATIC_DOMAINS,
    is_native,
    lowering_of,
    stored_value_input,
)
from kvcache_pmx._ragged import ATTENTION_OPSET

# The first opset that has the operators which the functions are made of, in the form in which they use them.
FUNCTION_OPSET = 18
# What only MultiHeadAttention has of the attributes of MultiHeadCacheAttention; KeyValueCache has the others.
_ATTENTION_ATTRIBUTES = {"num_heads", "head_dim", "is_causal", "is_alibi", "num_kv_heads"}


def lower(
    model: ModelProto,
    *,
    attention: Literal["native", "onnx"] = "native",
    mask_rank: Literal[2, 3] | None = None,
) -> ModelProto:
    """The export `model` as a model that ONNX Runtime runs with the operators of kvcache_ops; `model` is not changed.

    Every operator of the domains `opmx` and `opmx.dynamic_batching` (in old exports `pmx` and `pmx.dynamic_batching`)
    that kvcache_ops does not have becomes a model-local function of the same domain. Graph inputs and outputs
    keep their names, order and types: `kv_cache` and `kv_scale` are written in place as before.

    `attention`: "native" leaves attention to the operators of kvcache_ops; "onnx" makes `KeyValueCache` and one
    `Attention` of ONNX (opset 23) of it, for runtimes and tools that have that. Its memory is tokens times keys of the
    whole batch.

    `mask_rank`: exports declare an attention mask of the shape [0], which no runtime lets a caller fill. 2 makes it
    [total_seqlen, mask_columns], 3 [num_heads, total_seqlen, mask_columns]; the caller then gives one in every call.
    None leaves it [0] and unused, except where the model was exported with `auto_causal=False` (is_causal 0), which
    needs a mask: there it means 2.

    Weights are copied where the model holds them, and else neither read nor converted: they may be external data of
    any size that is not loaded.

    Raises `KvCacheError` with the kind "unsupported" for a model with nodes that cannot be lowered, all of which it
    names with the reason; with "mask" for a `mask_rank` without a mask; with "opset" where onnx cannot lift the model.
    """
    if not isinstance(model, ModelProto):
        raise KvCacheError(f"model is a {type(model).__name__}, expected an onnx.ModelProto", "argument")
    if attention not in ("native", "onnx"):
        raise KvCacheError(f"attention is {attention!r}, expected 'native' or 'onnx'", "argument")
    if mask_rank not in (None, 2, 3):
        raise KvCacheError(f"mask_rank is {mask_rank!r}, expected 2, 3 or None", "argument")
    lowered = ModelProto()
    lowered.CopyFrom(model)
    bodies = [*_graphs(lowered.graph), *lowered.functions]
    if not any(_is_pmx(node) for body in bodies for node in body.node):
        return lowered
    lift(lowered, ATTENTION_OPSET if attention == "onnx" else FUNCTION_OPSET)
    open_masks(lowered, mask_rank)
    # The exporter's types of inner values are wrong for MoeSelect, and nothing needs them.
    del lowered.graph.value_info[:]
    lowering = _Lowering(lowered, attention)
    lowering.refuse_functions(lowered)
    for graph in _graphs(lowered.graph):
        lowering.rewrite(graph)
    if lowering.refused:
        kinds = "\n".join(f"  {reason}" for reason in lowering.refused)
        raise KvCacheError(f"{len(lowering.refused)} nodes cannot be lowered:\n{kinds}", "unsupported")
    return lowered


class _Lowering:
    """The rewriting of one model, graph by graph. `refused` names what could not be lowered."""

    def __init__(self, model: ModelProto, attention: str) -> None:
        self.refused: list[str] = []
        self._attention = attention
        self._functions = Functions(model, opset_of(model))
        self._local = {(function.domain, function.name) for function in model.functions}
        self._shapes = known_shapes(model.graph)

    def refuse_functions(self, model: ModelProto) -> None:
        """Functions that the model came with are left as they are, so they may have no PMX operators in them."""
        for function in model.functions:
            for node in function.node:
                if _is_pmx(node) and (node.domain, node.op_type) not in self._local:
                    place = f"it is in the function {function.domain}::{function.name}"
                    self.refused.append(f"{node.domain}::{node.op_type} {node.name!r}: {place}")

    def rewrite(self, graph: GraphProto) -> None:
        """Puts what ONNX Runtime knows in the place of every node that it does not."""
        shapes = self._shapes | known_shapes(graph)
        makers = {name: node for node in graph.node for name in node.output}
        nodes: list[NodeProto] = []
        for node in graph.node:
            if not _is_pmx(node) or (node.domain, node.op_type) in self._local:
                nodes.append(node)
                continue
            operator = f"{node.domain}::{node.op_type}"
            node = without_absent(node, shapes)
            try:
                for part in self._parts(node):
                    if is_native(part):
                        nodes.extend(_as_the_library_takes_it(part, makers))
                    else:
                        self._lower_node(part, shapes)
                        nodes.append(part)
            except Refusal as reason:
                self.refused.append(f"{operator} {node.name!r}: {reason}")
        # They are copied before the originals go.
        kept = [_copy(node) for node in nodes]
        del graph.node[:]
        graph.node.extend(kept)

    def _parts(self, node: NodeProto) -> list[NodeProto]:
        """The nodes that take the place of an attention node where ONNX's Attention is wanted."""
        if self._attention == "onnx" and node.domain in DYNAMIC_DOMAINS:
            if node.op_type == "MultiHeadCacheAttention":
                return _split(node)
            if node.op_type == "MultiHeadAttention":
                node.op_type = PACKED_ATTENTION
        return [node]

    def _lower_node(self, node: NodeProto, shapes: dict[str, list[int | str | None]]) -> None:
        lowering = lowering_of(node)
        if lowering is None:
            raise Refusal("the operator is not known here")
        function = lowering(Call(node, shapes))
        if len(node.output) > len(function.outputs):
            raise Refusal(f"{len(node.output)} outputs, expected at most {len(function.outputs)}")
        node.op_type = self._functions.stand_for(node, function)


def _is_pmx(node: NodeProto) -> bool:
    return node.domain in STATIC_DOMAINS or node.domain in DYNAMIC_DOMAINS


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and those inside its nodes, these first."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _graphs(attribute.g)
    yield graph


def _copy(node: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy


def _split(node: NodeProto) -> list[NodeProto]:
    """A MultiHeadCacheAttention as a KeyValueCache and the attention over what that gives."""
    if len(node.input) < 11:
        raise Refusal(f"{len(node.input)} inputs, expected at least 11")
    query, current_key, current_value, *rest = node.input
    seqstarts, kvstarts, cachestarts, start_pos, decoding_batches, max_seqlen, max_kvlen, cache, *optional = rest
    rows = [f"{node.output[0]}/{name}" for name in ("key", "value")]
    steps = [seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen, cache]
    scale = [name for name in optional[:1] if name]
    stored = helper.make_node(
        "KeyValueCache", [current_key, current_value, *steps, *scale], rows, f"{node.name}/KeyValueCache"
    )
    inputs = [query, *rows, seqstarts, kvstarts, decoding_batches, max_seqlen, max_kvlen, *optional[1:]]
    attended = helper.make_node(PACKED_ATTENTION, inputs, node.output, f"{node.name}/{PACKED_ATTENTION}")
    for part in (stored, attended):
        part.domain = node.domain
    for attribute in node.attribute:
        part = attended if attribute.name in _ATTENTION_ATTRIBUTES else stored
        part.attribute.append(attribute)
    return [stored, attended]


def _is_zero(attribute: AttributeProto) -> bool:
    return attribute.type == AttributeProto.INT and attribute.i == 0


def _as_the_library_takes_it(node: NodeProto, makers: dict[str, NodeProto]) -> list[NodeProto]:
    """The node with what the library expects of it, after what else it needs."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    quant_bit, quant_group = (attributes.get(name) for name in ("quant_bit", "quant_group"))
    # Exports without quantization write 0 for what has no effect there.
    if quant_group is not None and _is_zero(quant_group) and (quant_bit is None or _is_zero(quant_bit)):
        node.attribute.remove(quant_group)
    index = stored_value_input(node)
    if index is None or index >= len(node.input):
        return [node]
    maker = makers.get(node.input[index])
    if maker is None or maker.op_type == "Reshape":
        return [node]
    # Among nodes without float16 kernels some versions of ONNX Runtime make this one float32, which would store into a
    # copy of the cache. They do not where one of its inputs comes from a Reshape.
    value, name = node.input[index], f"{node.name}/current_value"
    shape = helper.make_node(
        "Constant", [], [f"{name}/shape"], f"{name}/shape", value=numpy_helper.from_array(np.zeros(3, np.int64))
    )
    kept = helper.make_node("Reshape", [value, f"{name}/shape"], [name], name)
    node.input[index] = name
    return [shape, kept, node]


class Functions:
    """Adds functions to a model. Nodes of the same form share one."""

    def __init__(self, model: ModelProto, opset: int) -> None:
        self._model = model
        self._imports = [helper.make_opsetid("", opset)]
        self._names = {(function.domain, function.name) for function in model.functions}
        self._by_content: dict[tuple[str, str, bytes], str] = {}

    def stand_for(self, node: NodeProto, function: Function) -> str:
        """Adds `function`, unless the model has it, and returns its name: the operator's own for its first form.

        The node's attributes remain, though the function has their values in its nodes.
        """
        proto = FunctionProto(
            domain=node.domain,
            input=function.inputs,
            output=function.outputs[: len(node.output)],
            node=function.nodes,
            opset_import=self._imports,
            attribute=sorted(attribute.name for attribute in node.attribute),
        )
        content = node.domain, node.op_type, proto.SerializeToString(deterministic=True)
        name = self._by_content.get(content)
        if name is None:
            name = self._by_content[content] = self._free_name(node)
            proto.name = name
            self._model.functions.append(proto)
        return name

    def _free_name(self, node: NodeProto) -> str:
        name, number = node.op_type, 1
        while (node.domain, name) in self._names:
            number += 1
            name = f"{node.op_type}_{number}"
        self._names.add((node.domain, name))
        return name


# IR 8 is the first with model-local functions; IR 10 is what ONNX Runtime 1.20 reads.
LOWEST_IR, HIGHEST_IR = 8, 10
# A tensor beyond this many elements is a weight, not the axes or the shape that an operator's newer form may need.
_SMALL = 64


def opset_of(model: ModelProto) -> int:
    """The version of the default domain."""
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    return versions[0] if versions else 1


def lift(model: ModelProto, opset: int) -> None:
    """Changes the model's nodes to those of `opset`, unless it has that or a later one.

    Weights are left out of what is converted, so that neither their number nor where they are stored matters.
    """
    model.ir_version = min(max(model.ir_version, LOWEST_IR), HIGHEST_IR)
    if opset_of(model) >= opset:
        return
    lean = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    _copy_without_weights(model.graph, lean.graph)
    try:
        converted = version_converter.convert_version(lean, opset)
    except Exception as error:
        raise KvCacheError(f"the model cannot be lifted to opset {opset}: {error}", "opset") from error
    del model.graph.node[:]
    model.graph.node.extend(converted.graph.node)
    # What the newer forms need as tensors.
    known = {tensor.name for tensor in model.graph.initializer}
    model.graph.initializer.extend(t for t in converted.graph.initializer if t.name not in known)
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = opset


def _copy_without_weights(graph: GraphProto, lean: GraphProto) -> None:
    """The graph with its weights as graph inputs of the same types and shapes."""
    lean.name = graph.name
    lean.node.extend(graph.node)
    lean.input.extend(graph.input)
    lean.output.extend(graph.output)
    inputs = {value.name for value in graph.input}
    for tensor in graph.initializer:
        if prod(tensor.dims) <= _SMALL and tensor.data_location != TensorProto.EXTERNAL:
            lean.initializer.append(tensor)
        elif tensor.name not in inputs:
            lean.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
