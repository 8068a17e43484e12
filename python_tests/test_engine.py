"""Continuous batching: an answer does not depend on what else is in the batch, nor on how the cache is used."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
from kvcache_ops import KvCacheError, models
from kvcache_ops.engine import Engine, Request
from kvcache_ops.engine._request import RequestState
from kvcache_ops.manager import Manager, ManagerError, Step, tier
from kvcache_ops.text._sampling import Sampler
from kvcache_ops.text._text_stream import TextStream
from tokenizers.pre_tokenizers import ByteLevel

from compare import refused
from test_tiers import Store
from tiny_models import TOKENS, Run, random_tensors, with_nan, write_gguf

PROMPTS = [
    [7 * i % 200 + 3 for i in range(first, first + length)] for first, length in ((0, 5), (9, 40), (2, 1), (5, 17))
]
NAN_TOKEN = 77


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose token 77 has an embedding of NaN."""
    folder = tmp_path_factory.mktemp("engine")
    tensors = random_tensors(tied=False)
    path = models.build(write_gguf(folder / "model.gguf", tensors=tensors), folder / "model", page_size=8)
    return with_nan(path, tensors["token_embd.weight"][NAN_TOKEN])


def engine(path: Path, max_tokens: int = 1024, **options: object) -> Engine:
    """A small one, whose steps its thread makes."""
    return Engine(path, max_tokens=max_tokens, threads=1, **options)


def stepped(path: Path, **options: object) -> Engine:
    """A small one, whose steps the test makes."""
    return engine(path, threaded=False, **options)


@pytest.fixture(scope="module")
def alone(path: Path) -> list[list[int]]:
    """The answers, each from an engine of its own."""
    return [engine(path).generate([prompt], max_new_tokens=12)[0].answer for prompt in PROMPTS]


@pytest.mark.parametrize(
    "options",
    [{}, {"max_batch": 2}, {"max_batch": 4, "token_budget": 7}, {"max_tokens": 64}, {"max_tokens": 72, "max_batch": 3}],
    ids=["all at once", "two at once", "in chunks", "preempted", "preempted, three at once"],
)
def test_answers_do_not_depend_on_others(path: Path, alone: list[list[int]], options: dict[str, int]) -> None:
    """In a batch, in chunks, or computed again after preemption they are the same tokens."""
    shared = engine(path, **options)
    requests = shared.generate(PROMPTS, max_new_tokens=12)
    assert [request.answer for request in requests] == alone
    assert {request.finish for request in requests} == {"length"}
    assert not shared.step() and shared.manager.stats()["sequences"] == 0


def test_a_prefix_is_computed_once(path: Path, alone: list[list[int]]) -> None:
    """Also where the prompt is longer than the budget of a step."""
    shared = stepped(path, token_budget=16)
    for cached in (0, 32):  # of 40 tokens whole pages of 8, and at least one token is computed
        request = shared.submit(PROMPTS[1], max_new_tokens=12)
        assert "".join(request) == request.text and (request.answer, request.cached) == (alone[1], cached)
    steps = 0
    request = shared.submit(PROMPTS[1], max_new_tokens=1)
    while request.finish is None:
        steps += shared.step() or 1
    assert steps == 1


