"""What `models.build` reads: Hugging Face folders, tokenizers, RoPE scaling; and what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from kvcache_ops import KvCacheError, models
from kvcache_ops.models._config import rotary
from ml_dtypes import bfloat16
from safetensors.numpy import load_file, save_file

from compare import refused
from numpy_gguf import NumpyGguf, yarn
from tiny_models import EXACT, PROMPT, SIZES, TEXT, TOKENS, built, expect_near, random_tensors, write_gguf

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


GEMMA_NAMES = {"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm"}


def hugging_face_name(name: str, gemma: bool = False) -> str:
    """That of a tensor of a GGUF file."""
    *place, part, kind = name.split(".")
    names = NAMES | (GEMMA_NAMES if gemma else {})
    return ".".join([*(["model.layers", place[1]] if place else []), names[part], kind])


def write_folder(folder: Path, family: str = "llama", dtype: type = np.float32, **config: object) -> Path:
    """The checkpoint that `write_gguf` writes, in two files; Llama's q and k rows as transformers has them."""
    folder.mkdir(parents=True)
    tensors = random_tensors(family)
    if family == "llama":
        for name in tensors:
            if ".attn_q." in name or ".attn_k." in name:
                pairs = tensors[name].reshape(-1, SIZES["head_dim"] // 2, 2, SIZES["hidden"])
                tensors[name] = pairs.swapaxes(1, 2).reshape(-1, SIZES["hidden"])
    if gemma := family.startswith("gemma"):  # whose norms are of 1 + weight
        tensors = {name: values - name.endswith("norm.weight") for name, values in tensors.items()}
    named = {
        hugging_face_name(name, gemma): np.ascontiguousarray(values.astype(dtype)) for name, values in tensors.items()
    }
    names = sorted(named)
    for i, part in enumerate((names[:9], names[9:])):
        save_file({name: named[name] for name in part}, folder / f"model-{i}.safetensors")
    facts = {
        "model_type": family,
        "num_hidden_layers": SIZES["layers"],
        "hidden_size": SIZES["hidden"],
        "intermediate_size": SIZES["ffn"],
        "num_attention_heads": SIZES["heads"],
        "num_key_value_heads": SIZES["kv_heads"],
        "head_dim": SIZES["head_dim"],
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(facts | config))
    source = write_gguf(folder / "tokenizer.gguf", family=family)
    models.load(models.build(source, folder / "tokenizer")).tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": "{{ messages }}", "bos_token": "<|start|>"})
    )
    return folder


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
    assert np.array_equal(run.logits(TEXT, len(PROMPT)), expected.logits(TEXT, len(PROMPT)))
    assert (run.model.stops, run.model.chat_template, run.model.bos) == ((1,), "{{ messages }}", "<|start|>")
    assert run.model.tokenizer.decode(run.model.tokenizer.encode("the theme").ids) == "the theme"


def test_gemma_with_images(tmp_path: Path) -> None:
    """Of a model of texts and images the part for texts, whose names and configuration are one level below."""
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
    expect_near(run.logits(TEXT, len(PROMPT)), NumpyGguf(path).logits(TEXT), 1e-5)


@pytest.mark.parametrize(
    ("weights", "kind", "embedding"),
    [("float32", "F32", None), ("float16", "F16", None), ("int8", "Q8_0", None), ("int4", "Q4_0", "Q8_0")],
)
def test_floats_as_asked(tmp_path: Path, weights: str, kind: str, embedding: str | None) -> None:
    """They become what llama.cpp makes of them."""
    run = built(write_gguf(tmp_path / "model.gguf"), weights=weights, **EXACT)
    expected = built(write_gguf(tmp_path / "other.gguf", kind, embedding=embedding), "other", **EXACT)
    assert np.array_equal(run.logits(TEXT, len(PROMPT)), expected.logits(TEXT, len(PROMPT)))


@pytest.mark.parametrize(("dtype", "kind"), [(np.float16, "F16"), (bfloat16, "BF16")])
def test_a_folder_of_halves(tmp_path: Path, dtype: type, kind: str) -> None:
    """They stay halves, and can be quantized."""
    folder = write_folder(tmp_path / "source", "qwen3", dtype)
    tensors = {name: values.astype(dtype).astype(np.float32) for name, values in random_tensors("qwen3").items()}
    expected = built(write_gguf(tmp_path / "model.gguf", kind, "qwen3", tensors=tensors), "other", **EXACT)
    run = built(folder, **EXACT)
    assert np.array_equal(run.logits(TEXT, len(PROMPT)), expected.logits(TEXT, len(PROMPT)))
    assert models.load(models.build(folder, tmp_path / "int8", weights="int8")).fingerprint != run.model.fingerprint


