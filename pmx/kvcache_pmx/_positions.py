"""PositionIndex and RotaryPositionEmbedding of ragged batches."""

from __future__ import annotations

from kvcache_pmx._body import END, Body, Function
from kvcache_pmx._call import Call, Refusal
from kvcache_pmx._ragged import Rows, rows_of


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
