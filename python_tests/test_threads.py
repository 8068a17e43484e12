"""Many nodes on one cache, one after another and at once, give the bits of one node at a time.

Both operators that write a cache. (Threads that share a session, and calls that are split, are lanes of the soak.)
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest

from attention_node import Attention
from compare import assert_same_arrays, assert_same_outputs
from kvcache import create_session
from layers import ROWS, layers_model, run_layers, run_layers_one_by_one
from node import quiet_options
from setting import FLOAT, HALF, INT4, INT8, Setting

pytestmark = pytest.mark.runtime

Node = Setting | Attention
SETTINGS = [
    Setting(FLOAT, FLOAT, num_repeat=2),
    Setting(HALF, INT8, HALF, quant_bit=8, cache_layout=1),
    Setting(FLOAT, INT4, FLOAT, quant_bit=4, cache_mode=1, page_size=16, cache_layout=2),
]
NODES = [*SETTINGS, Attention(Setting(HALF, FLOAT, cache_mode=1, page_size=7, cache_layout=3)), Attention(SETTINGS[1])]
every_node = pytest.mark.parametrize("node", NODES, ids=str)


@every_node
@pytest.mark.parametrize("parallel", [False, True], ids=["sequential", "parallel"])
def test_layers_of_one_cache(node: Node, parallel: bool) -> None:
    """A graph of many nodes has the bits of one node at a time, also where the runtime runs them at once."""
    if isinstance(node, Attention):
        node = replace(node, cached=replace(node.cached, num_layer=12))
    else:
        node = replace(node, num_layer=12)
    random = np.random.default_rng(12)
    ragged = node.cached.ragged(random, [120, 60])
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
