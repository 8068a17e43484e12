"""One operator in its three forms: a call, a fake call that `torch.compile` traces, and a node of an exported graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor

from kvcache_ops import _native
from kvcache_ops.ops._nodes import DOMAIN

WRITTEN = ("cache", "scale")
OPTIONAL = ("scale", "attn_mask", "head_sink")
OF_FLOAT8 = ("quant_type",)  # such a cache is not for torch, so the attribute keeps its default

VARIANTS = {"local_window_size": -1, "scale": 0.0, "softcap": 0.0}  # of attention, and what is none

Shape = Callable[[dict[str, Any], dict[str, int], Any], Sequence[Any]]
"""The shape of the outputs, from the inputs and attributes by their names and the number of all keys."""


class Operator:
    """An operator of the library, with the inputs, attributes and outputs that the library says it has."""

    def __init__(self, op_type: str, shape: Shape):
        self._op_type = op_type
        self._shape = shape
        self._inputs = _native.input_names(op_type)
        self._attributes = [name for name in _native.attribute_names(op_type) if name not in OF_FLOAT8]
        self._outputs = len(_native.output_names(op_type))
        written = [name for name in self._inputs if name in WRITTEN]
        name = f"kvcache_ops::{re.sub('(?<!^)(?=[A-Z])', '_', op_type).lower()}"
        self._op = torch.library.custom_op(
            name, self._run, mutates_args=written, device_types="cpu", schema=self._signature()
        )
        self._op.register_fake(self._fake)

    def __call__(self, inputs: list[Tensor | None], attributes: list[Any]) -> tuple[Tensor, ...]:
        """The outputs, from inputs and attributes in the library's order.

        `cache` and `scale` are written, unless a graph is exported, which will write them.
        """
        if torch.onnx.is_in_onnx_export() or torch.compiler.is_exporting():
            return self._node(*self._named((*inputs, *attributes)))
        outputs = self._op(*inputs, *attributes)
        return (outputs,) if self._outputs == 1 else tuple(outputs)

    def _signature(self) -> str:
        """The operator's schema in torch's language."""

        def tensor(index: int, name: str) -> str:
            alias = f"(a{index}!)" if name in WRITTEN else ""
            return f"Tensor{alias}{'?' if name in OPTIONAL else ''} {name}"

        parameters = [tensor(*numbered) for numbered in enumerate(self._inputs)]
        # An attribute with the name of an input has another one here.
        parameters += [
            f"{type(VARIANTS.get(name, 0)).__name__} {'attention_scale' if name == 'scale' else name}"
            for name in self._attributes
        ]
        outputs = ", ".join(["Tensor"] * self._outputs)
        return f"({', '.join(parameters)}) -> {outputs if self._outputs == 1 else f'({outputs})'}"

    def _named(self, arguments: tuple[Any, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Inputs and attributes by their names."""
        count = len(self._inputs)
        return dict(zip(self._inputs, arguments[:count])), dict(zip(self._attributes, arguments[count:]))

    def _run(self, *arguments: Any) -> Any:
        """A call. What it reads may be strided and is then copied; what it writes never is."""
        inputs, attributes = self._named(arguments)
        operands = [
            None if tensor is None else tensor.detach() if name in WRITTEN else tensor.detach().contiguous()
            for name, tensor in inputs.items()
        ]
        outputs = [torch.from_numpy(output) for output in _native.run(self._op_type, attributes, operands, [])]
        return outputs[0] if self._outputs == 1 else tuple(outputs)

    def _fake(self, *arguments: Any) -> Any:
        """New tensors of the outputs' shape; how many keys there are is not known."""
        inputs, attributes = self._named(arguments)
        first = inputs[self._inputs[0]]
        shape = self._shape(inputs, attributes, torch.library.get_ctx().new_dynamic_size)
        outputs = [first.new_empty(shape) for _ in range(self._outputs)]
        return outputs[0] if self._outputs == 1 else tuple(outputs)

    def _node(self, inputs: dict[str, Tensor | None], attributes: dict[str, Any]) -> tuple[Tensor, ...]:
        """A node in the graph that is exported. What trails and is absent is left out, the rest has an empty name."""
        attributes = {name: value for name, value in attributes.items() if VARIANTS.get(name) != value}
        given = [inputs[name] for name in self._inputs]
        _native.check_node(
            self._op_type, attributes, [name for name, tensor in zip(self._inputs, given) if tensor is not None]
        )
        while given[-1] is None:
            given.pop()
        first = given[0]
        assert first is not None

        def all_keys() -> Any:
            kvstarts = inputs["kvstarts"]
            assert kvstarts is not None
            count = kvstarts[-1].item()
            torch._check(count >= 0)
            return count

        shape = self._shape(inputs, attributes, all_keys)
        outputs = torch.onnx.ops.symbolic_multi_out(
            f"{DOMAIN}::{self._op_type}",
            given,
            attributes,
            dtypes=[first.dtype] * self._outputs,
            shapes=[shape] * self._outputs,
            version=1,
        )
        return tuple(outputs)
