"""Continuous batching: an answer does not depend on what else is in the batch, nor on how the cache is used."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import pytest
from kvcache_ops import models
from kvcache_ops.engine._request import RequestState

from engines import PROMPTS, alone, calls, engine, idle, on_run, path, stepped
from tiny_models import write_gguf

__all__ = ["alone", "path"]  # fixtures


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
    assert idle(shared)


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
    on_run(shared, lambda step: sizes.append(len(step.token_ids)))
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


@pytest.mark.parametrize("cache", ["float16", "int4"])
def test_an_answer_outgrows_the_context(tmp_path: Path, cache: str) -> None:
    """It ends, or goes on without the middle of it, in int4 also where keys may be rotated no more."""
    source = write_gguf(tmp_path / "model.gguf")
    model = models.load(models.build(source, tmp_path / "model", cache=cache, page_size=8))
    model, prompt = replace(model, stops=()), [10, 17, 24, 31, 38]
    ended = engine(model, max_tokens=32).generate([prompt], max_new_tokens=100)[0]
    assert (ended.finish, len(ended.answer)) == ("length", 32 - 5 + 1)
    request = engine(model, max_tokens=32).submit(prompt, keep=4, max_new_tokens=100)
    assert "".join(request) == request.text and request.shifted == 5 + 100 - len(request.context) > 0
    assert (request.finish, len(request.answer), request.error) == ("length", 100, None)
    assert request.answer[:28] == ended.answer and request.context[:4] == prompt[:4]


def test_room_that_lies_apart(tmp_path: Path) -> None:
    """Where a sequence is a run of slots, and those before and behind it together are enough, it is moved."""
    path = models.build(write_gguf(tmp_path / "model.gguf"), tmp_path / "model", cache_mode=0)
    expected = engine(path).generate([PROMPTS[3]], max_new_tokens=45)[0]
    shared = engine(path, max_tokens=64, mode="runs")
    first, second = shared.submit(PROMPTS[1][:24], max_new_tokens=1), shared.submit(PROMPTS[3], max_new_tokens=45)
    assert list(first) and list(second) and second.error is None and second.answer == expected.answer


def test_requests_that_pass_a_preempted_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has room for all of its answer does not wait for one that has none. A step asks once what is free."""
    shared, asked = stepped(path, max_tokens=256, token_budget=64), list[list[int]]()
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


def test_a_context_shift_without_room(path: Path) -> None:
    """Answers to one prompt that outgrow the context together go on, one after the other."""
    shared = engine(path, max_tokens=96, keep=4, max_pages=8)
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
