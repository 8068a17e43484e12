"""InfLlm from Python: arguments reach it, its steps end as a manager's do, and it raises its refusals.

What it selects, and what attention sees then, is compared with models in Rust.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kvcache_ops import CacheSpec
from kvcache_ops.manager import CapacityError, HostMemory, InfLlm, ManagerError, slot_stable

from compare import refused

HEADS, REPEAT, DIM = 2, 2, 8
CONFIG = {"init": 4, "local": 8, "block": 4, "num_repeat": REPEAT}


def paged(**more: Any) -> CacheSpec:
    """A cache of pages of four rows."""
    sizes = {"max_tokens": 512, "num_kv_heads": HEADS, "head_dim": DIM, "num_layers": 2}
    return CacheSpec(**sizes | {"dtype": "float32", "cache_mode": 1, "page_size": 4} | more)


def test_arguments_reach_the_planner(tmp_path: Path) -> None:
    """Each layer selects for itself, by the tokens that got attention; sessions have blocks and what is selected."""
    sizes = {"topk": 1, "repr_topk": 1, "max_cached": 2, "alpha": 0.5}
    more = {"positions": "far_constant", "key_form": "raw", "eviction": "decayed", "per_layer": True}
    infllm = InfLlm(paged(), **CONFIG, **sizes, **more)
    memory = HostMemory(infllm.spec, *infllm.spec.allocate())
    s, expected = infllm.create(), [0, 1]
    with infllm.begin_step({s: 20}, memory) as step:
        for layer, block in enumerate(expected):
            memory.cache[step.cachestarts(layer)[0, 1 + block], layer] = 1
            mass = np.zeros((HEADS * REPEAT, 20), np.float32)
            mass[:, 4 + 4 * block] = 1
            infllm.observe(layer, mass)
    for layer in range(2):
        infllm.select(layer, np.ones((20, HEADS * REPEAT, DIM), np.float32))
    assert infllm.partition(s) == (4, 2, 8)
    infllm.save_seq(tmp_path / "session", memory, s)
    for of in (s, infllm.load_seq(tmp_path / "session", memory)):
        assert [infllm.blocks(of, layer).tolist() for layer in range(2)] == [[block] for block in expected]
        with infllm.begin_step({of: 1}, memory) as step:
            for layer in range(2):
                assert memory.cache[step.cachestarts(layer)[0, 1], layer, 0].all()
                # All but the last local - 1 tokens before the new one are at the distance of the oldest of these.
                assert step.key_positions(layer).tolist() == [13] * 9 + [*range(13, 21)]
                infllm.observe(layer, np.ones((HEADS * REPEAT, 17), np.float32))


def test_steps_end_as_a_managers_do() -> None:
    """Committed at the end of `with`, rolled back on an exception or when dropped; forks and refusals between."""
    infllm = InfLlm(paged(), **CONFIG, topk=1, score="page_bounds")
    memory = HostMemory(infllm.spec, *infllm.spec.allocate())
    s = infllm.create()
    with infllm.begin_step({s: 3}, memory) as step:
        for call in (infllm.create, lambda: infllm.fork(s), lambda: infllm.begin_step({}, memory)):
            with refused("step_open"):
                call()
    with pytest.raises(RuntimeError), infllm.begin_step({s: 3}, memory):
        raise RuntimeError
    del step
    dropped = infllm.begin_step({s: 3}, memory)
    del dropped
    assert infllm.seq_len(s) == 3
    fork = infllm.fork(s)
    with infllm.begin_step({s: 1, fork: 30}, memory) as step:
        assert (step.order.tolist(), step.decoding_batches, step.start_pos.tolist()) == ([0, 1], 1, [3, 3])
        assert step.seqstarts.tolist() == [0, 1, 31] and step.kvstarts.tolist() == [0, 4, 37]
    queries = np.zeros((31, HEADS * REPEAT, DIM), np.float32)
    with refused("not_selected", blocks=5):
        infllm.begin_step({fork: 1}, memory)  # it has blocks, and none is selected
    infllm.select(0, queries)
    kinds = {
        "shape": lambda: infllm.select(1, queries[1:]),
        "layer": lambda: infllm.select(2, queries),
        "step_closed": step.commit,
        "duplicate_block": lambda: slot_stable([1, 2], [3, 3]),
        "spec_name": lambda: InfLlm(paged(), **CONFIG, topk=1, score="mean"),
    }
    for kind, call in kinds.items():
        with refused(kind):
            call()
    with infllm.begin_step({fork: 1}, memory) as step:
        for scores in (np.full((4, 1), np.nan), np.zeros((4, 1))):
            with refused("shape"):
                infllm.observe(0, scores.astype(np.float32))
        keys = int(step.kvstarts[-1])
        with pytest.raises(ManagerError) as caught:
            infllm.observe(1, np.full((4, keys), np.nan, np.float32))
        assert caught.value.kind == "mass" and np.isnan(caught.value.details["got"])
        assert infllm.loads == 1
    with pytest.raises(TypeError, match="scores: expected a numpy array of float32 with 2 axes, got list"):
        infllm.observe(0, [[0.0]])
    with pytest.raises(CapacityError):
        infllm.begin_step({s: 600}, memory)
    with pytest.raises(TypeError):
        pickle.dumps(infllm)
    infllm.free(s)
    infllm.check()
