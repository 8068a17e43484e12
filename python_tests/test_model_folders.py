"""What a Hugging Face folder says is used, or contradicted by a warning: heads, tokens, ends, templates."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kvcache_ops import models
from kvcache_ops.cli._command import main
from kvcache_ops.engine import Engine
from kvcache_ops.models._build import open_checkpoint
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from compare import refused
from tiny_folders import write_folder
from tiny_models import EXACT, TEXT, TOKENS, built, expect_near, random_tensors, write_gguf

COUNT = len(TOKENS)


def configure(folder: Path, **said: Any) -> None:
    """Adds to tokenizer_config.json."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | said))


def roomy(folder: Path, more: int = 4) -> Path:
    """A folder whose embedding has rows for that many further tokens."""
    write_folder(folder)
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        if (name := "model.embed_tokens.weight") in tensors:
            tensors[name] = np.concatenate([tensors[name], tensors[name][:more]])
            save_file(tensors, path)
    return folder


def silent(folder: Path) -> Any:
    """The checkpoint, about which nothing is to be said."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return open_checkpoint(folder)


def test_another_head_than_the_embedding(tmp_path: Path) -> None:
    """Beside tie_word_embeddings it counts, with a warning; a copy of the embedding is none."""
    tensors = random_tensors() | {"output.weight": random_tensors(tied=False)["output.weight"]}
    folder = write_folder(tmp_path / "source")
    part = load_file(folder / "model-0.safetensors") | load_file(folder / "model-1.safetensors")
    save_file({"lm_head.weight": part["model.embed_tokens.weight"]}, folder / "model-2.safetensors")
    assert silent(folder).config.tied
    save_file({"lm_head.weight": tensors["output.weight"]}, folder / "model-2.safetensors")
    with pytest.warns(
        UserWarning, match=r"lm_head\.weight is another matrix than the embedding: the file's head counts"
    ):
        got = built(folder, **EXACT).logits(TEXT, 5)
    expected = built(write_gguf(tmp_path / "file.gguf", tensors=tensors), "of file", **EXACT).logits(TEXT, 5)
    expect_near(got, expected, 1e-4)
    save_file({"lm_head.weight": tensors["output.weight"][:-1]}, folder / "model-2.safetensors")
    with pytest.warns(UserWarning, match="the file's head counts"), refused("tensor_shape", "lm_head.weight"):
        open_checkpoint(folder)


def test_tokens_of_tokenizer_config(tmp_path: Path) -> None:
    """Tokens are added as transformers does, in the order of their numbers, with their flags; an end ends answers."""
    folder = roomy(tmp_path / "source")
    flags = dict(lstrip=False, rstrip=False, single_word=False, normalized=False)
    decoder = {
        str(COUNT + 1): {"content": "<tool>", "special": False} | flags,
        str(COUNT): {"content": "<|im_end|>", "special": True} | flags,
        str(COUNT + 2): {"content": "<img>", "special": True} | flags | {"lstrip": True, "rstrip": True},
        str(COUNT + 3): {"content": "word", "special": False} | flags | {"single_word": True},
        "5": {"content": TOKENS[5], "special": True} | flags,
    }
    configure(folder, added_tokens_decoder=decoder, eos_token="<|im_end|>")
    checkpoint = silent(folder)
    tokenizer: Tokenizer = checkpoint.tokenizer
    assert checkpoint.stops[0] == COUNT
    assert tokenizer.encode("a<|im_end|><tool>").ids == [*tokenizer.encode("a").ids, COUNT, COUNT + 1]
    assert tokenizer.encode("a  <img>  a").ids == [*tokenizer.encode("a").ids, COUNT + 2, *tokenizer.encode("a").ids]
    assert COUNT + 3 in tokenizer.encode("a word a").ids and COUNT + 3 not in tokenizer.encode("awords").ids
    model = models.load(models.build(folder, tmp_path / "model"))
    assert model.special_tokens.keys() >= {5, COUNT, COUNT + 2} and COUNT + 1 not in model.special_tokens
    assert model.stops == checkpoint.stops and model.encode("<|im_end|>") == [COUNT]


def test_tokens_of_other_files(tmp_path: Path) -> None:
    """added_tokens.json has numbers, special_tokens_map.json roles; a token with a role is special."""
    folder = roomy(tmp_path / "source")
    (folder / "added_tokens.json").write_text(json.dumps({"<b>": COUNT + 1, "<a>": COUNT}))
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"eos_token": {"content": "<a>", "lstrip": False}, "additional_special_tokens": ["<c>"]})
    )
    with pytest.warns(
        UserWarning, match=rf"<c> of special_tokens_map\.json is no token .* becomes {COUNT + 2}, as trans"
    ):
        checkpoint = open_checkpoint(folder)
    added = checkpoint.tokenizer.get_added_tokens_decoder()
    assert [(added[COUNT + i].content, added[COUNT + i].special) for i in range(3)] == [
        ("<a>", True), ("<b>", False), ("<c>", True),
    ]  # fmt: skip
    assert checkpoint.stops == (COUNT, 1)
    configure(folder, eos_token="<|end|>")
    with pytest.warns(
        UserWarning, match=r"eos_token is '<a>' in special_tokens_map\.json, and '<\|end\|>' in tokenizer_c"
    ):
        assert open_checkpoint(folder).stops == (COUNT - 1, 1)


def test_numbers_that_do_not_fit(tmp_path: Path) -> None:
    """Tokens beyond the model are left out with a warning; two numbers of one token, or no token, are refused."""
    folder = roomy(tmp_path / "source", 1)
    (folder / "added_tokens.json").write_text(json.dumps({"<a>": COUNT, "<b>": COUNT + 1}))
    with pytest.warns(UserWarning, match=rf"<b> of added_tokens\.json are left out: the model has {COUNT + 1} tokens"):
        assert open_checkpoint(folder).tokenizer.token_to_id("<b>") is None
    for said in ({"<a>": COUNT - 3}, {"<|end|>": 3}):
        (folder / "added_tokens.json").write_text(json.dumps(said))
        with refused("tokenizer_mismatch", "expected one number"):
            open_checkpoint(folder)
    (folder / "added_tokens.json").write_text(json.dumps({"<a>": "1"}))
    with refused("config_type", "<a> is '1' in added_tokens.json"):
        open_checkpoint(folder)
    (folder / "added_tokens.json").unlink()
    configure(folder, added_tokens_decoder=[])
    open_checkpoint(folder)
    for decoder in (5, {"a": {"content": "x"}}, {"1": {"content": 3}}, {"1": None}):
        configure(folder, added_tokens_decoder=decoder)
        with refused("config_type", "tokenizer_config.json, expected"):
            open_checkpoint(folder)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"tokenizer_config.json": {"eos_token": "<none>"}}, r"<none> of tokenizer_config\.json is no token of token"),
        ({"tokenizer_config.json": {"unk_token": "<0>", "eos_token": "<1>"}}, "<[01]> of .* are left out"),
        ({"tokenizer_config.json": {"eos_token": "<0>", "bos_token": "<1>"}}, "is '<[01]>' in .*, which is no token"),
        ({"generation_config.json": {"eos_token_id": [COUNT]}}, f"eos_token_id {COUNT} in .* is no token"),
        ({"config.json": {"eos_token_id": None}}, "no file in .* says which token ends an answer"),
        ({"config.json": {"bos_token_id": 3}}, f"bos_token_id is 3 in .*, token {COUNT - 2}, which counts"),
        ({"config.json": {"vocab_size": 9}}, f"vocab_size 9, the embedding has {COUNT + 1} rows, which count"),
        ({"tokenizer_config.json": {"add_eos_token": True}}, "says add_eos_token"),
        ({"tokenizer_config.json": {"add_bos_token": True}}, r"add_bos_token true, tokenizer\.json does not begin"),
        ({"tokenizer_config.json": {"chat_template": [{"name": "rag", "template": "a"}]}}, "and none called default"),
        ({"chat_template.jinja": "other"}, r"chat_template\.jinja is another one than tokenizer_config\.json has"),
        ({"adapter_model.safetensors": ""}, "adapter_model.safetensors in .* is not used"),
    ],
)
def test_what_is_contradicted(files: dict[str, Any], says: str, tmp_path: Path) -> None:
    """Each by a warning with the file that says it."""
    folder = roomy(tmp_path / "source", 1)
    silent(folder)
    for name, said in files.items():
        path = folder / name
        if not isinstance(said, str):
            said = json.dumps((json.loads(path.read_text()) if path.exists() else {}) | said)
        path.write_text(said)
    with pytest.warns(UserWarning, match=says):
        open_checkpoint(folder)


def test_what_a_file_says_and_is_not_used(tmp_path: Path) -> None:
    """Keys of a GGUF file that are not used are named, unless they have no effect."""
    neutral = {"llama.vocab_size": COUNT, "llama.attention.value_length": 64, "llama.logit_scale": 1.0}
    silent(write_gguf(tmp_path / "neutral.gguf", fields=neutral))
    fields = {"llama.logit_scale": 0.5, "llama.attention.value_length": 32, "tokenizer.ggml.add_eos_token": True}
    path = write_gguf(tmp_path / "tiny.gguf", fields=fields)
    with pytest.warns(UserWarning) as said:
        open_checkpoint(path)
    texts = [str(warning.message) for warning in said]
    assert "says what is not used: llama.logit_scale 0.5, llama.attention.value_length 32; answers" in texts[0]
    assert "says add_eos_token: prompts that are continued do not end with eos" in texts[1] and len(texts) == 2


def test_beginnings_and_templates(tmp_path: Path) -> None:
    """A Llama tokenizer obeys add_bos_token; a template may lie in a file of its own; of several, default counts."""
    folder = write_folder(tmp_path / "source")
    for asked, expected in ((True, [COUNT - 2]), (False, [])):
        configure(folder, add_bos_token=asked, tokenizer_class="LlamaTokenizerFast")
        tokenizer = silent(folder).tokenizer
        assert tokenizer.encode("").ids == expected
        assert tokenizer.encode("a", add_special_tokens=False).ids == tokenizer.encode("a").ids[len(expected) :]
        tokenizer.save(str(folder / "tokenizer.json"))
    configure(folder, chat_template=None)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "of json"}))
    assert silent(folder).chat_template == "of json"
    (folder / "chat_template.jinja").write_text("of jinja")
    assert silent(folder).chat_template == "of jinja"
    configure(folder, chat_template=[{"name": "rag", "template": "a"}, {"name": "default", "template": "of jinja"}])
    assert silent(folder).chat_template == "of jinja"
    for name in ("chat_template.json", "chat_template.jinja"):
        (folder / name).unlink()
    for templates, expected in (([{"name": "default", "template": "x"}, "a"], "x"), (["a"], None)):
        configure(folder, chat_template=templates)
        assert open_checkpoint(folder).chat_template == expected


def test_an_answer_ends_at_an_added_token(tmp_path: Path) -> None:
    """An end token that only tokenizer_config.json names ends an answer."""
    folder = roomy(tmp_path / "source", 1)
    for path in folder.glob("*.safetensors"):  # whose logit is the largest
        tensors = load_file(path)
        if (name := "model.embed_tokens.weight") in tensors:
            tensors[name][COUNT] = 0
            tensors["lm_head.weight"] = np.zeros_like(tensors[name])
            tensors["lm_head.weight"][COUNT] = 1
            tensors["lm_head.weight"][3] = -1
            save_file(tensors, path)
    configure(
        folder, added_tokens_decoder={str(COUNT): {"content": "<|im_end|>", "special": True}}, eos_token="<|im_end|>"
    )
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    engine = Engine(models.load(models.build(folder, tmp_path / "model")), max_tokens=64, threads=1)
    found = engine.generate(["a", "the", "it", "of"], max_new_tokens=8)
    assert "stop" in {request.finish for request in found} and all("im_end" not in request.text for request in found)


@pytest.mark.parametrize("command", [["chat"], ["generate", "--chat"]])
def test_no_chat_template(command: list[str], tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing or broken chat template is refused before anything is built, and for a built model, too."""
    folder = write_folder(tmp_path / "source")
    name, *options = command
    prompt = ["a"] if name == "generate" else []
    for template, text in ((None, "has no chat template"), ("{% if %}", "is none")):
        configure(folder, chat_template=template)
        assert main([name, str(folder), *prompt, *options]) == 2
        assert text in capsys.readouterr().err
        assert not list(home.rglob("*.onnx*"))
        with refused("chat_template", text):
            models.build(folder, tmp_path / "model", chat=True)
        assert not (tmp_path / "model").exists()
        models.open_model(folder)
        assert main([name, str(folder), *prompt, *options]) == 2
        with refused("chat_template", text):
            models.open_model(models.build(folder, tmp_path / "other"), chat=True)
        capsys.readouterr()
        for path in home.rglob("*.onnx*"):
            path.unlink()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["generate", "a", "--temperature", "-1"], "sampling_range: temperature is -1.0"),
        (["generate", "a", "--tier", "nowhere"], "tier_address: the tier is 'nowhere'"),
        (["generate", "a", "--threads", "-1"], "engine_range: threads is -1"),
        (["perplexity", "/nowhere"], "FileNotFoundError: "),
    ],
)
def test_what_is_known_before_a_build(
    arguments: list[str], says: str, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused before the model is built."""
    name, *more = arguments
    assert main([name, str(write_folder(tmp_path / "source")), *more]) == 2
    assert capsys.readouterr().err.startswith(says) and not home.exists()
