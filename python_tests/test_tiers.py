"""Tiers: sequences that leave the cache and come back, prefixes that other processes find, stores that misbehave."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from kvcache_ops.manager import Append, FileTier, HostMemory, HostTier, Manager

from managed import MODES, make, make_spec, refused, sequence

TOKENS = list(range(100, 119))


class Store(dict[str, bytes]):
    """Blocks in a dict."""

    def put(self, key: str, block: bytes) -> None:
        """Keeps a block."""
        self[key] = bytes(block)

    def contains(self, key: str) -> bool:
        """Whether it is there."""
        return key in self

    def delete(self, key: str) -> None:
        """Removes it."""
        self.pop(key, None)


def rows(manager: Manager, memory: HostMemory, s: int) -> list[bytes]:
    """The bytes of each row of a sequence, in all layers."""
    arrays = [array for array in (memory.cache, memory.scale) if array is not None]
    slots = manager.slots(s)  # layout 3 unless the test's spec says else: axis 3 is the token's
    return [b"".join(np.ascontiguousarray(array[:, :, :, slot]).tobytes() for array in arrays) for slot in slots]


def fill(memory: HostMemory, slots: np.ndarray, seed: int) -> None:
    """Writes random bytes to rows."""
    generator = np.random.default_rng(seed)
    for array in (memory.cache, memory.scale):
        if array is not None:
            part = array[:, :, :, slots]
            raw = generator.integers(0, 120, part.nbytes, np.uint8)
            array[:, :, :, slots] = raw.view(array.dtype).reshape(part.shape)


def prompt(manager: Manager, memory: HostMemory, tokens: list[int], seed: int) -> tuple[int, int]:
    """A sequence of these tokens with random rows, and how many of them were found."""
    s = manager.create()
    with manager.begin_step([Append(s, tokens=tokens)], memory) as step:
        found = int(step.cached[0])
    fill(memory, manager.slots(s)[found:], seed)
    return s, found


def made(tiers: list[Any], mode: str = "paged", **changes: Any) -> tuple[Manager, HostMemory]:
    """A small manager with tiers, in the layout that `rows` reads."""
    return make(mode, cache_layout=3, tiers=tiers, **changes)


TYPES: list[dict[str, Any]] = [
    dict(dtype="float32"),
    dict(cache_dtype="int8", quant_bit=8, quant_group=4),
    dict(cache_dtype="int4", quant_bit=4, quant_group=2),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("types", TYPES, ids=["float32", "int8", "int4"])
def test_a_swapped_sequence_keeps_every_bit(mode: str, types: dict[str, Any], tmp_path: Path) -> None:
    """Through host memory too small for it, on to files; while another sequence has its slots."""
    manager, memory = made([HostTier(4000), FileTier(tmp_path, 1 << 20)], mode, max_tokens=24, **types)
    s, _ = prompt(manager, memory, TOKENS, 1)
    before, positions = rows(manager, memory, s), manager.positions(s).tolist()
    manager.swap_out(s)
    with refused("swapped", seq=s):
        manager.begin_step([Append(s, n=1)], memory)
    other, _ = prompt(manager, memory, [7] * 24, 2)
    assert (manager.stats()["swapped"], manager.seq_len(s), len(manager.slots(s))) == (1, len(TOKENS), 0)
    manager.free(other)
    manager.prefetch([s], memory)
    assert manager.swap_in(s, memory) == len(TOKENS)
    assert (rows(manager, memory, s), manager.positions(s).tolist()) == (before, positions)
    assert manager.swap_in(s, memory) == 0 and manager.stats()["swapped"] == 0
    manager.check()


def test_what_a_store_may_not_give_is_a_miss() -> None:
    """Exceptions, nothing, no bytes, other bytes, each counted. (Scripts in Rust have stores of every fault.)"""

    class Wrong(Store):
        def get(self, key: str, default: Any = None) -> Any:
            """A block, changed by what comes next."""
            return next(answers)(super().get(key, default))

    def fail(block: bytes) -> bytes:
        raise RuntimeError("injected")

    for answer in (fail, lambda block: None, lambda block: "text", lambda block: block[:9], lambda block: block[::-1]):
        answers = cycle([answer])
        manager, memory = made([Wrong()], max_tokens=32)
        s, _ = prompt(manager, memory, TOKENS, 1)
        manager.swap_out(s)
        manager.free(prompt(manager, memory, [7] * 32, 2)[0])  # takes the place of all that was there
        assert manager.flush(30)  # what waits to be written would be found
        with refused("rows_missing"):
            manager.swap_in(s, memory)
        assert sum(manager.tiers()[-1]["misses"].values()) >= 1
        manager.check()


def test_a_store_that_hangs_is_a_miss() -> None:
    """A step waits no longer than the tier's deadline; others go on."""
    let_go = Event()

    class Hanging(Store):
        def get(self, key: str, default: Any = None) -> Any:
            """Does not answer."""
            let_go.wait(60)

    manager, memory = made([Hanging()])
    began = time.monotonic()
    for _ in range(3):  # only the first one waits
        s, found = prompt(manager, memory, TOKENS, 1)
        assert found in (0, 16)
        manager.swap_out(s)
        manager.free(s)
    assert time.monotonic() - began < 50
    misses = manager.tiers()[-1]["misses"]
    assert misses["late"] == 1
    let_go.set()


FIRST = """
import sys, os, numpy as np
from kvcache_ops.manager import *
spec = CacheSpec(max_tokens=64, num_kv_heads=2, head_dim=4, num_layers=2, dtype="float32", cache_mode=1, page_size=4,
                 cache_layout=3)
memory = HostMemory(spec, *spec.allocate())
manager = Manager(spec, fingerprint="model", tiers=[FileTier(sys.argv[1], 1 << 24)])
memory.cache[:] = 3
prompts = [[p * 1000 + t for t in range(50)] for p in range(int(sys.argv[2]))]
for prompt in prompts:
    s = manager.create()
    manager.begin_step([Append(s, tokens=prompt)], memory).commit()
    manager.free(s)
manager.offload_prefix()
manager.update(memory)
manager.flush(60)
"""


def test_a_second_process_finds_the_prefixes_of_the_first(tmp_path: Path) -> None:
    """In its files, if it is of the same model. (Rust has processes that are killed.)"""
    subprocess.run([sys.executable, "-c", FIRST, str(tmp_path), "3"], check=True, timeout=60)
    manager, memory = make(cache_layout=3, rope=None, fingerprint="model", tiers=[FileTier(tmp_path, 1 << 24)])
    found = 0
    for p in range(3):
        s = manager.create()
        with manager.begin_step([Append(s, tokens=[p * 1000 + t for t in range(50)])], memory) as step:
            n = int(step.cached[0])
        assert np.all(memory.cache[:, :, :, manager.slots(s)[:n]] == 3)
        found += n
        manager.free(s)
    assert found == 48 * 3
    assert sum(manager.tiers()[-1]["misses"][reason] for reason in ("checksum", "length", "format")) == 0
    other, memory = make(cache_layout=3, rope=None, fingerprint="another", tiers=[FileTier(tmp_path, 1 << 24)])
    s = other.create()
    with other.begin_step([Append(s, tokens=list(range(50)))], memory) as step:
        assert step.cached[0] == 0, "blocks of another model"


def test_bad_tiers_are_refused(tmp_path: Path) -> None:
    """By name, before anything is made."""
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
    for call in (manager.swap_out, lambda s: manager.swap_in(s, memory), lambda s: manager.prefetch([s])):
        with refused("no_tiers"):
            call(s)
    assert manager.tiers() == []
