"""The model-local functions of a model, one for each operator and each form of it that the model uses."""

from __future__ import annotations

from onnx import FunctionProto, ModelProto, NodeProto, helper

from kvcache_pmx._body import Function


class Functions:
    """Adds functions to a model. Nodes of the same form share one."""

    def __init__(self, model: ModelProto, opset: int) -> None:
        self._model = model
        self._imports = [helper.make_opsetid("", opset)]
        self._names = {(function.domain, function.name) for function in model.functions}
        self._by_content: dict[tuple[str, str, bytes], str] = {}

    def stand_for(self, node: NodeProto, function: Function) -> str:
        """Adds `function`, unless the model has it, and gives its name: the operator's own for its first form.

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
