"""Calls that must be refused, and change and keep nothing."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import kvcache_ops
import numpy as np
import pytest
from kvcache_ops import CacheSpec, KvCacheError
from kvcache_ops.manager import Append, CapacityError, HostMemory, ManagerError

from compare import Arrays, assert_same_arrays
from kvcache import create_session
from node import node_model, node_types, quiet_options, run_node
from setting import FLOAT, Setting
from soak.place import Answers, Place, new_session, one_sequence, placed


class Refusals:
    """One small place with a sequence of three rows, which stays as it is."""

    def __init__(self, directory: Path):
        node = placed(Setting(), "paged", 0)
        self.answers, self.place = Answers(node, 16), Place(node, "paged", 32, new_session(node))
        manager, memory = self.place.manager, self.place.host_memory
        self.seq = manager.create()
        with manager.begin_step([Append(self.seq, tokens=[1, 2, 3])], memory) as step:
            self.place.run(step, self.answers)
        self.before, self.directory, self.damaged = self.place.memory.copy(), directory, directory / "damaged.session"
        manager.save(self.damaged, memory)
        content = bytearray(self.damaged.read_bytes())
        content[len(content) // 2] ^= 1
        self.damaged.write_bytes(content)
        self.spec = CacheSpec(max_tokens=16, num_kv_heads=2, head_dim=16, dtype="float32")

    def once(self) -> None:
        """One of each kind."""
        place, manager, memory, seq = self.place, self.place.manager, self.place.host_memory, self.seq
        current, indices = np.ones((3, 2, 16), np.float32), one_sequence(3) | dict(max_kvlen=np.array(1))
        read_only = place.memory.cache.view()
        read_only.flags.writeable = False
        for error, text, call in (
            (Exception, "kvlen_mismatch", partial(self.run, start_pos=np.array([1]))),
            (Exception, "page_range", partial(self.run, cachestarts=np.array([[32]]))),
            (
                Exception,
                "cache_mode",
                partial(create_session, node_model(node_types(FLOAT, FLOAT), dict(cache_mode=2)), quiet_options()),
            ),
            (
                KvCacheError,
                "max_kvlen",
                partial(kvcache_ops.run, self.spec, current, current, *indices.values(), self.spec.allocate().cache),
            ),
            (CapacityError, "out_of_pages", partial(manager.begin_step, [Append(seq, n=100)], memory)),
            (ManagerError, "unknown_seq", partial(manager.begin_step, [Append(seq + 99, n=1)], memory)),
            (ZeroDivisionError, "", partial(Append, seq, tokens=(1 // n for n in (1, 0)))),
            (ManagerError, "digest", partial(manager.load_seq, self.damaged, memory)),
            (ManagerError, "io", partial(manager.save, self.directory / "no" / "such.session", memory)),
            (ManagerError, "tensor_read_only", partial(HostMemory, place.spec, read_only, place.memory.scale)),
        ):
            refuse(error, text, call)
        step = manager.begin_step([Append(seq, tokens=[9])], memory)
        refuse(ManagerError, "step_open", partial(manager.fork, seq))
        step.rollback()
        refuse(ManagerError, "step_closed", step.commit)
        manager.begin_step([Append(seq, tokens=[9])], memory)  # dropped while it is open
        gc.collect(0)  # exceptions refer to frames, which refer to them
        assert_same_arrays(place.memory.arrays, self.before.arrays)
        manager.check()
        assert manager.seq_len(seq) == 3

    def run(self, **change: np.ndarray) -> None:
        """A run of the session with an index changed."""
        good: Arrays = self.answers.inputs(np.arange(3)) | one_sequence(3) | dict(cachestarts=np.array([[16]]))
        run_node(self.place.session, good | change | self.place.memory.arrays)


def refuse(error: type[BaseException], text: str, call: Callable[[], object]) -> None:
    """The call must raise this, with that in its message or as its kind."""
    with pytest.raises(error) as refusal:
        call()
    said = f"{getattr(refusal.value, 'kind', '')}: {refusal.value}"
    assert text in said, f"expected {text!r} in {said}"
