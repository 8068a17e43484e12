"""`python -m kvcache_ops build`, `chat`, `generate` and `perplexity`, and chat templates, on a tiny model."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kvcache_ops import models
from kvcache_ops.cli._command import main
from kvcache_ops.engine import Engine
from kvcache_ops.engine._request import RequestState
from kvcache_ops.models import ChatTemplate

import answering
from compare import refused
from numpy_gguf import NumpyGguf
from tiny_models import TEMPLATE, random_tensors, write_gguf

pytestmark = pytest.mark.usefixtures("home")

SMALL = ["--max-tokens", "512", "--threads", "1"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose model never ends a greedy answer: the logit of the token of the end is 0, and others are above."""
    path = tmp_path_factory.mktemp("commands") / "tiny.gguf"
    tensors = random_tensors(tied=False)
    tensors["output.weight"][-1] = 0
    return write_gguf(path, tensors=tensors, fields={"tokenizer.chat_template": TEMPLATE})


def test_build(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the options of `models.build`; what it refuses is one line, and 2."""
    out = tmp_path / "model"
    assert main(["build", str(source), str(out), "--cache", "int4", "--quant-group", "16", "--page-size", "8"]) == 0
    said = capsys.readouterr().out
    assert f"{out}: " in said and "int4 cache in groups of 16, keys rotated, 320 bytes per token" in said
    assert (models.load(out).cache.cache_dtype, models.load(out).cache.page_size) == ("int4", 8)
    for arguments, text in (
        ([str(source), str(out), "--cache", "int5"], "option_unknown: cache is 'int5', expected one of"),
        ([str(tmp_path / "none"), str(out)], "source_missing: there is no file or folder"),
        ([__file__, str(out)], "source_damaged: "),
        ([str(source), str(source)], "FileExistsError: "),
        ([str(source), ""], "out_empty: "),
    ):
        assert main(["build", *arguments]) == 2
        assert capsys.readouterr().err.startswith(text)


def test_a_source_is_built_once(source: Path, home: Path) -> None:
    """For each choice of options. A built model has the cache that it has."""
    first = models.open_model(source, cache="int4")
    assert first.path.parent.parent == home and first.cache.cache_dtype == "int4"
    assert models.open_model(source).cache.cache_dtype == "int8" and len(list(home.iterdir())) == 2
    assert models.open_model(first.path, cache="int4", quant_group=32).path == first.path
    assert first.cache.quant_rotation == 1 and models.open_model(first.path, rotation=True).path == first.path
    for options in ({"cache": "int8"}, {"quant_group": 16}, {"rotation": False}, {"weights": "int8"}):
        with refused("weights_mismatch" if "weights" in options else "cache_mismatch"):
            models.open_model(first.path.parent, **options)
    other = models.open_model(source, weights="int8")
    assert models.open_model(other.path, weights="int8").weights == "int8" != first.weights


def test_generate(source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers as the engine's, in order; prompts from standard input, and as messages."""
    engine = Engine(models.open_model(source), max_tokens=512, threads=1)
    template = ChatTemplate(engine.model)
    prompts = ["the theme", "a", template.tokens([{"role": "user", "content": "the theme"}])]
    expected = [request.text for request in engine.generate(prompts, max_new_tokens=9)]
    assert main(["generate", str(source), "the theme", "a", "--max-new-tokens", "9", *SMALL]) == 0
    said = capsys.readouterr()
    assert said.out == f"[1] the theme\n{expected[0]}\n\n[2] a\n{expected[1]}\n" and "18 tokens after 6" in said.err
    monkeypatch.setattr(sys, "stdin", io.StringIO("the theme"))
    assert main(["generate", str(source), "-", "--chat", "--max-new-tokens", "9", *SMALL]) == 0
    assert capsys.readouterr().out == f"{expected[2]}\n"
    long = ["--context-shift", "--max-new-tokens", "600", "--max-tokens", "64", "--threads", "1"]
    assert main(["generate", str(source), "a", *long]) == 0 and "600 tokens after 1" in capsys.readouterr().err
    for arguments, text in (
        (["the theme", "--max-new-tokens", "0"], "sampling_range: max_new_tokens is 0"),
        ([""], "prompt_empty: "),
        (["the " * 999], "prompt_too_long: the prompt has 1001 tokens, expected at most 512"),
    ):
        assert main(["generate", str(source), *arguments, *SMALL]) == 2
        assert capsys.readouterr().err.startswith(text)

    def interrupt(_: RequestState) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RequestState, "wait", interrupt)
    assert main(["generate", str(source), "a", *SMALL]) == 130


