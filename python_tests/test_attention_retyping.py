"""Float16 attention nodes whose neighbors have no float16 kernel: see test_retyping.py.

A changed `MultiHeadCacheAttention` would store into a copy of the cache, and is refused; a `MultiHeadAttention` writes
no input, and is not.
"""

from __future__ import annotations

import numpy as np
import pytest

from attention_node import Arrays, Attention, random_rows
from compare import assert_same_arrays, assert_same_bits
from graph import Graph
from kvcache import DOMAIN, create_session
from node import FUSED_INPUTS, PACKED_INPUTS, quiet_options, run_node
from ragged import RaggedCache
from setting import HALF, INT4, INT8, Setting
from test_retyping import KEEPS_FLOAT16

ATTENTIONS = [
    Attention(Setting(HALF, HALF)),
    Attention(Setting(HALF, INT8, HALF, quant_bit=8)),
    Attention(Setting(HALF, INT4, HALF, quant_bit=4, cache_mode=1, page_size=4)),
]


def among_products(operator: str, attention: Attention, reshaped: str = "", output: bool = False) -> bytes:
    """The node between matrix products by the identity; one of its rows is reshaped, or its output is the graph's."""
    packed = operator == "MultiHeadAttention"
    names = PACKED_INPUTS if packed else FUSED_INPUTS
    types = attention.types(names, {})
    graph = Graph()
    identity = graph.constant(np.eye(attention.cached.head_dim, dtype=np.float16))
    inputs = [graph.input(name, types[name]) for name in names if name in types]
    for i in range(3):
        inputs[i] = graph.node("MatMul", inputs[i], identity)
        if names[i] == reshaped:
            inputs[i] = graph.node("Reshape", inputs[i], graph.int64(0, 0, attention.cached.head_dim))
    attributes = attention.own_attributes if packed else attention.attributes
    result = graph.node(operator, *inputs, domain=DOMAIN, **attributes)
    graph.output("product", graph.node("MatMul", result, identity), HALF)
    if output:
        graph.output("attn_output", result, HALF)
    return graph.serialize()


def one_call(attention: Attention) -> tuple[Arrays, object]:
    """The inputs of a call, and a cache. A product by the identity makes 0 of -0, so there is none."""
    random = np.random.default_rng(41)
    ragged = RaggedCache(random, [6, 5], attention.cached.page_size if attention.cached.cache_mode else None)
    memory = attention.cached.memory(random, ragged.max_t)
    inputs = attention.inputs(random, ragged.step(random, [0, 1], [6, 5]))
    return inputs | {name: inputs[name] + np.float16(0) for name in FUSED_INPUTS[:3]}, memory


def check_stored(attention: Attention, model: bytes) -> None:
    """A session of the model gives and stores what the node by itself does."""
    inputs, memory = one_call(attention)
    expected_memory = memory.copy()
    expected = attention.run(inputs, expected_memory)
    for got in run_node(create_session(model, quiet_options()), inputs | memory.arrays, memory.int4_shape):
        assert_same_bits("attn_output", got + np.float16(0), expected + np.float16(0))
    assert_same_arrays(memory.arrays, expected_memory.arrays)


@pytest.mark.parametrize("attention", ATTENTIONS, ids=str)
def test_neighbors_without_a_float16_kernel(attention: Attention) -> None:
    """Never lost in silence: stored rightly, or refused in words that say what to do."""
    model = among_products("MultiHeadCacheAttention", attention)
    if KEEPS_FLOAT16:
        return check_stored(attention, model)
    with pytest.raises(Exception) as refusal:
        create_session(model, quiet_options())
    for part in ("float16 node to float32", "Reshape before current_value", "make attn_output a graph output"):
        assert part in str(refusal.value)


@pytest.mark.parametrize("remedy", ["query", "current_key", "current_value", "output"])
@pytest.mark.parametrize("attention", ATTENTIONS, ids=str)
def test_what_keeps_the_node_float16_everywhere(attention: Attention, remedy: str) -> None:
    """A Reshape before one of its rows, or its output as the graph's."""
    options = dict(output=True) if remedy == "output" else dict(reshaped=remedy)
    check_stored(attention, among_products("MultiHeadCacheAttention", attention, **options))


def test_attention_over_packed_rows_has_the_same_bits_anyway() -> None:
    """Computed in float32 and rounded once, as the float16 node does."""
    attention = ATTENTIONS[0]
    random = np.random.default_rng(42)
    inputs, _ = one_call(attention)
    shape = (11, attention.cached.num_heads, attention.cached.head_dim)
    key, value = (random_rows(random, shape, HALF) + np.float16(0) for _ in range(2))
    given = {name: inputs[name] for name in PACKED_INPUTS if name in inputs} | dict(key=key, value=value)
    session = create_session(among_products("MultiHeadAttention", attention), quiet_options())
    expected = attention.run_packed(inputs, key, value)
    assert_same_bits("product", run_node(session, given)[0], expected + np.float16(0))
