"""What is refused when a session is made, in which words; and what is not."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from compare import assert_same_bits
from one_node import DOMAINS, FLOAT, INT8, STATIC_DOMAINS, node, node_model, node_types, one_call, types_for
from sessions import RUNTIME, create_session, find_library, quiet_options, refusal_of, session_of

pytestmark = pytest.mark.runtime


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
    """It would be the session's own state, which no caller can see: refused."""
    shape = [4, 1, 2, 2, 8] if domain == DOMAINS[0] else [1, 1, 2, 4, 2, 8]
    array = np.zeros(shape, np.int8) if held == "cache" else np.zeros([*shape[:-1], 1], np.float32)
    if domain == DOMAINS[0]:
        types = types_for(operator, cache=INT8, scale=FLOAT)
    else:
        types = dict(current_key=FLOAT, current_value=FLOAT, start_pos=TensorProto.INT64, cache=INT8, scale=FLOAT)
    heads = {} if operator == "KeyValueCache" else dict(num_heads=4, head_dim=8, num_kv_heads=2)
    del types[held]
    initializers = (numpy_helper.from_array(array, held),)
    model = node_model(types, dict(quant_bit=8) | heads, operator=operator, domain=domain, initializers=initializers)
    assert f"{held} is an initializer" in refusal_of(model)


def test_a_legacy_page_table() -> None:
    """Paged mode whose graph declares a rank-1 `cachestarts` is one from before pages existed: refused."""
    paged = node(cache_mode=1, page_size=128)
    inputs, memory = one_call(paged, [300, 1])
    inputs["cachestarts"] = np.arange(4)
    model = node_model(node_types(FLOAT, FLOAT), paged.attributes, shapes={"cachestarts": ["slots"]})
    with pytest.raises(Exception, match=r"cachestarts.*rank 1"):
        paged.run(inputs, memory, create_session(model))


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