def test_chat(source: Path, tmp_path: Path) -> None:
    """Ctrl-C ends an answer and not the program; a conversation is saved, and goes on from its keys and values."""
    saved = tmp_path / "conversation.json"
    command = [sys.executable, "-m", "kvcache_ops", "chat", str(source), "--threads", "1", "--system", "Be brief."]
    command += ["--temperature", "0"]
    out = tmp_path / "out"
    with (
        out.open("wb") as said,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=subprocess.PIPE) as chat,
    ):
        assert chat.stdin and chat.stderr

        def say(line: str | bytes) -> str:
            """Writes a line; gives the next one that is said about it."""
            chat.stdin.write(line if isinstance(line, bytes) else f"{line}\n".encode())
            chat.stdin.flush()
            return chat.stderr.readline().decode()

        def interrupt(line: bytes) -> str:
            """Writes a line, and ends its answer, which would be as long as the context, when it has begun."""
            before = out.stat().st_size
            chat.stdin.write(line)
            chat.stdin.flush()
            while out.stat().st_size < before + 20:
                time.sleep(0.01)
            chat.send_signal(signal.SIGINT)
            return chat.stderr.readline().decode()

        assert "/save FILE" in chat.stderr.readline().decode()
        assert "cancelled; " in (status := interrupt(b"the theme\n")) and "of 4096 slots" in status
        assert say(b"\xff\n").startswith("prompt_type: ")
        assert "cancelled; " in interrupt(b"a\n")
        assert say("/what").startswith("/save FILE")
        assert say(f"/save {saved}").startswith("5 messages are in")
        assert say(f"/load {tmp_path / 'none'}").startswith("[Errno 2]")
        assert say(f"/load {__file__}").startswith("chat_damaged: ")
        chat.communicate(b"/reset\n/quit\n")
    messages = json.loads(saved.read_text())["messages"]
    assert chat.returncode == 0 and len(messages) == 5
    shown = "\n> > ".join(message["content"] for message in messages if message["role"] == "assistant")
    assert out.read_bytes().decode().startswith(f"> {shown}\n> ")


def test_a_conversation_goes_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In another program from the keys and values that one has saved, and past the context without its beginning."""
    saved = tmp_path / "conversation.json"

    def chat(*lines: str, cache: str = "int8", longest: int = 20) -> list[str]:
        """What the chat prints for each line, without its greeting."""
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines) + "\n"))
        options = ["--cache", cache, "--max-new-tokens", str(longest), "--temperature", "0"]
        assert main(["chat", str(source), *options, *SMALL]) == 0
        return capsys.readouterr().err.splitlines()[1:]

    empty, answered, _ = chat(f"/save {saved}", "the theme " * 10, f"/save {saved}")
    assert empty.startswith("chat_empty: ") and answered.startswith("[20 tokens, length; ")
    assert "0 of 59 prompt tokens from the cache" in answered
    loaded, answered = chat(f"/load {saved}", "a")
    assert loaded.startswith("2 messages") and "64 of 105 prompt tokens from the cache" in answered
    said, loaded, answered = chat(f"/load {saved}", "a", cache="int4")
    assert said.startswith(f"{saved}.kv is not used, the text is computed again: ")
    assert loaded.startswith("2 messages") and "0 of 105 prompt tokens from the cache" in answered
    said = chat(*["the theme " * 20] * 5)
    assert [line for line in said if not line.startswith("[20 tokens")] == [
        "the context has 512 tokens: the oldest 4 messages are forgotten"
    ]
    [outgrown] = chat("the theme", longest=600)
    assert outgrown.startswith("[600 tokens, length; 252 tokens after the beginning left the context; ")
    assert chat("a " * 999)[0].startswith("prompt_too_long: ")


@pytest.mark.parametrize("options", [{}, {"llama.attention.sliding_window": 9}], ids=["plain", "window"])
def test_perplexity(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, object]
) -> None:
    """Perplexity over the second halves of windows equals numpy's; a coarser cache has another."""
    path = write_gguf(tmp_path / "model.gguf", fields=options)
    built = models.build(path, tmp_path / "model", cache="float32")
    (tmp_path / "text").write_text(text := "It is the theme of all the others. " * 6)
    tokens, losses = models.load(built).tokenizer.encode(text).ids, []
    for at in range(0, len(tokens) - 39, 40):
        logits = NumpyGguf(path).logits(tokens[at : at + 40]).astype(np.float64)
        logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        losses += [-logs[row, tokens[at + row + 1]] for row in range(20, 39)]
    found = models.perplexity(models.load(built), text, context=40, threads=1)
    assert found.value == pytest.approx(np.exp(np.mean(losses)), rel=1e-5) and found.tokens == len(losses) == 57
    assert found.error == pytest.approx(found.value * np.std(losses, ddof=1) / np.sqrt(57), rel=1e-4)
    assert main(["perplexity", str(built), str(tmp_path / "text"), "--context", "40", "--threads", "1"]) == 0
    assert capsys.readouterr().out.startswith(f"perplexity {found}, 57 tokens in 3 windows of 40; float32 cache")
    if not options:
        other = models.perplexity(models.open_model(path, cache="int4"), text, context=40, threads=1)
        assert 0 < abs(other.value - found.value) < 0.2 * found.value
        for context, kind in ((3, "context_range"), (5000, "context_range"), (2000, "text_too_short")):
            with refused(kind):
                models.perplexity(models.load(built), text, context=context)
        (tmp_path / "text").write_bytes(b"\xff")
        assert main(["perplexity", str(built), str(tmp_path / "text")]) == 2


