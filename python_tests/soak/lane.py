"""A lane: one thread's decode loop, in which sequences join and leave, fork, are cut, and move to other caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnxruntime
from kvcache_ops.manager import Append, CapacityError

from attention_node import Attention
from soak.place import Answers, Node, Place, placed, row_ids

PROMPTS = [np.arange(40) % 7, np.zeros(40, np.int64), np.arange(40)]  # they begin alike, so that prefixes are shared
# What happens between steps, and how often of 1000.
JOIN, LEAVE, FORK, CUT, ROLL_BACK, REPLAY, MOVE = 40, 25, 8, 15, 10, 20, 5


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


@dataclass(frozen=True)
class Sizes:
    """How large a lane is."""

    sequences: int = 5
    longest: int = 80  # rows of a sequence, after which it leaves
    prompt: int = 24  # rows of a prompt, at most
    max_t: int = 512
    page_size: int = 8


class Lane:
    """One thread's sequences. `new_session` makes the session of each cache that it lives in."""

    def __init__(
        self,
        node: Node,
        new_session: Callable[[Node], onnxruntime.InferenceSession],
        seed: int,
        sizes: Sizes,
        before_step: Callable[[Lane], None] = lambda _: None,
    ):
        self.node, self.new_session, self.seed, self.sizes = node, new_session, seed, sizes
        self.random, self.counts, self.before_step = np.random.default_rng(seed), Counter(), before_step
        self.answers = Answers(node, sizes.longest + sizes.prompt)
        self.sequences: list[Sequence] = []
        self.place = self.new_place()

    def new_place(self) -> Place:
        """An empty cache, now in pages, now in runs, of each layout in turn."""
        mode, layout = ("paged", "runs")[self.counts["moves"] % 2], (self.seed + self.counts["moves"]) % 4
        node = placed(self.node, mode, layout, self.sizes.page_size)
        return Place(node, mode, self.sizes.max_t, self.new_session(node))

    def run(self, turns: Iterator[int], steps: int, directory: Path) -> None:
        """Steps until all threads together have taken so many."""
        while next(turns) < steps:
            try:
                self.edit()
                self.before_step(self)
                self.step()
                if self.happens(MOVE):
                    self.move(directory / f"{self.seed}.session")
            except Exception as error:
                error.add_note(f"{self.node}: step {self.counts['steps']}, seed {self.seed}")
                raise

    def happens(self, per_mille: int) -> bool:
        """Whether something that happens so often happens now."""
        return int(self.random.integers(1000)) < per_mille

    def any_sequence(self) -> Sequence:
        """One of them."""
        return self.sequences[self.random.integers(len(self.sequences))]

    def edit(self) -> None:
        """What happens to sequences between steps. There may be no room to copy rows or a page that is shared."""
        for sequence in [one for one in self.sequences if len(one.rows) >= self.sizes.longest]:
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
            if self.happens(CUT) and len(sequence.rows) > 16:
                p0 = int(self.random.integers(sequence.next_position - 6))
                p1 = int(self.random.choice([-1, p0 + 1, p0 + 5]))
                removed = self.place.manager.seq_rm(sequence.id, p0, p1)
                left = (sequence.positions < p0) | (sequence.positions >= p1) & (p1 >= 0)
                assert removed == (~left).sum(), f"seq_rm: expected {(~left).sum()}, got {removed}"
                sequence.rows, sequence.positions, sequence.answer = sequence.rows[left], sequence.positions[left], None
                self.counts["cuts"] += 1
        except CapacityError:
            self.counts["refused for room"] += 1

    def leave(self, sequence: Sequence) -> None:
        """A sequence ends; its last answer is checked."""
        self.replay(sequence)
        self.place.manager.free(sequence.id)
        self.sequences = [one for one in self.sequences if one is not sequence]
        self.counts["leaves"] += 1

    def replay(self, sequence: Sequence) -> None:
        """Checks the last answer that a sequence got from attention by another computation of it."""
        if sequence.answer is not None:
            self.answers.check_attended(sequence.rows, sequence.answer)

    def step(self) -> None:
        """A token for each sequence, and sometimes the prompt of a new one: checked, then committed or rolled back."""
        manager, batch = self.place.manager, [(sequence, self.random.integers(0, 64, 1)) for sequence in self.sequences]
        if not self.sequences or (len(self.sequences) < self.sizes.sequences and self.happens(JOIN)):
            prompt, length = PROMPTS[self.random.integers(3)], int(self.random.integers(1, self.sizes.prompt + 1))
            batch.append((Sequence(manager.create()), np.resize(prompt, length)))
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
        if len(outputs) == 2:  # key and value; attention is checked by replays
            self.answers.check_loaded(np.concatenate([rows[i] for i in step.order]), outputs)
        self.counts["steps"] += 1
        if self.sequences and self.happens(ROLL_BACK):
            step.rollback()
            self.not_joined(batch)
            self.counts["rollbacks"] += 1
            return
        step.commit()
        for entry, i in enumerate(step.order):
            sequence = batch[i][0]
            sequence.rows, sequence.positions = rows[i], np.append(sequence.positions, positions[i])
            if isinstance(self.node, Attention):
                sequence.answer = outputs[0][step.seqstarts[entry + 1] - 1].copy()
        self.sequences = [sequence for sequence, _ in batch]
        if self.happens(REPLAY):
            self.replay(self.any_sequence())

    def not_joined(self, batch: list[tuple[Sequence, np.ndarray]]) -> None:
        """Who wanted to join in a step that was not committed does not."""
        for sequence, _ in batch[len(self.sequences) :]:
            self.place.manager.free(sequence.id)

    def move(self, path: Path) -> None:
        """Saves all sequences, and goes on with them in another cache, with another manager."""
        old = self.place
        old.manager.update(old.host_memory)
        old.manager.check()
        old.manager.save(path, old.host_memory)
        self.counts["moves"] += 1
        self.place = self.new_place()
        for sequence, id in zip(self.sequences, self.place.manager.load(path, self.place.host_memory), strict=True):
            sequence.id = id
            assert self.place.manager.positions(id).tolist() == sequence.positions.tolist(), "a position has changed"
