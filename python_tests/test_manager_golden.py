"""The golden numbers of the manager's specification, by their ids, through the binding."""

from __future__ import annotations

import numpy as np
import pytest
from kvcache_ops.manager import Append, CacheSpec, HostMemory, Manager, Rope, find_slot, n_kv

from managed import MODES, make, make_arrays, make_spec, refused, sequence


def busy(size: int, cells: list[int]) -> np.ndarray:
    """Which cells are busy."""
    return np.isin(np.arange(size), cells)


def occupied(pattern: str) -> tuple[Manager, HostMemory, list[int | None]]:
    """A manager of cells with single tokens where the pattern has a 1; by cell, the sequence that is in it."""
    manager, memory = make("cells", max_t=len(pattern), pad=4)
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


def test_g2_head() -> None:
    """It stays up to used + 2n, and is 0 at the end."""
    assert find_slot(busy(16, [0, 1, 2, 3]), 10, 4, 3) == (10, 10)
    assert find_slot(busy(16, [0, 1, 2, 3]), 11, 4, 3) == (4, 4)
    manager, memory = make("cells", max_t=8, pad=4)
    sequence(manager, memory, 6)
    assert manager.stats()["head"] == 6
    sequence(manager, memory, 2)
    assert manager.stats()["head"] == 0


def test_g3_n_kv() -> None:
    """Padded, and never more than the size."""
    inputs = [(6, 1024, 32), (33, 1024, 32), (6, 1024, 256), (300, 1024, 256), (12, 20, 32), (0, 1024, 32)]
    assert [n_kv(*numbers) for numbers in inputs] == [32, 64, 256, 512, 20, 32]


def test_g4_g5_a_prompt_in_cells_and_its_mask() -> None:
    """Two entries: write and view. Then another sequence, whose next token sees its own cells alone."""
    manager, memory = make("cells", max_t=1024)
    a, b = manager.create(), manager.create()
    with manager.begin_step([Append(a, n=6)], memory) as step:
        assert step.seqstarts.tolist() == [0, 6, 6] and step.kvstarts.tolist() == [0, 6, 38]
        assert step.cachestarts.tolist() == [0, 0] and step.start_pos.tolist() == [0, 32]
        expected = np.full((32, 32), -np.inf)
        expected[:6, :6][np.tril_indices(6)] = 0
        np.testing.assert_array_equal(step.mask(), expected)
    with manager.begin_step([Append(b, n=7, first_pos=6)], memory):
        pass
    with manager.begin_step([Append(b, n=1)], memory) as step:
        (row, *padding) = step.mask("float16")
        assert np.flatnonzero(row == 0).tolist() == [6, 7, 8, 9, 10, 11, 12, 13] and len(padding) == 31
        assert np.isneginf(padding).all()
        assert manager.slots(b)[-1] == 13


