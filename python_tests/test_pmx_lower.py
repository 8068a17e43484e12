"""What lowering keeps, what it refuses, and the command that does it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from kvcache_ops import KvCacheError
from kvcache_pmx import lower
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser, version_converter

from compare import refused
from pmx_export import Params, export
from pmx_steps import Steps, break_node, node_model
from sessions import create_session


@pytest.mark.parametrize("element", ["float32", "float16"])
@pytest.mark.parametrize("quant_bit", [0, 8])
def test_what_stays(quant_bit: int, element: str) -> None:
    """Inputs, outputs, weights and nodes keep names, order and types; the export itself is not changed."""
    model = export(Params(element=element, quant_bit=quant_bit))
    before = model.SerializeToString(deterministic=True)
    lowered = lower(model)
    assert model.SerializeToString(deterministic=True) == before
    assert list(lowered.graph.input) == list(model.graph.input)
    assert list(lowered.graph.output) == list(model.graph.output)
    assert list(lowered.graph.initializer) == list(model.graph.initializer)
    names = {node.name for node in lowered.graph.node}
    assert {node.name for node in model.graph.node if node.domain} <= names
    assert {entry.domain: entry.version for entry in lowered.opset_import}[""] == 18 and lowered.ir_version == 8
    attention = [node for node in lowered.graph.node if node.op_type == "MultiHeadCacheAttention"]
    assert [node.input[10] for node in attention] == ["kv_cache", "kv_cache"]
    assert [len(node.input) for node in attention] == [12, 12] if quant_bit else [11, 11]


def test_what_is_left_alone() -> None:
    """A lowered model, and one without PMX operators, stay as they are; their opset, too."""
    lowered = lower(export(Params()))
    assert lower(lowered).SerializeToString(deterministic=True) == lowered.SerializeToString(deterministic=True)
    model = parser.parse_model(
        '<ir_version: 6, opset_import: ["": 11]> g (float[2] x) => (float[2] y) { y = Relu (x) }'
    )
    assert lower(model) == model


def test_a_later_opset_stays() -> None:
    """An export of opset 21 keeps it, and so do its functions."""
    params = Params(element="float32")
    model = version_converter.convert_version(export(params), 21)
    model.ir_version = 10
    # Of some inner values the exporter says a wrong type.
    model.graph.value_info.append(helper.make_tensor_value_info(model.graph.node[1].output[0], TensorProto.INT64, None))
    lowered = lower(model)
    versions = {f.opset_import[0].version for f in lowered.functions} | {lowered.opset_import[0].version}
    assert versions == {21}
    for got, expected in zip(Steps(params).run(lowered)[0], Steps(params).expected(export(params)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=3e-5)


def test_nodes_of_one_form_share_a_function() -> None:
    """More layers need no more functions."""
    one, five = (lower(export(Params(layers=layers))) for layers in (1, 5))
    names = [(f.domain, f.name) for f in five.functions]
    assert len(set(names)) == len(names) and len(five.functions) == len(one.functions)


def test_nodes_in_a_branch() -> None:
    """Nodes of subgraphs are lowered too."""
    model = parser.parse_model("""<ir_version: 6, opset_import: ["": 11, "opmx": 1]>
        graph (bool condition, float[n] x) => (float[n] y) {
            y = If <then_branch = then () => (float[n] a) { a = opmx.SiLU (x) },
                    else_branch = other () => (float[n] b) { b = opmx.SiLU (x) }> (condition)
        }""")
    lowered = lower(model)
    assert [f.name for f in lowered.functions] == ["SiLU"]
    x = np.array([-1.0, 2.0], np.float32)
    (y,) = create_session(lowered.SerializeToString()).run(None, {"condition": np.array(True), "x": x})
    np.testing.assert_allclose(y, x / (1 + np.exp(-x)), rtol=1e-6)


def test_all_that_cannot_be_lowered_is_named_at_once() -> None:
    """Each node with its operator and the reason, in one error."""
    model = export(Params())
    embedding, norm = model.graph.node[0], model.graph.node[1]
    next(a for a in embedding.attribute if a.name == "padding_idx").i = 3
    next(a for a in norm.attribute if a.name == "axis").i = -2
    for domain, op_type in [("opmx", "VisionEmbedding"), ("opmx.dynamic_batching", "InsertEmbedding")]:
        model.graph.node.append(helper.make_node(op_type, [], [op_type], f"/{op_type}", domain=domain))
    with refused("unsupported") as refusal:
        lower(model)
    assert str(refusal.value).splitlines() == [
        "4 nodes cannot be lowered:",
        "  opmx::ParallelEmbedding '/ParallelEmbedding_0': padding_idx 3 is not supported, expected -1",
        "  opmx::RMSNorm '/RMSNorm_1': axis -2 is not supported, expected -1",
        "  opmx::VisionEmbedding '/VisionEmbedding': the operator is not known here",
        "  opmx.dynamic_batching::InsertEmbedding '/InsertEmbedding': the operator is not known here",
    ]


X, W = np.zeros((2, 4), np.float32), np.zeros((3, 4), np.float32)
ROTATED = {"q": X, "k": X, "seqstarts": np.zeros(2, np.int64), "start_pos": np.zeros(1, np.int64)}
DYNAMIC = "opmx.dynamic_batching"


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "domain", "words"),
    [
        ("MultiHeadCacheAttention", {"x": X}, {}, "opmx", "the operator is not known here"),
        ("RowParallelLinear", {"x": X, "w": W}, {"in_features": 8}, "opmx", "axis 1 of the weight is 4, expected"),
        ("ParallelEmbedding", {"x": X, "w": W}, {"embedding_dims": 8}, "opmx", "one device's slice of a model"),
        ("SiLU", {"x": X, "y": X, "z": X}, {}, "opmx", "3 inputs, expected at most 2"),
        ("RMSNorm", {"x": X, "w": W[0]}, {"axis": 1.5}, "opmx", "attribute axis is FLOAT, expected an integer"),
        ("MoeSelect", {"x": X, "s": X}, {"num_experts_per_token": 1}, "opmx", "attribute num_experts is missing"),
        ("MoeSelect", {"x": X, "s": X}, {"num_experts": 4, "num_experts_per_token": 5}, "opmx", "5, expected 1 to"),
        ("Linear", {"x": X, "w": W}, {"bias_term": 1}, "opmx", "bias_term 1, but the bias is missing"),
        ("RMSNorm", {"x": X, "": W[0]}, {}, "opmx", "input W is missing"),
        ("RotaryPositionEmbedding", ROTATED, {"scaling_type": "yarn"}, DYNAMIC, "scaling_type 'yarn' is not known"),
        ("RotaryPositionEmbedding", ROTATED, {"rotary_dim": 3}, DYNAMIC, "rotary_dim 3, expected an even number"),
        ("ALiBiMask", {"a": X[0], "b": X[0]}, {"num_heads": 0, "data_type": 1}, DYNAMIC, "num_heads 0, expected"),
        ("ALiBiMask", {"a": X[0], "b": X[0]}, {"num_heads": 4, "data_type": 16}, DYNAMIC, "data_type 16, expected"),
    ],
)
def test_refusals(op_type: str, inputs: dict, attributes: dict, domain: str, words: str) -> None:
    """Each fault of a node has words of its own."""
    weights = ("w",) if "w" in inputs else ()
    with refused("unsupported", words) as refusal:
        lower(node_model(op_type, inputs, attributes, ["y"], domain=domain, weights=weights))
    assert f"{domain}::{op_type} '/it'" in str(refusal.value)


@pytest.mark.parametrize(("op_type", "words"), [("SiLU", "2 outputs"), ("RMSNorm", "with skip_term 0")])
def test_more_outputs_than_there_are(op_type: str, words: str) -> None:
    """An output too many is refused, and a sum that the node says not to have."""
    with refused("unsupported", words):
        lower(node_model(op_type, {"x": X, "w": W[0]}, {}, ["a", "b"]))


def test_static_batching() -> None:
    """KeyValueCache of static batching stays, since the library has it; the export's other operators are refused."""
    inputs = {name: X for name in ("current_key", "current_value")} | {"start_pos": np.zeros(1, np.int64), "cache": X}
    model = node_model("KeyValueCache", inputs, {"quant_bit": 0, "quant_group": 0}, ["key", "value"])
    (node,) = lower(model).graph.node
    assert (node.domain, node.op_type, list(node.input)) == ("opmx", "KeyValueCache", list(inputs))
    assert [attribute.name for attribute in node.attribute] == ["quant_bit"]
    model.graph.node.append(helper.make_node("MultiHeadAttention", [], ["y"], "/static", domain="opmx"))
    with pytest.raises(KvCacheError, match="opmx::MultiHeadAttention '/static': the operator is not known here"):
        lower(model)


