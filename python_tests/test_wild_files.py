"""Files as people have them: split ones, old keys, stops and beginnings that files only hint at, odd folders."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from kvcache_ops import models
from kvcache_ops.models import ChatTemplate
from kvcache_ops.models._build import open_checkpoint
from safetensors.numpy import load_file, save_file

from compare import refused
from served import serving
from tiny_folders import write_folder
from tiny_models import TOKENS, write_gguf

ROOT = Path(__file__).resolve().parents[1]

NO_TOKEN = 2**32 - 1
SPLIT = "gpt-00002-of-00003.gguf"


def split(tmp_path: Path) -> Path:
    """The second of a model's three parts; the first has the metadata alone."""
    whole = gguf.GGUFReader(write_gguf(tmp_path / "whole.gguf", "Q8_0"))
    parts = [[], whole.tensors[:5], whole.tensors[5:]]
    for i, tensors in enumerate(parts):
        writer = gguf.GGUFWriter(tmp_path / f"gpt-{i + 1:05}-of-00003.gguf", "llama")
        if i == 0:
            for key, field in whole.fields.items():
                if not key.startswith(("GGUF.", "general.architecture")):
                    kinds = field.types
                    writer.add_key_value(key, field.contents(), kinds[0], sub_type=kinds[-1] if kinds[1:] else None)
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", 3)
        writer.add_int32("split.tensors.count", len(whole.tensors))
        for tensor in tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return tmp_path / SPLIT


def test_a_split_file(tmp_path: Path) -> None:
    """Any part names the whole model; a fault of a part is told by its name."""
    part = split(tmp_path)
    fingerprint = models.load(models.build(tmp_path / "whole.gguf", tmp_path / "whole")).fingerprint
    assert models.load(models.build(part, tmp_path / "model")).fingerprint == fingerprint
    third = tmp_path / "gpt-00003-of-00003.gguf"
    content = third.read_bytes()
    third.write_bytes(part.read_bytes())
    with refused("source_damaged", "gpt-00003-of-00003.gguf has split.no 1, expected 2"):
        open_checkpoint(part)
    third.write_bytes(content.replace(b"blk.0.ffn_up", b"blk.0.attn_k"))
    with refused("source_damaged", "blk.0.attn_k.weight is in gpt-00003-of-00003.gguf and in a part before it"):
        open_checkpoint(part)
    third.unlink()
    with refused("source_missing", "there is no gpt-00003-of-00003.gguf"):
        open_checkpoint(part)
    part.rename(tmp_path / "second.gguf")
    with refused("source_missing", "second.gguf is one of 3 parts, expected a name that"):
        open_checkpoint(tmp_path / "second.gguf")
    for count in (0, 1):
        open_checkpoint(write_gguf(tmp_path / "one-00001-of-00001.gguf", fields={"split.count": count}))


def named(names: dict[str, str]) -> list[str]:
    """The tokens, some of them with other names."""
    return [names.get(token, token) for token in TOKENS]


def test_ends_of_answers(tmp_path: Path) -> None:
    """Named by metadata, or by their own names where they are control tokens; an id that is none is none."""
    tokens = named({"x": "<|im_end|>", "y": "<|eot_id|>", "z": "</s>"})
    types = [3 if token in ("<|start|>", "<|end|>", "<|im_end|>", "</s>") else 1 for token in tokens]
    fields = {"tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.eom_token_id": 9}
    path = write_gguf(tmp_path / "model.gguf", tokens=tokens, types=types, fields=fields)
    expected = [7, 9, *sorted(tokens.index(token) for token in ("<|im_end|>", "</s>", "<|end|>"))]
    assert open_checkpoint(path).stops == tuple(expected)
    none = {"tokenizer.ggml.bos_token_id": NO_TOKEN, "tokenizer.ggml.eot_token_id": NO_TOKEN}
    with pytest.warns(UserWarning, match="tokenizer.ggml.(bos|eot)_token_id is 4294967295") as warned:
        checkpoint = open_checkpoint(write_gguf(path, fields=none))
    assert (len(warned), checkpoint.bos, checkpoint.stops) == (2, None, (len(TOKENS) - 1,))