def test_chat_templates(source: Path) -> None:
    """Templates render as in transformers: its variables, its tojson, a sandbox; special tokens become tokens."""
    model = models.open_model(source)
    template = ChatTemplate(model)
    messages = [{"role": "user", "content": "<the> 'é'"}]
    assert template.text(messages) == "<|start|>user: <the> 'é'<|end|>\nassistant: "
    assert template.tokens(messages, False)[0] == model.tokenizer.token_to_id("<|start|>")

    def rendered(text: str) -> str:
        return ChatTemplate(replace(model, chat_template=text)).text(messages)

    told = [{"role": "developer", "content": "a"}]
    assert template.text(told, False).startswith("<|start|>system: a")
    knows = ChatTemplate(replace(model, chat_template="{{ messages[0].role }} {{ x }}{# developer #}"))
    assert knows.text(told, variables={"x": 5}) == "developer 5"
    assert rendered("{{ messages | tojson }}") == """[{"role": "user", "content": "<the> 'é'"}]"""
    assert rendered("{{ {'b': 'é', 'a': 1} | tojson(true, sort_keys=true, separators=(',', ':')) }}") == (
        r'{"a":1,"b":"\u00e9"}'
    )
    assert rendered("a{% for i in 'bc' %}{% generation %}{{ i }}{% endgeneration %}{% endfor %}d") == "abcd"
    assert rendered("  {% for i in [1, 2] %}\n{{ i }}\n  {% break %}\n{% endfor %}") == "1\n"
    assert len(rendered("{{ strftime_now('%Y') }}")) == 4
    for text in (
        "{{ raise_exception('no system') }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 1 / 0 }}",
        "{% if %}",
        "{{ " + "(" * 10_000,
        None,
    ):
        with refused("chat_template"):
            rendered(text)


@pytest.mark.parametrize(("package", "command"), [("gguf", "generate"), ("jinja2", "chat"), ("starlette", "serve")])
def test_packages_that_are_missing(source: Path, package: str, command: str) -> None:
    """The message has the command that installs them."""
    extra = "serve" if command == "serve" else "models"
    program = (
        f"import sys; sys.modules[{package!r}] = None; from kvcache_ops.cli._command import main; main(sys.argv[1:])"
    )
    arguments = [sys.executable, "-c", program, command, str(source), *(["a"] if command == "generate" else [])]
    said = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert f"pip install './python[{extra}]'" in said.stderr and "Traceback" not in said.stderr


def test_the_example_checks_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It answers in every format; where an answer is another in the batch, it ends with 1."""
    monkeypatch.setattr(answering, "INSTRUCTION", "Be brief.")  # a token for each of its bytes
    monkeypatch.setattr(sys, "argv", ["answering.py", str(write_gguf(tmp_path / "model.gguf")), "--new-tokens", "4"])
    assert answering.main() == 0
    said = capsys.readouterr().out
    assert [said.count(question) for question in answering.QUESTIONS] == [len(answering.FORMATS)] * 5
    assert "20 tokens written" in said and said.count("bytes for a token's keys and values") == 3

    generate = answering.Engine.generate
    alone = "is something else"
    monkeypatch.setattr(
        answering.Engine,
        "generate",
        lambda engine, prompts, **options: generate(engine, [*prompts, alone] if prompts[1:] else [alone], **options),
    )
    assert answering.main() == 1 and "wrong: alone, the first answer is" in capsys.readouterr().out