def test_llama3_scaling() -> None:
    """By the definition, pair by pair, as its authors wrote it."""
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
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab"]
    path = write_gguf(
        tmp_path / "model.gguf",
        tensors=random_tensors() | {"token_embd.weight": np.ones((len(tokens), SIZES["hidden"]), np.float32)},
        fields={
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.scores": [0.0] * 259 + [-9.0, -8.0, -7.0, -2.0, -1.0, -3.0],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
        },
        tokens=tokens,
        types=[2, 3, 3, *[6] * 256, *[1] * 6],
    )
    tokenizer = models.load(models.build(path, tmp_path / "model")).tokenizer
    encoded = tokenizer.encode("ab aé").ids
    assert [tokens[i] for i in encoded] == ["<s>", "▁ab", "▁a", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(encoded) == "ab aé"


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
    "family": (
        "family_unknown",
        "'gemma9', expected one of llama, qwen2, qwen3, gemma2, gemma3; it has blk.0.layer_output_scale.weight",
        {"family": "gemma9", "tensors": random_tensors() | {"blk.0.layer_output_scale.weight": ANY[0]}},
    ),
    "missing": ("tensor_missing", "no tensor blk.1.ffn_up.weight", {"tensors": without("blk.1.ffn_up.weight")}),
    "shape": (
        "tensor_shape",
        "blk.1.ffn_up.weight has the shape [4, 256], expected [512, 256]",
        {"tensors": random_tensors() | {"blk.1.ffn_up.weight": ANY}},
    ),
    "further": (
        "tensor_unexpected",
        "llama has no blk.0.ffn_gate_inp.weight",
        {"tensors": random_tensors() | {"blk.0.ffn_gate_inp.weight": ANY}},
    ),
    "heads": ("config_range", "a multiple of num_kv_heads 3", {"fields": {"llama.attention.head_count_kv": 3}}),
    "layers": ("config_range", "num_layers is 0", {"fields": {"llama.block_count": 0}}),
    "field": ("config_type", "llama.block_count is of the type str", {"fields": {"llama.block_count": "two"}}),
    "no epsilon": ("config_range", "norm_eps is 0.0", {"fields": {"llama.attention.layer_norm_rms_epsilon": 0.0}}),
    "window": ("config_range", "sliding_window is 4294967295", {
        "fields": {"llama.attention.sliding_window": 2**32 - 1}
    }),
    "windows": ("config_range", "the layers' windows are [7, 0, 7], expected 2 of 0 or more", {
        "family": "gemma2",
        "tensors": random_tensors("gemma2"),
        "fields": {"gemma2.attention.sliding_window": 7, "gemma2.attention.sliding_window_pattern": [1, 0, 1]},
    }),
    "rope": ("rope_unsupported", "rope_type is 'longrope'", {
        "fields": {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 4.0}
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
    """Each with its kind, what was got and what was expected."""
    kind, words, wrong = FILES[name]
    refuses(kind, words, write_gguf(tmp_path / "model.gguf", **wrong))


def change(**values: object) -> Callable[[Path], None]:
    """Changes config.json."""

    def act(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return act


def rewrite(name: str, text: str | None) -> Callable[[Path], None]:
    """Replaces a file, or removes it."""
    return lambda folder: (folder / name).unlink() if text is None else (folder / name).write_text(text) and None


FOLDERS: dict[str, tuple[str, str, Callable[[Path], None]]] = {
    "no weights": (
        "source_missing",
        "no *.safetensors",
        lambda folder: [path.unlink() for path in folder.glob("*.safetensors")] and None,
    ),
    "no config": ("source_missing", "there is no config.json", rewrite("config.json", None)),
    "no tokenizer": ("source_missing", "there is no tokenizer.json", rewrite("tokenizer.json", None)),
    "half": (
        "tensor_missing",
        "there is no tensor model.layers.0.self_attn.v_proj.weight in",
        rewrite("model-1.safetensors", None),
    ),
    "no first half": ("tensor_missing", "there is no tensor ", rewrite("model-0.safetensors", None)),
    "part of the shards": (
        "source_missing",
        "there is no model-2.safetensors in",
        rewrite("model.safetensors.index.json", '{"weight_map": {"a": "model-2.safetensors"}}'),
    ),
    "an index of nothing": ("source_damaged", "weight_map of", rewrite("model.safetensors.index.json", "{}")),
    "a tensor twice": (
        "source_damaged",
        "is in model-0.safetensors and in model-9.safetensors",
        lambda folder: shutil.copy(folder / "model-0.safetensors", folder / "model-9.safetensors") and None,
    ),
    "weights": ("source_damaged", "model-0.safetensors is no whole", rewrite("model-0.safetensors", "x" * 40)),
    "json": ("source_damaged", "config.json is no JSON", rewrite("config.json", "{")),
    "tokenizer": ("source_damaged", "tokenizer.json is no tokenizer", rewrite("tokenizer.json", "{}")),
    "family": ("family_unknown", "model_type is 'phi9', expected one of llama, mistral", change(model_type="phi9")),
    "number": ("config_type", "hidden_size is 'many'", change(hidden_size="many")),
    "missing": ("config_missing", "rms_norm_eps is None", change(rms_norm_eps=None)),
    "activation": (
        "config_unsupported",
        "hidden_act is 'gelu' in config.json, expected 'silu'",
        change(hidden_act="gelu"),
    ),
    "float": ("config_type", "num_hidden_layers is 2.0 in config.json", change(num_hidden_layers=2.0)),
    "rope": ("config_type", "rope_scaling is ['a'] in config.json, expected an object", change(rope_scaling=["a"])),
    "base": ("config_range", "rope has the base '1'", change(rope_parameters={"rope_theta": "1"})),
    "end": ("config_type", "eos_token_id is 'x'", change(eos_token_id="x")),
    "negative end": ("tokenizer_mismatch", "the tokenizer has the token -1", change(eos_token_id=[1, -1])),
    "template": ("config_type", "chat_template is 7", rewrite("tokenizer_config.json", '{"chat_template": 7}')),
    "no epsilon": ("config_range", "norm_eps is -1", change(rms_norm_eps=-1)),
    **{
        f"window {window}": (kind, f"sliding_window is {window!r}", change(model_type="mistral", sliding_window=window))
        for kind, window in (
            ("config_type", "x"),
            ("config_type", 1.5),
            ("config_range", 0),
            ("config_range", 10**12),
        )
    },
    "dynamic": (
        "rope_unsupported",
        "rope_type is 'dynamic', expected default, linear, llama3 or yarn",
        change(rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
    ),
    "scaling": ("rope_unsupported", "rope_type is 'longrope'", change(rope_scaling={"rope_type": "longrope"})),
    "part of yarn": ("rope_unsupported", "has no 'factor'", change(rope_scaling={"rope_type": "yarn"})),
    "no angles": ("rope_unsupported", "no finite", change(rope_scaling={"type": "linear", "factor": 1e-320})),
    "part of a scaling": (
        "rope_unsupported",
        "has no 'original_max_position_embeddings'",
        change(rope_scaling={"rope_type": "llama3", "factor": 8}),
    ),
    "some windows": (
        "config_unsupported",
        "for some of the layers",
        change(model_type="mistral", sliding_window=4, layer_types=["full_attention", "sliding_attention"]),
    ),
    "shape": ("tensor_shape", "mlp.gate_proj.weight has the shape [512, 256]", change(intermediate_size=511)),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_is_refused(tmp_path: Path, name: str) -> None:
    """Each with its kind, and the names of the folder."""
    kind, words, spoil = FOLDERS[name]
    folder = write_folder(tmp_path / "source")
    spoil(folder)
    refuses(kind, words, folder)


def test_arguments_that_are_refused(tmp_path: Path) -> None:
    """Before anything is written."""
    path = write_gguf(tmp_path / "model.gguf", "Q8_0")
    for name in ("weights", "cache", "attention", "activations", "products"):
        refuses("option_unknown", f"{name} is 'x', expected one of", path, **{name: "x"})
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
    """What is not whole, or made by something else."""
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


def test_a_template_among_others(tmp_path: Path) -> None:
    """The one that is called default; what is none of a folder's templates is passed over."""
    folder = write_folder(tmp_path / "source")
    for templates, expected in (([{"name": "default", "template": "x"}, "a"], "x"), (["a"], None)):
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
        assert models.load(models.build(folder, tmp_path / "model")).chat_template == expected


def test_a_file_that_is_cut(tmp_path: Path) -> None:
    """Wherever: it is refused in words about the file."""
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    for size in (1, 3, 20, 200, 3000, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        refuses("source_damaged", "cut.gguf is no whole GGUF file: ", tmp_path / "cut.gguf")
    (tmp_path / "cut.gguf").write_bytes(whole.replace(b"{{ messages }}", b"{{ message\xff }}"))
    refuses("source_damaged", "tokenizer.chat_template is damaged: 'utf-8' codec", tmp_path / "cut.gguf")
