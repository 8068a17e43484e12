"""ALiBi: the slopes of the heads, and the mask of a ragged batch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from kvcache_pmx._body import Body, Function
from kvcache_pmx._call import Call, Refusal
from kvcache_pmx._ragged import last_key, rows_of, same_sequence


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
    """For each head slope times distance to the last key that the query sees, -inf behind it, plus a mask's values.

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
        # Columns behind the last key are padding.
        columns = body.node(
            "Slice", "attn_mask", body.integers(0), body.unsqueeze(keys_len, 0), body.integers(-1), body.integers(1)
        )
        bias = body.node("Add", bias, body.float32(columns))
    return body.returns(call.names("seqstarts", "kvstarts", "attn_mask"), body.node("Cast", bias, to=data_type))


def biases(body: Body, last: str, index: str, num_heads: int) -> tuple[str, str]:
    """slope * (key - `last`) for each head, and whether the key is not behind `last`; `last` is a column of queries."""
    distance = body.node("Sub", body.unsqueeze(index, 0), last)
    heads = body.constant(slopes(num_heads).reshape(-1, 1, 1))
    return body.node("Mul", heads, body.float32(distance)), body.node("LessOrEqual", distance, body.integer(0))
