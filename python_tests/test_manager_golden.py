"""Golden numbers of the manager's specification, by their ids, where the binding has a part: arrays and their bytes."""

from __future__ import annotations

import numpy as np
import pytest
from kvcache_ops.manager import Append, CacheSpec, HostMemory, Manager, Rope, find_slot, n_kv

from managed import make, make_arrays, make_spec, sequence


def busy(size: int, cells: list[int]) -> np.ndarray:
    """Which cells are busy."""
    return np.isin(np.arange(size), cells)


def occupied(pattern: str) -> tuple[Manager, HostMemory, list[int | None]]:
    """A manager of cells with single tokens where the pattern has a 1; by cell, the sequence that is in it."""
    manager, memory = make("cells", max_tokens=len(pattern), pad=4)
    seqs: list[int | None] = [sequence(manager, memory, 1) for _ in pattern]
    for cell, one in enumerate(pattern):
        if one == "0":
            manager.free(seqs[cell])
            seqs[cell] = None
    return manager, memory, seqs


def live_pages(manager: Manager) -> int:
    """Pages that sequences have."""
    return manager.stats()["used"] // manager.spec.page_size


def test_g1_find_slot() -> None:
    """As an array, as a list, and by a manager."""
    assert find_slot(busy(8, [0, 1, 4]), 6, 3, 3) == (5, 5)
    assert find_slot(busy(8, [0, 1, 4]).tolist(), 0, 3, 3) == (5, 5)
    assert find_slot(busy(8, [0, 2, 4, 6]), 0, 4, 2) == (None, 0)
    manager, memory, _ = occupied("11001000")
    assert manager.slots(sequence(manager, memory, 3)).tolist() == [5, 6, 7]
    manager, memory, _ = occupied("10101010")
    with pytest.raises(ValueError) as caught:
        manager.begin_step([Append(manager.create(), n=2)], memory)
    assert (caught.value.kind, caught.value.details) == ("no_slot", {"need": 2, "largest": 1, "free": 4})


def test_g3_n_kv() -> None:
    """Padded, and never more than the size."""
    inputs = [(6, 1024, 32), (33, 1024, 32), (6, 1024, 256), (300, 1024, 256), (12, 20, 32), (0, 1024, 32)]
    assert [n_kv(*numbers) for numbers in inputs] == [32, 64, 256, 512, 20, 32]


