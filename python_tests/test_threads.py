"""Several threads: on one session, on one cache, inside one call; the bits are always those of one thread.

Both operators that write a cache: `KeyValueCache` and `MultiHeadCacheAttention`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest

from attention_node import Attention
from compare import assert_same_arrays, assert_same_outputs
from kvcache import create_session
from layers import ROWS, layers_model, run_layers, run_layers_one_by_one
from node import quiet_options
from ragged import RaggedCache
from setting import FLOAT, HALF, INT4, INT8, Memory, Setting

pytestmark = pytest.mark.runtime

Node = Setting | Attention
SETTINGS = [
    Setting(FLOAT, FLOAT, num_repeat=2),
    Setting(HALF, INT8, HALF, quant_bit=8, cache_layout=1),
    Setting(FLOAT, INT4, FLOAT, quant_bit=4, cache_mode=1, page_size=16, cache_layout=2),
]
NODES = [*SETTINGS, Attention(Setting(HALF, FLOAT, cache_mode=1, page_size=7, cache_layout=3)), Attention(SETTINGS[1])]
every_node = pytest.mark.parametrize("node", NODES, ids=str)


def ragged_cache(random: np.random.Generator, node: Node, capacities: list[int]) -> RaggedCache:
    """Slots for sequences of these lengths."""
    return RaggedCache(random, capacities, node.cached.page_size if node.cached.cache_mode else None)


@every_node
@pytest.mark.parametrize("parallel", [False, True], ids=["sequential", "parallel"])
def test_layers_of_one_cache(node: Node, parallel: bool) -> None:
    """A graph of many nodes has the bits of one node at a time, also where the runtime runs them at once."""
    if isinstance(node, Attention):
        node = replace(node, cached=replace(node.cached, num_layer=12))
    else:
        node = replace(node, num_layer=12)
    random = np.random.default_rng(12)
    ragged = ragged_cache(random, node, [120, 60])
    before = node.cached.memory(random, ragged.max_t)
    index = node.inputs(random, ragged.step(random, [0, 1], [120, 60]))
    rows = [{name: x for name, x in node.inputs(random, index).items() if name in ROWS} for _ in range(12)]
    index = {name: x for name, x in index.items() if name not in ROWS}
    options = quiet_options(threads=2)
    if parallel:
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = 3
    session = create_session(layers_model(node), options)
    expected_memory = before.copy()
    expected = run_layers_one_by_one(node, rows, index, expected_memory)
    for _ in range(3):
        memory = before.copy()
        assert_same_outputs(run_layers(session, rows, index, memory), expected)
        assert_same_arrays(memory.arrays, expected_memory.arrays)


@every_node
def test_the_number_of_threads_does_not_change_a_bit(node: Node) -> None:
    """1, 2 and 3 threads of ONNX Runtime's own pool, and that pool at work for two callers at once."""
    seqlens = [1500, 1, 700, 0, 33]
    if isinstance(node, Attention):  # one sequence that is worth splitting
        seqlens, past = [1, 1, 60], [3000, 3, 200]
    else:
        node, past = replace(node, num_heads=4, head_dim=128, num_layer=2, layer_idx=1), [0] * 5
    random = np.random.default_rng(13)
    ragged = ragged_cache(random, node, [a + b for a, b in zip(past, seqlens)])
    before = node.cached.memory(random, ragged.max_t)
    everyone = list(range(len(seqlens)))
    ragged.step(random, everyone, past)
    inputs = node.inputs(random, ragged.step(random, everyone, seqlens))

    def run(session: onnxruntime.InferenceSession) -> tuple[list[np.ndarray], Memory]:
        memory = before.copy()
        return node.run(inputs, memory, session), memory

    sessions = [create_session(node.model(), quiet_options(threads)) for threads in (1, 2, 3)]
    expected, expected_memory = run(sessions[0])
    with ThreadPoolExecutor(2) as pool:
        results = [run(sessions[1]), *pool.map(run, [sessions[2]] * 2)]
    for got, memory in results:
        assert_same_outputs([got], [expected])
        assert_same_arrays(memory.arrays, expected_memory.arrays)