def test_operators_in_functions() -> None:
    """A function that the model came with is not looked into, so it is refused."""
    model = export(Params())
    node = helper.make_node("SiLU", ["x"], ["y"], "/inner", domain="opmx")
    model.functions.append(
        helper.make_function("local", "Outer", ["x"], ["y"], [node], [helper.make_opsetid("opmx", 1)])
    )
    with pytest.raises(KvCacheError, match="opmx::SiLU '/inner': it is in the function local::Outer"):
        lower(model)


@pytest.mark.parametrize("attention", ["native", "onnx"])
@pytest.mark.parametrize("params", [Params(), Params(fused=False)], ids=["fused", "unfused"])
def test_broken_exports(params: Params, attention: str) -> None:
    """Whatever is missing or of another type: a typed error or a model, never anything else."""
    random, whole = np.random.default_rng(7), export(params)
    for _ in range(8):
        model = ModelProto()
        model.CopyFrom(whole)
        for _ in range(random.integers(1, 4)):
            break_node(random, model.graph.node[random.integers(len(model.graph.node))])
        try:
            lower(model, attention=attention)
        except KvCacheError as error:
            assert error.kind in ("unsupported", "opset")


def test_arguments() -> None:
    """Options that there are not, a path where a model is expected, and a rank for a mask that the model has not."""
    model = export(Params())
    for options in ({"attention": "flash"}, {"mask_rank": 4}):
        with refused("argument", "expected"):
            lower(model, **options)
    with pytest.raises(KvCacheError, match="model is a str"):
        lower("model.onnx")  # type: ignore[arg-type]
    for node in model.graph.node:
        if node.op_type == "MultiHeadCacheAttention":
            del node.input[12:]
    with refused("mask", "no mask without elements"):
        lower(model, mask_rank=2)