def test_g6_byte_offsets() -> None:
    """Of slots in layout 2: where a page's copy lands."""
    sizes = dict(max_tokens=16, num_kv_heads=32, head_dim=128, num_layers=1)
    spec = make_spec(dtype="float16", cache_layout=2, page_size=1, **sizes)
    cache, _ = make_arrays(spec)
    memory, manager = HostMemory(spec, cache), Manager(spec, key_form="raw")
    s = sequence(manager, memory, 14)
    cache[0, 0, 6], cache[0, 0, 13] = 6, 13
    half = cache.reshape(-1)
    assert (half[49152 // 2], half[49152 // 2 - 1], half[106496 // 2], half[106496 // 2 - 1]) == (6, 0, 13, 0)
    assert manager.slots(s).tolist() == list(range(14))


@pytest.mark.parametrize(
    ("pattern", "expected", "moves"),
    [
        ("1100101110", [0, 1, None, None, 4, None, 5, 2, 3, None], 2),
        ("10101010101", [0, None, 2, None, 4, None, 5, None, 3, None, 1], 3),
        ("10100111", [0, None, 2, None, None, 3, 4, 1], 2),
    ],
)
def test_g8_defragmentation(pattern: str, expected: list, moves: int) -> None:
    """Where each cell goes, in how many moves."""
    manager, memory, seqs = occupied(pattern)
    copies = manager.defrag()
    assert len(copies) == moves and all(isinstance(number, int) for copy in copies for number in copy)
    manager.update(memory)
    assert [None if s is None else int(manager.slots(s)[0]) for s in seqs] == expected
    assert manager.defrag() == [] and manager.stats()["head"] == manager.stats()["used"]


def turned(rope: Rope, key: np.ndarray, **format) -> tuple[np.ndarray, np.ndarray | None]:
    """The stored key and its scale, after its position grew by one."""
    spec = CacheSpec(max_tokens=16, num_kv_heads=1, head_dim=key.size, cache_mode=1, page_size=4, **format)
    cache, scale = make_arrays(spec)
    cache[0, 0, 0, 0] = key
    if scale is not None:
        scale[0, 0, :, 0] = np.float32(8) / np.float32(127)
    manager, memory = Manager(spec, rope=rope), HostMemory(spec, cache, scale)
    s = sequence(manager, memory, 1)
    manager.seq_add(s, 0, -1, 1)
    manager.update(memory)
    assert not cache[0, 0, 1].any()  # values stay
    return cache[0, 0, 0, 0], None if scale is None else scale[0, 0, 0, 0]


def test_g10_a_key_turned_by_one() -> None:
    """Every bit of float32 that the specification gives."""
    for rope, expected in [
        (Rope(4), [-1.9841106, 1.9599006, 2.4623778, 4.0197997]),
        (Rope(4, style="gptj"), [-1.1426396, 1.9220755, 2.9598508, 4.0297995]),
        (Rope(2, style="gptj"), [-1.1426396, 1.9220755, 3, 4]),
        (Rope(4, inv_freq=[1, 0.01]), [-1.9841106, 1.9599006, 2.4623778, 4.0197997]),
    ]:
        key, _ = turned(rope, np.float32([1, 2, 3, 4]), dtype="float32")
        np.testing.assert_array_equal(key, np.float32(expected))


def test_g11_a_quantized_key_turned_by_one() -> None:
    """Codes, and the new scale."""
    codes = np.int8([16, 32, 48, 64, 79, 95, 111, 127])
    format = dict(dtype="float32", quant_bit=8, quant_group=8)
    key, scale = turned(Rope(8), codes, **format)
    assert key.tolist() == [-58, 22, 47, 64, 56, 98, 111, 127]
    assert abs(float(scale[0]) - 0.06302384) < 5e-9


def test_g15_fork_and_append_to_both() -> None:
    """Two pages, two, three; one copy of two rows: only slots 8 and 9 change."""
    spec = make_spec()
    cache, _ = make_arrays(spec)
    manager, memory = Manager(spec), HostMemory(spec, cache)
    a = sequence(manager, memory, 6)
    cache[...] = np.arange(64).reshape(64, 1, 1, 1, 1)
    pages = [live_pages(manager)]
    b = manager.fork(a)
    pages.append(live_pages(manager))
    with manager.begin_step([Append(a, n=1), Append(b, n=1)], memory) as step:
        assert step.kvstarts.tolist() == [0, 7, 14] and step.start_pos.tolist() == [6, 6]
        assert step.cachestarts.tolist() == [[0, 8], [0, 4]]
    assert [*pages, live_pages(manager)] == [2, 2, 3]
    assert cache[:, 0, 0, 0, 0].tolist() == [*range(8), 4, 5, *range(10, 64)]


def test_g18_g19_bytes() -> None:
    """Per token, and of a cache."""

    def spec(num_layer: int, num_heads: int, head_dim: int, max_t: int = 128, **format) -> CacheSpec:
        return CacheSpec(max_t, num_heads, head_dim, num_layers=num_layer, **format)

    int8, int4 = dict(quant_bit=8, quant_group=8), dict(quant_bit=4, quant_group=32)
    assert spec(16, 8, 64).bytes_per_token == 32768
    assert [spec(32, 8, 128, **format).bytes_per_token for format in ({}, int8, int4)] == [131072, 81920, 36864]
    assert spec(32, 32, 128, 1024).cache_bytes == 512 * 2**20
    assert spec(32, 8, 128, 30016).cache_bytes == 3934257152 == 3752 * 2**20
