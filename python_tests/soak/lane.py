"""A lane: one thread's decode loop, in which sequences join and leave, fork, are cut, and move to other caches."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from kvcache_ops.manager import Append, CapacityError

from attention_node import Attention
from soak.place import Answers, Place, row_ids

PROMPTS = [np.arange(40) % 7, np.zeros(40, np.int64), np.arange(40)]  # they begin alike, so that prefixes are shared
# What happens between steps, and how often of 1000.
JOIN, LEAVE, FORK, CUT, ROLL_BACK, REPLAY = 40, 25, 8, 15, 10, 20


class Budget:
    """Steps to be taken by all threads together, and whether a thread has failed: then all stop."""

    def __init__(self, steps: int):
        self.steps, self.taken = steps, 0
        self.errors: list[BaseException] = []
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Takes a step, if one is left."""
        with self._lock:
            left = not self.is_spent()
            self.taken += left
            return left

    def is_spent(self) -> bool:
        """Whether no step is left."""
        return self.taken >= self.steps or bool(self.errors)


@dataclass
class Sequence:
    """The rows that a sequence has, their positions, and what attention gave for the last one, if it was computed."""

    id: int
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    positions: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    answer: np.ndarray | None = None

    @property
    def next_position(self) -> int:
        """Where an append begins."""
        return int(self.positions[-1]) + 1 if len(self.positions) else 0

    def __len__(self) -> int:
        return len(self.rows)


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
    answers: Answers
    sizes: Sizes
    seed: int
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.sequences: list[Sequence] = []
        self.fused = isinstance(self.place.node, Attention)
        self.before_step: Callable[[], None] = lambda: None

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
                with self.place.lock:
                    self.edit()
                    self.before_step()
                    self.step()
                if self.sizes.move_every and self.counts["steps"] % self.sizes.move_every == 0:
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
        """What happens to sequences between steps. There may be no room to copy rows or a page that is shared."""
        for sequence in [one for one in self.sequences if len(one) >= self.sizes.longest]:
            self.leave(sequence)
        if len(self.sequences) > 1 and self.happens(LEAVE):
            self.leave(self.any_sequence())
        if not self.sequences:
            return
        sequence = self.any_sequence()
        try:
            if len(self.sequences) < self.sizes.sequences and self.happens(FORK):
                self.sequences.append(replace(sequence, id=self.place.manager.fork(sequence.id)))
                self.counts["forks"] += 1
            if self.happens(CUT) and len(sequence) > 16:
                p0 = int(self.random.integers(sequence.next_position - 6))
                self.cut(sequence, p0, int(self.random.choice([-1, p0 + 1, p0 + 5])))
        except CapacityError:
            self.counts["refused for room"] += 1

    def cut(self, sequence: Sequence, p0: int, p1: int) -> None:
        """Removes the positions from p0 to before p1; -1 is the end."""
        removed = self.place.manager.seq_rm(sequence.id, p0, p1)
        inside = (sequence.positions >= p0) & ((sequence.positions < p1) | (p1 < 0))
        assert removed == inside.sum(), f"seq_rm: expected {inside.sum()}, got {removed}"
        sequence.rows, sequence.positions = sequence.rows[~inside], sequence.positions[~inside]
        sequence.answer = None
        self.counts["cuts"] += 1

    def leave(self, sequence: Sequence) -> None:
        """A sequence ends; its last answer is checked."""
        self.replay(sequence)
        self.place.manager.free(sequence.id)
        self.sequences = [one for one in self.sequences if one is not sequence]
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
        return batch

    def step(self) -> None:
        """One step of all sequences, checked and committed, or rolled back; where there is no room, one leaves."""
        batch, manager = self.new_tokens(), self.place.manager
        try:
            step = manager.begin_step([Append(one.id, tokens=new) for one, new in batch], self.place.host_memory)
        except CapacityError:
            self.not_joined(batch)
            if self.sequences:
                self.leave(self.any_sequence())
            self.counts["refused for room"] += 1
            return
        outputs = self.place.run(step, self.answers)
        positions = [sequence.next_position + np.arange(len(tokens)) for sequence, tokens in batch]
        rows = [np.append(one.rows, row_ids(new, at)) for (one, new), at in zip(batch, positions)]
        if not self.fused:  # attention is checked by replays
            self.answers.check_loaded(np.concatenate([rows[i] for i in step.order]), outputs)
        self.counts["steps"] += 1
        self.counts["tokens"] += len(step.token_ids)
        if self.sequences and self.happens(ROLL_BACK):
            step.rollback()
            self.counts["rollbacks"] += 1
            self.not_joined(batch)
            return
        step.commit()
        for entry, i in enumerate(step.order):
            sequence = batch[i][0]
            sequence.rows, sequence.positions = rows[i], np.append(sequence.positions, positions[i])
            if self.fused:
                sequence.answer = outputs[0][step.seqstarts[entry + 1] - 1].copy()
        self.counts["joins"] += len(batch) - len(self.sequences)
        self.sequences = [sequence for sequence, _ in batch]
        if self.happens(REPLAY):
            self.replay(self.any_sequence())

    def not_joined(self, batch: list[tuple[Sequence, np.ndarray]]) -> None:
        """Who wanted to join in a step that was not committed does not."""
        for sequence, _ in batch[len(self.sequences) :]:
            self.place.manager.free(sequence.id)

    def move(self, path: Path) -> None:
        """Saves all sequences, and goes on with them in another cache and manager."""
        old, self.places = self.place, [*self.places[1:], self.places[0]]
        old.manager.update(old.host_memory)
        old.manager.check()
        old.manager.save(path, old.host_memory)
        self.place = self.places[0]()
        for sequence, id in zip(self.sequences, self.place.manager.load(path, self.place.host_memory), strict=True):
            sequence.id = id
            assert self.place.manager.positions(id).tolist() == sequence.positions.tolist(), "a position has changed"
        self.counts["moves"] += 1

    def finish(self) -> None:
        """The last answers of all sequences, each by a fresh session on a fresh cache, and by the oracle."""
        self.place.manager.check()
        for sequence in self.sequences:
            self.replay(sequence, fresh=True)
