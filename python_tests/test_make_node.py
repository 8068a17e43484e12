"""`make_node`: nodes of graphs, checked when they are made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from kvcache_ops import CacheSpec, check_model, make_node
from onnx import AttributeProto, helper

from compare import refused
from one_node import INPUTS, PACKED_INPUTS
from sessions import attributes_of

SPEC = CacheSpec(max_tokens=16, num_kv_heads=2, head_dim=8, dtype="float32", num_layers=3, quant_bit=8, cache_layout=1)
NAMES = {name: f"my_{name}" for name in INPUTS}
ATTENTION = PACKED_INPUTS[:8]


def test_inputs_by_position() -> None:
    """An empty name is an input that is left out; none is left at the end."""
    plain = {"num_layer": 2}
    for given in (INPUTS[:-1], (*INPUTS[:-1], "")):
        node = make_node("KeyValueCache", given, ["key", "value"], plain)
        assert tuple(node.input) == INPUTS[:-1] and attributes_of(node) == plain
    fused = make_node(
        "MultiHeadCacheAttention",
        {name: name for name in (*ATTENTION[:1], *INPUTS[:-1], "decoding_batches", "attn_mask")},
        ["attn_output"],
        {"num_heads": 4, "head_dim": 8},
    )
    assert list(fused.input)[-3:] == ["cache", "", "attn_mask"]


def test_floats_are_floats() -> None:
    """Whatever number is given for them; as a keyword `scale` is the attribute, too."""
    inputs = {name: name for name in (*ATTENTION, "head_sink")}
    numbers = {"scale": 1, "softcap": 30, "local_window_size": 4}
    given = {"num_heads": 4, "head_dim": 8, "softcap": 1.0}
    node = make_node("MultiHeadAttention", inputs, ["attn_output"], given, **numbers)
    assert attributes_of(node) == given | numbers
    assert list(node.input)[-3:] == ["max_kvlen", "", "head_sink"]
    assert {a.name: a.type for a in node.attribute if a.name in numbers} == {
        "scale": AttributeProto.FLOAT,
        "softcap": AttributeProto.FLOAT,
        "local_window_size": AttributeProto.INT,
    }


def test_attributes_of_a_spec() -> None:
    """Each operator gets the attributes that it has."""
    packed = make_node("MultiHeadAttention", ATTENTION, ["attn_output"], SPEC, num_heads=4)
    assert attributes_of(packed) == {"num_heads": 4, "head_dim": 8, "num_kv_heads": 2}
    names = (*ATTENTION[:1], *INPUTS[:6], "decoding_batches", *INPUTS[6:])
    fused = make_node("MultiHeadCacheAttention", names, ["attn_output"], SPEC, num_heads=4, layer_idx=1)
    expected = SPEC.attributes(layer_idx=1) | {"num_heads": 4, "head_dim": 8, "num_kv_heads": 2}
    del expected["num_repeat"]
    assert attributes_of(fused) == expected


def test_a_model_of_a_later_library(tmp_path: Path) -> None:
    """Attributes that the library does not know are named, of each node that is its own, also in an If."""
    fused = make_node("MultiHeadAttention", ATTENTION, ["o"], {"num_heads": 4, "head_dim": 8}, name="attend")
    other = helper.make_node("Later", ["o"], ["p"], domain="of.others", unheard=1)
    branch = helper.make_graph([fused, other], "branch", [], [helper.make_empty_tensor_value_info("o")])
    choice = helper.make_node("If", ["condition"], ["result"], then_branch=branch, else_branch=branch)
    graph = helper.make_graph([choice], "graph", [], [helper.make_empty_tensor_value_info("result")])
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    check_model(path)
    fused.attribute.append(helper.make_attribute("chunks", 2))
    branch.node[0].CopyFrom(fused)
    choice.attribute[0].g.CopyFrom(branch)
    graph.node[0].CopyFrom(choice)
    path.write_bytes(helper.make_model(graph).SerializeToString())
    with refused("attribute_unknown", "MultiHeadAttention node 'attend' has chunks"):
        check_model(path)


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        (dict(op_type="KeyValueCash"), "operator_unknown", 'there is no operator "KeyValueCash"'),
        (dict(domain="opmx"), "domain_unknown", "expected one of opmx.dynamic_batching, pmx.dynamic_batching"),
        (dict(inputs=NAMES | {"mask": "x"}), "input_unknown", 'KeyValueCache has no input "mask"'),
        (dict(inputs=[*INPUTS, "x"]), "input_unknown", "expected names for at most 10: current_key"),
        (dict(inputs=INPUTS[:8]), "input_missing", "cache is absent"),
        (dict(inputs=("k", "", *INPUTS[2:])), "input_missing", "current_value is absent"),
        (dict(inputs=INPUTS[:9]), "scale_missing", "because quant_bit is 8"),
        (dict(inputs=None), "input_unknown", "gets inputs None"),
        (dict(inputs="kv"), "input_unknown", "gets inputs 'kv'"),
        (dict(inputs=NAMES | {"cache": 3}), "input_unknown", "expected names by names"),
        (dict(attributes=3), "attribute_type", "attributes are a int, expected a CacheSpec or ints by name"),
        (dict(outputs=None), "output_count", "gets outputs None"),
        (dict(outputs=["key"]), "output_count", "expected names for key, value"),
        (dict(outputs="kv"), "output_count", "expected names for key, value"),
        (dict(num_repaet=2), "attribute_unknown", '"num_repaet"'),
        (dict(layer_idx=3), "attribute_out_of_range", "attribute layer_idx is 3, expected 0 to 2"),
        (dict(attributes={"num_layer": "1"}), "attribute_type", "attribute num_layer is '1'"),
        (dict(op_type="MultiHeadAttention", inputs=ATTENTION, scale="1"), "attribute_type", "scale is '1', expected a"),
        (dict(op_type="MultiHeadAttention", inputs=ATTENTION, outputs=["o"]), "attribute_missing", "num_heads"),
    ],
)
def test_what_is_refused(arguments: dict, kind: str, text: str) -> None:
    """Before a runtime could misread it."""
    with refused(kind, text):
        make_node(**dict(op_type="KeyValueCache", inputs=NAMES, outputs=["key", "value"], attributes=SPEC) | arguments)


def test_without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is imported when it is needed; without it the error names it."""
    monkeypatch.setitem(sys.modules, "onnx.helper", None)
    with refused("package_missing", "make_node needs the package onnx"):
        make_node("KeyValueCache", NAMES, ["key", "value"], SPEC)
