"""An ONNX graph that is being written, its weights at once into a file beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from kvcache_ops.models._weights import Blocks, Dense, Weight, stack
from kvcache_ops.ops._nodes import DOMAIN
from kvcache_ops.ops._quantized import OWN_DOMAIN, pack_panels, pack_scales

MICROSOFT = "com.microsoft"
OPSET = 23  # the first with RMSNormalization
IR_VERSION = 10
ALIGNMENT = 64  # bytes, of a tensor in the file of weights

ACTIVATIONS = {"int8": 8, "int16": 16}
GATES = {"silu": 1, "gelu": 2}  # as QuantizedMatMul's attribute has them


def activation_bits(activations: str, bits: int) -> int:
    """Of a product with codes of `bits`: for "auto" what loses little beside what the codes have lost."""
    return ACTIVATIONS.get(activations, 2 * bits)


def store(tensor: TensorProto, values: NDArray[Any], data: BinaryIO, location: str) -> tuple[bytes, memoryview]:
    """Writes an array into the file `location`, and says so in the tensor; gives the bytes that were written."""
    values = np.ascontiguousarray(values)
    padding, content = bytes(-data.tell() % ALIGNMENT), values.view(np.uint8).data
    data.write(padding)
    tensor.dims[:], tensor.data_location = values.shape, TensorProto.EXTERNAL
    tensor.data_type = helper.np_dtype_to_tensor_dtype(values.dtype)
    where = {"location": location, "offset": data.tell(), "length": values.nbytes}
    for key, value in where.items():
        tensor.external_data.add(key=key, value=str(value))
    data.write(content)
    return padding, content


class Graph:
    """Adds nodes and weights; every method returns the names of its outputs.

    activations: "auto", "int8" or "int16", of products with quantized matrices; None is for MatMulNBits of ONNX
    Runtime, which rounds none.
    """

    def __init__(self, data: BinaryIO, location: str, activations: str | None) -> None:
        self._data, self._location, self._activations = data, location, activations
        self._digest = hashlib.sha256()
        self._nodes: list[NodeProto] = []
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[ValueInfoProto] = []
        self._constants: list[TensorProto] = []
        self._block_sums: dict[tuple[str, int], str] = {}

    def input(self, name: str, element_type: int, shape: Sequence[str | int]) -> str:
        """Declares an input of the graph."""
        self._inputs.append(helper.make_tensor_value_info(name, element_type, shape))
        return name

    def output(self, name: str, element_type: int, shape: Sequence[str | int]) -> None:
        """Declares an output of the graph, which a node has."""
        self._outputs.append(helper.make_tensor_value_info(name, element_type, shape))

    def constant(self, name: str, value: Any, dtype: Any = np.int64) -> str:
        """A small array, kept in the model; an equal one of that name is the same."""
        if all(tensor.name != name for tensor in self._constants):
            self._constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def weight(self, name: str, values: NDArray[Any]) -> str:
        """An array, written into the file of weights."""
        tensor = TensorProto(name=name)
        for written in store(tensor, values, self._data, self._location):
            self._digest.update(written)
        self._constants.append(tensor)
        return name

    def node(self, op_type: str, inputs: Sequence[str], name: str, *, domain: str = "", **attributes: Any) -> str:
        """A node of one output, which has the node's name."""
        return self.nodes(op_type, inputs, [name], domain=domain, **attributes)[0]

    def nodes(
        self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], *, domain: str = "", **attributes: Any
    ) -> list[str]:
        """A node of several outputs."""
        self.add(helper.make_node(op_type, inputs, outputs, outputs[0], domain=domain, **attributes))
        return list(outputs)

    def add(self, node: NodeProto) -> None:
        """A node that is made already."""
        self._nodes.append(node)

    def linear(self, name: str, x: str, weights: Sequence[Weight], bias: NDArray[np.float32] | None = None) -> str:
        """x (T, K) times the transposed matrices (N, K) one above the other, and the bias (sum of N): (T, sum of N)."""
        stacked = stack(weights)
        if len(stacked) == 1:
            return self._linear(name, x, stacked[0], bias)
        products, begin = [], 0
        for i, weight in enumerate(stacked):
            part = None if bias is None else bias[begin : begin + len(weight)]
            products.append(self._linear(f"{name}.{i}", x, weight, part))
            begin += len(weight)
        return self.node("Concat", products, name, axis=1)

    def gated(self, name: str, x: str, weight: Weight, gate: str) -> str:
        """The product of the transposed matrix (N, K) with what gates make of x (T, 2K), gates first: (T, N).

        gate: the function of gates: "silu", or "gelu", approximated by the hyperbolic tangent.
        """
        if isinstance(weight, Blocks) and self._activations is not None:
            return self._linear(name, x, weight, None, gate=gate)
        g, second = self.nodes("Split", [x], [f"{name}.gates", f"{name}.ungated"], axis=1, num_outputs=2)
        if gate == "gelu":
            g = self.node("Gelu", [g], f"{name}.gelu", approximate="tanh")
        else:
            g = self.node("QuickGelu", [g], f"{name}.silu", domain=MICROSOFT, alpha=1.0)
        return self._linear(name, self.node("Mul", [g, second], f"{name}.gated"), weight, None)

    def embedding(self, name: str, ids: str, weight: Weight) -> str:
        """The rows of a matrix (V, K) at indices (T): (T, K) of float32."""
        if isinstance(weight, Dense):
            return self._float32(name, "Gather", [self.weight(f"{name}.values", weight.values), ids], weight)
        if self._activations is not None:
            inputs = [ids, *self._panels(name, weight)]
            return self.node("QuantizedGather", inputs, name, domain=OWN_DOMAIN, **_sizes(weight))
        names = [self.weight(f"{name}.codes", _packed(weight)), ids, self.weight(f"{name}.scales", weight.scales)]
        options = {"bits": weight.bits, "block_size": weight.block, "gather_axis": 0, "quantize_axis": 1}
        if weight.minima is None:
            return self.node("GatherBlockQuantized", names, name, domain=MICROSOFT, **options)
        scaled = self.node("GatherBlockQuantized", names, f"{name}.scaled", domain=MICROSOFT, **options)
        offsets = self.weight(f"{name}.offsets", _offsets(weight)[..., None])
        blocks = self._blocks(f"{name}.blocks", scaled, weight)
        shifted = self.node("Add", [blocks, self.node("Gather", [offsets, ids], f"{name}.shifts")], f"{name}.shifted")
        return self.node("Reshape", [shifted, self.constant("rows", [0, -1])], name)

    def tied(self, name: str, x: str, embedding: str, weight: Weight) -> str:
        """The product with the matrix of an `embedding`, whose bytes it shares."""
        return self._linear(name, x, weight, None, embedding)

    def _linear(
        self,
        name: str,
        x: str,
        weight: Weight,
        bias: NDArray[np.float32] | None,
        shared: str | None = None,
        gate: str | None = None,
    ) -> str:
        """One product with its weights, or with the embedding's, `shared`, of rows that are gated or not."""

        def put(part: str, values: NDArray[Any]) -> str:
            if shared is None:
                return self.weight(f"{name}.{part}", values)
            return self._again(f"{name}.{part}", f"{shared}.{part}", values.shape)

        biases = [] if bias is None else [self.weight(f"{name}.bias", bias)]
        if isinstance(weight, Dense):
            # A constant's Cast is folded when a session is made.
            matrix = self._float32(f"{name}.float32", "", [put("values", weight.values)], weight)
            return self.node("Gemm", [x, matrix, *biases], name, transB=1)
        if self._activations is not None:
            bits = activation_bits(self._activations, weight.bits)
            sizes = _sizes(weight) | {"activation_bits": bits} | ({"gate": GATES[gate]} if gate else {})
            self._digest.update(bytes([bits, sizes.get("gate", 0)]))  # which keys and values depend on
            inputs = [x, *self._panels(shared or name, weight, is_written=shared is not None)]
            if bias is not None:
                inputs += [*[""] * (4 - len(inputs)), *biases]
            return self.node("QuantizedMatMul", inputs, name, domain=OWN_DOMAIN, **sizes)
        shape = (*weight.scales.shape, -1)
        inputs = [x, put("codes", _packed(weight).reshape(shape)), put("scales", weight.scales)]
        if bias is not None:
            inputs += ["", "", *biases]
        product = name if weight.minima is None else f"{name}.scaled"
        sizes = _sizes(weight)
        product = self.node("MatMulNBits", inputs, product, domain=MICROSOFT, **sizes)
        if weight.minima is None:
            return product
        offsets = put("offsets", _offsets(weight))
        return self.node("Gemm", [self._sums(x, weight), offsets, product], name, transB=1)

    def _panels(self, name: str, weight: Blocks, is_written: bool = False) -> list[str]:
        """The weights of the operators of ours, in the file once."""
        minima = [] if weight.minima is None else [f"{name}.minima"]
        names = [f"{name}.panels", f"{name}.scales", *minima]
        if not is_written:
            self.weight(names[0], pack_panels(weight.codes, bits=weight.bits, block_size=weight.block))
            for of, values in zip(names[1:], (weight.scales, weight.minima)):
                self.weight(of, pack_scales(np.asarray(values)))
        return names

    def _sums(self, x: str, weight: Blocks) -> str:
        """The sums of x (T, K) over a matrix's blocks, (T, K / block): what offsets are multiplied by."""
        block = weight.block
        if (x, block) not in self._block_sums:
            blocks = self._blocks(f"{x}.blocks_of_{block}", x, weight)
            axis = self.constant("last_axis", [2])
            self._block_sums[x, block] = self.node("ReduceSum", [blocks, axis], f"{x}.sums_of_{block}", keepdims=0)
        return self._block_sums[x, block]

    def _blocks(self, name: str, x: str, weight: Blocks) -> str:
        """(T, K / block, block), also of no rows, for which -1 stands for nothing."""
        count = weight.scales.shape[1]
        shape = self.constant(f"{count}_blocks_of_{weight.block}", [0, count, weight.block])
        return self.node("Reshape", [x, shape], name)

    def _float32(self, name: str, op_type: str, inputs: list[str], weight: Dense) -> str:
        """A node of a float matrix, or the matrix itself where there is no `op_type`, in float32."""
        if weight.values.dtype == np.float32:
            return self.node(op_type, inputs, name) if op_type else inputs[0]
        given = self.node(op_type, inputs, f"{name}.given") if op_type else inputs[0]
        return self.node("Cast", [given], name, to=TensorProto.FLOAT)

    def _again(self, name: str, other: str, shape: Sequence[int]) -> str:
        """The bytes of the weight `other` by another name and in another shape, in the file once."""
        tensor = TensorProto()
        tensor.CopyFrom(next(tensor for tensor in self._constants if tensor.name == other))
        tensor.name, tensor.dims[:] = name, shape
        self._constants.append(tensor)
        return name

    def fingerprint(self) -> str:
        """The SHA-256 of the weights that have been written."""
        return self._digest.hexdigest()

    def model(self) -> ModelProto:
        """The finished model."""
        graph = helper.make_graph(self._nodes, "decoder", self._inputs, self._outputs, self._constants)
        opsets = [helper.make_opsetid(*pair) for pair in (("", OPSET), (MICROSOFT, 1), (DOMAIN, 1), (OWN_DOMAIN, 1))]
        return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets, producer_name="kvcache_ops")


def _sizes(weight: Blocks) -> dict[str, int]:
    """The attributes of a node that computes with a matrix."""
    return {"N": len(weight), "K": weight.codes.shape[1], "bits": weight.bits, "block_size": weight.block}


def _packed(weight: Blocks) -> NDArray[np.uint8]:
    """The codes for ONNX Runtime's operators, (N, K * bits / 8): of 4 bits two in a byte, the first in the low one."""
    codes = weight.codes + _shift(weight)
    return codes if weight.bits == 8 else codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)


def _offsets(weight: Blocks) -> NDArray[np.float32]:
    """What ONNX Runtime's operators lack for a matrix with minima: the weights of its code 2^(bits - 1)."""
    assert weight.minima is not None
    return weight.minima + np.float32((1 << weight.bits - 1) - int(_shift(weight))) * weight.scales


def _shift(weight: Blocks) -> np.uint8:
    """What makes codes of fewer bits, which have minima, lie around 2^(bits - 1): offsets are small then."""
    if weight.minima is None:
        return np.uint8(0)
    width = int(weight.codes.max(initial=1)).bit_length()
    return np.uint8((1 << weight.bits - 1) - (1 << width - 1))
