"""Models of ONNX exports: over our cache they compute what ONNX Runtime computes with the export's own attention."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kvcache_ops import KvCacheError, models
from kvcache_ops.engine import Engine
from onnx import TensorProto, helper

from tiny_exports import CONTEXT, VOCABULARY, Graph, as_on_the_hub, refused_export, write_export
from tiny_models import TEXT, Run, expect_near

FLOAT32 = dict(cache="float32", activations="int16")
TOKENS = [*TEXT, 8, 9, 10, 11, 12, 13]
CASES: dict[str, dict[str, Any]] = {
    "packed": {},
    "separate": dict(packed=False, rotated=16, attention=(dict(scale=0.5, rotary_interleaved=1),) * 2),
    "norms as nodes": dict(packed=False, norms="nodes"),
    "a layer without rotation": dict(attention=({}, dict(do_rotary=0))),
    "positions of the node": dict(rotary="positions"),
    "rotation as nodes": dict(packed=False, rotary="nodes"),
    "window in a layer": dict(attention=(dict(local_window_size=5), {})),
    "soft cap": dict(attention=(dict(softcap=2.0, scale=1.0),) * 2),
    "sink": dict(sink=True),
    "smooth softmax": dict(attention=(dict(smooth_softmax=1),) * 2),
    "quantized head, capped": dict(head="capped"),
    "logits of the last tokens": dict(head="kept"),
    "float16": dict(element=TensorProto.FLOAT16),
    "quantized": dict(quantized=dict(bits=4, block_size=32)),
    "quantized, float16": dict(quantized=dict(bits=8, block_size=64), element=TensorProto.FLOAT16),
}


@pytest.mark.parametrize("attention", ["fused", "packed"])
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_export(tmp_path: Path, case: str, attention: str) -> None:
    """A prompt, then token by token, beside another sequence."""
    graph = Graph(**CASES[case])
    source = write_export(tmp_path / "export", graph)
    run = Run(models.build(source, tmp_path / "model", attention=attention, **FLOAT32))
    bound = 0.03 if graph.element == TensorProto.FLOAT16 else 5e-4 if "quantized" in case else 2e-5
    expect_near(run.logits(TOKENS, 9), graph.logits(TOKENS).astype(np.float32), bound)


@pytest.mark.parametrize(
    ("case", "same"),
    [
        (dict(norms="inputs"), dict(packed=False, norms="nodes")),  # not of ONNX Runtime's CPU
        (dict(paged=True), {}),  # not of its CPU, either
        (dict(paged=True, packed=False, norms="inputs", sink=True), dict(packed=False, norms="nodes", sink=True)),
        (dict(head="last"), {}),  # all tokens' logits, though the export gives the last one's
        (dict(head="sliced"), {}),
        (dict(head="branches"), {}),  # of nodes in no order
    ],
)
def test_what_onnx_runtime_does_not_compute_is_as_the_same_in_nodes(
    tmp_path: Path, case: dict[str, Any], same: dict[str, Any]
) -> None:
    """Norms of heads in the attention node, PagedAttention, a pruned head, branches."""
    run = Run(models.build(write_export(tmp_path / "export", Graph(**case)), tmp_path / "model", **FLOAT32))
    expect_near(run.logits(TOKENS, 9), Graph(**same).logits(TOKENS), 2e-5)


def test_rotary_tables_may_depend_on_the_context(tmp_path: Path) -> None:
    """LongRoPE's `If`: the branch for the context asked for, or the one asked for; of nodes in any order."""
    graph = Graph(rotary="by length")
    graph.model.graph.node.reverse()  # builders up to 0.7 write them in no order
    source = write_export(tmp_path / "export", graph)
    for asked, kind, context, tokens in [
        (dict(), "long", CONTEXT, [*TOKENS, *TOKENS]),
        (dict(context=20), "short", 20, TOKENS),
        (dict(rope="short"), "short", 20, TOKENS),
    ]:
        run = Run(models.build(source, tmp_path / "model", **asked, **FLOAT32))
        expect_near(run.logits(tokens, len(tokens) - 5), graph.logits(tokens), 2e-5)
        assert run.model.config.context_length == context
        assert f"the {kind} rotary factors" in run.model.notes[0]
    with pytest.raises(KvCacheError, match="context is 21, expected 1 to 20, the short rotary factors"):
        models.build(source, tmp_path / "other", rope="short", context=21)


