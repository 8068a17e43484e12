"""What must be refused, again and again: none of it may change anything, or keep memory."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import kvcache_ops
import numpy as np
from kvcache_ops import KvCacheError
from kvcache_ops.manager import Append, CapacityError, HostMemory, ManagerError

from compare import assert_same_arrays
from kvcache import create_session
from node import node_model, node_types, quiet_options, run_node
from setting import FLOAT
from soak.answers import one_sequence
from soak.lane_node import Node
from soak.place import Place
from soak.rows import Rows


class Raised(Exception):
    """What a callback of this test raises."""


class Index:
    """A number that cannot be had."""

    def __index__(self) -> int:
        raise Raised


def tokens() -> Iterator[int]:
    """Tokens that end in an exception."""
    yield 1
    raise Raised


def expect(error: type[BaseException], text: str, call: Callable[[], object]) -> None:
    """The call must raise this, with that in its message."""
    try:
        call()
    except error as refusal:
        said = f"{getattr(refusal, 'kind', '')}: {refusal}"
        assert text in said, f"expected {text!r} in {said}"
        return
    raise AssertionError(f"expected {error.__name__} with {text!r}, got no exception")


@dataclass
class Refusals:
    """Calls of one small place, which stays as it is."""

    node: Node
    directory: Path
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._rows = Rows(self.node)
        placed = self.node.placed("paged", 0)
        self._place = Place(placed, "paged", 32, placed.session())
        self._seq = self._place.manager.create()
        with self._place.manager.begin_step([Append(self._seq, tokens=[1, 2, 3])], self._place.host_memory) as step:
            self._place.run(step, self._rows)
        self._before = self._place.memory.copy()
        self._damaged = self.directory / "damaged.session"
        self._place.manager.save(self._damaged, self._place.host_memory)
        content = bytearray(self._damaged.read_bytes())
        content[len(content) // 2] ^= 1
        self._damaged.write_bytes(content)
        self._spec = kvcache_ops.CacheSpec(max_tokens=16, num_kv_heads=2, head_dim=16, dtype="float32")

    def once(self, i: int) -> None:
        """One of each kind, whose number is part of what makes it wrong."""
        calls = self.calls(i), self.session_of_a_bad_model, self.steps, self.callbacks, self.files, self.direct
        for call in calls:
            call()
        if i % 16 == 0:
            assert_same_arrays(self._place.memory.arrays, self._before.arrays)
            self._place.manager.check()
            assert self._place.manager.seq_len(self._seq) == 3

    def refuse(self, error: type[BaseException], text: str, call: Callable[[], object]) -> None:
        """Expects a refusal, and counts it."""
        expect(error, text, call)
        self.counts["refusals"] += 1

    def calls(self, i: int) -> Callable[[], None]:
        """Runs of a session whose indices are wrong."""
        place, memory = self._place, self._place.memory
        ids = np.arange(3)
        good = one_sequence(3) | dict(cachestarts=np.array([[16]]))
        if place.node.fused:
            good |= dict(decoding_batches=np.array(0))
        wrong = [
            ("kvlen_mismatch", dict(start_pos=np.array([1 + i]))),
            ("page_range", dict(cachestarts=np.array([[32 + i]]))),
            ("seqstarts", dict(seqstarts=np.array([0, 2]))),
            ("max_kvlen", dict(max_kvlen=np.array(2))),
        ]

        def run() -> None:
            for text, change in wrong:
                inputs = self._rows.inputs(ids, place.node.fused) | good | change | memory.arrays
                self.refuse(Exception, text, partial(run_node, place.session, inputs, memory.int4_shape))

        return run

    def session_of_a_bad_model(self) -> None:
        """Sessions that cannot be made: a wrong attribute."""
        model = node_model(node_types(FLOAT, FLOAT), dict(cache_mode=2))
        self.refuse(Exception, "cache_mode", lambda: create_session(model, quiet_options()))
        wrong = replace(self.node.setting, page_size=0).model
        self.refuse(Exception, "page_size", lambda: create_session(wrong, quiet_options()))

    def steps(self) -> None:
        """Steps without room, of no sequence, and edits while one is open."""
        manager, memory = self._place.manager, self._place.host_memory
        append = [Append(self._seq, n=100)]
        self.refuse(CapacityError, "out_of_pages", lambda: manager.begin_step(append, memory))
        stale = manager.create()
        manager.free(stale)
        self.refuse(ManagerError, "unknown_seq", lambda: manager.begin_step([Append(stale, n=1)], memory))
        with manager.begin_step([Append(self._seq, tokens=[9])], memory) as step:
            self.refuse(ManagerError, "step_open", lambda: manager.fork(self._seq))
            step.rollback()
        self.refuse(ManagerError, "step_closed", step.commit)
        manager.begin_step([Append(self._seq, tokens=[9])], memory)  # dropped while it is open

    def callbacks(self) -> None:
        """Exceptions of Python in what the manager calls, and in the body of a step."""
        manager, memory = self._place.manager, self._place.host_memory
        self.refuse(Raised, "", lambda: Append(self._seq, tokens=tokens()))
        self.refuse(Raised, "", lambda: manager.begin_step((Append(self._seq, n=i) for i in tokens()), memory))
        self.refuse(Raised, "", lambda: manager.seq_rm(self._seq, Index()))

        def body() -> None:
            with manager.begin_step([Append(self._seq, tokens=[4, 5])], memory):
                raise Raised

        self.refuse(Raised, "", body)

    def files(self) -> None:
        """Session files that are damaged, or not there."""
        place = self._place
        self.refuse(ManagerError, "digest", lambda: place.manager.load_seq(self._damaged, place.host_memory))
        missing = self.directory / "no" / "such.session"
        self.refuse(ManagerError, "io", lambda: place.manager.load_seq(missing, place.host_memory))
        self.refuse(ManagerError, "io", lambda: place.manager.save(missing, place.host_memory))

    def direct(self) -> None:
        """Calls without ONNX Runtime, and memory that cannot be borrowed."""
        cache, current = self._spec.allocate(), np.ones((3, 2, 16), np.float32)
        indices = one_sequence(3) | dict(max_kvlen=np.array(1))
        self.refuse(
            KvCacheError, "max_kvlen", lambda: kvcache_ops.run(self._spec, current, current, *indices.values(), *cache)
        )
        read_only = self._place.memory.cache.view()
        read_only.flags.writeable = False
        self.refuse(
            ManagerError, "tensor_read_only", lambda: HostMemory(self._place.spec, read_only, self._place.memory.scale)
        )
        gc.collect(0)  # exceptions refer to frames, which refer to them
