"""Writes the models of the tests beside this file: golden cases of `KeyValueCache` as ONNX models of one node."""

from __future__ import annotations

from pathlib import Path

import yaml
from onnx import TensorProto, helper

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
CASES = ("decode-mode0-f32-f32", "decode-mode1-f16-int4-f16", "refuse-page-size-0")
TYPES = {name.lower(): number for name, number in TensorProto.DataType.items()} | {"float32": TensorProto.FLOAT}
IR_VERSION = 10  # what ONNX Runtime 1.20 reads


def model(case: str) -> bytes:
    """The case's node, whose inputs and outputs have open ranks, so that every call reaches the operator."""
    schema = yaml.safe_load((ROOT / "schema" / "key_value_cache.yaml").read_text())
    described = yaml.safe_load((ROOT / "golden" / "cases" / case / "case.yaml").read_text())
    types = {"int64": "int64"} | described["types"]

    def operands(key: str) -> list:
        given = [row for row in schema[key] if row["type"] in types]
        return [helper.make_tensor_value_info(row["name"], TYPES[types[row["type"]]], None) for row in given]

    inputs, outputs = operands("inputs"), operands("outputs")
    domain = schema["domains"][0]
    names = [[value.name for value in values] for values in (inputs, outputs)]
    node = helper.make_node(schema["name"], *names, name="cached", domain=domain, **described["attributes"])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(domain, schema["version"])]
    graph = helper.make_graph([node], case, inputs, outputs)
    made = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets)
    return made.SerializeToString(deterministic=True)


if __name__ == "__main__":
    for case in CASES:
        (HERE / "models" / f"{case}.onnx").write_bytes(model(case))