@pytest.mark.filterwarnings("error")
@pytest.mark.usefixtures("home")
def test_an_export_may_lie_in_the_folder_of_its_checkpoint(tmp_path: Path) -> None:
    """Without genai_config.json; among several graphs, the user chooses by a path."""
    source = as_on_the_hub(write_export(tmp_path / "export", graph := Graph()))
    model = models.open_model(source, cache="float32")
    assert (model.name, model.stops, model.config.context_length) == ("export", (VOCABULARY - 1,), CONTEXT)
    expect_near(Run(model.path).logits(TOKENS, 9), graph.logits(TOKENS), 2e-5)
    assert models.open_model(source / "onnx").stops == (VOCABULARY - 1,)
    (source / "generation_config.json").write_text('{"eos_token_id": 1}')
    assert models.open_model(source / "onnx").stops == (1,)
    write_export(tmp_path / "other", other := Graph(attention=(dict(scale=0.5),) * 2))
    content = (tmp_path / "other" / "model.onnx").read_bytes().replace(b"model.onnx.data", b"other.onnx.data")
    (path := source / "onnx" / "model_q4.onnx").write_bytes(content)
    (tmp_path / "other" / "model.onnx.data").rename(source / "onnx" / "other.onnx.data")
    with pytest.raises(KvCacheError, match=r"has onnx/model\.onnx, onnx/model_q4\.onnx: expected the path of one"):
        models.open_model(source)
    model = models.open_model(path, cache="float32")
    expect_near(Run(model.path).logits(TOKENS, 9), other.logits(TOKENS), 2e-5)
    for out in source / "onnx", source:
        with pytest.raises(KvCacheError, match="has an export, expected a folder that is no export"):
            models.build(path, out)
    (source / "config.json").write_text("{}")
    with pytest.raises(KvCacheError, match=r"max_position_embeddings is None in config\.json, expected a whole number"):
        models.build(path, tmp_path / "model")
    with pytest.raises(KvCacheError, match=r"there is no genai_config\.json and no config\.json in .*graphs"):
        models.build((source / "onnx").rename(source / "graphs") / "model.onnx", tmp_path / "model")


def test_weights_stay_in_one_file(tmp_path: Path) -> None:
    """A hard link, whose change under the built model is seen, and not mistaken for another time of a copy."""
    source = write_export(tmp_path / "export", Graph())
    built = models.build(source, tmp_path / "model").parent
    assert os.path.samefile(source / "model.onnx.data", built / "model.onnx.data")
    first = models.load(built)
    assert "hard link" in first.notes[-1] and first.stops == (len(first.tokenizer.get_vocab()) - 1,)
    os.utime(built / "model.onnx.data", (1, 1))
    assert models.load(built).fingerprint == first.fingerprint
    with (source / "model.onnx.data").open("r+b") as data:
        data.write(b"other")
    with pytest.raises(KvCacheError, match="has changed since the model was built"):
        models.load(built)


