"""How requests end: cancelled, dropped, interrupted, failed. Others go on, and nothing of them is left."""

from __future__ import annotations

import gc
import signal
from pathlib import Path

import pytest
from kvcache_ops.text._text_stream import TextStream

from compare import refused
from engines import NAN_TOKEN, PROMPTS, alone, engine, idle, on_draw, on_run, path, stepped

__all__ = ["alone", "path"]  # fixtures


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


def test_a_request_fails_alone(path: Path, alone: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its logits are NaN, or something else raises an exception; nobody loses a token."""
    shared, step = stepped(path), TextStream.step
    prompts = (PROMPTS[0], [3, NAN_TOKEN], PROMPTS[1])
    bad, not_finite, good = (shared.submit(prompt, max_new_tokens=12) for prompt in prompts)

    def fail(stream: TextStream, token: int) -> str:
        if stream is bad._state._stream:
            raise RuntimeError("no text")
        return step(stream, token)

    monkeypatch.setattr(TextStream, "step", fail)
    assert list(good) and good.answer == alone[1]
    for failed, kind, text in (
        (bad, "answer_failed", "the answer failed: no text"),
        (not_finite, "logits_not_finite", "logits have nan"),
    ):
        with refused(kind, text) as caught:
            list(failed)
        assert failed.finish == "error" and failed.error is caught.value
    assert idle(shared)


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
    assert (broken.finish, dropped.finish) == ("cancelled", "cancelled") and idle(shared)


def test_a_request_that_nobody_has(path: Path, alone: list[list[int]]) -> None:
    """It takes no slot and no step, whether it waits, runs, or is let go of in the middle of a step; others go on."""
    shared = stepped(path, max_batch=3)
    requests = [shared.submit(prompt, max_new_tokens=100) for prompt in PROMPTS[1:]]
    good = shared.submit(PROMPTS[0], max_new_tokens=12)
    shared.step()
    assert shared.running == [request._state for request in requests]
    del requests[1:]
    shared.step()
    assert shared.manager.stats()["sequences"] == 2
    on_run(shared, lambda _: requests.clear())
    assert list(good) and good.answer == alone[0] and shared.running == [] and idle(shared)
    shared.submit(PROMPTS[1])
    assert not shared.step() and shared.generate(PROMPTS[:1], max_new_tokens=12)[0].answer == alone[0]


def test_a_request_that_is_cancelled_within_a_step(path: Path, alone: list[list[int]]) -> None:
    """It ends there, and its slots are free with the next step."""
    shared = stepped(path)
    bad, good = shared.submit(PROMPTS[0], max_new_tokens=50), shared.submit(PROMPTS[1], max_new_tokens=12)
    shared.step()
    on_run(shared, lambda _: bad.cancel())
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
    shared, drawn, interrupts = stepped(path), iter(range(10**6)), 0
    requests = [shared.submit(prompt, max_new_tokens=12) for prompt in PROMPTS]
    on_draw(monkeypatch, lambda: signal.raise_signal(number) if next(drawn) % 5 == 1 else None)
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
    assert idle(shared)
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
    assert idle(shared)
