"""Attention of a ragged batch by one `Attention` of ONNX, for tools without the operator of kvcache_ops."""

from __future__ import annotations

import numpy as np

from kvcache_pmx._alibi import biases
from kvcache_pmx._body import Body, Function
from kvcache_pmx._call import Call, Refusal
from kvcache_pmx._ragged import last_key, rows_of, same_sequence

# The first opset that has Attention.
ATTENTION_OPSET = 23


def multi_head_attention(call: Call) -> Function:
    """All sequences at once, as one sequence of which a mask hides what another one's queries may not see.

    It takes time and memory for all queries times all keys of the batch. A value that is not finite reaches the
    queries of other sequences, through weights that are 0.
    """
    num_heads, num_kv_heads = call.integer("num_heads"), call.integer("num_kv_heads", 0)
    if num_kv_heads and num_heads % num_kv_heads != 0:
        raise Refusal(f"num_heads {num_heads} is not divisible by num_kv_heads {num_kv_heads}")
    body = Body()
    tokens = body.dimension("query", 0)
    queries = rows_of(body, "seqstarts", tokens)
    keys_len = body.dimension("key", 0)
    keys = rows_of(body, "kvstarts", keys_len)
    last = body.unsqueeze(last_key(body, queries, keys), 1)
    seen = same_sequence(body, queries, keys)
    bias = body.number(0.0)
    if call.flag("is_alibi"):
        bias, past = biases(body, last, keys.index, num_heads)
        seen = body.node("And", seen, past)
    elif call.flag("is_causal", True):
        past = body.node("LessOrEqual", body.unsqueeze(keys.index, 0), last)
        first_ones = body.node("Reshape", "decoding_batches", body.integers(1))
        decoding = body.node("Less", queries.sequence, first_ones)
        seen = body.node("And", seen, body.node("Or", past, body.unsqueeze(decoding, 1)))
    if call.has_input(8):
        bias = body.node("Add", _heads_of_mask(body, tokens, keys_len), bias)
    mask = body.node("Where", seen, bias, body.number(-np.inf))
    one_for_all = body.node("Concat", body.integers(1, -1), _pair(body, tokens, keys_len), axis=0)
    mask = body.node("Reshape", mask, one_for_all)
    heads = [body.unsqueeze(body.node("Transpose", name, perm=[1, 0, 2]), 0) for name in ("query", "key", "value")]
    attended = body.node("Attention", *heads, body.node("CastLike", mask, "query"))
    # A row that sees nothing is 0, not a quotient of zeros.
    highest = body.node("ReduceMax", mask, body.integers(-1))
    anything = body.node("Greater", highest, body.number(-np.inf))
    attended = body.node("Where", anything, attended, body.node("CastLike", body.number(0.0), "query"))
    output = body.node("Transpose", body.node("Squeeze", attended, body.integers(0)), perm=[1, 0, 2])
    inputs = ["query", "key", "value", "seqstarts", "kvstarts", "decoding_batches", "max_seqlen", "max_kvlen"]
    return body.returns(call.names(*inputs, "attn_mask"), output)


def _heads_of_mask(body: Body, tokens: str, keys_len: str) -> str:
    """The mask as float32 with a plane for each head, or one for all; columns behind the last key are padding."""
    shape = body.node("Concat", body.integers(-1), _pair(body, tokens, body.dimension("attn_mask", -1)), axis=0)
    planes = body.node("Reshape", body.float32("attn_mask"), shape)
    return body.node("Slice", planes, body.integers(0), body.unsqueeze(keys_len, 0), body.integers(-1))


def _pair(body: Body, first: str, second: str) -> str:
    return body.node("Concat", body.unsqueeze(first, 0), body.unsqueeze(second, 0), axis=0)
