"""What `models.build` reads: Hugging Face folders, tokenizers, RoPE scaling."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from kvcache_ops import models
from kvcache_ops.models._config import rotary
from ml_dtypes import bfloat16
from safetensors.numpy import load_file, save_file

from numpy_gguf import NumpyGguf, yarn
from tiny_folders import write_folder
from tiny_models import EXACT, TEXT, built, expect_near, random_tensors, write_gguf, write_sentence_piece

GEMMA_3 = {
    "sliding_window": 4,
    "layer_types": ["full_attention", "sliding_attention"],
    "query_pre_attn_scalar": 16,
    "rope_local_base_freq": 500,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
AS_A_FILE = {
    "gemma3.attention.sliding_window": 4,
    "gemma3.attention.sliding_window_pattern": [False, True],
    "gemma3.attention.scale": 0.25,
    "gemma3.rope.freq_base_swa": 500.0,
    "gemma3.rope.scaling.factor": 8.0,
}


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2", "gemma3"])
def test_a_folder_is_the_file(tmp_path: Path, family: str) -> None:
    """The same weights give the same bits."""
    options = {"qwen2": {"use_sliding_window": False, "sliding_window": 7}, "gemma3": GEMMA_3}.get(family, {})
    if family == "gemma2":
        options = {"query_pre_attn_scalar": 64}
    run = built(write_folder(tmp_path / "source", family, **options), **EXACT)
    fields = AS_A_FILE if family == "gemma3" else None
    expected = built(write_gguf(tmp_path / "model.gguf", family=family, fields=fields), "other", **EXACT)
    assert np.array_equal(run.logits(), expected.logits())
    assert (run.model.stops, run.model.chat_template, run.model.bos) == ((1,), "{{ messages }}", "<|start|>")
    assert run.model.tokenizer.decode(run.model.tokenizer.encode("the theme").ids) == "the theme"


def test_gemma_with_images(tmp_path: Path) -> None:
    """The text part of a model of texts and images is read: its names and configuration are one level below."""
    folder = write_folder(tmp_path / "source", "gemma3", **GEMMA_3)
    expected = models.load(models.build(folder, tmp_path / "model")).fingerprint
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "gemma3_text"}
    (folder / "config.json").write_text(
        json.dumps({"model_type": "gemma3", "text_config": config, "eos_token_id": [1]})
    )
    for path in folder.glob("model-*.safetensors"):
        save_file({f"language_model.{name}": values for name, values in load_file(path).items()}, path)
    save_file({"vision_tower.patches.weight": np.ones((2, 2), np.float32)}, folder / "model-2.safetensors")
    assert models.load(models.build(folder, tmp_path / "model")).fingerprint == expected


def test_a_window_of_a_folder(tmp_path: Path) -> None:
    """Mistral has one in every layer."""
    run = built(write_folder(tmp_path / "source", model_type="mistral", sliding_window=4), **EXACT)
    path = write_gguf(tmp_path / "model.gguf", fields={"llama.attention.sliding_window": 4})
    expect_near(run.logits(), NumpyGguf(path).logits(TEXT), 1e-5)


@pytest.mark.parametrize(
    ("weights", "kind", "embedding"),
    [("float32", "F32", None), ("float16", "F16", None), ("int8", "Q8_0", None), ("int4", "Q4_0", "Q8_0")],
)
def test_floats_as_asked(tmp_path: Path, weights: str, kind: str, embedding: str | None) -> None:
    """They become what llama.cpp converts them to."""
    run = built(write_gguf(tmp_path / "model.gguf"), weights=weights, **EXACT)
    expected = built(write_gguf(tmp_path / "other.gguf", kind, embedding=embedding), "other", **EXACT)
    assert np.array_equal(run.logits(), expected.logits())


@pytest.mark.parametrize(("dtype", "kind"), [(np.float16, "F16"), (bfloat16, "BF16")])
def test_a_folder_of_halves(tmp_path: Path, dtype: type, kind: str) -> None:
    """They stay halves, and can be quantized."""
    folder = write_folder(tmp_path / "source", "qwen3", dtype)
    tensors = {name: values.astype(dtype).astype(np.float32) for name, values in random_tensors("qwen3").items()}
    expected = built(write_gguf(tmp_path / "model.gguf", kind, "qwen3", tensors=tensors), "other", **EXACT)
    run = built(folder, **EXACT)
    assert np.array_equal(run.logits(), expected.logits())
    assert models.load(models.build(folder, tmp_path / "int8", weights="int8")).fingerprint != run.model.fingerprint


def test_llama3_scaling() -> None:
    """Frequencies equal the published definition, pair by pair."""
    scaling = dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    )
    expected = []
    for pair in range(64):
        frequency = 500000.0 ** (-pair / 64)
        wavelength = 2 * np.pi / frequency
        if wavelength < 8192 / 4:
            expected.append(frequency)
        elif wavelength > 8192 / 1:
            expected.append(frequency / 8)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            expected.append((1 - smooth) * frequency / 8 + smooth * frequency)
    frequencies, scale = rotary(128, 500000.0, scaling, 131072)
    assert np.allclose(frequencies, expected, rtol=1e-12) and scale == 1


def test_yarn_of_a_folder(tmp_path: Path) -> None:
    """Qwen's words for it, whose context is then longer; a factor of attention that is given, or follows from two."""
    scaling = dict(type="yarn", factor=4.0, original_max_position_embeddings=4096)
    config = models.load(models.build(write_folder(tmp_path / "source", rope_scaling=scaling), tmp_path / "out")).config
    frequencies, magnitude = yarn(10000.0 ** (-np.arange(0, 64, 2) / 64), 10000.0, 4.0, 4096)
    assert np.allclose(config.inv_freq, frequencies, rtol=1e-12)
    assert (config.rope_scale, config.context_length) == (pytest.approx(magnitude), 16384)
    for more, expected in (
        (dict(attention_factor=1.5), 1.5),
        (dict(mscale=0.7, mscale_all_dim=0.5), (1 + 0.07 * np.log(4)) / (1 + 0.05 * np.log(4))),
        (dict(factor=0.5), 1),
    ):
        assert rotary(64, 10000.0, scaling | more, 4096)[1] == pytest.approx(expected)


def test_a_sentence_piece_tokenizer(tmp_path: Path) -> None:
    """Merges come from scores; what is in no token is its bytes; a prompt begins with the first token."""
    words = {"▁": -9.0, "a": -8.0, "b": -7.0, "▁a": -2.0, "ab": -1.0, "▁ab": -3.0}
    path, tokens = write_sentence_piece(tmp_path / "model.gguf", words)
    tokenizer = models.load(models.build(path, tmp_path / "model")).tokenizer
    encoded = tokenizer.encode("ab aé").ids
    assert [tokens[i] for i in encoded] == ["<s>", "▁ab", "▁a", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(encoded) == "ab aé"