@pytest.mark.parametrize(
    ("pre", "given", "adds"),
    [
        *((pre, None, True) for pre in ("llama-bpe", "llama3", "llama-v3", "tekken")),
        *((pre, None, False) for pre in ("smollm", "default", "qwen2", "deepseek-r1-qwen", "qwen35")),
        ("llama-bpe", False, False),
        ("qwen2", True, True),
    ],
)
def test_beginnings(tmp_path: Path, pre: str, given: bool | None, adds: bool) -> None:
    """Where a file does not say it, its pre-tokenizer does; through a chat template there is one, too."""
    fields: dict[str, object] = {"tokenizer.ggml.pre": pre}
    if given is not None:
        fields["tokenizer.ggml.add_bos_token"] = given
    for template in ("{{ messages[0].content }}", "{{ bos_token }}{{ messages[0].content }}"):
        path = write_gguf(tmp_path / "model.gguf", fields=fields | {"tokenizer.chat_template": template})
        model = models.load(models.build(path, tmp_path / "model"))
        assert model.encode("a").count(len(TOKENS) - 2) == adds
        chat = ChatTemplate(model).tokens([{"role": "user", "content": "a"}])
        assert chat.count(len(TOKENS) - 2) == (adds or "bos_token" in template)


PIECES = {
    "gpt-2": ["it", "'s", "Ġa", "+", "b", "Ġ12345", "Ġ", "Ġm", "ÌĢ"],
    "default": ["it", "'", "s", "Ġa", "+", "b", "Ġ", "123", "45", "Ġ", "Ġm", "ÌĢ"],
    "smollm": ["it", "'s", "Ġa", "+", "b", "Ġ", "1", "2", "3", "4", "5", "Ġ", "Ġm", "ÌĢ"],
    "llama-v3": ["it", "'s", "Ġa", "+b", "Ġ", "123", "45", "Ġ", "Ġm", "ÌĢ"],
    "deepseek-r1-qwen": ["it", "'s", "Ġa", "+b", "Ġ", "1", "2", "3", "4", "5", "Ġ", "Ġm", "ÌĢ"],
    "qwen35": ["it", "'s", "Ġa", "+b", "Ġ", "1", "2", "3", "4", "5", "Ġ", "ĠmÌĢ"],
}


@pytest.mark.parametrize("pre", PIECES)
def test_how_texts_are_cut(tmp_path: Path, pre: str) -> None:
    """Texts are cut into words as llama.cpp does."""
    tokenizer = open_checkpoint(write_gguf(tmp_path / "model.gguf", fields={"tokenizer.ggml.pre": pre})).tokenizer
    cut = tokenizer.pre_tokenizer.pre_tokenize_str("it's a+b 12345  m\u0300")
    assert [piece for piece, _ in cut] == PIECES[pre]