def test_g6_byte_offsets() -> None:
    """Of slots in layout 2: where a page's copy lands."""
    sizes = dict(num_layer=1, num_heads=32, head_dim=128, max_t=16)
    spec = make_spec(cache_type="float16", cache_layout=2, page_size=1, rope=None, key_form="raw", **sizes)
    cache, _ = make_arrays(spec)
    memory, manager = HostMemory(spec, cache), Manager(spec)
    s = sequence(manager, memory, 14)
    cache[0, 0, 6], cache[0, 0, 13] = 6, 13
    half = cache.reshape(-1)
    assert (half[49152 // 2], half[49152 // 2 - 1], half[106496 // 2], half[106496 // 2 - 1]) == (6, 0, 13, 0)
    assert manager.slots(s).tolist() == list(range(14))


@pytest.mark.parametrize("mode", MODES)
def test_g7_edits(mode: str) -> None:
    """Positions, pending deltas, and an order that is refused."""
    manager, memory = make(mode)
    a = sequence(manager, memory, 10)
    assert manager.seq_rm(a, 2, 5) == 3
    manager.seq_add(a, 5, -1, -3)
    assert manager.positions(a).tolist() == list(range(7))
    assert manager.pending(a).tolist() == [0, 0, -3, -3, -3, -3, -3]
    b = sequence(manager, memory, 8)
    manager.seq_div(b, 0, 4, 2)
    assert manager.positions(b).tolist() == [0, 0, 1, 1, 4, 5, 6, 7]
    assert manager.pending(b).tolist() == [0, -1, -1, -2, 0, 0, 0, 0]
    c = sequence(manager, memory, 6)
    manager.seq_add(c, 0, 3, -2)
    assert manager.positions(c).tolist() == [0, 3, 4, 5]
    d = sequence(manager, memory, 6)
    with refused("position_order", append=None):
        manager.seq_add(d, 0, 2, 10)
    assert manager.positions(d).tolist() == list(range(6))
    manager.check()


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


@pytest.mark.parametrize(("size", "expected"), [(128, 0.21875), (127, 0.0)])
def test_g9_fragmentation(size: int, expected: float) -> None:
    """Nothing below 128 cells."""
    manager, memory = make("cells", max_t=size)
    a = sequence(manager, memory, 30)
    sequence(manager, memory, size - 30)
    manager.seq_rm(a, 0, size - 100)
    stats = manager.stats()
    assert (stats["n_kv"], stats["used"], stats["fragmentation"]) == (size, 100, expected)


def turned(rope: Rope, key: np.ndarray, **format) -> tuple[np.ndarray, np.ndarray | None]:
    """The stored key and its scale, after its position grew by one."""
    spec = CacheSpec(num_layer=1, num_heads=1, head_dim=key.size, max_t=16, page_size=4, rope=rope, **format)
    cache, scale = make_arrays(spec)
    cache[0, 0, 0, 0] = key
    if scale is not None:
        scale[0, 0, :, 0] = np.float32(8) / np.float32(127)
    manager, memory = Manager(spec), HostMemory(spec, cache, scale)
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
        key, _ = turned(rope, np.float32([1, 2, 3, 4]), cache_type="float32")
        np.testing.assert_array_equal(key, np.float32(expected))


def test_g11_a_quantized_key_turned_by_one() -> None:
    """Codes, and the new scale."""
    codes = np.int8([16, 32, 48, 64, 79, 95, 111, 127])
    format = dict(cache_type="int8", scale_type="float32", quant_bit=8, quant_group=8)
    key, scale = turned(Rope(8), codes, **format)
    assert key.tolist() == [-58, 22, 47, 64, 56, 98, 111, 127]
    assert abs(float(scale[0]) - 0.06302384) < 5e-9


@pytest.mark.parametrize(("bit", "group", "expected"), [(8, 8, [0.006, 0.011, 0.027]), (4, 32, [0.13, 0.22, 0.54])])
def test_g12_errors_add_up(bit: int, group: int, expected: list[float]) -> None:
    """Of normal keys after 1, 4 and 16 shifts of -50, against the stored keys turned at once."""
    head_dim, rows = 128, 64
    spec = CacheSpec(
        num_layer=1, num_heads=1, head_dim=head_dim, max_t=rows, cache_type=f"int{bit}", scale_type="float16",
        quant_bit=bit, quant_group=group, mode="runs", rope=Rope(head_dim), shift_limit=None,
    )  # fmt: skip
    cache, scale = make_arrays(spec)
    normal = np.random.default_rng(2).standard_normal((rows, head_dim // group, group))
    scale[:, 0, 0, 0] = abs(normal).max(-1) / (2 ** (bit - 1) - 1)
    codes = np.rint(normal / scale[:, 0, 0, 0, :, None].astype(float)).reshape(rows, -1).astype(np.int8)
    cache[:, 0, 0, 0] = codes if bit == 8 else (codes[:, ::2] & 15) | (codes[:, 1::2] & 15).astype(np.uint8) << 4

    def decoded() -> np.ndarray:
        """The keys in float64."""
        stored = cache[:, 0, 0, 0]
        if bit == 4:
            stored = np.stack([stored << 4, stored], -1).reshape(rows, -1).view(np.int8) >> 4
        return stored * np.repeat(scale[:, 0, 0, 0].astype(float), group, -1)

    keys, frequencies = normal.reshape(rows, -1), 1e4 ** (-2 * np.arange(head_dim // 2) / head_dim)
    manager, memory = Manager(spec), HostMemory(spec, cache, scale)
    s = manager.create()
    manager.begin_step([Append(s, n=rows, first_pos=1000)], memory).commit()
    shifts = 0
    for total, error in zip((1, 4, 16), expected):
        for _ in range(shifts, total):
            manager.seq_add(s, 0, -1, -50)
            manager.update(memory)
        shifts = total
        cos, sin = np.cos(-50 * total * frequencies), np.sin(-50 * total * frequencies)
        a, b = np.split(keys, 2, -1)
        exact = np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)
        got = np.linalg.norm(decoded() - exact) / np.linalg.norm(exact)
        assert 0.8 < got / error < 1.25, (total, got)


@pytest.mark.parametrize("mode", MODES)
def test_g13_context_shift(mode: str) -> None:
    """Half of what is behind n_keep goes; where that is nothing it is refused."""
    for n_past, n_keep, discarded, left in [(2048, 4, 1022, 1026), (16, 2, 7, 9)]:
        manager, memory = make(mode, max_t=2048)
        s = sequence(manager, memory, n_past)
        assert manager.context_shift(s, n_past + 1, 0, n_keep) == 0
        assert manager.context_shift(s, n_past, 0, n_keep) == discarded
        assert manager.positions(s).tolist() == list(range(left))
    manager, memory = make(mode)
    s = sequence(manager, memory, 5)
    with refused("no_progress", n_past=5, n_keep=4):
        manager.context_shift(s, 5, 0, 4)
    assert manager.context_shift(s, 5, 0, n_keep=1, n_discard=2) == 2


def pages_of_chunks(manager: Manager, memory: HostMemory, chunk: int, steps: int) -> tuple[int, int]:
    """The most pages of a sequence in a step, and after its commit."""
    s, during, after = manager.create(), 0, 0
    append = Append(s, n=chunk)
    for _ in range(steps):
        step = manager.begin_step([append], memory)
        during = max(during, int((step.cachestarts >= 0).sum()))
        step.commit()
        after = max(after, live_pages(manager))
    return during, after


def test_g14_windows() -> None:
    """A ring of W slots; pages of a long window; a sink."""
    manager, memory = make(max_t=4, page_size=1, window=4)
    s, slots = manager.create(), []
    for _ in range(8):
        manager.begin_step([Append(s, n=1)], memory).commit()
        slots.append(int(manager.slots(s)[-1]))
    assert slots == [0, 1, 2, 3, 0, 1, 2, 3]
    manager, memory = make(max_t=33 * 128, page_size=128, window=4096)
    assert pages_of_chunks(manager, memory, 1, 9000)[0] == 33
    manager, memory = make(max_t=20, window=8, sink=4)
    assert pages_of_chunks(manager, memory, 3, 40) == (5, 4)


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


def test_g16_forks_of_a_prompt() -> None:
    """Pages, and the rows that are copied: counted in the cache."""
    spec = make_spec(max_t=16 * 600, page_size=16, num_layer=1, num_heads=1)
    cache, _ = make_arrays(spec)
    manager, memory = Manager(spec), HostMemory(spec, cache)
    seqs = [sequence(manager, memory, 1000)]
    seqs += [manager.fork(seqs[0]) for _ in range(7)]
    cache[: 1000 // 16 * 16 + 1000 % 16] = 1
    for _ in range(100):
        manager.begin_step([Append(s, n=1) for s in seqs], memory).commit()
    assert live_pages(manager) == 118
    assert int(cache[:, 0, 0, 0, 0].sum()) - 1000 == 56
    assert sum(-(-manager.seq_len(s) // 16) for s in seqs) == 552


@pytest.mark.parametrize(("p0", "p1", "moved", "pages"), [(1, 5, 1, 2), (2, 6, 2, 2), (2, 5, 7, 3)])
def test_g17_rows_that_a_removal_moves(p0: int, p1: int, moved: int, pages: int) -> None:
    """Counted by the rows whose slots change."""
    manager, memory = make()
    s = sequence(manager, memory, 12)
    slots = np.delete(manager.slots(s), np.s_[p0:p1])
    manager.seq_rm(s, p0, p1)
    manager.update(memory)
    assert (int((manager.slots(s) != slots).sum()), live_pages(manager)) == (moved, pages)
    assert manager.positions(s).tolist() == [*range(p0), *range(p1, 12)]


def test_g18_g19_bytes() -> None:
    """Per token, and of a cache."""

    def spec(num_layer: int, num_heads: int, head_dim: int, max_t: int = 128, **format) -> CacheSpec:
        return CacheSpec(num_layer=num_layer, num_heads=num_heads, head_dim=head_dim, max_t=max_t, **format)

    int8 = dict(cache_type="int8", scale_type="float16", quant_bit=8, quant_group=8)
    int4 = dict(cache_type="int4", scale_type="float16", quant_bit=4, quant_group=32)
    assert spec(16, 8, 64).bytes_per_token == 32768
    assert [spec(32, 8, 128, **format).bytes_per_token for format in ({}, int8, int4)] == [131072, 81920, 36864]
    assert spec(32, 32, 128, 1024).nbytes == 512 * 2**20
    assert spec(32, 8, 128, 30016).nbytes == 3934257152 == 3752 * 2**20
