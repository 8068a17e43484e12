"""What ragged batches have: the sequence of each row, positions, ALiBi, and attention by one `Attention` of ONNX, for
tools without the operator of kvcache_ops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from kvcache_pmx._body import END, INT64, Body, Function
from kvcache_pmx._call import Call, Refusal


@dataclass(frozen=True)
class Rows:
    """The rows of a packed tensor: `index` counts them, `sequence` is the one that each belongs to."""

    index: str
    sequence: str
    starts: str
    ends: str


def rows_of(body: Body, starts: str, length: str) -> Rows:
    """The rows of a tensor whose sequences begin at `starts`; `length` is a scalar, the number of all rows.

    A row's sequence is the number of sequences that end before it, so that empty sequences have no rows.
    """
    ends = body.slice(starts, 1, END, 0)
    index = body.count_up(length)
    ended = body.node("LessOrEqual", body.unsqueeze(ends, 0), body.unsqueeze(index, 1))
    sequence = body.node("ReduceSum", body.node("Cast", ended, to=INT64), body.integers(1), keepdims=0)
    return Rows(index, sequence, body.slice(starts, 0, -1, 0), ends)


def last_key(body: Body, queries: Rows, keys: Rows) -> str:
    """For each query the row of the last key that it sees: the last query of a sequence sees the last key."""
    to_go = body.node("Sub", body.node("Gather", queries.ends, queries.sequence), queries.index)
    return body.node("Sub", body.node("Gather", keys.ends, queries.sequence), to_go)


def same_sequence(body: Body, queries: Rows, keys: Rows) -> str:
    """Whether query and key are of one sequence, a matrix."""
    return body.node("Equal", body.unsqueeze(queries.sequence, 1), body.unsqueeze(keys.sequence, 0))


def position_index(call: Call) -> Function:
    """The position of each token in its sequence."""
    body = Body()
    rows = rows_of(body, "seqstarts", body.dimension("sequences", 0))
    return body.returns(call.names("sequences", "seqstarts", "start_pos", "max_seqlen"), _positions(body, rows))


def rotary_position_embedding(call: Call) -> Function:
    """Rotates neighboring pairs along head_dim by position times frequency, in float32."""
    rotary_dim, scaling_type = call.integer("rotary_dim", 0), call.text("scaling_type", "")
    if scaling_type not in ("", "linear", "dynamic"):
        raise Refusal(f"scaling_type {scaling_type!r} is not known, expected '', 'linear' or 'dynamic'")
    if rotary_dim < 0 or rotary_dim % 2 != 0:
        raise Refusal(f"rotary_dim {rotary_dim}, expected an even number from 0 on")
    body = Body()
    rows = rows_of(body, "seqstarts", body.dimension("query", 0))
    position = body.float32(_positions(body, rows))
    if scaling_type == "linear":
        position = body.node("Div", position, body.number(call.number("scaling_factor", 1.0)))
    size = body.float32(body.integer(rotary_dim) if rotary_dim else body.dimension("query", 2))
    exponents = body.node("Div", body.node("Range", body.number(0.0), size, body.number(2.0)), size)
    theta = body.number(call.number("theta", 10000.0))
    if scaling_type == "dynamic":
        theta = body.unsqueeze(body.node("Gather", _stretched(body, call, rows, theta, size), rows.sequence), 1)
    frequencies = body.node("Div", body.number(1.0), body.node("Pow", theta, exponents))
    angles = body.unsqueeze(body.node("Mul", body.unsqueeze(position, 1), frequencies), 1)
    turn = body.node("Cos", angles), body.node("Sin", angles)
    query = _rotated(body, "query", rotary_dim, turn)
    key = "key" if call.flag("bypass_key") else _rotated(body, "key", rotary_dim, turn)
    return body.returns(call.names("query", "key", "seqstarts", "start_pos", "max_seqlen"), query, key)


def _positions(body: Body, rows: Rows) -> str:
    """The position of each row's token: its sequence's first one plus its distance from the sequence's start."""
    offsets = body.node("Sub", "start_pos", rows.starts)
    return body.node("Add", body.node("Gather", offsets, rows.sequence), rows.index)


def _stretched(body: Body, call: Call, rows: Rows, theta: str, size: str) -> str:
    """Each sequence's theta: larger where it is longer than what the model was trained with."""
    factor, longest = call.number("scaling_factor", 1.0), call.integer("max_position_embeddings", 2048)
    length = body.node("Add", "start_pos", body.node("Sub", rows.ends, rows.starts))
    ratio = body.node("Div", body.node("Mul", body.number(factor), body.float32(length)), body.number(longest))
    stretch = body.node("Sub", ratio, body.number(factor - 1.0))
    power = body.node("Div", size, body.node("Sub", size, body.number(2.0)))
    stretched = body.node("Mul", theta, body.node("Pow", stretch, power))
    return body.node("Where", body.node("Greater", length, body.integer(longest)), stretched, theta)


