"""What an answer has: its end at a stop, logprobs, guessed tokens; and what is refused at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kvcache_ops import models
from kvcache_ops.engine import Engine
from kvcache_ops.text._sampling import Sampler
from tokenizers.pre_tokenizers import ByteLevel

from compare import refused
from engines import PROMPTS, alone, engine, idle, path, stepped
from tiny_models import TOKENS, Run, write_gguf

__all__ = ["alone", "path"]  # fixtures


def test_stops(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop ends the text before it, however tokens cut it; nothing of it is said before it is ruled out."""
    shared = stepped(path)
    whole = shared.generate([PROMPTS[1]], max_new_tokens=12)[0].text
    stop = whole[5:8]
    request = shared.submit(PROMPTS[1], max_new_tokens=12, stop=("not there", stop))
    assert "".join(request) == request.text == whole[: whole.index(stop)] and request.finish == "stop"
    request = shared.submit(PROMPTS[1], max_new_tokens=12, stop=("not there",))
    assert "".join(request) == whole
    request = shared.submit(PROMPTS[1], max_new_tokens=12, stop=("~" * 200,))
    shared.step()
    shared.step()
    assert request.text  # nothing is held back that is no beginning of a stop
    request.cancel()
    answer = iter([5, TOKENS.index("<|start|>")])
    monkeypatch.setattr(Sampler, "__call__", lambda *_: next(answer))
    request = shared.submit(PROMPTS[0], stop=("<|start|>",))
    assert "".join(request) == TOKENS[5] and (request.finish, request.answer) == ("stop", [5])


