"""What `models.build` and `models.load` refuse: files, folders, arguments and models that are damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from kvcache_ops import KvCacheError, models

from compare import refused
from tiny_folders import write_folder
from tiny_models import TOKENS, random_tensors, write_gguf


def refuses(kind: str, words: str, source: Path, **options: object) -> None:
    """`build` refuses it with this kind and a sentence with these words, and leaves nothing behind."""
    with refused(kind, words):
        models.build(source, source.parent / "out", **options)
    out = source.parent / "out"
    assert not out.exists() or not list(out.iterdir())


def without(name: str) -> dict[str, np.ndarray]:
    """All tensors but one."""
    return {key: values for key, values in random_tensors().items() if key != name}


ANY = np.ones((4, 256), np.float32)
FILES: dict[str, tuple[str, str, dict[str, object]]] = {
    "type": ("tensor_type", "has the type TQ2_0, expected one of F32, F16", {"kind": "TQ2_0"}),
    "vector": ("tensor_type", "norm.weight has the type Q8_0, expected one of F32", {"vectors": "Q8_0"}),
    "family": ("family_unknown",
        "'gemma9', expected one of llama, qwen2, qwen3, gemma2, gemma3; it has blk.0.layer_output_scale.weight",
        {"family": "gemma9", "tensors": random_tensors() | {"blk.0.layer_output_scale.weight": ANY[0]}}),
    "missing": ("tensor_missing", "no tensor blk.1.ffn_up.weight", {"tensors": without("blk.1.ffn_up.weight")}),
    "shape": ("tensor_shape", "blk.1.ffn_up.weight has the shape [4, 256], expected [512, 256]",
        {"tensors": random_tensors() | {"blk.1.ffn_up.weight": ANY}}),
    "further": ("tensor_unexpected", "llama has no blk.0.ffn_gate_inp.weight",
        {"tensors": random_tensors() | {"blk.0.ffn_gate_inp.weight": ANY}}),
    "heads": ("config_range", "a multiple of num_kv_heads 3", {"fields": {"llama.attention.head_count_kv": 3}}),
    "layers": ("config_range", "num_layers is 0", {"fields": {"llama.block_count": 0}}),
    "field": ("config_type", "llama.block_count is of the type str", {"fields": {"llama.block_count": "two"}}),
    "windows": ("config_range", "the layers' windows are [7, 0, 7], expected 2 of 0 or more", {
        "family": "gemma2",
        "tensors": random_tensors("gemma2"),
        "fields": {"gemma2.attention.sliding_window": 7, "gemma2.attention.sliding_window_pattern": [1, 0, 1]},
    }),
    "attn factor": ("config_unsupported", "attn_factor is 1.5", {"fields": {"llama.rope.scaling.attn_factor": 1.5}}),
    "partial": ("config_unsupported", "dimension_count is 32", {"fields": {"llama.rope.dimension_count": 32}}),
    "pre": ("tokenizer_unknown", "tokenizer.ggml.pre is 'gpt-9'", {"fields": {"tokenizer.ggml.pre": "gpt-9"}}),
    "model": ("tokenizer_unknown", "tokenizer.ggml.model is 't5'", {"fields": {"tokenizer.ggml.model": "t5"}}),
    "tokens": ("tokenizer_mismatch", "the tokenizer has the token 261, expected less", {"tokens": [*TOKENS, "more"]}),
    "merges": ("tokenizer_damaged", "do not agree", {"merges": ["x yz"]}),
    "end": ("tokenizer_mismatch", "eos_token_id is 999", {"fields": {"tokenizer.ggml.eos_token_id": 999}}),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_refused(tmp_path: Path, name: str) -> None:
    """Each refusal has its kind, what was got and what was expected."""
    kind, words, wrong = FILES[name]
    refuses(kind, words, write_gguf(tmp_path / "model.gguf", **wrong))


def change(**values: object) -> Callable[[Path], None]:
    """Changes config.json."""

    def act(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return act


def rewrite(name: str, text: str | None) -> Callable[[Path], object]:
    """Replaces a file, or removes it."""
    return lambda folder: (folder / name).unlink() if text is None else (folder / name).write_text(text)


FOLDERS: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "no weights": ("source_missing", "no *.safetensors", lambda folder: [
        path.unlink() for path in folder.glob("*.safetensors")
    ]),
    "no config": ("source_missing", "there is no config.json", rewrite("config.json", None)),
    "no tokenizer": ("source_missing", "there is no tokenizer.json", rewrite("tokenizer.json", None)),
    "half": ("tensor_missing", "there is no tensor model.layers.0.self_attn.v_proj.weight in",
        rewrite("model-1.safetensors", None)),
    "no first half": ("tensor_missing", "there is no tensor ", rewrite("model-0.safetensors", None)),
    "part of the shards": ("source_missing", "there is no model-2.safetensors in",
        rewrite("model.safetensors.index.json", '{"weight_map": {"a": "model-2.safetensors"}}')),
    "an index of nothing": ("source_damaged", "weight_map of", rewrite("model.safetensors.index.json", "{}")),
    "a tensor twice": ("source_damaged", "is in model-0.safetensors and in model-9.safetensors",
        lambda folder: shutil.copy(folder / "model-0.safetensors", folder / "model-9.safetensors")),
    "weights": ("source_damaged", "model-0.safetensors is no whole", rewrite("model-0.safetensors", "x" * 40)),
    "json": ("source_damaged", "config.json is no JSON", rewrite("config.json", "{")),
    "tokenizer": ("source_damaged", "tokenizer.json is no tokenizer", rewrite("tokenizer.json", "{}")),
    "family": ("family_unknown", "model_type is 'phi9', expected one of llama, mistral", change(model_type="phi9")),
    "number": ("config_type", "hidden_size is 'many'", change(hidden_size="many")),
    "missing": ("config_missing", "rms_norm_eps is None", change(rms_norm_eps=None)),
    "activation": ("config_unsupported", "hidden_act is 'gelu' in config.json, expected 'silu'",
        change(hidden_act="gelu")),
    "float": ("config_type", "num_hidden_layers is 2.0 in config.json", change(num_hidden_layers=2.0)),
    "rope": ("config_type", "rope_scaling is ['a'] in config.json, expected an object", change(rope_scaling=["a"])),
    "base": ("config_range", "rope has the base '1'", change(rope_parameters={"rope_theta": "1"})),
    "end": ("config_type", "eos_token_id is 'x'", change(eos_token_id="x")),
    "negative end": ("tokenizer_mismatch", "the tokenizer has the token -1", change(eos_token_id=[1, -1])),
    "template": ("config_type", "chat_template is 7", rewrite("tokenizer_config.json", '{"chat_template": 7}')),
    "no epsilon": ("config_range", "norm_eps is -1", change(rms_norm_eps=-1)),
    "wide": ("config_range", f"sliding_window is {10**12}", change(model_type="mistral", sliding_window=10**12)),
    "dynamic": ("rope_unsupported", "rope_type is 'dynamic', expected default, linear, llama3 or yarn",
        change(rope_scaling={"rope_type": "dynamic", "factor": 2.0})),
    "no type of scaling": ("rope_unsupported", "rope_type is None", change(rope_scaling={"factor": 4.0})),
    "part of yarn": ("rope_unsupported", "has no 'factor'", change(rope_scaling={"rope_type": "yarn"})),
    "no angles": ("rope_unsupported", "no finite", change(rope_scaling={"type": "linear", "factor": 1e-320})),
    "part of a scaling": ("rope_unsupported", "has no 'original_max_position_embeddings'",
        change(rope_scaling={"rope_type": "llama3", "factor": 8})),
    "some windows": ("config_unsupported", "for some of the layers",
        change(model_type="mistral", sliding_window=4, layer_types=["full_attention", "sliding_attention"])),
    "shape": ("tensor_shape", "mlp.gate_proj.weight has the shape [512, 256]", change(intermediate_size=511)),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_is_refused(tmp_path: Path, name: str) -> None:
    """Each refusal has its kind, and names as the folder's files have them."""
    kind, words, damage = FOLDERS[name]
    folder = write_folder(tmp_path / "source")
    damage(folder)
    refuses(kind, words, folder)