@pytest.mark.parametrize("budget", [16, 512])
def test_equal_prompts_at_once(path: Path, alone: list[list[int]], budget: int) -> None:
    """One is computed, the others wait for its pages: all of it in one step, or longer than a step's budget."""
    shared, sizes = engine(path, token_budget=budget), list[int]()
    run = shared._scheduler._run

    def counted(step: Step, rows: list[int]) -> np.ndarray:
        sizes.append(len(step.token_ids))
        return run(step, rows)

    shared._scheduler._run = counted
    requests = shared.generate([PROMPTS[1]] * 3, max_new_tokens=12)
    assert [request.answer for request in requests] == [alone[1]] * 3
    assert [request.cached for request in requests] == [0, 32, 32]
    assert sum(sizes) == 40 + 8 + 8 + 3 * 11 and max(sizes) <= budget
    # Whichever comes first, the shorter one is computed with whole budgets, and then the rest of the longer one.
    prefix, steps = [7 * i % 60 + 3 for i in range(400)], list[int]()
    prompts = [prefix + [5] * 60, prefix + [9] * 8]
    for ordered in (prompts, prompts[::-1]):
        sharing = stepped(path, token_budget=32)
        asked = [sharing.submit(prompt, max_new_tokens=1) for prompt in ordered]
        steps.append(1 + sum(iter(sharing.step, False)))
        assert {request.finish for request in asked} == {"length"} and max(r.cached for r in asked) == 400
    assert steps == [15, 15]  # of 408 + 60 tokens
    unshared = stepped(path, token_budget=512, prefix_sharing=False)
    requests = [unshared.submit(PROMPTS[1], max_new_tokens=12) for _ in range(3)]
    assert unshared.step() and unshared.step() and all(request.answer for request in requests)