def test_an_answer_that_ends_within_a_character(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last bytes are not lost: they are U+FFFD."""
    shared = engine(path)
    tokens = [TOKENS.index(ByteLevel(False).pre_tokenize_str("é")[0][0][i]) for i in (0, 1)]
    for count, text in ((2, "é"), (1, "\ufffd")):
        answer = iter(tokens)
        monkeypatch.setattr(Sampler, "__call__", lambda *_, answer=answer: next(answer))
        request = shared.submit(PROMPTS[0], max_new_tokens=count)
        assert "".join(request) == request.text == text


PROMPTS_REFUSED: dict[str, list[object]] = {
    "prompt_empty": [[], ""],
    "prompt_too_long": [[1] * 1025, "a" * 12_000_000],
    "token_range": [[len(TOKENS)], [-1]],
    "prompt_type": ["half of a pair: \ud800", [1, 2.5], 7, b"text"],
}
OPTIONS_REFUSED: dict[str, list[dict[str, object]]] = {
    "sampling_range": [
        {"max_new_tokens": 0}, {"top_k": 1.5}, {"seed": -1}, {"logprobs": -1}, {"prompt_logprobs": 1.5},
        {"repetition_penalty": 0}, {"presence_penalty": 2.5}, {"temperature": float("inf")},
        {"temperature": float("nan")}, {"top_p": 1.5}, {"stop": "text"}, {"stop": None}, {"stop": ("a",) * 257},
        {"stop": ("",)},
    ],
    "keep_range": [{"keep": -1}, {"keep": 1023}],
}  # fmt: skip


def test_refused(path: Path) -> None:
    """At once, by name."""
    shared = engine(path)
    calls = [(kind, prompt, {}) for kind, prompts in PROMPTS_REFUSED.items() for prompt in prompts]
    calls += [(kind, [1], options) for kind, several in OPTIONS_REFUSED.items() for options in several]
    for kind, prompt, options in calls:
        with refused(kind):
            shared.submit(prompt, **options)
    for kind, text, options in (
        ("engine_range", "token_budget is 8, expected at least 16, which is max_batch", {"token_budget": 8}),
        ("engine_range", "max_batch is 0, expected at least 1", {"max_batch": 0}),
        ("engine_range", "max_tokens is 0, expected at least 1", {"max_tokens": 0}),
        ("engine_option", "window is 8, which the model's graph does not serve", {"window": 8}),
        ("engine_option", "key_form is 'raw', which", {"key_form": "raw"}),
        ("engine_option", "mode is 'cells', which", {"mode": "cells"}),
    ):
        with refused(kind, text):
            engine(path, **options)
    with refused("engine_range", "threads is 100000, expected 0 to 1024"):
        Engine(path, threads=100_000)
    with refused("token_range"):
        shared.save(path.with_name("session"), [10**6])
    assert not shared.step() and not path.with_name("session").exists()


def test_a_prompt_of_too_many_pages(path: Path, alone: list[list[int]]) -> None:
    """It is refused at once, an answer ends at the last page, and others go on."""
    shared = engine(path, max_pages=2)
    with refused("prompt_too_long", "expected at most 16, the context"):
        shared.submit(PROMPTS[3])
    request = shared.submit(PROMPTS[0], max_new_tokens=100)
    assert list(request) and (request.finish, len(request.answer)) == ("length", 12)
    assert request.answer == alone[0]


def test_logprobs(path: Path, alone: list[list[int]]) -> None:
    """Log probabilities of the drawn and the likeliest tokens are those that one run over the whole text gives."""
    [request] = engine(path).generate([PROMPTS[1]], max_new_tokens=12, logprobs=3)
    run = Run(path)
    logits = run.step({run.manager.create(): PROMPTS[1] + alone[1]})[len(PROMPTS[1]) - 1 : -1].astype(np.float64)
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert request.answer == alone[1] == [token.token for token in request.logprobs]
    for token, row in zip(request.logprobs, logs):
        best = np.argsort(-row)[:3]
        assert [i for i, _ in token.top] == best.tolist() and token.logprob == token.top[0][1]
        assert np.allclose([value for _, value in token.top], row[best], rtol=1e-12)
    assert request.logprobs[0].offset == 0 and request.logprobs[-1].offset < len(request.text)


@pytest.mark.parametrize("options", [{}, {"max_batch": 4, "token_budget": 7}, {"max_tokens": 72, "max_batch": 3}])
def test_prompt_logprobs(path: Path, alone: list[list[int]], options: dict[str, int]) -> None:
    """A run of the whole has the same, also where the cache has the prompt, in chunks and when it is computed again."""
    shared, run = engine(path, **options), Run(path)
    shared.generate(PROMPTS, max_new_tokens=1)
    requests = [shared.submit(prompt, prompt_logprobs=2, max_new_tokens=12) for prompt in PROMPTS]
    requests.append(shared.submit(PROMPTS[1], prompt_logprobs=0, max_new_tokens=0))
    assert [list(request) != [] for request in requests] == [True, True, True, True, False]
    assert [request.answer for request in requests] == [*alone, []] and requests[-1].finish == "length"
    for i, request in enumerate(requests):
        first, *scored = request.prompt_logprobs
        assert (first.token, first.logprob, first.top) == (request.prompt[0], None, ())
        logits = run.step({run.manager.create(salt=bytes([i])): request.prompt})[:-1].astype(np.float64)
        logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        assert [token.token for token in scored] == request.prompt[1:]
        assert np.allclose(
            [token.logprob for token in scored], logs[range(len(scored)), request.prompt[1:]], rtol=1e-12
        )
    assert [len(token.top) for token in requests[0].prompt_logprobs[1:]] == [2] * 4
    assert idle(shared)


def windowed(folder: Path) -> Path:
    """A model whose attention sees 12 tokens."""
    fields = {"llama.attention.sliding_window": 12}
    return models.build(write_gguf(folder / "window.gguf", fields=fields), folder / "window", page_size=8)


def test_prompt_lookup(path: Path, tmp_path: Path) -> None:
    """Guesses change no token, right or wrong; of wrong ones the sequence keeps nothing."""
    prompts = [[*range(60, 72), *range(60, 66)], [9] * 30, *PROMPTS]
    for source, options in ((path, {}), (path, {"max_tokens": 160, "max_batch": 3}), (windowed(tmp_path), {})):
        for sampling in ({}, {"temperature": 1.5, "seed": 3, "logprobs": 1, "frequency_penalty": -2.0}):
            plain, looking = (engine(source, prompt_lookup=n, **options) for n in (0, 4))
            expected = plain.generate(prompts, max_new_tokens=40, **sampling)
            found = looking.generate(prompts, max_new_tokens=40, **sampling)
            assert [request.answer for request in found] == [request.answer for request in expected]
            assert [request.logprobs for request in found] == [request.logprobs for request in expected]
            assert [request.guessed for request in expected] == [0] * len(prompts)
            assert 0 < sum(request.guessed for request in found) < 40 * len(prompts)
            assert idle(looking)