def test_weights_are_not_touched() -> None:
    """Weights of any size in a file that need not be there: neither read nor needed."""
    model = export(Params())
    weight = next(t for t in model.graph.initializer if t.name == "tok_embeddings")
    rows = 2**33  # half a terabyte
    weight.ClearField("raw_data")
    weight.dims[0], weight.data_location = rows, TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="nowhere.bin")
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "num_embeddings":
            attribute.i = rows
    lowered = lower(model)
    assert next(t for t in lowered.graph.initializer if t.name == weight.name) == weight


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command's output and exit code."""
    line = [sys.executable, "-m", "kvcache_pmx", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_the_command(tmp_path: Path) -> None:
    """An export with its weights in a file beside it, as large models have them, runs from its own folder."""
    params = Params(element="float32")
    model = export(params)
    source, target = tmp_path / "export.onnx", tmp_path / "model.onnx"
    onnx.save(model, source, save_as_external_data=True, location="weights.bin", size_threshold=0)
    done = command("lower", source, target)
    assert (done.returncode, done.stderr) == (0, "")
    assert "opset 18" in done.stdout and "opmx::RMSNorm_2" in done.stdout
    assert target.stat().st_size < source.stat().st_size + 60000
    session = create_session(target)
    steps = Steps(params)
    feeds = steps.inputs[0] | {"kv_cache": steps.cache.copy(), "kv_scale": steps.scale}
    got = session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})[0]
    np.testing.assert_allclose(got, steps.expected(export(params))[0], rtol=0, atol=3e-5)

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    refused = command("lower", source, elsewhere / "model.onnx")
    assert refused.returncode == 2 and "weights.bin beside it" in refused.stderr and not list(elsewhere.iterdir())


def test_the_command_refuses(tmp_path: Path) -> None:
    """In the words of `lower`, without a traceback."""
    model = node_model("VisionEmbedding", {"x": X}, {}, ["y"])
    onnx.save(model, tmp_path / "export.onnx")
    for source, status, words in [
        ("export.onnx", 2, "unsupported: 1 nodes cannot be lowered:\n  opmx::VisionEmbedding '/it'"),
        ("missing.onnx", 1, "missing.onnx"),
    ]:
        done = command("lower", tmp_path / source, tmp_path / "model.onnx")
        assert done.returncode == status and words in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "model.onnx").exists()


def test_empty_constants() -> None:
    """Constants of ONNX nodes count as tensors without elements, too."""
    model = export(Params())
    model.graph.node.insert(0, helper.make_node("Constant", [], ["empty"], value=numpy_helper.from_array(X[:0, 0])))
    for node in model.graph.node:
        if node.op_type == "MultiHeadCacheAttention":
            node.input[11] = node.input[12] = "empty"
    attention = [node for node in lower(model).graph.node if node.op_type == "MultiHeadCacheAttention"]
    assert [len(node.input) for node in attention] == [11, 11]
