"""A random script of operations on `kvcache_ops.manager`, held against a naive model after each of them.

The rows that a step stores are random numbers drawn from a digest of all that they depend on in a real decoder: the
tokens before them, their positions, the salt. So a prefix that is shared rightly has the bytes that the model expects,
and one that is shared wrongly has not. Steps run the operator itself; everything else about a row's bytes is numpy.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from kvcache_ops.manager import Append, CapacityError, ManagerError

from compared import Compared, refused
from managed_cache import Managed, Places, Rules, content
from naive_sequences import Refused, Row

PROMPTS = ([1] * 40, [1, 2] * 20, list(range(40)))  # prompts begin like one of these, so that they share pages
I32_MAX = 2**31 - 1


class Script(Compared):
    """One random life of a cache."""

    def __init__(self, seed: int, mode: str, rules: Rules, directory: Path):
        random = np.random.default_rng(seed)
        super().__init__(Managed(rules, Places.draw(random, mode, 60)), random)
        self.directory = directory

    def run(self, operations: int) -> None:
        """Runs so many random operations, each followed by all checks."""
        names = ["step"] * 12 + ["create"] * 4 + ["fork"] * 2 + ["free", "remove", "remove_tail", "copy"] * 2
        names += ["keep_one", "remove_all", "defrag", "compact", "update", "reload", "save_one", "bad"]
        if self.rules.window is None:
            names += ["add", "divide", "context_shift"] * (2 if self.rules.shiftable else 0)
        for _ in range(operations):
            name = str(self.random.choice(names))
            getattr(self, name)()
            self.check()

    # Operations. Each draws its arguments, asks both, and compares what they say.

    def create(self) -> None:
        """A new sequence, sometimes with a salt or a reserve; not more than eight."""
        if len(self.naive.rows) < 8:
            salt = b"salt" if self.random.random() < 0.2 else b""
            self.naive.create(self.manager.create(reserve=int(self.random.choice((0, 0, 7))), salt=salt), salt)

    def fork(self) -> None:
        """A second sequence of the same rows."""
        if not self.naive.rows or len(self.naive.rows) >= 8:
            return
        seq, new = self.any_seq(), None

        def real() -> None:
            nonlocal new
            new = self.manager.fork(seq)

        if self.both("fork", lambda: None, real):
            self.naive.fork(seq, new)
            self.lost |= {new: self.lost[seq]} if seq in self.lost else {}

    def free(self) -> None:
        """A sequence is gone, and its id stale."""
        if self.naive.rows:
            seq = self.any_seq()
            self.both("free", lambda: self.naive.free(seq), lambda: self.manager.free(seq))
            refused(lambda: self.manager.seq_len(seq), "unknown_seq")

    def remove(self) -> None:
        """Some positions of one sequence."""
        if self.naive.rows:
            self.remove_range(self.any_seq(), *self.any_range())

    def remove_tail(self) -> None:
        """The last positions of one sequence, as a rejected draft."""
        if self.naive.rows:
            seq = self.any_seq()
            self.remove_range(seq, max(0, self.naive.next_position(seq) - int(self.random.integers(6))), -1)

    def remove_all(self) -> None:
        """Some positions of all sequences."""
        if self.rules.window is None:
            self.remove_range(None, *self.any_range())

    def remove_range(self, seq: Any | None, p0: int, p1: int) -> None:
        """`seq_rm`; of a window's tail that reaches back too far it is refused."""

        def naive() -> int:
            if self.rules.window is not None and seq is not None and self.naive.rows[seq] and p0 > 0:
                is_tail = p1 < 0 or p1 >= self.naive.next_position(seq)
                removes = p0 < self.naive.next_position(seq)
                if is_tail and removes and seq in self.lost and self.lost[seq] > p0 - self.rules.window:
                    raise Refused("window_lost")
            return self.naive.remove(seq, p0, p1)

        if self.both("remove", naive, lambda: self.manager.seq_rm(seq, p0, p1)):
            self.lost = {one: last for one, last in self.lost.items() if self.naive.rows.get(one)}

    def copy(self) -> None:
        """Positions of one sequence to another, which must be empty."""
        if self.naive.rows and self.rules.window is None:
            source, target, (p0, p1) = self.any_seq(), self.any_seq(), self.any_range()
            self.both(
                "copy",
                lambda: self.naive.copy(source, target, p0, p1),
                lambda: self.manager.seq_cp(source, target, p0, p1),
            )

    def keep_one(self) -> None:
        """All sequences but one are emptied."""
        if self.naive.rows and self.random.random() < 0.3:
            seq = self.any_seq()
            self.both("keep", lambda: self.naive.keep(seq), lambda: self.manager.seq_keep(seq))
            self.lost = {one: last for one, last in self.lost.items() if one == seq}

    def add(self) -> None:
        """Positions move; now and then far out of range."""
        if self.naive.rows:
            seq, (p0, p1) = self.any_seq(), self.any_range()
            delta = int(self.random.choice((-7, -2, -1, 1, 2, 5, I32_MAX), p=(0.2, 0.2, 0.2, 0.15, 0.1, 0.1, 0.05)))
            self.both(
                "add", lambda: self.naive.add(seq, p0, p1, delta), lambda: self.manager.seq_add(seq, p0, p1, delta)
            )

    def divide(self) -> None:
        """Positions are divided; by less than one not."""
        if self.naive.rows:
            seq, (p0, p1), d = self.any_seq(), self.any_range(), int(self.random.integers(0, 4))
            self.both("divide", lambda: self.naive.divide(seq, p0, p1, d), lambda: self.manager.seq_div(seq, p0, p1, d))

    def context_shift(self) -> None:
        """Room for more tokens in a context that is as long as the sequence."""
        if not self.naive.rows:
            return
        seq = self.any_seq()
        n_ctx = max(1, self.naive.next_position(seq) + int(self.random.integers(0, 3)))
        n_keep = int(self.random.integers(0, 4))
        n_discard = None if self.random.random() < 0.7 else int(self.random.integers(0, 5))
        if n_keep > self.naive.next_position(seq) or (n_discard or 0) + n_keep > self.naive.next_position(seq):
            return
        self.both(
            "context_shift",
            lambda: self.naive.context_shift(seq, n_ctx, 1, n_keep, n_discard),
            lambda: self.manager.context_shift(seq, n_ctx, 1, n_keep, n_discard),
        )

    def defrag(self) -> None:
        """Rows move, sequences do not change."""
        max_moves = None if self.random.random() < 0.5 else int(self.random.integers(1, 4))
        moves = []
        self.both("defrag", lambda: None, lambda: moves.extend(self.manager.defrag(max_moves)))
        assert all(0 <= x < self.managed.places.max_t for src, dst, _ in moves for x in (src, dst))
        assert max_moves is None or self.managed.places.mode == "paged" or len(moves) <= max_moves

    def compact(self) -> None:
        """The same by pages."""
        if self.managed.places.mode == "paged":
            pages = int(self.random.integers(1, 4))
            self.both("compact", lambda: None, lambda: self.manager.compact(pages))

    def update(self) -> None:
        """What is queued is done now."""
        self.manager.update(self.managed.memory)
        self.after_update()

    def step(self) -> None:
        """Some sequences get tokens."""
        seqs = [seq for seq in self.naive.rows if self.random.random() < 0.6][:5]
        appends, rows = [], []
        for seq in seqs:
            append, new = self.any_append(seq)
            appends.append(append)
            rows.append(new)
        order_error = any(
            new and self.naive.rows[seq] and new[0].position < self.naive.next_position(seq)
            for seq, new in zip(seqs, rows)
        )
        before = self.seen()
        slots = {seq: self.manager.slots(seq).tolist() for seq in self.naive.rows}
        try:
            step = self.manager.begin_step(appends, self.managed.memory)
        except ManagerError as error:
            self.count("no room for a step" if isinstance(error, CapacityError) else "step refused")
            assert isinstance(error, CapacityError) or (order_error and error.kind == "position_order"), error
            assert self.seen() == before
            return
        assert not order_error
        self.after_update()
        end = self.random.choice(["commit", "with", "rollback", "raise"], p=[0.5, 0.3, 0.1, 0.1])
        refused(lambda: self.manager.begin_step([], self.managed.memory), "step_open")
        stored = {seq: list(self.naive.rows[seq]) for seq in seqs}
        for seq, new in zip(seqs, rows):
            self.naive.append(seq, new)
        self.compare_step(step, seqs, rows, slots)
        if end == "commit":
            step.commit()
        elif end == "with":
            with step:
                pass
        elif end == "rollback":
            step.rollback()
        else:
            try:
                with step:
                    raise InterruptedError
            except InterruptedError:
                pass
        self.count(f"step {end}")
        if end in ("rollback", "raise"):
            self.naive.rows.update(stored)
        elif self.rules.window is not None:
            self.slide(seqs)

    def reload(self) -> None:
        """All sequences are saved, and loaded into a new cache of another mode, page size, layout and size."""
        path = self.directory / "all.kv"
        if not self.drained and self.random.random() < 0.5:
            try:
                self.manager.save(path, self.managed.memory)
            except ManagerError as error:
                assert error.kind == "update_pending"
        self.update()
        self.manager.save(path, self.managed.memory)
        total = sum(len(rows) for rows in self.naive.rows.values())
        mode = str(self.random.choice(["paged", "runs", "cells"]))
        self.managed = Managed(self.rules, Places.draw(self.random, mode, total + 16 * len(self.naive.rows) + 30))
        ids = self.manager.load(path, self.managed.memory)
        assert len(ids) == len(self.naive.rows)
        renamed = dict(zip(self.naive.rows, ids))
        self.naive.rows = {renamed[seq]: rows for seq, rows in self.naive.rows.items()}
        self.naive.salts = {renamed[seq]: salt for seq, salt in self.naive.salts.items()}
        self.lost = {renamed[seq]: last for seq, last in self.lost.items() if seq in renamed}
        self.count("reload")

    def save_one(self) -> None:
        """One sequence is saved, and loaded beside the living."""
        if not self.naive.rows or len(self.naive.rows) >= 8:
            return
        seq, path = self.any_seq(), self.directory / "one.kv"
        self.update()
        self.manager.save_seq(path, self.managed.memory, seq)
        before = self.seen()
        try:
            new = self.manager.load_seq(path, self.managed.memory)
        except ManagerError:  # too little room
            self.count("no room to load")
            assert self.seen() == before
            return
        self.naive.fork(seq, new)
        self.lost |= {new: self.lost[seq]} if seq in self.lost else {}
        self.count("load one")

    def bad(self) -> None:
        """Calls that are refused whatever the state."""
        before = self.seen()
        begin = lambda appends: self.manager.begin_step(appends, self.managed.memory)  # noqa: E731
        if self.naive.rows:
            seq = self.any_seq()
            refused(lambda: begin([Append(seq, n=0)]), "empty_append")
            refused(lambda: begin([Append(seq, n=1), Append(seq, n=1)]), "duplicate_seq")
            refused(lambda: begin([Append(seq, n=10**9)]), "out_of_pages", "no_slot")
        assert self.seen() == before

    # What operations draw from and note down.

    def any_seq(self) -> Any:
        """One of the sequences."""
        return list(self.naive.rows)[self.random.integers(len(self.naive.rows))]

    def any_range(self) -> tuple[int, int]:
        """Positions, in order or not, open or not."""
        p0, p1 = (int(x) for x in self.random.integers(-1, 30, 2))
        return (p0, -1) if self.random.random() < 0.4 else (min(p0, p1), max(p0, p1))

    def any_append(self, seq: Any) -> tuple[Append, list[Row]]:
        """An append, and the rows that it makes."""
        random, empty = self.random, not self.naive.rows[seq]
        n = int(random.integers(1, 24)) if empty else int(random.choice((1, 1, 1, 2, 5)))
        known = random.random() < 0.8
        tokens = [int(x) for x in random.integers(0, 3, n)]
        if empty and n > 1:
            same = int(random.integers(n))
            tokens[:same] = PROMPTS[random.integers(len(PROMPTS))][:same]
        first = None
        if self.rules.window is None and random.random() < 0.1:
            first = max(0, self.naive.next_position(seq) + int(random.integers(-1, 4)))
        position = self.naive.next_position(seq) if first is None else first
        rows, before = [], self.history(seq)
        for i, token in enumerate(tokens):
            made = (before, position + i)
            name = (token if known else f"unknown {random.integers(2**60)}", made)
            before = digest(name)
            _, key, value = content(before, self.rules.format)
            rows.append(Row(position + i, position + i, key, value, made, before))
        return (Append(seq, tokens=tokens, first_pos=first) if known else Append(seq, n=n, first_pos=first)), rows

    def history(self, seq: Any) -> bytes:
        """What a sequence's next row depends on: the row before it, unless edits have made a difference since."""
        rows = self.naive.rows[seq]
        before = self.naive.salts[seq]
        for row in rows:
            if row.made != (before, row.position):
                return digest([(row.position, row.history) for row in rows])
            before = row.history
        return before


def digest(x: Any) -> bytes:
    """Sixteen bytes that stand for it."""
    return hashlib.blake2b(repr(x).encode(), digest_size=16).digest()
