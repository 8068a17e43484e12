"""A lane: one thread's decode loop, in which sequences join and leave, fork, are cut, and move to other caches."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from kvcache_ops.manager import Append, CapacityError

from soak.answers import Answers
from soak.budget import Budget
from soak.place import Place
from soak.rows import Rows, row_ids
from soak.sequences import Sequence

PROMPTS = [np.arange(40) % 7, np.zeros(40, np.int64), np.arange(40)]  # they begin alike, so that prefixes are shared

# What happens between steps, and how often of 1000.
JOIN, LEAVE, FORK, CUT_TAIL, CUT_MIDDLE, ROLL_BACK, REPLAY = 40, 25, 8, 10, 5, 10, 20


@dataclass
class Sizes:
    """How large a lane is."""

    sequences: int = 5
    longest: int = 80  # rows of a sequence, after which it leaves
    prompt: int = 24  # rows of a prompt, at most
    max_t: int = 512
    page_size: int = 8
    share: float = 1.0  # of all steps, at most: large lanes take few
    move_every: int = 400  # steps between two moves to another cache; 0 is never


@dataclass
class Lane:
    """One thread's sequences. `places` makes the caches that it lives in by turns; the first one may be shared."""

    name: str
    place: Place
    places: list[Callable[[], Place]]
    rows: Rows
    answers: Answers
    sizes: Sizes
    seed: int
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.sequences: list[Sequence] = []

    def run(self, budget: Budget, directory: Path) -> None:
        """Steps until the budget is used up."""
        taken = 0
        while not budget.is_spent():
            if taken >= self.sizes.share * budget.taken + 12:
                time.sleep(0.002)
                continue
            if not budget.take():
                return
            taken += 1
            try:
                self.edit()
                self.step()
                move_every = self.sizes.move_every
                if move_every and self.counts["steps"] % move_every == 0:
                    self.move(directory / f"{self.seed}.session")
            except Exception as error:
                error.add_note(f"{self.name}: step {self.counts['steps']}, seed {self.seed}")
                raise

    def rehearse(self, directory: Path) -> None:
        """A few steps in every cache, so that all that is made at its first use has been made."""
        for _ in self.places:
            self.run(Budget(12), directory)
            if self.sizes.move_every:
                self.move(directory / f"{self.seed}.session")

    def happens(self, per_mille: int) -> bool:
        """Whether something that happens so often happens now."""
        return int(self.random.integers(1000)) < per_mille

    def any_sequence(self) -> Sequence:
        """One of them."""
        return self.sequences[self.random.integers(len(self.sequences))]

    def edit(self) -> None:
        """What happens to sequences between steps."""
        with self.place.lock:
            for sequence in [one for one in self.sequences if len(one) >= self.sizes.longest]:
                self.leave(sequence)
            if len(self.sequences) > 1 and self.happens(LEAVE):
                self.leave(self.any_sequence())
            if not self.sequences:
                return
            sequence = self.any_sequence()
            if len(self.sequences) < self.sizes.sequences and self.happens(FORK):
                self.fork(sequence)
            if self.happens(CUT_TAIL) and len(sequence) > 8:
                self.cut(sequence, sequence.next_position - int(self.random.integers(1, 5)), -1)
            if self.happens(CUT_MIDDLE) and len(sequence) > 16:
                p0 = int(self.random.integers(sequence.next_position - 6))
                self.cut(sequence, p0, p0 + int(self.random.integers(1, 6)))

    def fork(self, sequence: Sequence) -> None:
        """A second sequence of the same rows."""
        try:
            self.sequences.append(sequence.forked(self.place.manager.fork(sequence.id)))
        except CapacityError:  # the mode copies the rows
            self.counts["out of room"] += 1
            return
        self.counts["forks"] += 1

    def cut(self, sequence: Sequence, p0: int, p1: int) -> None:
        """Removes some positions."""
        before = len(sequence)
        try:
            removed = self.place.manager.seq_rm(sequence.id, p0, p1)
        except CapacityError:  # a page that is shared would have to be copied
            self.counts["out of room"] += 1
            return
        sequence.remove(p0, p1)
        assert removed == before - len(sequence), f"seq_rm: expected {before - len(sequence)}, got {removed}"
        self.counts["cuts"] += 1

    def leave(self, sequence: Sequence) -> None:
        """A sequence ends; its last answer is checked."""
        self.replay(sequence)
        self.place.manager.free(sequence.id)
        self.sequences.remove(sequence)
        self.counts["leaves"] += 1

    def replay(self, sequence: Sequence, fresh: bool = False) -> None:
        """Checks the last answer that a sequence got by another computation of it."""
        if sequence.answer is not None:
            self.answers.check_attended(sequence.rows, sequence.answer, fresh)

    def new_tokens(self) -> list[tuple[Sequence, np.ndarray]]:
        """A token for each sequence, and sometimes the prompt of a new one."""
        batch = [(sequence, self.random.integers(0, 64, 1)) for sequence in self.sequences]
        if not self.sequences or (len(self.sequences) < self.sizes.sequences and self.happens(JOIN)):
            prompt = PROMPTS[self.random.integers(len(PROMPTS))]
            length = int(self.random.integers(1, self.sizes.prompt + 1))
            batch.append((Sequence(self.place.manager.create()), np.resize(prompt, length)))
            self.counts["joins"] += 1
        return batch

    def step(self) -> None:
        """One step of all sequences, checked and committed, or rolled back."""
        with self.place.lock:
            batch = self.new_tokens()
            appends = [Append(sequence.id, tokens=tokens) for sequence, tokens in batch]
            try:
                step = self.place.manager.begin_step(appends, self.place.host_memory)
            except CapacityError:
                self.make_room(batch)
                return
            outputs = self.place.run(step, self.rows)
            after = []
            for sequence, tokens in batch:
                positions = sequence.next_position + np.arange(len(tokens))
                after.append((row_ids(tokens, positions), positions))
            self.check(step, batch, after, outputs)
            self.counts["steps"] += 1
            self.counts["tokens"] += len(step.token_ids)
            if self.sequences and self.happens(ROLL_BACK):
                step.rollback()
                self.counts["rollbacks"] += 1
                for sequence, _ in batch[len(self.sequences) :]:
                    self.place.manager.free(sequence.id)
                    self.counts["joins"] -= 1
                return
            step.commit()
            for entry, i in enumerate(step.order):
                sequence = batch[i][0]
                sequence.append(*after[i])
                if self.place.node.fused:
                    sequence.answer = outputs[0][step.seqstarts[entry + 1] - 1].copy()
            self.sequences = [sequence for sequence, _ in batch]
            if self.happens(REPLAY):
                self.replay(self.any_sequence())

    def make_room(self, batch: list[tuple[Sequence, np.ndarray]]) -> None:
        """A step was refused for want of room: who wanted to join does not, and one leaves if there is one."""
        for sequence, _ in batch[len(self.sequences) :]:
            self.place.manager.free(sequence.id)
            self.counts["joins"] -= 1
        if self.sequences:
            self.leave(self.any_sequence())
        self.counts["out of room"] += 1

    def check(self, step, batch, after, outputs: list[np.ndarray]) -> None:
        """All rows that `KeyValueCache` has loaded; attention is checked by replays."""
        if self.place.node.fused:
            return
        rows = [np.append(sequence.rows, new) for (sequence, _), (new, _) in zip(batch, after)]
        if self.place.mode == "cells":
            self.check_cells(step, batch, rows, outputs)
        else:
            self.answers.check_loaded(np.concatenate([rows[i] for i in step.order]), outputs)

    def check_cells(self, step, batch, rows: list[np.ndarray], outputs: list[np.ndarray]) -> None:
        """In mode cells the outputs are a view of cells: those of each sequence that is there before the step."""
        view = [output[step.kvstarts[1] :] for output in outputs]
        for (sequence, _), ids in zip(batch, rows):
            slots = self.place.manager.slots(sequence.id)[: len(sequence)]
            self.answers.check_loaded(ids[: len(slots)], [output[slots] for output in view])
        self.answers.check_loaded(row_ids(step.token_ids, step.positions), [x[: step.kvstarts[1]] for x in outputs])

    def move(self, path: Path) -> None:
        """Saves all sequences, listed as they were made, and goes on with them in another cache and manager."""
        old, self.places = self.place, [*self.places[1:], self.places[0]]
        old.manager.update(old.host_memory)
        old.manager.check()
        old.manager.save(path, old.host_memory)
        new = self.places[0]()
        for sequence, id in zip(self.sequences, new.manager.load(path, new.host_memory), strict=True):
            sequence.id = id
            positions = new.manager.positions(id)
            assert np.array_equal(positions, sequence.positions), f"expected {sequence.positions}, got {positions}"
        self.place = new
        self.counts["moves"] += 1

    def finish(self) -> None:
        """The last answers of all sequences, each by a fresh session on a fresh cache, and by the oracle."""
        self.place.manager.check()
        for sequence in self.sequences:
            self.replay(sequence, fresh=True)
