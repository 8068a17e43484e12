"""QuantizedMatMul and QuantizedGather: the golden cases in ONNX Runtime and on numpy arrays, and what panels are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kvcache_ops
import kvcache_ops.onnx
import numpy as np
import pytest
from kvcache_ops import KvCacheError
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper
from safetensors import safe_open

from compare import refused
from oracle.quantized_matmul import matrix_codes
from sessions import create_session, element_type, model_of

CASES = sorted((Path(__file__).resolve().parents[1] / "golden/quantized_cases").glob("*.safetensors"))
NAMES = {
    "QuantizedMatMul": ["x", "panels", "scales", "minima", "bias"],
    "QuantizedGather": ["indices", "panels", "scales", "minima"],
}
DOORS = {"QuantizedMatMul": kvcache_ops.quantized_matmul, "QuantizedGather": kvcache_ops.quantized_gather}


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A case, and its tensors."""
    with safe_open(path, "np") as file:
        case = json.loads(file.metadata()["case"])
        return case, {name: file.get_tensor(name) for name in file.keys()}


def quantized_model(case: dict[str, Any], tensors: dict[str, np.ndarray], **given: Any) -> ModelProto:
    """A model of one node; a missing input before another is a constant without elements, as older runtimes need it."""
    names = NAMES[case["operator"]]
    names = names[: max(i for i, name in enumerate(names) if name in tensors) + 1]
    empty = [helper.make_tensor(name, TensorProto.FLOAT, [0], []) for name in names if name not in tensors]
    node = helper.make_node(case["operator"], names, ["y"], "the node", domain="kvcache_ops", **case["attributes"])
    types = {name: element_type(values) for name, values in tensors.items()} | {"y": TensorProto.FLOAT}
    return model_of(node, types, initializers=[*empty, *given.pop("initializers", [])], **given)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_golden_cases(path: Path) -> None:
    """Bit for bit in ONNX Runtime and through the numpy door; refusals with their kind."""
    case, tensors = read(path)
    operator, attributes = case["operator"], case["attributes"]
    feeds = {name: values for name, values in tensors.items() if name != "y"}
    model = quantized_model(case, tensors)
    if "error" in case:
        with pytest.raises(KvCacheError) as error:
            DOORS[operator](attributes, **feeds)
        assert error.value.kind == case["error"] and all(words in str(error.value) for words in case["mentions"])
        with pytest.raises(Exception, match=f"{case['error']}: ") as error:
            create_session(model).run(None, feeds)
        assert all(words in str(error.value) for words in case["mentions"])
        return
    for y in (DOORS[operator](attributes, **feeds), create_session(model).run(None, feeds)[0]):
        assert y.shape == tensors["y"].shape and np.array_equal(y.view(np.uint32), tensors["y"].view(np.uint32))


def test_panels_are_what_the_oracle_reads() -> None:
    """Sizes need not fill panels and blocks, and may need several batches of panels; wide codes are refused."""
    random = np.random.default_rng(3)
    for bits in (4, 8):
        for block in (16, 32):
            codes = random.integers(0, 1 << bits, (16 * 257 + 3, 2 * block - 4), np.uint8)
            panels = kvcache_ops.pack_panels(codes, bits=bits, block_size=block)
            assert panels.shape == (258, 2, block * bits * 2)
            found = matrix_codes(panels, len(codes), bits, block).reshape(len(codes), -1)
            assert np.array_equal(found[:, : codes.shape[1]], codes) and not found[:, codes.shape[1] :].any()
    scales = kvcache_ops.pack_scales(codes[:19].astype(np.float16))
    assert scales.shape == (2, codes.shape[1], 16) and scales[1, 5, 2] == codes[18, 5] and not scales[1, :, 3:].any()
    with refused("code_range", "codes have 16, expected less than 16"):
        kvcache_ops.pack_panels(np.full((1, 16), 16, np.uint8), bits=4, block_size=16)
    for wrong in (dict(bits=3, block_size=16), dict(bits=4, block_size=64)):
        with refused("attribute_out_of_range"):
            kvcache_ops.pack_panels(codes, **wrong)
    with refused("rank_mismatch"):
        kvcache_ops.pack_panels(codes[0], bits=8, block_size=16)


def test_the_output_may_be_given() -> None:
    """A given output is returned; one of another shape, or that is not writable, is refused."""
    case, tensors = read(next(path for path in CASES if path.stem == "rank-4"))
    expected = tensors.pop("y")
    y = np.empty_like(expected)
    assert kvcache_ops.quantized_matmul(case["attributes"], **tensors, y=y) is y and np.array_equal(y, expected)
    with refused("shape_mismatch", "y has 17 in axis 3"):
        kvcache_ops.quantized_matmul(case["attributes"], **tensors, y=np.empty((2, 1, 3, 17), np.float32))
    y.flags.writeable = False
    with refused("read_only"):
        kvcache_ops.quantized_matmul(case["attributes"], **tensors, y=y)
    with refused("attribute_missing", "attribute activation_bits is absent"):
        kvcache_ops.quantized_matmul({"N": 1, "K": 1, "bits": 8, "block_size": 16}, **tensors)
    with refused("type_mismatch", "panels is of type float32, expected uint8"):
        kvcache_ops.quantized_matmul(case["attributes"], **tensors | {"panels": tensors["scales"]})


def test_what_a_graph_knows() -> None:
    """ONNX Runtime infers the shapes; weights may be initializers; onnx's checker takes the node."""
    for stem in ("rank-4", "rows-8-bits-block-32-minima"):
        case, tensors = read(next(path for path in CASES if path.stem == stem))
        first = NAMES[case["operator"]][0]
        weights = [numpy_helper.from_array(x, name) for name, x in tensors.items() if name not in (first, "y")]
        shapes = {name: [None] * x.ndim if name == "y" else x.shape for name, x in tensors.items()}
        model = quantized_model(case, tensors, shapes=shapes, initializers=weights)
        made = create_session(model)
        assert made.get_outputs()[0].shape == list(tensors["y"].shape)
        assert np.array_equal(made.run(None, {first: tensors[first]})[0], tensors["y"], equal_nan=True)
        checker.check_model(model, full_check=True)
