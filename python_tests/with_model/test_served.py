"""A real model, SmolLM2-135M-Instruct in Q4_1, through the HTTP interface and the commands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kvcache_ops import models
from kvcache_ops.engine import Engine
from kvcache_ops.models import ChatTemplate

from served import Serving, serving

SOURCE = Path(os.environ["KVCACHE_SMOLLM2"])
TEXT = (Path(__file__).parents[2] / "docs/manager.md").read_text(encoding="utf-8")[:8_000]
SYSTEM = {"role": "system", "content": "You are a helpful assistant. You answer in one short English sentence."}
CACHES = ("float16", "int8", "int4")
QUESTIONS = ["What color is the sky?", "How many legs has a dog?", "What do bees make?", "Who wrote Hamlet?"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with an int8 cache."""
    return models.build(SOURCE, tmp_path_factory.mktemp("served") / "model", page_size=8)


@pytest.fixture(scope="module")
def served(path: Path) -> Iterator[Serving]:
    """A server."""
    with serving(path) as found:
        yield found


def test_twenty_clients(path: Path, served: Serving) -> None:
    """Each gets what the engine answers alone; the system's message is computed once."""
    engine = Engine(path, threads=1)
    template = ChatTemplate(engine.model)
    chats = [[SYSTEM, {"role": "user", "content": question}] for question in QUESTIONS]
    expected = [engine.generate([template.tokens(chat)], max_new_tokens=24)[0].text for chat in chats]

    def ask(i: int) -> tuple[str, int]:
        options = dict(model="tiny", messages=chats[i % 4], temperature=0, max_tokens=24)
        answer = served.client.with_options(timeout=600).chat.completions.create(**options)
        return answer.choices[0].message.content, answer.usage.prompt_tokens_details.cached_tokens

    first = ask(0)
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(ask, range(20)))
    assert [text for text, _ in answers] == [expected[i % 4] for i in range(20)] and first == (expected[0], 0)
    assert "blue" in expected[0] and all(cached >= 16 for _, cached in answers)


def test_perplexity_by_cache() -> None:
    """An int8 cache costs less than the hundredth part, an int4 one less than the fifth."""
    built = {cache: models.open_model(SOURCE, cache=cache) for cache in CACHES}
    found = {cache: models.perplexity(model, TEXT, threads=1).value for cache, model in built.items()}
    assert 5 < found["float16"] < 40
    assert abs(found["int8"] / found["float16"] - 1) < 0.01
    assert 0 < found["int4"] / found["float16"] - 1 < 0.2