def test_no_pre_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing pre-tokenizer is the default one, with a warning."""
    expected = open_checkpoint(write_gguf(tmp_path / "a.gguf", fields={"tokenizer.ggml.pre": "default"})).tokenizer
    write = gguf.GGUFWriter.add_string
    monkeypatch.setattr(gguf.GGUFWriter, "add_string", lambda w, k, v: k == "tokenizer.ggml.pre" or write(w, k, v))
    with pytest.warns(UserWarning, match="there is no tokenizer.ggml.pre"):
        assert open_checkpoint(write_gguf(tmp_path / "b.gguf")).tokenizer.to_str() == expected.to_str()


@pytest.mark.parametrize(
    "fields",
    [
        {"llama.rope.scale_linear": 4.0},
        {"llama.rope.scaling.factor": 4.0},
        {"llama.rope.scaling.factor": 4.0, "llama.rope.scale_linear": 2.0},
        {"llama.rope.scaling.type": "linear", "llama.rope.scale_linear": 4.0},
    ],
    ids=str,
)
def test_old_keys_of_rope_scaling(tmp_path: Path, fields: dict[str, object]) -> None:
    """A factor without a type is linear; the old key is read where the new one is not there."""
    frequencies = open_checkpoint(write_gguf(tmp_path / "model.gguf", fields=fields)).config.inv_freq
    assert np.allclose(frequencies, 10000.0 ** (-np.arange(0, 64, 2) / 64) / 4)
    none = fields | {"llama.rope.scaling.type": "none"}
    assert open_checkpoint(write_gguf(tmp_path / "model.gguf", fields=none)).config.inv_freq[0] == 1


def test_a_tokenizer_with_truncation_and_padding(tmp_path: Path) -> None:
    """Training left them in tokenizer.json; a text keeps all of its tokens, and gets no others."""
    folder = write_folder(tmp_path / "source")
    tokenizer = open_checkpoint(folder).tokenizer
    expected = tokenizer.encode("the theme of it").ids
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert models.load(models.build(folder, tmp_path / "model")).encode("the theme of it") == expected


def test_ends_in_a_folder(tmp_path: Path) -> None:
    """End tokens of three files are joined; null in one hides nothing of the others."""
    folder = write_folder(tmp_path / "source", eos_token_id=5)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 5]}')
    for said in ("<|end|>", {"content": "<|end|>", "lstrip": False}):
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": said}))
        assert open_checkpoint(folder).stops == (len(TOKENS) - 1, 7, 5)
    (folder / "generation_config.json").write_text('{"eos_token_id": null}')
    (folder / "tokenizer_config.json").write_text('{"eos_token": null}')
    assert open_checkpoint(folder).stops == (5,)


def test_files_of_a_folder(tmp_path: Path) -> None:
    """The index decides, else the names; a copy of the weights, or an adapter, is none of them."""
    folder = write_folder(tmp_path / "source")
    (first, second), other = (load_file(folder / f"model-{i}.safetensors") for i in range(2)), {"a": np.ones(2)}
    fingerprint = models.load(models.build(folder, tmp_path / "model")).fingerprint
    save_file(other, folder / "consolidated.safetensors")
    save_file(other, folder / "adapter_model.safetensors")

    def is_the_same() -> None:
        assert models.load(models.build(folder, tmp_path / "model")).fingerprint == fingerprint

    is_the_same()
    save_file(first | second, folder / "model.safetensors")
    is_the_same()
    save_file(other, folder / "model.safetensors")  # stale, beside shards
    for i, tensors in enumerate((first, second)):
        save_file(tensors, folder / f"model-{i + 1:05}-of-00002.safetensors")
        (folder / f"model-{i}.safetensors").unlink()
    is_the_same()
    index = {name: "model-00001-of-00002.safetensors" for name in first}
    index |= {name: "model-00002-of-00002.safetensors" for name in second}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    is_the_same()
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model-00002-of-00002.safetensors").unlink()
    with refused("source_missing", "there is no model-00002-of-00002.safetensors in"):
        open_checkpoint(folder)


def test_a_head_that_is_not_there(tmp_path: Path) -> None:
    """The embedding is used for it, with a warning."""
    expected = models.load(models.build(write_folder(tmp_path / "tied"), tmp_path / "model")).fingerprint
    with pytest.warns(UserWarning, match=r"there is no lm_head\.weight"):
        path = models.build(write_folder(tmp_path / "source", tie_word_embeddings=False), tmp_path / "other")
    assert models.load(path).fingerprint == expected


def test_an_added_token_beyond_the_vocabulary(tmp_path: Path) -> None:
    """An added token beyond the vocabulary is left out."""
    folder = write_folder(tmp_path / "source")
    tokenizer = open_checkpoint(folder).tokenizer
    expected = tokenizer.encode("<image>").ids
    tokenizer.add_special_tokens(["<image>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.warns(UserWarning, match=f"<image> of tokenizer.json are left out: the model has {len(TOKENS)} tokens"):
        model = models.load(models.build(folder, tmp_path / "model"))
    assert model.encode("<image>") == expected


def test_a_chat_template_that_is_none(tmp_path: Path) -> None:
    """It disables chats, and not the server."""
    path = write_gguf(tmp_path / "model.gguf", fields={"tokenizer.chat_template": "{% if %}"})
    with serving(models.build(path, tmp_path / "model")) as server:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
        status, said = server.ask("POST", "/v1/chat/completions", json.dumps(body).encode())
        assert status == 400 and b"chat template" in said
        body = {"model": "tiny", "prompt": "a", "max_tokens": 2}
        assert server.ask("POST", "/v1/completions", json.dumps(body).encode())[0] == 200


def test_the_oldest_packages() -> None:
    """`make test-oldest` runs with the oldest versions that the package declares."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has none")
    extras = tomllib.loads((ROOT / "python/pyproject.toml").read_text())["project"]["optional-dependencies"]
    lines = (ROOT / "requirements/middle.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    bounds = [need.split(",")[0].split(">=") for extra in ("models", "serve") for need in extras[extra] if ">=" in need]
    assert len(bounds) > 8
    for name, least in bounds:
        assert f"{pinned[name]}.".startswith(f"{least}."), name
