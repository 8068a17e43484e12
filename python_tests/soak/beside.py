"""Beside the lanes: sessions and objects that are made, used once and destroyed, and calls that must be refused."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import kvcache_ops
import numpy as np
import pytest
from kvcache_ops import KvCacheError
from kvcache_ops.manager import Append, CapacityError, HostMemory, ManagerError

from attention_node import Attention
from compare import Arrays, assert_same_arrays, assert_same_bits
from kvcache import create_session
from node import node_model, node_types, quiet_options, run_node
from setting import FLOAT
from soak.place import Answers, Node, Place, new_session, one_sequence, placed, row_ids

MODES = ("paged", "runs")


@dataclass
class Churn:
    """Makes and destroys; `nodes` are taken in turn."""

    nodes: list[Node]
    directory: Path
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._answers = [Answers(node, 16) for node in self.nodes]

    def once(self, i: int) -> None:
        """A session that runs a prompt, then a token of that sequence as it is after a fork and from a file."""
        answers, mode = self._answers[i % len(self.nodes)], MODES[i // 8 % 2]
        node = placed(self.nodes[i % len(self.nodes)], mode, i // 3 % 4)
        place = Place(node, mode, 64, new_session(node, 1 + i % 2))
        manager, memory, path = place.manager, place.host_memory, self.directory / "churn.session"
        seq = manager.create()
        ids = self._decode(place, answers, seq, np.arange(11), np.zeros(0, np.int64))
        fork = manager.fork(seq)
        manager.free(seq)
        manager.update(memory)
        manager.save_seq(path, memory, fork)
        manager.free(fork)
        self._decode(place, answers, manager.load_seq(path, memory), np.arange(1), ids)
        manager.check()
        self.counts["sessions made"] += 1

    def _decode(self, place: Place, answers: Answers, seq: int, tokens: np.ndarray, past: np.ndarray) -> np.ndarray:
        """Appends tokens to a sequence whose rows are `past`, and checks the answer; the rows that it has then."""
        ids = np.append(past, row_ids(tokens, len(past) + np.arange(len(tokens))))
        with place.manager.begin_step([Append(seq, tokens=tokens)], place.host_memory) as step:
            outputs = place.run(step, answers)
        if isinstance(place.node, Attention):
            answers.check_attended(ids, outputs[0][-1])
        else:
            answers.check_loaded(ids, outputs)
        return ids


class Raised(Exception):
    """What a callback of this test raises."""


def tokens() -> Iterator[int]:
    """Tokens that end in an exception."""
    yield 1
    raise Raised


@dataclass
class Refusals:
    """Calls of one small place, which stays as it is. None of them may change anything, or keep memory."""

    node: Node
    directory: Path
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        node = placed(self.node, "paged", 0)
        self._answers, self._place = Answers(node, 16), Place(node, "paged", 32, new_session(node))
        manager, memory = self._place.manager, self._place.host_memory
        self._seq = manager.create()
        with manager.begin_step([Append(self._seq, tokens=[1, 2, 3])], memory) as step:
            self._place.run(step, self._answers)
        self._before = self._place.memory.copy()
        self._damaged = self.directory / "damaged.session"
        manager.save(self._damaged, memory)
        content = bytearray(self._damaged.read_bytes())
        content[len(content) // 2] ^= 1
        self._damaged.write_bytes(content)
        self._spec = kvcache_ops.CacheSpec(max_tokens=16, num_kv_heads=2, head_dim=16, dtype="float32")

    def once(self, i: int) -> None:
        """One of each kind, whose number is part of what makes it wrong."""
        place, manager, memory, seq = self._place, self._place.manager, self._place.host_memory, self._seq
        current, good = np.ones((3, 2, 16), np.float32), one_sequence(3)
        cache, run = self._spec.allocate(), partial(kvcache_ops.run, self._spec, current, current)
        read_only = place.memory.cache.view()
        read_only.flags.writeable = False
        wrong_mode = node_model(node_types(FLOAT, FLOAT), dict(cache_mode=2))
        for error, text, call, *arguments in (
            # Runs of a session whose indices are wrong, a session that cannot be made, a call without ONNX Runtime.
            (Exception, "kvlen_mismatch", self._run, dict(start_pos=np.array([1 + i]))),
            (Exception, "page_range", self._run, dict(cachestarts=np.array([[32 + i]]))),
            (Exception, "cache_mode", create_session, wrong_mode, quiet_options()),
            (KvCacheError, "max_kvlen", run, *(good | dict(max_kvlen=np.array(1))).values(), *cache),
            # Steps without room, of no sequence, exceptions of callbacks.
            (CapacityError, "out_of_pages", manager.begin_step, [Append(seq, n=100)], memory),
            (ManagerError, "unknown_seq", manager.begin_step, [Append(seq + 99, n=1)], memory),
            (Raised, "", partial(Append, seq, tokens=tokens())),
            (Raised, "", manager.begin_step, (Append(seq, n=n) for n in tokens()), memory),
            # Files that are damaged or not there, and memory that cannot be written.
            (ManagerError, "digest", manager.load_seq, self._damaged, memory),
            (ManagerError, "io", manager.save, self.directory / "no" / "such.session", memory),
            (ManagerError, "tensor_read_only", HostMemory, place.spec, read_only, place.memory.scale),
        ):
            self.refuse(error, text, call, *arguments)
        with manager.begin_step([Append(seq, tokens=[9])], memory) as step:
            self.refuse(ManagerError, "step_open", manager.fork, seq)
            step.rollback()
        self.refuse(ManagerError, "step_closed", step.commit)
        manager.begin_step([Append(seq, tokens=[9])], memory)  # dropped while it is open
        assert_same_bits("key", run(*good.values(), *cache)[0], current)
        gc.collect(0)  # exceptions refer to frames, which refer to them
        if i % 16 == 0:
            assert_same_arrays(place.memory.arrays, self._before.arrays)
            manager.check()
            assert manager.seq_len(seq) == 3

    def _run(self, change: Arrays) -> None:
        """A run of the session with some indices changed."""
        good = self._answers.inputs(np.arange(3)) | one_sequence(3) | dict(cachestarts=np.array([[16]]))
        run_node(self._place.session, good | change | self._place.memory.arrays, self._place.memory.int4_shape)

    def refuse(self, error: type[BaseException], text: str, call: Callable[..., object], *arguments: object) -> None:
        """The call must raise this, with that in its message or as its kind."""
        self.counts["refusals"] += 1
        with pytest.raises(error) as refusal:
            call(*arguments)
        said = f"{getattr(refusal.value, 'kind', '')}: {refusal.value}"
        assert text in said, f"expected {text!r} in {said}"
