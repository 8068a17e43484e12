"""Random ragged batches: sequences with slots of their own in a cache, and the index inputs of calls on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class Sequence:
    """One sequence: its entry of `cachestarts`, the tokens it has in the cache, and how many it has slots for."""

    starts: list[int]
    length: int
    capacity: int


class RaggedCache:
    """Sequences that share a cache of `max_t` slots: scattered pages, or one run each if `page_size` is None."""

    def __init__(self, random: np.random.Generator, capacities: list[int], page_size: int | None = None):
        self.page_size = page_size
        self.sequences: list[Sequence] = []
        run = page_size or 0
        pages = [-(-capacity // page_size) if page_size else 1 for capacity in capacities]
        # One block of slots for each page (or sequence), in random order with random gaps: starts are not aligned.
        blocks = [(b, i) for b, count in enumerate(pages) for i in range(count)]
        starts: dict[tuple[int, int], int] = {}
        slot = int(random.integers(0, 3))
        for b, i in (blocks[j] for j in random.permutation(len(blocks))):
            starts[b, i] = slot
            slot += (run or capacities[b]) + int(random.integers(0, 3))
        self.max_t = slot
        for b, capacity in enumerate(capacities):
            self.sequences.append(Sequence([starts[b, i] for i in range(pages[b])], 0, capacity))

    def room(self, member: int) -> int:
        """How many more tokens a sequence has slots for."""
        return self.sequences[member].capacity - self.sequences[member].length

    def step(self, random: np.random.Generator, members: list[int], seqlens: list[int]) -> dict[str, np.ndarray]:
        """The index inputs of a call that stores that many tokens for each member; counts them as stored."""
        batch = [self.sequences[member] for member in members]
        start_pos = np.array([sequence.length for sequence in batch], np.int64)
        seqlen = np.array(seqlens, np.int64)
        for member, new in zip(members, seqlens):
            assert new <= self.room(member), "the test asks for more tokens than the sequence has slots"
            self.sequences[member].length += new
        kvlen = start_pos + seqlen
        if self.page_size is None:
            cachestarts = np.array([sequence.starts[0] for sequence in batch], np.int64)
        else:
            max_p = max((len(sequence.starts) for sequence in batch), default=0) + int(random.integers(0, 3))
            cachestarts = np.full((len(batch), max_p), -1, np.int64)
            for row, sequence in zip(cachestarts, batch):
                row[: len(sequence.starts)] = sequence.starts
        # max_seqlen and max_kvlen are bounds, exact ones or larger, and come as a scalar or as shape [1].
        shape = [(), (1,)][random.integers(2)]
        max_seqlen, max_kvlen = (
            np.full(shape, lengths.max(initial=0) + random.integers(0, 2), np.int64) for lengths in (seqlen, kvlen)
        )
        return dict(
            seqstarts=np.concatenate([[0], np.cumsum(seqlen)]).astype(np.int64),
            kvstarts=np.concatenate([[0], np.cumsum(kvlen)]).astype(np.int64),
            cachestarts=cachestarts,
            start_pos=start_pos,
            max_seqlen=max_seqlen,
            max_kvlen=max_kvlen,
        )