def test_weights_may_lie_in_several_files_and_on_another_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then each has a name of its own, and is copied, with a warning."""
    source = write_export(tmp_path / "export", graph := Graph())
    model = onnx.ModelProto.FromString(graph.model.SerializeToString())
    onnx.save_model(model, source / "model.onnx", save_as_external_data=True, all_tensors_to_one_file=False)

    def refuse(*paths: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.warns(UserWarning, match="is copied, since there can be no hard link to it: Invalid cross-device link"):
        run = Run(models.build(source, tmp_path / "model", **FLOAT32))
    expect_near(run.logits(TOKENS, 9), graph.logits(TOKENS), 2e-5)
    (tmp_path / "model" / "model.onnx.data.1").unlink()
    with pytest.raises(KvCacheError, match=r"there is no .*model\.onnx\.data\.1"):
        models.load(tmp_path / "model")


@pytest.mark.parametrize("second", [dict(), dict(do_rotary=0)])
@pytest.mark.usefixtures("home")
def test_an_engine_answers_from_an_export(tmp_path: Path, second: dict[str, int]) -> None:
    """Opened by its path, as the commands do, and past the context: keys are rotated, or all computed again."""
    graph = Graph(attention=({}, second))
    engine = Engine(models.open_model(write_export(tmp_path / "export", graph)), keep=1)
    requests = engine.generate([TEXT, [*TEXT, 4]], max_new_tokens=CONTEXT)
    assert [(request.error, request.shifted > 0) for request in requests] == [(None, True)] * 2
    assert requests[0].answer[0] == graph.logits(TEXT)[-1].argmax()


def test_a_configuration_that_contradicts_the_graph_is_named(tmp_path: Path) -> None:
    """The graph counts."""
    window = {"window_size": 8, "layers": []}
    source = write_export(tmp_path / "export", Graph(), sliding_window=window, num_attention_heads=8)
    (source / "config.json").write_text('{"model_type": "mistral", "sliding_window": 12, "rope_theta": 1000}')
    with pytest.warns(UserWarning) as warned:
        models.build(source, tmp_path / "model")
    texts = " " + " ".join(str(warning.message) for warning in warned)
    assert "genai_config.json says num_attention_heads 8, the graph has 4" in texts
    assert "config.json says rope_theta 1000 and rope_scaling {}, the graph rotates by other angles" in texts
    for said in ("genai_config.json says sliding_window 8", " config.json says sliding_window 12"):
        assert f"{said} of layer 0, the graph has local_window_size -1" in texts


def attention_node(model: onnx.ModelProto, layer: int = 0) -> onnx.NodeProto:
    """The attention of a layer."""
    return [node for node in model.graph.node if node.op_type == "GroupQueryAttention"][layer]


def with_attribute(name: str, value: Any) -> Callable[[onnx.ModelProto], None]:
    """A further attribute of an attention node."""
    return lambda model: attention_node(model).attribute.append(helper.make_attribute(name, value))


def with_input(place: int, name: str) -> Callable[[onnx.ModelProto], None]:
    """Another input of an attention node."""

    def change(model: onnx.ModelProto) -> None:
        node = attention_node(model)
        node.input.extend([""] * (place + 1 - len(node.input)))
        node.input[place] = name

    return change


def before_the_logits(op_type: str, *further: str, **attributes: Any) -> Callable[[onnx.ModelProto], None]:
    """Another last node."""

    def change(model: onnx.ModelProto) -> None:
        model.graph.node[-1].output[0] = "before"
        model.graph.node.append(helper.make_node(op_type, ["before", *further], ["logits"], "last", **attributes))

    return change


def other_sizes(model: onnx.ModelProto) -> None:
    """Fewer heads in the second layer."""
    node = attention_node(model, 1)
    next(attribute for attribute in node.attribute if attribute.name == "num_heads").i = 2


def other_kind(model: onnx.ModelProto) -> None:
    """The second layer's attention is another operator."""
    attention_node(model, 1).op_type = "MultiHeadAttention"


