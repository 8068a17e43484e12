"""Small engines over a tiny model, and functions that are called within their steps."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kvcache_ops import models
from kvcache_ops.engine import Engine
from kvcache_ops.manager import Step
from kvcache_ops.text._sampling import Sampler

from tiny_models import SMALL, TEMPLATE, random_tensors, with_nan, write_gguf

PROMPTS = [
    [7 * i % 200 + 3 for i in range(first, first + length)] for first, length in ((0, 5), (9, 40), (2, 1), (5, 17))
]
NAN_TOKEN = 210  # of a control character, beyond the tokens of prompts


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that never draws a special token, so that answers have no end, nor NAN_TOKEN, whose embedding is NaN."""
    folder = tmp_path_factory.mktemp("engine")
    tensors = random_tensors(tied=False, sizes=SMALL)
    tensors["output.weight"] *= 4
    tensors["output.weight"][[NAN_TOKEN, -2, -1]] = 0
    fields = {"tokenizer.chat_template": TEMPLATE}
    source = write_gguf(folder / "tiny.gguf", tensors=tensors, sizes=SMALL, fields=fields)
    return with_nan(models.build(source, folder / "model", page_size=8), tensors["token_embd.weight"][NAN_TOKEN])


def engine(path: Path | models.Model, max_tokens: int = 1024, **options: object) -> Engine:
    """A small one, whose steps its thread makes."""
    return Engine(path, max_tokens=max_tokens, threads=1, **options)


def stepped(path: Path, **options: object) -> Engine:
    """A small one, whose steps the test makes."""
    return engine(path, threaded=False, **options)


@pytest.fixture(scope="module")
def alone(path: Path) -> list[list[int]]:
    """The answers, each from an engine of its own."""
    return [engine(path).generate([prompt], max_new_tokens=12)[0].answer for prompt in PROMPTS]


def idle(engine: Engine) -> bool:
    """Whether nothing is left to do, and no sequence is left."""
    return not engine.step() and engine.manager.stats()["sequences"] == 0


def on_run(engine: Engine, before: Callable[[Step], object]) -> None:
    """Calls a function with each step, before the session runs."""
    run = engine._scheduler._run

    def both(step: Step, rows: list[int]) -> np.ndarray:
        before(step)
        return run(step, rows)

    engine._scheduler._run = both


def on_draw(monkeypatch: pytest.MonkeyPatch, before: Callable[[], object]) -> None:
    """Calls a function before each token is drawn."""
    draw = Sampler.__call__

    def both(sampler: Sampler, logits: np.ndarray) -> int:
        before()
        return draw(sampler, logits)

    monkeypatch.setattr(Sampler, "__call__", both)


def soon(condition: Callable[[], bool]) -> None:
    """Waits until the condition holds, at most a minute."""
    until = time.perf_counter() + 60
    while not condition():
        assert time.perf_counter() < until
        time.sleep(0.01)


def calls(function: Callable[[], object]) -> int:
    """How many calls a function makes, of Python's functions and of others."""
    events = list[str]()
    sys.setprofile(lambda _, event, __: events.append(event))
    try:
        function()
    finally:
        sys.setprofile(None)
    return len(events)
