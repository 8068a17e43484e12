"""Quantized products of ONNX exports: the panels that take their place, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kvcache_ops import KvCacheError, models
from kvcache_ops.models._graph_reader import Values
from kvcache_ops.models._onnx_products import Products
from onnx import helper, numpy_helper

from oracle.quantized_matmul import quantized_gather
from sessions import attributes_of
from tiny_exports import Graph, refused_export, write_export


@pytest.mark.parametrize("block", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_products_of_every_form(tmp_path: Path, bits: int, block: int) -> None:
    """The weights in panels are those that ONNX Runtime multiplies the columns of an identity by (2 bits: numpy's)."""
    random = np.random.default_rng(block)
    n = 19
    for k in (40, 256, 300):
        blocks = -(-k // block)
        codes = random.integers(0, 256, (n, blocks, block * bits // 8), np.uint8)
        zeros = random.integers(0, 1 << bits, (n, blocks), np.uint8)
        scales = (random.random((n, blocks)) + 0.1).astype(np.float32)
        kinds = {"none": None, "packed": packed(zeros, bits), "float32": zeros.astype(np.float32)}
        for kind, given in kinds.items():
            arrays = {"A": np.eye(k, dtype=np.float32), "B": codes, "scales": scales, "zeros": given}
            arrays = {name: values for name, values in arrays.items() if values is not None}
            arrays["bias"] = random.random(n).astype(np.float32)
            names = [name if name in arrays else "" for name in ("A", "B", "scales", "zeros", "", "bias")]
            sizes = dict(K=k, N=n, bits=bits, block_size=block)
            node = helper.make_node("MatMulNBits", names, ["y"], "product", None, "com.microsoft", **sizes)
            weights = [numpy_helper.from_array(values, name) for name, values in arrays.items()]
            y = helper.make_tensor_value_info("y", 1, [k, n])
            graph = helper.make_graph([node], "graph", [], [y], weights)
            products = Products(Values(graph, tmp_path), "int16")
            [made] = products.product(node)
            products.write(tmp_path / "panels", {tensor.name: tensor for tensor in products.initializers})
            read = {tensor.name[2:]: Values(graph, tmp_path).array(tensor) for tensor in products.initializers}
            assert np.array_equal(read.pop("bias"), arrays["bias"]) and ("minima" in read) == (kind != "none")
            attributes = attributes_of(made)
            assert (attributes["bits"], attributes["block_size"]) == (max(bits, 4), min(block, 32))
            found = quantized_gather(attributes, np.arange(n), **read)
            unpacked = (codes[..., None] >> np.arange(0, 8, bits)) & ((1 << bits) - 1)
            centers = np.full_like(zeros, 1 << (bits - 1)) if kind == "none" else zeros
            expected = (unpacked.reshape(n, blocks, -1) - centers[..., None].astype(float)) * scales[..., None]
            expected = expected.reshape(n, -1)[:, :k]
            assert np.allclose(found, expected, rtol=1e-6, atol=4e-5)  # minima of up to 280 are float32
            if bits == 4 or (bits == 8 and kind != "float32"):  # what ONNX Runtime's CPU has
                opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
                whole = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
                session = onnxruntime.InferenceSession(whole, providers=["CPUExecutionProvider"])
                assert np.allclose(session.run(None, {})[0] - arrays["bias"], expected.T, rtol=1e-5, atol=1e-4)


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Rows of codes as MatMulNBits has zero points: the first in the low bits of a byte."""
    per_byte = 8 // bits
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % per_byte))).reshape(len(codes), -1, per_byte)
    return (padded << np.arange(0, 8, bits, dtype=np.uint8)).sum(axis=-1).astype(np.uint8)


def product_with(place: int, name: str) -> Callable[[onnx.ModelProto], None]:
    """Another input of a quantized product."""

    def change(model: onnx.ModelProto) -> None:
        next(node for node in model.graph.node if node.op_type == "MatMulNBits").input[place] = name

    return change


def product_of(name: str, value: int) -> Callable[[onnx.ModelProto], None]:
    """Another attribute of a quantized product."""

    def change(model: onnx.ModelProto) -> None:
        node = next(node for node in model.graph.node if node.op_type == "MatMulNBits")
        kept = [attribute for attribute in node.attribute if attribute.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, value)])

    return change


PRODUCTS: dict[str, tuple[Callable[[onnx.ModelProto], Any], str]] = {
    "order": (product_with(4, "one"), "MatMulNBits 0.qkv has g_idx one, expected none"),
    "no constant": (product_with(1, "0.norm"), "has B 0.norm, expected a constant"),
    "bits": (product_of("bits", 3), "bits 3, block_size 32, weight_prepacked 0, expected bits 2, 4 or 8"),
    "block": (product_of("block_size", 48), "block_size 48"),
    "prepacked": (product_of("weight_prepacked", 1), "weight_prepacked 1, expected"),
    "elements": (product_of("K", 64), "has B 0.qkv.codes of 4096 elements, expected 8192"),
}


@pytest.mark.parametrize("case", PRODUCTS)
def test_a_product_that_cannot_be_rewritten_is_refused(tmp_path: Path, case: str) -> None:
    """The error names the product, and nothing is written; with products="MatMulNBits" all products stay."""
    change, message = PRODUCTS[case]
    source = refused_export(tmp_path, Graph(quantized=dict(bits=4, block_size=32)), change, message)
    kept = onnx.load(models.build(source, tmp_path / "model", products="MatMulNBits"), load_external_data=False)
    assert "QuantizedMatMul" not in {node.op_type for node in kept.graph.node}


def test_panels_are_a_file_of_their_own(tmp_path: Path) -> None:
    """A change of the file of panels is noticed; activations are part of the fingerprint."""
    source = write_export(tmp_path / "export", Graph(quantized=dict(bits=4, block_size=32)))
    first, other = (
        models.load(models.build(source, tmp_path / activations, activations=activations))
        for activations in ("int8", "int16")
    )
    assert first.fingerprint != other.fingerprint
    panels = first.path.with_name("model.onnx.data.panels")
    panels.write_bytes(panels.read_bytes()[:-1])
    with pytest.raises(KvCacheError, match="panels has changed since the model was built"):
        models.load(first.path)
