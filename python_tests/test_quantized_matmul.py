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
from onnx import checker, helper
from safetensors import safe_open

from compare import refused
from kvcache import IR_VERSION, OPSET, create_session
from oracle.quantized_matmul import matrix_codes

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


def node_model(operator: str, attributes: dict[str, int], tensors: dict[str, np.ndarray], shapes: bool = False) -> Any:
    """A model of one node; a missing input before another is a constant without elements, as older runtimes need it."""
    names = NAMES[operator][: max(i for i, name in enumerate(NAMES[operator]) if name in tensors) + 1]
    empty = [helper.make_tensor(name, 1, [0], []) for name in names if name not in tensors]
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(values.dtype), values.shape if shapes else None
        )
        for name, values in tensors.items()
        if name != "y"
    ]
    node = helper.make_node(operator, names, ["y"], "the node", domain="kvcache_ops", **attributes)
    output = helper.make_tensor_value_info("y", 1, [None] * tensors["y"].ndim if shapes else None)
    graph = helper.make_graph([node], "graph", inputs, [output], empty)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("kvcache_ops", 1)]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets)


def session(model: Any) -> Any:
    """A session of a model of our operators."""
    return create_session(model.SerializeToString())


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_golden_cases(path: Path) -> None:
    """Bit for bit in ONNX Runtime and through the numpy door; refusals with their kind."""
    case, tensors = read(path)
    operator, attributes = case["operator"], case["attributes"]
    feeds = {name: values for name, values in tensors.items() if name != "y"}
    model = node_model(operator, attributes, tensors)
    if "error" in case:
        with pytest.raises(KvCacheError) as error:
            DOORS[operator](attributes, **feeds)
        assert error.value.kind == case["error"] and all(words in str(error.value) for words in case["mentions"])
        with pytest.raises(Exception, match=f"{case['error']}: ") as error:
            session(model).run(None, feeds)
        assert all(words in str(error.value) for words in case["mentions"])
        return
    for y in (
        DOORS[operator](attributes, **feeds),
        session(model).run(None, feeds)[0],
    ):
        assert y.shape == tensors["y"].shape and np.array_equal(y.view(np.uint32), tensors["y"].view(np.uint32))


def test_panels_are_what_the_oracle_reads() -> None:
    """Of no whole panels and blocks, and more panels than are packed at once; too wide codes are refused."""
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
    """And is then what is returned; one of another shape, or that is not writable, is refused."""
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
        model = node_model(case["operator"], case["attributes"], tensors, shapes=True)
        first = NAMES[case["operator"]][0]
        for name, values in tensors.items():
            if name not in (first, "y"):
                model.graph.initializer.append(
                    helper.make_tensor(
                        name, helper.np_dtype_to_tensor_dtype(values.dtype), values.shape, values.tobytes(), raw=True
                    )
                )
        kept = [value for value in model.graph.input if value.name == first]
        del model.graph.input[:]
        model.graph.input.extend(kept)
        made = session(model)
        assert made.get_outputs()[0].shape == list(tensors["y"].shape)
        assert np.array_equal(made.run(None, {first: tensors[first]})[0], tensors["y"], equal_nan=True)
        checker.check_model(model, full_check=True)
