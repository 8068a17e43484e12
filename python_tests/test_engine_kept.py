"""Keys and values that outlive a request: saved sequences, and prefixes in tiers."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
from kvcache_ops import models
from kvcache_ops.engine import Engine, Request
from kvcache_ops.manager import Manager, ManagerError, tier

from engines import PROMPTS, engine, idle, on_run, path, stepped
from test_tiers import Store
from tiny_models import random_tensors, write_gguf

__all__ = ["path"]  # fixtures


def test_a_save_serves_others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In steps of the budget, in which an answer goes on, also while the file is written; errors are the save's own."""
    shared, other = stepped(path, token_budget=16), engine(path)
    tokens, write, sizes = list(range(3, 103)), Manager.save_seq, list[int]()

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

    on_run(shared, lambda step: sizes.append(len(step.token_ids)))
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
    assert idle(shared)


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
