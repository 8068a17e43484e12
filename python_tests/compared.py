"""The manager's sequences and the naive ones, held against each other: what can be seen, every byte, every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from kvcache_ops.manager import CapacityError, Manager, ManagerError, Step

from codec import decode, packed
from compare import assert_same_bits
from kvcache import NUMPY_TYPES
from managed_cache import HEAD_DIM, NUM_HEADS, NUM_LAYER, Managed, content
from naive_sequences import NaiveSequences, Refused, Row


class Compared:
    """A manager and its naive model."""

    def __init__(self, managed: Managed, random: np.random.Generator):
        """`random` decides which masks are compared."""
        self.rules = managed.rules
        self.random = random
        self.managed = managed
        self.naive = NaiveSequences(self.rules.turn, raw=self.rules.key_form == "raw")
        self.lost: dict[Any, int] = {}  # the last position that the window has taken from a sequence
        self.drained = True  # no copies or turns are queued
        self.counts: dict[str, int] = {}

    @property
    def manager(self) -> Manager:
        """The manager of the day."""
        return self.managed.manager

    def count(self, name: str) -> None:
        """For knowing that a script has done what it is for."""
        self.counts[name] = self.counts.get(name, 0) + 1

    def after_update(self) -> None:
        """The queue is empty: all keys are turned."""
        self.naive.update()
        self.drained = True

    def both(self, name: str, naive: Callable[[], Any], real: Callable[[], Any]) -> bool:
        """Both do the same, or both refuse it for one reason, and nothing has changed; whether they did it."""
        before, rows = self.seen(), {seq: [replace(row) for row in rows] for seq, rows in self.naive.rows.items()}
        salts = dict(self.naive.salts)
        kinds, expected, error, got = (), None, None, None
        try:
            expected = naive()
        except Refused as refusal:
            kinds = refusal.kinds
        try:
            got = real()
        except ManagerError as caught:
            error = caught
        if isinstance(error, CapacityError):
            self.count(f"no room for {name}")
        elif kinds:
            assert error is not None, f"{name}: expected a refusal, one of {kinds}"
            assert error.kind in kinds, f"{name}: expected one of {kinds}, got {error.kind}: {error}"
            self.count(f"{name} refused")
        elif error is not None:
            raise error
        else:
            assert expected is None or got == expected, f"{name}: expected {expected}, got {got}"
            self.drained = False
            self.count(name)
            return True
        self.naive.rows, self.naive.salts = rows, salts
        assert self.seen() == before, f"{name} was refused, and something has changed"
        return False

    def seen(self) -> tuple:
        """All that can be seen of the manager and the memory."""
        sequences = {
            seq: [x(seq).tolist() for x in (self.manager.positions, self.manager.slots, self.manager.pending)]
            for seq in self.naive.rows
        }
        return sequences, self.manager.stats(), self.managed.bytes()

    def check(self) -> None:
        """The manager's own invariants, positions and pending turns; and once nothing is queued every byte of rows."""
        self.manager.check()
        stats, max_t = self.manager.stats(), self.managed.places.max_t
        assert stats["sequences"] == len(self.naive.rows) and stats["slots"] <= max_t
        live: set[int] = set()
        for seq, rows in self.naive.rows.items():
            assert self.manager.seq_len(seq) == len(rows)
            assert self.manager.positions(seq).tolist() == [row.position for row in rows]
            ends = (rows[0].position, rows[-1].position) if rows else (None, None)
            assert (self.manager.pos_min(seq), self.manager.pos_max(seq)) == ends
            slots = self.manager.slots(seq)
            assert len(set(slots.tolist())) == len(rows) and all(0 <= slot < max_t for slot in slots)
            live |= set(slots.tolist())
            if self.drained:
                assert not self.manager.pending(seq).any()
            else:
                assert self.manager.pending(seq).tolist() == [row.pending for row in rows]
        if self.managed.places.mode == "cells":
            assert stats["used"] == len(live)
        if self.drained:
            self.check_bytes()
            if not self.rules.prefix_sharing:
                self.managed.fill_with_nan(np.array(sorted(set(range(max_t)) - live), np.int64))

    def check_bytes(self) -> None:
        """Every row of every sequence, gathered by its slot."""
        for seq, rows in self.naive.rows.items():
            if not rows:
                continue
            gathered = self.managed.cache.rows(self.manager.slots(seq))
            for got, expected in zip(gathered, self.stacked(rows)):
                assert_same_bits(f"rows of {seq}", np.ascontiguousarray(got), expected)

    def stacked(self, rows: list[Row]) -> list[np.ndarray]:
        """Rows as they are stored: of the cache (rows, L, 2, H, Dh), and of the scale."""
        stored, scale = (
            None if rows[0].key[i] is None else np.stack([np.stack([row.key[i], row.value[i]], axis=1) for row in rows])
            for i in range(2)
        )
        return [packed(stored, self.rules.format)] + ([] if scale is None else [scale])

    def compare_step(self, step: Step, seqs: list[Any], rows: list[list[Row]], slots: dict[Any, list[int]]) -> None:
        """The step's tensors say what they should, and the operator takes them and returns the model's rows."""
        order, cached = step.order.tolist(), step.cached.tolist()
        assert sorted(order) == list(range(len(seqs)))
        ones = [len(rows[i]) - hit == 1 for i, hit in zip(order, cached)]
        assert ones == sorted(ones, reverse=True) and step.decoding_batches == sum(ones)
        for i, hit in zip(order, cached):
            before = len(self.naive.rows[seqs[i]]) - len(rows[i])
            assert hit == 0 or (before == 0 and self.rules.prefix_sharing and self.managed.places.mode == "paged")
            assert hit % self.managed.places.page_size == 0 and hit < len(rows[i])
            self.counts["prefix rows"] = self.counts.get("prefix rows", 0) + hit
        computed = [row for i, hit in zip(order, cached) for row in rows[i][hit:]]
        assert step.positions.tolist() == [row.position for row in computed]
        current = np.zeros((0, 2, NUM_LAYER, NUM_HEADS, HEAD_DIM), NUMPY_TYPES[self.rules.format.current_type])
        if computed:
            current = np.stack([content(row.history, self.rules.format)[0] for row in computed])
        outputs = self.managed.run(step, current)
        if self.managed.places.mode == "cells":
            self.compare_cells(step, computed, outputs, slots)
        else:
            keys = [row for i in order for row in self.naive.rows[seqs[i]]]
            assert step.key_positions.tolist() == [row.position for row in keys]
            assert int(step.kvstarts[-1]) == len(keys)
            self.compare_outputs(outputs, keys, slice(None))
            queries = [(i, row) for i, hit in zip(order, cached) for row in rows[i][hit:]]
            self.compare_mask(step, queries, [{i: row} for i in order for row in self.naive.rows[seqs[i]]])

    def compare_cells(self, step: Step, computed: list[Row], outputs: list, slots: dict[Any, list[int]]) -> None:
        """An entry that writes and an entry that is the view of all cells; `slots` are those of before the step."""
        if not computed:
            assert step.seqstarts.tolist() == [0] and step.kvstarts.tolist() == [0]
            return
        n, n_kv = len(computed), int(step.kvstarts[2] - step.kvstarts[1])
        assert step.seqstarts.tolist() == [0, n, n] and step.start_pos.tolist() == [0, n_kv]
        assert step.cachestarts[1] == 0
        written = {id(row): int(step.cachestarts[0]) + i for i, row in enumerate(computed)}
        owner = {id(row): seq for seq, rows in self.naive.rows.items() for row in rows}
        cells: list[dict[Any, Row]] = [{} for _ in range(n_kv)]
        for seq, rows in self.naive.rows.items():
            new = [written[id(row)] for row in rows if id(row) in written]
            for cell, row in zip(slots[seq] + new, rows):
                cells[cell][seq] = row
        live = [cell for cell, owners in enumerate(cells) if owners]
        row_of = [next(iter(cells[cell].values())) for cell in live]
        positions = np.full(n_kv, -1)
        positions[live] = [row.position for row in row_of]
        assert step.key_positions.tolist() == [row.position for row in computed] + positions.tolist()
        self.compare_outputs(outputs, row_of, n + np.array(live))
        self.compare_mask(step, [(owner[id(row)], row) for row in computed], cells)

    def compare_outputs(self, outputs: list, rows: list[Row], at: Any) -> None:
        """What each layer's operator returned, at some rows."""
        format = self.rules.format
        t1 = NUMPY_TYPES[format.current_type]
        for layer, both in enumerate(outputs):
            for name, got in zip(("key", "value"), both):
                stored = [getattr(row, name) for row in rows]
                expected = np.zeros((0, NUM_HEADS, HEAD_DIM), t1)
                if stored:
                    scale = None if stored[0][1] is None else np.stack([x[1][layer] for x in stored])
                    expected = decode(np.stack([x[0][layer] for x in stored]), scale, format, t1)
                assert_same_bits(f"{name} {layer}", np.ascontiguousarray(got[at]), expected)

    def compare_mask(self, step: Step, queries: list[tuple[Any, Row]], keys: list[dict[Any, Row]]) -> None:
        """0 where a token of a sequence sees a key, which may have several owners; else -inf, padding too."""
        if self.random.random() < 0.5:
            return
        mask = step.mask()
        expected = np.full(mask.shape, -np.inf, np.float32)
        assert mask.dtype == np.float32 and mask.shape[0] >= len(queries) and mask.shape[1] >= len(keys)
        sinks = {id(row) for rows in self.naive.rows.values() for row in rows[: self.rules.sink]}
        for q, (owner, query) in enumerate(queries):
            for k, owners in enumerate(keys):
                if owner in owners and owners[owner].position <= query.position:
                    near = self.rules.window is None or query.position - owners[owner].position < self.rules.window
                    if near or id(owners[owner]) in sinks:
                        expected[q, k] = 0
        assert (mask == expected).all()

    def slide(self, seqs: list[Any]) -> None:
        """What a committed step has removed behind the window: all of it, but in pages some more rows stay."""
        rules, page_size = self.rules, self.managed.places.page_size
        for seq in seqs:
            rows, kept = self.naive.rows[seq], self.manager.positions(seq).tolist()
            least = self.naive.next_position(seq) - rules.window - rules.slack
            due = [row for row in rows[rules.sink :] if row.position <= least]
            gone = [row for row in rows if row.position not in set(kept)]
            assert all(any(row is other for other in due) for row in gone), "a row went that the window sees"
            slop = 0 if self.managed.places.mode != "paged" else 2 * (page_size - 1)
            assert len(due) - len(gone) <= slop, f"{len(due)} rows are due, {len(gone)} went"
            self.naive.rows[seq] = [row for row in rows if row.position in set(kept)]
            self.drained &= not gone  # rows that stay may have to move up
            if gone:
                self.lost[seq] = max(self.lost.get(seq, 0), gone[-1].position)


def refused(call: Callable[[], Any], *kinds: str) -> None:
    """The call raises a `ManagerError` of one of the kinds."""
    try:
        call()
    except ManagerError as error:
        assert error.kind in kinds, f"expected one of {kinds}, got {error.kind}: {error}"
    else:
        raise AssertionError(f"expected a refusal, one of {kinds}")
