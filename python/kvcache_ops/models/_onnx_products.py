"""MatMulNBits of an export: the same weights as panels of QuantizedMatMul, in a file of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from kvcache_ops.models._graph_reader import Values, attributes, called, unsupported
from kvcache_ops.models._graph_writer import activation_bits, store
from kvcache_ops.models._weights import check_finite
from kvcache_ops.ops._quantized import OWN_DOMAIN, pack_panels, pack_scales

_INPUTS = ("A", "B", "scales", "zero_points", "g_idx", "bias")
_LARGEST_BLOCK = 32


class Products:
    """Replaces products; `initializers` belong to the new graph, and `write` gives their contents."""

    def __init__(self, values: Values, activations: str) -> None:
        self._values, self.activations = values, activations
        self._weights: list[tuple[dict[str, TensorProto], dict[str, TensorProto], _Sizes]] = []
        self.initializers: list[TensorProto] = []

    def product(self, node: NodeProto) -> list[NodeProto]:
        """The nodes that compute what a MatMulNBits does."""
        given = {name: value for name, value in zip(_INPUTS, node.input) if value}
        if "g_idx" in given:
            raise unsupported(f"{called(node)} has g_idx {given['g_idx']}, expected none: columns in their order")
        known = {}
        for name, value in list(given.items())[1:]:
            tensor = self._values.constant(value)
            if tensor is None:
                raise unsupported(f"{called(node)} has {name} {value}, expected a constant")
            known[name] = TensorProto()
            known[name].CopyFrom(tensor)
        sizes = _Sizes(node, known)
        ours = ["panels", "scales"]
        ours += ["minima"] if sizes.has_minima else [""] if "bias" in known else []
        ours += ["bias"] if "bias" in known else []
        name = node.output[0]
        made = {of: TensorProto(name=f"{name}/{of}", data_type=TensorProto.FLOAT) for of in ours if of}
        self.initializers += made.values()
        self._weights.append((known, made, sizes))
        whole = dict(N=sizes.n, K=sizes.k, bits=sizes.bits, block_size=sizes.block)
        whole["activation_bits"] = activation_bits(self.activations, sizes.bits)
        inputs = [made[of].name if of else "" for of in ours]
        kind = known["scales"].data_type
        if kind == TensorProto.FLOAT:
            return [
                helper.make_node("QuantizedMatMul", [node.input[0], *inputs], [name], name, None, OWN_DOMAIN, **whole)
            ]
        x, y = f"{name}/x", f"{name}/y"
        return [
            helper.make_node("Cast", [node.input[0]], [x], x, to=TensorProto.FLOAT),
            helper.make_node("QuantizedMatMul", [x, *inputs], [y], y, None, OWN_DOMAIN, **whole),
            helper.make_node("Cast", [y], [name], name, to=kind),
        ]

    def write(self, path: Path, initializers: dict[str, TensorProto]) -> None:
        """Writes the weights of the products that are among the initializers of the finished graph."""
        with path.open("wb") as data:
            for known, made, sizes in self._weights:
                if made["panels"].name in initializers:
                    arrays = {name: self._values.array(tensor) for name, tensor in known.items()}
                    for name, tensor in known.items():
                        if tensor.data_type != TensorProto.UINT8:
                            check_finite(tensor.name, arrays[name])
                    for of, values in sizes.weights(arrays).items():
                        store(initializers[made[of].name], values, data, path.name)


class _Sizes:
    """What a node says of its weights, and what they become: 4 or 8 bits, in blocks of 16 or 32."""

    def __init__(self, node: NodeProto, known: dict[str, TensorProto]) -> None:
        names = ("N", "K", "bits", "block_size", "weight_prepacked")
        about: dict[str, Any] = dict.fromkeys(names, 0) | {"bits": 4} | attributes(node)
        sizes = [about[name] for name in names]
        self.n, self.k, self._bits, self._block, prepacked = sizes
        is_known = self._bits in (2, 4, 8) and self._block in (16, 32, 64, 128, 256) and not prepacked
        if not all(isinstance(size, int) for size in sizes) or not is_known or min(self.n, self.k) < 1:
            got = ", ".join(f"{name} {size}" for name, size in zip(names, sizes))
            expected = "bits 2, 4 or 8, block_size 16 to 256, weight_prepacked 0"
            raise unsupported(f"{called(node)} has {got}, expected {expected}")
        self.bits, self.block = max(self._bits, 4), min(self._block, _LARGEST_BLOCK)
        self.has_minima = "zero_points" in known
        blocks = -(-self.k // self._block)
        elements = {"B": blocks * self._block * self._bits // 8, "scales": blocks, "bias": 1}
        packed = known.get("zero_points", known["scales"]).data_type == TensorProto.UINT8
        elements["zero_points"] = -(-blocks * self._bits // 8) if packed else blocks
        for name, tensor in known.items():
            if (count := int(np.prod(tensor.dims))) != self.n * elements[name]:
                message = f"{called(node)} has {name} {tensor.name} of {count} elements"
                raise unsupported(f"{message}, expected {self.n * elements[name]}")

    def weights(self, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The inputs of the new node, by their names."""
        codes = self._unpacked(arrays["B"])[:, : self.k]
        scales = arrays["scales"].reshape(self.n, -1).astype(np.float32)
        blocked = {"scales": scales}
        if self.has_minima:
            zeros = arrays["zero_points"]
            if zeros.dtype == np.uint8:
                zeros = self._unpacked(zeros)[:, : scales.shape[1]]
            blocked["minima"] = -scales * zeros.reshape(scales.shape).astype(np.float32)
        elif self._bits == 2:
            codes = codes + np.uint8(8 - 2)
        times, blocks = self._block // self.block, -(-self.k // self.block)
        made: dict[str, NDArray[Any]] = {"panels": pack_panels(codes, bits=self.bits, block_size=self.block)}
        for name, values in blocked.items():
            made[name] = pack_scales(np.repeat(values, times, axis=1)[:, :blocks])
        if "bias" in arrays:
            made["bias"] = arrays["bias"].reshape(-1).astype(np.float32)
        return made

    def _unpacked(self, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Rows of codes, one in a byte; in the file the first are in the low bits of a byte."""
        rows = codes.reshape(self.n, -1, 1)
        shifts = np.arange(0, 8, self._bits, dtype=np.uint8)
        return ((rows >> shifts) & np.uint8((1 << self._bits) - 1)).reshape(self.n, -1)