def test_arguments_that_are_refused(tmp_path: Path) -> None:
    """Before anything is written."""
    path = write_gguf(tmp_path / "model.gguf", "Q8_0")
    for name in ("weights", "cache", "attention", "activations", "products"):
        refuses("option_unknown", f"{name} is 'x', expected one of", path, **{name: "x"})
    refuses("option_unknown", "balance is True, expected False", path, balance=True)  # its keys are not normalized
    refuses("head_dim_not_divisible", "", path, quant_group=48)
    for weights in ("float16", "int8"):
        refuses("weights_quantized", "is quantized in the file", path, weights=weights)
    message = "activations is 'int8', expected auto: MatMulNBits rounds none"
    refuses("option_unknown", message, path, activations="int8", products="MatMulNBits")
    refuses("source_missing", "there is no file or folder", tmp_path / "none.gguf")
    with refused("out_empty"):
        models.build(path, "")
    folder = write_folder(tmp_path / "source")
    with refused("out_is_source"):
        models.build(folder, tmp_path / "source" / ".." / "source")


def test_a_model_that_is_refused(tmp_path: Path) -> None:
    """A built model that is damaged, or made by another program, is refused."""
    folder = models.build(write_gguf(tmp_path / "model.gguf"), tmp_path / "model").parent
    whole = {file.name: file.read_bytes() for file in folder.iterdir()}

    def refused_model(kind: str, name: str, content: bytes | None) -> None:
        for file, good in whole.items():
            (folder / file).write_bytes(good)
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)
        with refused(kind):
            models.load(folder)

    for name in whole:
        refused_model("model_missing", name, None)
    refused_model("model_damaged", "model.onnx.data", whole["model.onnx.data"][:-1])
    other = models.build(tmp_path / "model.gguf", tmp_path / "other").with_name("model.onnx.data")
    refused_model("model_damaged", "model.onnx.data", other.read_bytes())
    refused_model("model_damaged", "model.onnx", whole["model.onnx"][:1000])
    refused_model("model_format", "model.onnx", b"")
    earlier = whole["model.onnx"].replace(b'"format": 6', b'"format": 4')
    with pytest.raises(KvCacheError, match=r"has the format 4 .* build it again"):
        refused_model("model_format", "model.onnx", earlier)
        (folder / "model.onnx").write_bytes(earlier)
        models.load(folder)
    refused_model("model_damaged", "tokenizer.json", whole["tokenizer.json"][:-9])
    larger = json.loads(whole["tokenizer.json"])
    larger["model"]["vocab"]["more"] = len(TOKENS)
    refused_model("tokenizer_mismatch", "tokenizer.json", json.dumps(larger).encode())


def test_builds_into_one_folder_at_once(tmp_path: Path) -> None:
    """One of them stays, whole, and nothing of the others."""
    sources = [write_gguf(tmp_path / "a.gguf"), write_gguf(tmp_path / "b.gguf", "Q8_0")]
    alone = {models.load(models.build(path, tmp_path / path.stem)).fingerprint for path in sources}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda path: models.build(path, tmp_path / "model"), sources * 4))
    assert models.load(tmp_path / "model").fingerprint in alone
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"model.onnx", "model.onnx.data", "tokenizer.json"}


def test_a_file_that_is_cut(tmp_path: Path) -> None:
    """Wherever it is cut, the refusal names the file."""
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    for size in (1, 3, 20, 200, 3000, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        refuses("source_damaged", "cut.gguf is no whole GGUF file: ", tmp_path / "cut.gguf")
    (tmp_path / "cut.gguf").write_bytes(whole.replace(b"{{ messages }}", b"{{ message\xff }}"))
    refuses("source_damaged", "tokenizer.chat_template is damaged: 'utf-8' codec", tmp_path / "cut.gguf")