REFUSED: dict[str, tuple[Callable[[onnx.ModelProto], Any], str]] = {
    "bias": (with_input(10, "one"), "attention_bias one, expected none"),
    "quantized": (with_attribute("k_quant_type", "PER_TENSOR"), "k_quant_type 'PER_TENSOR', expected 'NONE'"),
    "unknown": (with_attribute("novel", 1), "novel 1, expected no such attribute"),
    "flag": (with_attribute("rotary_interleaved", 2), "rotary_interleaved 2, expected 0 or 1"),
    "type": (with_attribute("softcap", [2.0]), r"softcap \[2.0\], expected a value of the type float"),
    "query": (with_input(0, ""), "has no query, expected it"),
    "tables": (with_input(8, "one"), r"cos has the shape \(64, 16\) and one \(1,\), expected one of rows"),
    "elements": (lambda model: model.graph.initializer[-1].dims.append(7), "of model.onnx.data, which has"),
    "past": (with_input(3, "one"), "past_key of GroupQueryAttention 0.attention is one, expected an input"),
    "shared past": (with_input(3, "past_key_values.1.key"), "is the past of 2 nodes"),
    "sizes": (other_sizes, r"heads \(4, 2\) of 32, GroupQueryAttention 1.attention has heads \(2, 2\) of 32"),
    "kinds": (other_kind, "GroupQueryAttention and MultiHeadAttention, expected one kind"),
    "mask": (before_the_logits("Add", "mask.less"), "the logits come from Add last, expected a MatMul"),
    "mask in a layer": (with_input(0, "mask.less"), "ReduceSum mask.sum needs attention_mask, not for attention alone"),
    "cycle": (lambda model: model.graph.node[-1].input.append("logits"), "MatMul logits needs what it computes itself"),
    "head": (before_the_logits("Softmax"), "the logits come from Softmax last, expected a MatMul"),
    "opset": (lambda model: setattr(model.opset_import[0], "version", 99), "has opset 99 of ai.onnx, expected at most"),
    "output": (lambda model: setattr(model.graph.output[0], "name", "hidden"), "has no output logits"),
    "external": (
        lambda model: setattr(model.graph.initializer[2].external_data[2], "value", "9999999"),
        "model.onnx.data",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_graph_that_cannot_be_rewritten_is_refused(tmp_path: Path, case: str) -> None:
    """The error names what cannot be rewritten, and nothing is written."""
    change, message = REFUSED[case]
    refused_export(tmp_path, Graph(), change, message)


def test_files_that_are_no_export_are_refused(tmp_path: Path) -> None:
    """Data that are cut, elsewhere or not there, no genai_config.json, an encoder."""
    source = write_export(tmp_path / "export", Graph())

    def refuses(message: str) -> None:
        with pytest.raises(KvCacheError, match=message):
            models.build(source, tmp_path / "model")

    data, about = source / "model.onnx.data", source / "genai_config.json"
    data.write_bytes(whole := data.read_bytes()[:-1])
    refuses(f"of model.onnx.data, which has {len(whole)}")
    data.unlink()
    refuses(r"there is no model\.onnx\.data")
    data.write_bytes(whole + b"0")
    graph = onnx.load(path := source / "model.onnx", load_external_data=False)
    entries = next(entry for t in graph.graph.initializer if (entry := {e.key: e for e in t.external_data}))
    for key, wrong, message in (("location", "../other.data", "expected a file in"), ("offset", "x", "at no place of")):
        right, entries[key].value = entries[key].value, wrong
        onnx.save(graph, path)
        refuses(message)
        entries[key].value = right
    onnx.save(graph, path)
    whole_text = about.read_text()
    for name in "../export/model.onnx", str(path):
        about.write_text(whole_text.replace('"filename": "model.onnx"', f'"filename": "{name}"'))
        refuses(r"filename is .* in genai_config\.json, expected a file in")
    about.write_text(whole_text.replace('"decoder"', '"encoder": {"filename": "encoder.onnx"}, "decoder"'))
    refuses("has encoder, expected a decoder of one graph alone")
    about.unlink()
    refuses(r"there is no genai_config\.json and no config\.json")
    assert not (tmp_path / "model").exists()