def test_streams_on_threads(path: Path, alone: list[list[int]]) -> None:
    """Each reads its own answer."""
    shared = engine(path)
    requests = [shared.submit(prompt, max_new_tokens=12) for prompt in PROMPTS]
    texts: dict[int, str] = {}

    def read(i: int) -> None:
        texts[i] = "".join(requests[i])

    threads = [Thread(target=read, args=(i,)) for i in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [request.answer for request in requests] == alone
    assert texts == {i: request.text for i, request in enumerate(requests)}


def test_cancelled(path: Path, alone: list[list[int]]) -> None:
    """While it waits, or in the middle; the others go on."""
    shared = stepped(path, max_batch=2)
    requests = [shared.submit(prompt, max_new_tokens=12) for prompt in PROMPTS]
    for _ in range(4):
        shared.step()
    requests[0].cancel()
    requests[2].cancel()
    assert shared.step() and shared.manager.stats()["sequences"] == 2
    assert "".join(requests[0]) == requests[0].text and requests[0].answer == alone[0][:4]
    assert list(requests[1]) and requests[1].answer == alone[1] and requests[2].answer == []
    assert [request.finish for request in requests[:3]] == ["cancelled", "length", "cancelled"]


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


@pytest.mark.parametrize("cache", ["float16", "int4"])
def test_an_answer_outgrows_the_context(tmp_path: Path, cache: str) -> None:
    """It ends, or goes on without the middle of it, in int4 also where keys may be turned no more."""
    source = write_gguf(tmp_path / "model.gguf")
    path = models.build(source, tmp_path / "model", cache=cache, page_size=8)
    prompt = [10, 17, 24, 31, 38]
    ended = engine(path, max_tokens=32).generate([prompt], max_new_tokens=100)[0]
    assert (ended.finish, len(ended.answer)) == ("length", 32 - 5 + 1)
    request = engine(path, max_tokens=32).submit(prompt, keep=4, max_new_tokens=100)
    assert "".join(request) == request.text and request.shifted == 5 + 100 - len(request.context) > 0
    assert (request.finish, len(request.answer), request.error) == ("length", 100, None)
    assert request.answer[:28] == ended.answer and request.context[:4] == prompt[:4]


def test_room_that_lies_apart(tmp_path: Path) -> None:
    """Where a sequence is a run of slots, and those before and behind it together are enough, it is moved."""
    path = models.build(write_gguf(tmp_path / "model.gguf"), tmp_path / "model", cache_mode=0)
    expected = engine(path).generate([PROMPTS[3]], max_new_tokens=45)[0]
    shared = engine(path, max_tokens=64)
    first, second = shared.submit(PROMPTS[1][:24], max_new_tokens=1), shared.submit(PROMPTS[3], max_new_tokens=45)
    assert list(first) and list(second) and second.error is None and second.answer == expected.answer


def test_a_failing_request_fails_alone(path: Path, alone: list[list[int]]) -> None:
    """NaN logits are its own."""
    shared = engine(path)
    bad, good = shared.submit([3, NAN_TOKEN], max_new_tokens=5), shared.submit(PROMPTS[1], max_new_tokens=12)
    assert list(good) and good.answer == alone[1]
    with pytest.raises(KvCacheError) as caught:
        list(bad)
    assert caught.value.kind == "logits_not_finite" and bad.finish == "error" and bad.error is caught.value


def test_whatever_fails_fails_alone(path: Path, alone: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of another kind, too; nobody loses a token."""
    shared, step = stepped(path), TextStream.step
    bad, good = shared.submit(PROMPTS[0], max_new_tokens=12), shared.submit(PROMPTS[1], max_new_tokens=12)

    def fail(stream: TextStream, token: int) -> str:
        if stream is bad._state._stream:
            raise RuntimeError("no text")
        return step(stream, token)

    monkeypatch.setattr(TextStream, "step", fail)
    assert list(good) and good.answer == alone[1]
    with refused("answer_failed", "the answer failed: no text"):
        list(bad)
    assert shared.manager.stats()["sequences"] == 0


def test_an_iteration_that_ends_early(path: Path) -> None:
    """It cancels the request, by `break` and when the iterator is gone."""
    shared = engine(path)
    broken, dropped = (shared.submit(prompt, max_new_tokens=100) for prompt in PROMPTS[:2])
    for _ in broken:
        break
    pieces = iter(dropped)
    assert next(pieces) and dropped.finish is None
    del pieces
    gc.collect()
    assert (broken.finish, dropped.finish) == ("cancelled", "cancelled") and not shared.step()
    assert shared.manager.stats()["sequences"] == 0


def test_a_request_that_nobody_has(path: Path, alone: list[list[int]]) -> None:
    """It takes no slot and no step, whether it waits, runs, or is let go of in the middle of a step; others go on."""
    shared = stepped(path, max_batch=3)
    requests, run = [shared.submit(prompt, max_new_tokens=100) for prompt in PROMPTS[1:]], shared._scheduler._run
    good = shared.submit(PROMPTS[0], max_new_tokens=12)
    shared.step()
    assert shared.running == [request._state for request in requests]
    del requests[1:]
    shared.step()
    assert shared.manager.stats()["sequences"] == 2

    def let_go(*arguments: object) -> np.ndarray:
        requests.clear()
        return run(*arguments)

    shared._scheduler._run = let_go
    assert list(good) and good.answer == alone[0] and shared.running == [] and not shared.step()
    assert shared.manager.stats()["sequences"] == 0
    shared.submit(PROMPTS[1])
    assert not shared.step() and shared.generate(PROMPTS[:1], max_new_tokens=12)[0].answer == alone[0]


def test_a_request_that_is_cancelled_within_a_step(path: Path, alone: list[list[int]]) -> None:
    """It ends there, and its slots are free with the next step."""
    shared = stepped(path)
    bad, good = shared.submit(PROMPTS[0], max_new_tokens=50), shared.submit(PROMPTS[1], max_new_tokens=12)
    run = shared._scheduler._run
    shared.step()

    def cancel(*arguments: object) -> np.ndarray:
        bad.cancel()
        return run(*arguments)

    shared._scheduler._run = cancel
    assert list(good) and good.answer == alone[1] and shared.manager.stats()["sequences"] == 0
    assert bad.finish == "cancelled" and bad.answer == alone[0][:1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_step(
    path: Path, alone: list[list[int]], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Ctrl-C in a step that the caller makes comes after it, as SIGTERM does: nobody loses a token."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(number, interrupt)
    shared, draw = stepped(path), Sampler.__call__
    requests, calls = [shared.submit(prompt, max_new_tokens=12) for prompt in PROMPTS], iter(range(10**6))

    def interrupted(sampler: Sampler, logits: np.ndarray) -> int:
        if next(calls) % 5 == 1:
            signal.raise_signal(number)
        return draw(sampler, logits)

    monkeypatch.setattr(Sampler, "__call__", interrupted)
    interrupts = 0
    while any(request.finish is None for request in requests):
        try:
            shared.step()
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts > 5 and [request.answer for request in requests] == alone
    with pytest.raises(KeyboardInterrupt):
        shared.generate(PROMPTS, max_new_tokens=12)
    with refused("prompt_empty"):
        shared.generate([PROMPTS[0], []])
    assert not shared.step() and shared.manager.stats()["sequences"] == 0
    signal.signal(number, before)


def test_requests_that_are_dropped_at_any_place(path: Path, alone: list[list[int]]) -> None:
    """Garbage collection comes within a step, too."""
    shared, thresholds = engine(path), gc.get_threshold()
    try:
        for threshold in range(1, 60, 3):
            gc.set_threshold(threshold, 1, 1)
            for prompt in PROMPTS[:2]:
                pieces = iter(shared.submit(prompt, max_new_tokens=50))
                next(pieces)
                cycle = [pieces]
                cycle.append(cycle)
                del pieces, cycle
            assert shared.generate(PROMPTS[1:2], max_new_tokens=12)[0].answer == alone[1]
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert not shared.step() and shared.manager.stats()["sequences"] == 0


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that never ends a greedy answer: the logit of the token of the end is 0, and others are above."""
    folder, tensors = tmp_path_factory.mktemp("plain"), random_tensors(tied=False)
    tensors["output.weight"][-1] = 0
    return models.build(write_gguf(folder / "model.gguf", tensors=tensors), folder / "model", page_size=8)


def test_requests_that_pass_a_preempted_one(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has room for all of its answer does not wait for one that has none. A step asks once what is free."""
    shared, asked = stepped(plain, max_tokens=256, token_budget=64), list[list[int]]()
    long = [[(7 * i + j) % 200 + 3 for i in range(120)] for j in range(2)]
    old, young = (shared.submit(prompt, max_new_tokens=40) for prompt in long)
    while not young.preempted:
        assert shared.step() and young.finish is None
    free = shared.caches.free
    monkeypatch.setattr(shared.caches, "free", lambda: (asked.append(free()), asked[-1])[1])
    large = [shared.submit(PROMPTS[2], max_new_tokens=200) for _ in range(20)]
    short = shared.submit(PROMPTS[2], max_new_tokens=2)
    for _ in range(8):
        shared.step()
    assert short.finish == "length" and young.finish is None and 0 < len(asked) <= 8
    del large
    while shared.step():
        pass
    assert (old.finish, young.finish) == ("length", "length")


def test_a_context_shift_without_room(plain: Path) -> None:
    """Answers to one prompt that outgrow the context together go on, one after the other."""
    shared = engine(plain, max_tokens=96, keep=4, max_pages=8)
    requests = shared.generate([PROMPTS[1]] * 3, max_new_tokens=60)
    assert [(request.finish, request.error) for request in requests] == [("length", None)] * 3


def test_a_preempted_prompt(path: Path) -> None:
    """It waits for room for all of it; what it had computed itself does not count as cached."""
    shared = engine(path, max_tokens=128, token_budget=16)
    long = [7 * i % 200 + 3 for i in range(100)]
    expected = engine(path).generate([long], max_new_tokens=4)[0].answer
    free, preempted = shared._scheduler._free, []

    def count(request: RequestState) -> None:
        preempted.append(request)
        free(request)

    shared._scheduler._free = count
    requests = shared.generate([PROMPTS[1], long], max_new_tokens=60)
    assert requests[1].answer[:4] == expected and requests[1].cached <= len(long)
    assert 0 < preempted.count(requests[1]._state) <= 3 and shared.manager.stats()["sequences"] == 0


REFUSED: list[tuple[str, object, dict[str, object]]] = [
    ("prompt_empty", [], {}),
    ("prompt_empty", "", {}),
    ("prompt_too_long", [1] * 1025, {}),
    ("token_range", [len(TOKENS)], {}),
    ("token_range", [-1], {}),
    ("prompt_type", "half of a pair: \ud800", {}),
    ("prompt_type", [1, 2.5], {}),
    ("prompt_type", 7, {}),
    ("sampling_range", [1], {"max_new_tokens": 0}),
    ("sampling_range", [1], {"max_new_tokens": 2.5}),
    ("sampling_range", [1], {"top_k": 1.5}),
    ("sampling_range", [1], {"seed": -1}),
    ("sampling_range", [1], {"logprobs": -1}),
    ("sampling_range", [1], {"prompt_logprobs": 1.5}),
    ("sampling_range", [1], {"repetition_penalty": 0}),
    ("sampling_range", [1], {"presence_penalty": 2.5}),
    ("keep_range", [1], {"keep": -1}),
    ("keep_range", [1], {"keep": 1023}),
    ("sampling_range", [1], {"temperature": float("inf")}),
    ("sampling_range", [1], {"temperature": -1.0}),
    ("sampling_range", [1], {"top_p": 1.5}),
    ("sampling_range", [1], {"temperature": float("nan")}),
    ("prompt_type", b"text", {}),
    ("prompt_too_long", "a" * 12_000_000, {}),
    ("sampling_range", [1], {"stop": "text"}),
    ("sampling_range", [1], {"stop": None}),
    ("sampling_range", [1], {"stop": ("a",) * 257}),
    ("sampling_range", [1], {"stop": ("",)}),
]


def test_refused(path: Path) -> None:
    """At once, by name."""
    shared = engine(path)
    for kind, prompt, sampling in REFUSED:
        with refused(kind):
            shared.submit(prompt, **sampling)
    for kind, text, options in (
        ("engine_range", "token_budget is 8, expected at least 16, which is max_batch", {"token_budget": 8}),
        ("engine_range", "max_batch is 0, expected at least 1", {"max_batch": 0}),
        ("engine_range", "max_tokens is 0, expected at least 1", {"max_tokens": 0}),
        ("engine_option", "window is 8, which the model's graph does not serve", {"window": 8}),
        ("engine_option", "key_form is 'raw', which", {"key_form": "raw"}),
    ):
        with refused(kind, text):
            engine(path, **options)
    with refused("engine_range", "threads is 100000, expected 0 to 1024"):
        Engine(path, threads=100_000)
    with refused("token_range"):
        shared.save(path.with_name("session"), [10**6])
    assert not shared.step() and not path.with_name("session").exists()


def test_a_short_prompt_does_not_wait_for_long_ones(path: Path, alone: list[list[int]]) -> None:
    """It has its first token within five steps, and long ones go on meanwhile, also where short ones keep coming."""
    long = [[(7 * i + j) % 200 + 3 for i in range(300)] for j in range(2)]
    expected = [engine(path).generate([prompt], max_new_tokens=3)[0].answer for prompt in long]
    shared = stepped(path, max_batch=4, token_budget=16)
    requests = [shared.submit(prompt, max_new_tokens=3) for prompt in long]
    shared.step()
    while any(request.finish is None for request in requests):
        short = shared.submit(PROMPTS[0], max_new_tokens=12)
        for _ in range(5):
            shared.step()
        assert short.answer
        shared.generate([])
        while short.finish is None:
            shared.step()
        assert short.answer == alone[0]
    assert [request.answer for request in requests] == expected


def test_a_prompt_of_too_many_pages(path: Path, alone: list[list[int]]) -> None:
    """It is refused at once, an answer ends at the last page, and others go on."""
    shared = engine(path, max_pages=2)
    with refused("prompt_too_long", "expected at most 16, the context"):
        shared.submit(PROMPTS[3])
    request = shared.submit(PROMPTS[0], max_new_tokens=100)
    assert list(request) and (request.finish, len(request.answer)) == ("length", 12)
    assert request.answer == alone[0]


@pytest.mark.parametrize("fields", [{}, {"llama.attention.sliding_window": 9}], ids=["plain", "window"])
def test_cells_are_refused(tmp_path: Path, fields: dict[str, object]) -> None:
    """Their steps have all tokens in one sequence, which an engine's have not."""
    source = write_gguf(tmp_path / "model.gguf", fields=fields)
    path = models.build(source, tmp_path / "model", cache_mode=0)
    with refused("engine_option", "mode is 'cells', which the model's graph does not serve"):
        engine(path, mode="cells")
    assert engine(path, mode="runs").generate([PROMPTS[0]], max_new_tokens=1)[0].error is None


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
    """Those of a run of the whole, also of a prompt that the cache has, in chunks and when it is computed again."""
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
    assert not shared.step() and shared.manager.stats()["sequences"] == 0


def test_prompt_lookup(path: Path, tmp_path: Path) -> None:
    """Guesses change no token, whether they are right or wrong, of which the sequence keeps nothing."""
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
            assert not looking.step() and looking.manager.stats()["sequences"] == 0


def calls(function: Callable[[], object]) -> int:
    """How many calls a function makes, of Python's functions and of others."""
    events = list[str]()
    sys.setprofile(lambda _, event, __: events.append(event))
    try:
        function()
    finally:
        sys.setprofile(None)
    return len(events)


def test_what_waits_costs_a_step_nothing(path: Path) -> None:
    """A step makes as many calls where one request waits and where thousands do."""
    counts = []
    for count in (1, 3000):
        shared = stepped(path, max_batch=1, token_budget=64)
        held = [shared.submit([5, 6, 7], max_new_tokens=40) for _ in range(1 + count)]
        for _ in range(3):
            shared.step()
        gc.collect()
        gc.disable()
        try:
            counts.append(min(calls(shared.step) for _ in range(5)))
        finally:
            gc.enable()
        held[-1].cancel()
        del held[1:-1]  # nobody has them any more
        while shared.step():
            pass
        assert [len(request.answer) for request in held] == [40, 0]
    assert counts[0] == counts[1]


def test_a_save_serves_others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In steps of the budget, in which an answer goes on, also while the file is written; errors are the save's own."""
    shared, other = stepped(path, token_budget=16), engine(path)
    tokens, run, write, sizes = list(range(3, 103)), shared._scheduler._run, Manager.save_seq, list[int]()

    def counted(step: object, rows: list[int]) -> object:
        sizes.append(len(step.token_ids))
        return run(step, rows)

    class Beside:
        """What an engine saves with, which has another thread make steps meanwhile."""

        @staticmethod
        def save_seq(*arguments: object) -> None:
            def steps() -> None:
                before = len(answer.answer)
                while len(answer.answer) < before + 5:
                    assert shared.step()

            thread = Thread(target=steps)
            thread.start()
            thread.join(60)
            assert not thread.is_alive()
            write(shared.manager, *arguments)

    monkeypatch.setattr(shared._scheduler, "_run", counted)
    monkeypatch.setattr(shared.caches, "managers", [Beside])
    answer = shared.submit(PROMPTS[1], max_new_tokens=60)
    shared.step()
    shared.save(path.with_name("session"), tokens)
    assert max(sizes) <= 16 and len(answer.answer) >= 12
    other.load(path.with_name("session"))
    [again] = other.generate([tokens], max_new_tokens=3)
    assert again.cached >= 96 and again.answer == engine(path).generate([tokens], max_new_tokens=3)[0].answer
    with pytest.raises(ManagerError) as caught:
        shared.save(path.with_name("none") / "session", tokens)
    assert caught.value.kind == "io" and "".join(answer) == answer.text
    shared.step()
    assert shared.manager.stats()["sequences"] == 0


def test_a_save_without_room_for_others(path: Path) -> None:
    """They wait for it, and do not end: what is saved keeps its place."""
    shared = stepped(path, max_tokens=96, max_batch=3)
    tokens = list(range(3, 75))
    [expected] = engine(path).generate([PROMPTS[1]], max_new_tokens=9)
    saved = list[bytes]()

    def save_seq(file: Path, *more: object) -> None:
        request = shared.submit(PROMPTS[1], max_new_tokens=9)
        for _ in range(5):
            assert shared.step() and request.finish is None and not request.answer
        Manager.save_seq(shared.manager, file, *more)
        saved.append(file.read_bytes())
        requests.append(request)

    requests = list[Request]()
    shared.caches.managers = [SimpleNamespace(save_seq=save_seq)]
    shared.save(path.with_name("session"), tokens)
    assert saved and "".join(requests[0]) == expected.text and requests[0].error is None
    assert not shared.step() and shared.manager.stats()["sequences"] == 0


def windowed(folder: Path) -> Path:
    """A model whose attention sees 12 tokens."""
    fields = {"llama.attention.sliding_window": 12}
    return models.build(write_gguf(folder / "window.gguf", fields=fields), folder / "window", page_size=8)


def test_the_same_seed_the_same_answer(path: Path) -> None:
    """Whatever else is drawn."""
    options = dict(max_new_tokens=12, temperature=1.5, seed=11)
    expected: Request = engine(path).generate([PROMPTS[0]], **options)[0]
    assert [r.answer for r in engine(path).generate([PROMPTS[0], PROMPTS[3], PROMPTS[0]], **options)][::2] == [
        expected.answer,
        expected.answer,
    ]


@pytest.mark.parametrize("cache", ["float16", "int4"])
def test_a_reused_prefix_gives_the_bits_of_a_recomputed_one(cache: str, tmp_path: Path) -> None:
    """Of a whole model: two engines that share a folder, and one that computes all by itself."""
    path = models.build(write_gguf(tmp_path / "model.gguf", tensors=random_tensors()), tmp_path / "model", page_size=8,
                        cache=cache, quant_group=32)  # fmt: skip
    question = [7 * i % 200 + 3 for i in range(60)]

    def logits(engine: Engine) -> tuple[int, bytes]:
        request = engine.submit(question, max_new_tokens=2)
        engine.step()
        bits = engine._scheduler._logits[0].tobytes()
        engine.generate([])
        return request.cached, bits

    def with_folder() -> Engine:
        return stepped(path, max_tokens=256, tiers=[tier("host:1M"), tier(f"file:{tmp_path / 'tier'},16M")])

    alone, first = logits(stepped(path, max_tokens=256)), with_folder()
    assert logits(first) == (0, alone[1])
    assert first.close(30)
    assert logits(with_folder()) == (56, alone[1])


def test_prompts_that_wait_do_not_read_the_tiers_again(path: Path) -> None:
    """A block is read when a prompt gets a place, and when it gets its first part of a step."""

    class Counting(Store):
        hits = 0

        def get(self, key: str, default: object = None) -> bytes | None:
            self.hits += key in self
            return super().get(key, default)

    store = Counting()
    prefixes = [[(7 * i + 13 * k) % 60 + 3 for i in range(32)] for k in range(4)]
    first = stepped(path, tiers=[store])
    first.generate(prefixes, max_new_tokens=1)
    assert first.close() and len(store) == 16 and not store.hits
    later = stepped(path, tiers=[store], token_budget=16)
    requests = later.generate([[*prefix, *range(3, 53)] for prefix in prefixes], max_new_tokens=1)
    assert [request.cached for request in requests] == [32] * 4 and 16 <= store.hits <= 32
