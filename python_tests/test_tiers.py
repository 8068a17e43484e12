"""Tiers from Python: stores written in it, that misbehave too, and refusals.

What tiers give back, and faults of every kind, scripts in Rust prove.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kvcache_ops.manager import Append, FileTier, HostMemory, HostTier, InfLlm, Manager

from compare import refused
from managed import MODES, make, make_spec, sequence

TOKENS = list(range(100, 119))


class Store(dict[str, bytes]):
    """Blocks in a dict, given by `answer`."""

    def __init__(self, answer: Callable[[bytes | None], Any] = lambda block: block) -> None:
        super().__init__()
        self.answer = answer

    def get(self, key: str, default: Any = None) -> Any:
        """A block."""
        return self.answer(super().get(key, default))

    def put(self, key: str, block: bytes) -> None:
        """Keeps a block."""
        self[key] = bytes(block)

    def contains(self, key: str) -> bool:
        """Whether it is there."""
        return key in self

    def delete(self, key: str) -> None:
        """Removes it."""
        self.pop(key, None)


def prompt(manager: Manager, memory: HostMemory, tokens: list[int]) -> tuple[int, int]:
    """A sequence of these tokens whose new rows have random bytes, and how many of them were found."""
    s = manager.create()
    append = Append(s, tokens=tokens)
    found = manager.find_prefix(append)
    with manager.begin_step([append], memory) as step:
        assert int(step.cached[0]) == found
    for array in (memory.cache, memory.scale):
        if array is not None:
            rows = array[:, :, :, manager.slots(s)[found:]]  # of layout 3, whose axis 3 is the token's
            raw = np.random.default_rng(len(tokens)).integers(0, 120, rows.nbytes, np.uint8)
            array[:, :, :, manager.slots(s)[found:]] = raw.view(array.dtype).reshape(rows.shape)
    return s, found


def made(tiers: list[Any], mode: str = "paged", **changes: Any) -> tuple[Manager, HostMemory]:
    """A small manager with tiers, in the layout that `prompt` writes."""
    return make(mode, cache_layout=3, tiers=tiers, **changes)


@pytest.mark.parametrize("mode", MODES)
def test_a_swapped_sequence_keeps_every_bit(mode: str) -> None:
    """Through host memory too small for it, on to another tier; while another sequence has its slots."""
    types = dict(cache_dtype="int4", quant_bit=4, quant_group=2)
    manager, memory = made([HostTier(4000), Store()], mode, max_tokens=24, **types)
    s, _ = prompt(manager, memory, TOKENS)
    before = [array[:, :, :, manager.slots(s)] for array in (memory.cache, memory.scale)]
    manager.swap_out(s)
    with refused("swapped", seq=s):
        manager.begin_step([Append(s, n=1)], memory)
    other, _ = prompt(manager, memory, [7] * 24)
    assert (manager.stats()["swapped"], manager.seq_len(s), len(manager.slots(s))) == (1, len(TOKENS), 0)
    manager.free(other)
    manager.prefetch([s], memory)
    assert [manager.swap_in(s, memory) for _ in range(2)] == [len(TOKENS), 0]
    for array, rows in zip((memory.cache, memory.scale), before):
        np.testing.assert_array_equal(array[:, :, :, manager.slots(s)], rows)
    manager.check()


def fail(block: bytes) -> bytes:
    """Does not give a block."""
    raise RuntimeError("injected")


@pytest.mark.parametrize(
    "answer", [fail, lambda block: None, lambda block: "text", lambda block: block[:9], lambda block: block[::-1]]
)
def test_what_a_store_may_not_give_is_a_miss(answer: Callable[[bytes], Any]) -> None:
    """Exceptions, nothing, no bytes, other bytes, each counted."""
    manager, memory = made([Store(answer)], max_tokens=32)
    s, _ = prompt(manager, memory, TOKENS)
    manager.swap_out(s)
    manager.free(prompt(manager, memory, [7] * 32)[0])  # takes the place of all that was there
    assert manager.flush(30)  # what waits to be written would be found
    with refused("rows_missing"):
        manager.swap_in(s, memory)
    assert sum(manager.tiers()[-1]["misses"].values()) >= 1
    manager.check()


@pytest.mark.parametrize("made_by", [Manager, InfLlm])
def test_a_tier_that_refers_to_its_manager_is_collected(made_by: type[Manager | InfLlm]) -> None:
    """Together with it, though not while a step is open; a manager that somebody has keeps its tiers."""
    more: dict[str, int] = {} if made_by is Manager else dict(init=4, local=8, block=4, topk=1)
    spec = make_spec(cache_mode=1, page_size=4, max_tokens=64)
    gone = []
    for _ in range(3):
        store = Store()
        manager = made_by(spec, tiers=[HostTier(1000), store], **more)  # type: ignore[arg-type]
        vars(store)["manager"] = manager
        gone.append(weakref.ref(store))
        gc.collect()
        assert gone[-1]() is store and vars(store)["manager"] is manager
        del store, manager
        gc.collect()
    assert [found() for found in gone] == [None] * 3


def test_a_step_keeps_the_tiers_of_its_manager() -> None:
    """They are in use as long as it is there."""
    store = Store()
    manager, memory = made([store], max_tokens=32)
    vars(store)["manager"], gone = manager, weakref.ref(store)
    step = manager.begin_step([Append(manager.create(), n=1)], memory)
    del store, manager
    gc.collect()
    assert gone() is not None
    step.rollback()
    del step
    gc.collect()
    assert gone() is None


def test_bad_tiers_are_refused(tmp_path: Path) -> None:
    """A bad tier is refused by name, before anything is made."""
    spec = make_spec()
    with pytest.raises(TypeError, match=r"tiers\[0\]: expected a tier, with the method get"):
        Manager(spec, tiers=[object()])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"tiers\[1\]: expected the HostTier"):
        Manager(spec, tiers=[FileTier(tmp_path, 10), HostTier(10)])
    with refused("tier"):
        FileTier("/proc/nothing/here", 10)
    for deadline in (0.0, -1.0, float("nan"), float("inf")):
        with refused("range", name="deadline"):
            FileTier(tmp_path, 10, deadline=deadline)
    with refused("range", name="nbytes"):
        HostTier(-1)
    manager, memory = make()
    s = sequence(manager, memory, 3)
    manager.seq_add(s, 0, 3, 5)
    calls: list[Callable[[int], Any]] = [manager.swap_out, lambda s: manager.swap_in(s, memory)]
    for call in (*calls, lambda s: manager.prefetch([s]), lambda s: manager.prefetch([s], memory)):
        with refused("no_tiers"):
            call(s)
    # Before the keys are rotated.
    assert manager.pending(s).tolist() == [5, 5, 5]
    assert manager.tiers() == []
