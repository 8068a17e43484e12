"""Nodes of graphs: what a session takes and what it refuses when it is made, in which words. (Answers: the kit.)"""

from __future__ import annotations

import numpy as np
import pytest
from kvcache_ops import DOMAIN
from onnx import TensorProto, helper, numpy_helper

from compare import assert_same_bits
from one_node import (
    DOMAINS,
    FLOAT,
    FUSED_INPUTS,
    HALF,
    INT8,
    STATIC_DOMAINS,
    arrays_of,
    copy_of,
    node,
    node_model,
    node_types,
    one_call,
    types_for,
    types_of,
)
from sessions import RUNTIME, create_session, find_library, model_of, quiet_options, refusal_of, run_node, session_of

pytestmark = pytest.mark.runtime

HEADS = dict(num_heads=4, head_dim=8, num_kv_heads=2)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("name", node().attributes)
def test_an_attribute_of_another_type(domain: str, name: str) -> None:
    """The message names it; it is never replaced by the default."""
    for value in (2.0, "2", [1, 1], [1.5]):
        message = refusal_of(node_model(node_types(FLOAT, FLOAT), {name: value}, domain=domain))
        assert name in message and "int" in message


@pytest.mark.parametrize(
    ("operator", "domain", "held"),
    [("KeyValueCache", domain, held) for domain in (DOMAINS[0], STATIC_DOMAINS[0]) for held in ("cache", "scale")]
    + [("MultiHeadCacheAttention", DOMAINS[0], "cache"), ("MultiHeadCacheAttention", DOMAINS[0], "scale")],
)
def test_a_cache_that_is_an_initializer(operator: str, domain: str, held: str) -> None:
    """A cache inside the session, which no caller could read, is refused."""
    shape = [4, 1, 2, 2, 8] if domain == DOMAINS[0] else [1, 1, 2, 4, 2, 8]
    array = np.zeros(shape, np.int8) if held == "cache" else np.zeros([*shape[:-1], 1], np.float32)
    if domain == DOMAINS[0]:
        types = types_for(operator, cache=INT8, scale=FLOAT)
    else:
        types = dict(current_key=FLOAT, current_value=FLOAT, start_pos=TensorProto.INT64, cache=INT8, scale=FLOAT)
    heads = {} if operator == "KeyValueCache" else HEADS
    del types[held]
    initializers = (numpy_helper.from_array(array, held),)
    model = node_model(types, dict(quant_bit=8) | heads, operator=operator, domain=domain, initializers=initializers)
    assert f"{held} is an initializer" in refusal_of(model)


@pytest.mark.skipif(RUNTIME < (1, 24), reason="ONNX Runtime before 1.24 itself crashes on an empty-named last input")
def test_an_empty_named_scale_is_an_absent_one() -> None:
    """Exporters write "" for an optional input that is left out."""
    inputs, memory = one_call(node(), [300, 1])
    key, _ = node().run(inputs, memory, session_of(node_model(node_types(FLOAT, FLOAT), {}, empty_scale=True)))
    assert_same_bits("key", key, inputs["current_key"])
    assert "scale" in refusal_of(node_model(node_types(FLOAT, INT8), dict(quant_bit=8), empty_scale=True))


def test_sessions_and_options_of_their_own() -> None:
    """Any number of sessions register the library, and it outlives each of them; options that have it do so once."""
    inputs, memory = one_call(node(), [300, 1])
    for _ in range(3):
        key, _ = node().run(inputs, memory, create_session(node().model()))
        assert_same_bits("key", key, inputs["current_key"])
    options = quiet_options()
    options.register_custom_ops_library(str(find_library()))
    with pytest.raises(Exception, match=r"(?i)domain already set"):
        create_session(node().model(), options)


@pytest.mark.parametrize("scale", ["fed", "initializer"])
@pytest.mark.parametrize("cache_dtype", ["float16", "float32"])
def test_what_real_exports_contain(cache_dtype: str, scale: str) -> None:
    """Opset 11, IR 6, every attribute written; a scale and a mask that are not given are float16 of shape [0]."""
    attention = node("float16", cache_dtype, cache_mode=1, page_size=4, group=2)
    inputs, memory = one_call(attention, seqlens=[2, 1], past=[3, 5])
    (expected,) = attention.run(inputs, copy_of(memory))
    empty = np.zeros(0, np.float16)
    fed = inputs | {name: inputs[name].reshape(1) for name in ("decoding_batches", "max_seqlen", "max_kvlen")}
    fed |= arrays_of(memory) | dict(attn_mask=empty) | (dict(scale=empty) if scale == "fed" else {})
    held = [] if scale == "fed" else [numpy_helper.from_array(empty, "scale")]
    axes = {"attn_mask": [0], "scale": [0], "max_seqlen": [1], "max_kvlen": [1], "decoding_batches": [1]}
    export = helper.make_node(
        "MultiHeadCacheAttention",
        FUSED_INPUTS[:-1],
        ["attn_output"],
        "/layers.0/MultiHeadCacheAttention",
        domain=DOMAIN,
        **attention.attributes,
    )
    types = types_of(fed, int4_cache=False) | dict(attn_output=HALF)
    model = model_of(export, types, shapes=axes, initializers=held, opset=11, ir_version=6)
    [got] = run_node(create_session(model), fed)
    assert_same_bits("attn_output", got, expected)


@pytest.mark.parametrize(
    ("operator", "attributes", "types", "expected"),
    [
        ("MultiHeadCacheAttention", dict(quant_bit=8), dict(cache=INT8), "scale_missing"),
        ("MultiHeadCacheAttention", dict(num_heads=None), {}, "num_heads"),
        ("MultiHeadAttention", dict(is_alibi=1.0), {}, "is_alibi is of another type, expected an integer"),
        ("MultiHeadAttention", dict(scale=1), {}, "scale is of another type, expected a float"),
        ("MultiHeadCacheAttention", dict(local_window_size=0), {}, "local_window_size is 0, expected at least -1"),
    ],
)
def test_a_node_that_cannot_work(operator: str, attributes: dict, types: dict, expected: str) -> None:
    """Refused when the session is made, with the node's operator and name. None leaves a required attribute out."""
    given = {name: value for name, value in (HEADS | attributes).items() if value is not None}
    message = refusal_of(node_model(types_for(operator, **types), given, operator=operator))
    assert expected in message and (f"{operator} node 'cached'" in message or None in attributes.values())
