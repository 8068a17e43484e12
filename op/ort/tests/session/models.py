"""Writes the models of the test beside this file: a node `KeyValueCache` of float32, and one that is refused."""

from __future__ import annotations

from pathlib import Path

import yaml
from onnx import TensorProto, helper

MODELS = Path(__file__).parent / "models"
SCHEMA = Path(__file__).parents[4] / "schema" / "key_value_cache.yaml"
IR_VERSION = 10  # what ONNX Runtime 1.20 reads


def model(**attributes: int) -> bytes:
    """A node whose inputs and outputs have open ranks, so that every call reaches the operator."""
    schema = yaml.safe_load(SCHEMA.read_text())
    types = {"T1": TensorProto.FLOAT, "T2": TensorProto.FLOAT, "int64": TensorProto.INT64}
    inputs, outputs = (
        [
            helper.make_tensor_value_info(row["name"], types[row["type"]], None)
            for row in schema[key]
            if row["type"] in types
        ]
        for key in ("inputs", "outputs")
    )
    domain = schema["domains"][0]
    names = [[value.name for value in values] for values in (inputs, outputs)]
    node = helper.make_node(schema["name"], *names, name="cached", domain=domain, **attributes)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(domain, schema["version"])]
    graph = helper.make_graph([node], "session", inputs, outputs)
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets).SerializeToString(deterministic=True)


if __name__ == "__main__":
    (MODELS / "decode.onnx").write_bytes(model())
    (MODELS / "refused.onnx").write_bytes(model(page_size=0))
