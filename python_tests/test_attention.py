"""The attention operators in ONNX Runtime: types, masks and names as graphs have them. (Answers: the kit.)"""

from __future__ import annotations

import numpy as np
import pytest
from kvcache_ops import DOMAIN
from onnx import TensorProto, helper, numpy_helper

from compare import assert_same_arrays, assert_same_bits
from one_node import FUSED_INPUTS, HALF, INT8, arrays_of, copy_of, node, node_model, one_call, types_for, types_of
from sessions import create_session, model_of, refusal_of, run_node, session_of

pytestmark = pytest.mark.runtime


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


ATTRIBUTES = dict(num_heads=4, head_dim=8, num_kv_heads=2)


@pytest.mark.parametrize(
    ("operator", "attributes", "types", "expected"),
    [
        ("MultiHeadCacheAttention", dict(quant_bit=8), dict(cache=INT8), "scale_missing"),
        ("MultiHeadCacheAttention", {}, dict(cache=HALF, scale=TensorProto.DOUBLE), "scale is of type float64"),
        ("MultiHeadCacheAttention", dict(num_heads=None), {}, "num_heads"),
        ("MultiHeadAttention", {}, dict(value=HALF), "value is of type float16, expected float32"),
        ("MultiHeadAttention", dict(is_alibi=1.0), {}, "is_alibi is of another type, expected an integer"),
        ("MultiHeadAttention", dict(head_dim=None), {}, "head_dim"),
        ("MultiHeadAttention", dict(scale=1), {}, "scale is of another type, expected a float"),
        ("MultiHeadCacheAttention", dict(local_window_size=0), {}, "local_window_size is 0, expected at least -1"),
    ],
)
def test_a_node_that_cannot_work(operator: str, attributes: dict, types: dict, expected: str) -> None:
    """Refused when the session is made, with the node's operator and name. None leaves a required attribute out."""
    given = {name: value for name, value in (ATTRIBUTES | attributes).items() if value is not None}
    message = refusal_of(node_model(types_for(operator, **types), given, operator=operator))
    assert expected in message and (f"{operator} node 'cached'" in message or None in attributes.values())


def test_a_mask_of_a_type_that_no_operator_has() -> None:
    """Refused when it has elements, in a sentence of the library's own; the cache keeps its bytes."""
    attention = node(group=2)
    inputs, memory = one_call(attention, seqlens=[2], past=[3])
    before = copy_of(memory)
    for mask in (np.ones((2, 5), bool), np.ones((2, 5))):
        types = attention.types({}) | {"attn_mask": helper.np_dtype_to_tensor_dtype(mask.dtype)}
        session = session_of(node_model(types, attention.attributes, operator="MultiHeadCacheAttention"))
        with pytest.raises(Exception, match=f"attn_mask is of type {mask.dtype.name}, expected float32 or float16"):
            session.run(None, inputs | arrays_of(memory) | dict(attn_mask=mask))
        assert_same_arrays(arrays_of(memory), arrays_of(before))
        [got] = session.run(None, inputs | arrays_of(copy_of(memory)) | dict(attn_mask=mask[:0]))
        assert_same_bits("attn_output", got, attention.run(inputs, copy_of(memory))[0])
