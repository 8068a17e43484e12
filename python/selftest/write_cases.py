"""Writes the golden cases that the package carries: kvcache_ops/selftest.npz, for `python -m kvcache_ops doctor`."""

from __future__ import annotations

import json
from pathlib import Path

import kvcache_ops
import numpy as np
import yaml
from kvcache_ops._selftest import FILE
from onnx import TensorProto, helper
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[2]

# One of each kind of cache, both modes, three layouts; and attention.
CASES = [
    "cases/decode-mode0-f32-f32",
    "cases/decode-mode1-f16-f16",
    "cases/decode-mode1-int8-int8",
    "cases/decode-mode0-f32-int8-f32",
    "cases/decode-mode1-f16-int8-f16",
    "cases/decode-mode0-f32-int4-f32",
    "cases/decode-mode1-f16-int4-f16",
    "attention_cases/chunked-f32-int8-f16",
    "attention_cases/chunked-f16-int4-f32",
]
TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.INT4,
    "int64": TensorProto.INT64,
}


STEPS = 3
"""So many calls of a case are enough."""


def embedded() -> dict[str, np.ndarray]:
    """The arrays of the file: all bytes of the cases and of a model of one node for each, and the index."""
    data, index = bytearray(), {}
    for path in CASES:
        folder = ROOT / "golden" / path
        case, tensors = yaml.safe_load((folder / "case.yaml").read_text()), load_file(folder / "tensors.safetensors")
        if "int4" in case:
            *outer, head_dim = case["int4"]["cache"]
            packed = (*outer, head_dim // 2)
            tensors |= {name: x.reshape(packed) for name, x in tensors.items() if name.split(".")[-1] == "cache"}
        op_type, attributes = case.get("operator", "KeyValueCache"), case["attributes"]
        steps = min(STEPS, len(case["steps"]))
        first = {name.removeprefix("0."): array for name, array in tensors.items() if name.startswith("0.")}
        tensors["model"] = np.frombuffer(model(op_type, attributes, first), np.uint8)
        kept = {name: x for name, x in tensors.items() if "." not in name or int(name.partition(".")[0]) < steps}
        places = {}
        for name, array in sorted(kept.items()):
            places[name] = [array.dtype.name, list(array.shape), len(data)]
            data += np.ascontiguousarray(array).tobytes()
        index[folder.name] = {"op_type": op_type, "attributes": attributes, "steps": steps, "tensors": places}
    text = json.dumps(index).encode()
    return {"index": np.frombuffer(text, np.uint8), "data": np.frombuffer(bytes(data), np.uint8)}


def model(op_type: str, attributes: dict[str, int], tensors: dict[str, np.ndarray]) -> bytes:
    """A model of one node, for inputs of these types and any rank."""
    names, results = kvcache_ops._native.input_names(op_type), kvcache_ops._native.output_names(op_type)
    given = {name: name for name in names if name in tensors}
    node = kvcache_ops.make_node(op_type, given, results, attributes)
    inputs = [helper.make_tensor_value_info(name, TYPES[tensors[name].dtype.name], None) for name in given]
    t1 = TYPES[tensors[names[0]].dtype.name]
    graph = helper.make_graph([node], op_type, inputs, [helper.make_tensor_value_info(x, t1, None) for x in results])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(node.domain, 1)]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets).SerializeToString()


if __name__ == "__main__":
    np.savez_compressed(ROOT / "python/kvcache_ops" / FILE, **embedded())