def _rotated(body: Body, x: str, rotary_dim: int, turn: tuple[str, str]) -> str:
    """The first `rotary_dim` elements of each head, or all, turned; the others as they are."""
    cos, sin = turn
    part = body.slice(x, 0, rotary_dim, 2) if rotary_dim else x
    wide = body.float32(part)
    even, odd = body.slice(wide, 0, END, 2, 2), body.slice(wide, 1, END, 2, 2)
    turned_even = body.node("Sub", body.node("Mul", even, cos), body.node("Mul", odd, sin))
    turned_odd = body.node("Add", body.node("Mul", odd, cos), body.node("Mul", even, sin))
    pairs = body.node("Concat", body.unsqueeze(turned_even, 3), body.unsqueeze(turned_odd, 3), axis=3)
    turned = body.node("CastLike", body.node("Reshape", pairs, body.node("Shape", wide)), x)
    return body.node("Concat", turned, body.slice(x, rotary_dim, END, 2), axis=2) if rotary_dim else turned


def slopes(num_heads: int) -> npt.NDArray[np.float32]:
    """Each head's slope: for a power of two c of heads 2^(-8k/c), k from 1; further heads lie between those of 2c."""
    if num_heads < 1:
        raise Refusal(f"num_heads {num_heads}, expected at least 1")
    c = 1 << (num_heads.bit_length() - 1)
    exponents = [8 * k / c for k in range(1, c + 1)] + [4 * k / c for k in range(1, 2 * (num_heads - c), 2)]
    return np.array([2.0**-exponent for exponent in exponents], np.float32)


def alibi_slope(call: Call) -> Function:
    """The slopes as a constant."""
    body = Body()
    return body.returns(call.names(), body.constant(slopes(call.integer("num_heads"))))


def alibi_mask(call: Call) -> Function:
    """For each head slope times distance to the last key that the query sees, -inf after it, plus a mask's values.

    Between sequences it is 0; no attention reads that.
    """
    data_type = call.integer("data_type")
    if data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16):
        raise Refusal(f"data_type {data_type}, expected 1 (float32) or 10 (float16)")
    body = Body()
    total = body.integer(-1)
    queries = rows_of(body, "seqstarts", body.node("Gather", "seqstarts", total))
    keys_len = body.node("Gather", "kvstarts", total)
    keys = rows_of(body, "kvstarts", keys_len)
    bias, seen = biases(body, body.unsqueeze(last_key(body, queries, keys), 1), keys.index, call.integer("num_heads"))
    bias = body.node("Where", seen, bias, body.number(-np.inf))
    bias = body.node("Where", same_sequence(body, queries, keys), bias, body.number(0.0))
    if call.has_input(2):
        # Columns after the last key are padding.
        columns = body.node(
            "Slice", "attn_mask", body.integers(0), body.unsqueeze(keys_len, 0), body.integers(-1), body.integers(1)
        )
        bias = body.node("Add", bias, body.float32(columns))
    return body.returns(call.names("seqstarts", "kvstarts", "attn_mask"), body.node("Cast", bias, to=data_type))


def biases(body: Body, last: str, index: str, num_heads: int) -> tuple[str, str]:
    """slope * (key - `last`) for each head, and whether the key is not after `last`; `last` is a column of queries."""
    distance = body.node("Sub", body.unsqueeze(index, 0), last)
    heads = body.constant(slopes(num_heads).reshape(-1, 1, 1))
    return body.node("Mul", heads, body.float32(distance)), body.node("LessOrEqual", distance, body.integer(0))


# The first opset that has Attention.
ATTENTION_OPSET = 23


def multi_head_attention(call: Call) -> Function:
    """All sequences at once, as one sequence: a mask hides from a query the keys of other sequences.

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
    """The mask as float32 with a plane for each head, or one for all; columns after the last key are padding."""
    shape = body.node("Concat", body.integers(-1), _pair(body, tokens, body.dimension("attn_mask", -1)), axis=0)
    planes = body.node("Reshape", body.float32("attn_mask"), shape)
    return body.node("Slice", planes, body.integers(0), body.unsqueeze(keys_len, 0), body.integers(-1))


def _pair(body: Body, first: str, second: str) -> str:
    return body.node("Concat", body.unsqueeze(first, 0), body.unsqueeze(second, 0), axis=0)
