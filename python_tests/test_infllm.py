"""InfLlm over the operator: against attention by the authors' formulas in numpy over the rows that it selects."""

from __future__ import annotations

import pickle
from typing import Any

import kvcache_ops
import numpy as np
import pytest
from kvcache_ops import CacheSpec
from kvcache_ops.manager import (
    CapacityError,
    HostMemory,
    InfLlm,
    InfLlmStep,
    ManagerError,
    infllm_partition,
    slot_stable,
)

from compare import refused

LAYERS, HEADS, REPEAT, DIM = 2, 2, 2, 8
SIZES = {"init": 4, "local": 8, "block": 4}
CONFIG = SIZES | {"num_repeat": REPEAT}


def rotated(x: np.ndarray, positions: Any) -> np.ndarray:
    """(tokens, heads, Dh) at positions, by frequencies of base 100; elements d and d + Dh / 2 are a pair."""
    half = x.shape[-1] // 2
    angles = np.asarray(positions, np.float64).reshape(-1, 1, 1) * 100.0 ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    turned = (a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles))
    return np.concatenate(turned, axis=-1).astype(np.float32)


def softmax(x: np.ndarray) -> np.ndarray:
    """Along the last axis."""
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


class Model:
    """Layers of attention whose queries, keys and values are random; the rows of each are kept."""

    def __init__(self, spec: CacheSpec, seed: int = 0):
        self.spec, self.rng = spec, np.random.default_rng(seed)
        self.memory = HostMemory(spec, *spec.allocate())
        # By layer: queries, keys, values of all tokens.
        empty = [np.zeros((0, heads, DIM), np.float32) for heads in (HEADS * REPEAT, HEADS, HEADS)]
        self.rows = [list(empty) for _ in range(LAYERS)]

    def run(self, step: InfLlmStep) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """By layer: new queries, and the keys and values that attention sees, as the operator gives them."""
        n, outputs = int(step.max_seqlen), []
        assert step.positions.shape == (n,)
        for layer, rows in enumerate(self.rows):
            new = [self.rng.standard_normal((n, *x.shape[1:])).astype(np.float32) for x in rows]
            self.rows[layer] = [np.concatenate(pair) for pair in zip(rows, new, strict=True)]
            query, key, value = new
            index = [step.seqstarts, step.kvstarts, step.cachestarts(layer), step.start_pos]
            sizes = [step.max_seqlen, step.max_kvlen]
            arrays = [self.memory.cache, self.memory.scale]
            keys, values = kvcache_ops.run(self.spec, key, value, *index, *sizes, *arrays, layer_idx=layer)
            outputs.append((query, keys, values))
        return outputs


def scores(query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """The products of queries and keys, (heads, queries, keys)."""
    return np.einsum("qhd,khd->hqk", query, np.repeat(key, REPEAT, axis=1)) / np.sqrt(DIM)


def paged(**more: Any) -> CacheSpec:
    """A cache of pages of four rows."""
    sizes = {"max_tokens": 512, "num_kv_heads": HEADS, "head_dim": DIM, "num_layers": LAYERS}
    return CacheSpec(**sizes | {"dtype": "float32", "cache_mode": 1, "page_size": 4} | more)


@pytest.mark.parametrize(("eviction", "max_cached"), [("lru", 3), ("decayed", 5)])
def test_far_constant_is_the_authors(eviction: str, max_cached: int) -> None:
    """One softmax over local keys and keys at the distance of the oldest one, over the blocks that each layer selects.

    Which blocks these are is compared with a model in Rust.
    """
    sizes = {"topk": 3, "repr_topk": 2, "max_cached": max_cached, "alpha": 0.5}
    more = {"positions": "far_constant", "key_form": "raw", "per_layer": True, "eviction": eviction}
    infllm = InfLlm(paged(), **CONFIG, **sizes, **more)
    model = Model(infllm.spec, 1)
    s, chosen = infllm.create(), [[] for _ in range(LAYERS)]
    resident: list[set[int]] = [set() for _ in range(LAYERS)]
    for token in range(70):
        init, blocks, _ = infllm_partition(token, *SIZES.values())
        wanted = [picked if blocks > 3 else [*range(blocks)] for picked in chosen]
        with infllm.begin_step({s: 1}, model.memory) as step:
            missing = sum(len({*a} - b) for a, b in zip(wanted, resident, strict=True))
            assert infllm.loads == step.loads <= missing
            assert max_cached > 3 or step.loads == missing
            queries = []
            for layer, (query, key, value) in enumerate(model.run(step)):
                rest = [*range(init + blocks * 4, token + 1)]
                tokens = [*range(init), *(4 + 4 * b + i for b in wanted[layer] for i in range(4)), *rest]
                _, all_keys, all_values = model.rows[layer]
                np.testing.assert_array_equal(key, all_keys[tokens])
                np.testing.assert_array_equal(value, all_values[tokens])
                # The authors: local keys at their distance; the query is rotated by n_local - 1 for keys as they are.
                near = np.array([token - i < SIZES["local"] for i in tokens])
                local = rotated(query, [token]), rotated(all_keys[tokens], tokens)
                far = rotated(query, [SIZES["local"] - 1]), all_keys[tokens]
                expected = softmax(np.where(near, scores(*local), scores(*far)))
                keys = rotated(key, step.key_positions(layer))
                probabilities = softmax(scores(rotated(query, step.positions), keys))
                np.testing.assert_allclose(probabilities, expected, atol=1e-5)
                infllm.observe(layer, probabilities.sum(1).astype(np.float32))
                queries.append(query)
        for layer, query in enumerate(queries):
            infllm.select(layer, query)
            if infllm_partition(token + 1, *SIZES.values())[1] > 3:
                chosen[layer] = infllm.blocks(s, layer).tolist()
        resident = [{*picked} for picked in wanted]  # in slots beside these there are others


def test_steps_end_as_those_of_a_manager() -> None:
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
