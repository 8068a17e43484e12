"""ParallelEmbedding, Linear, ColumnParallelLinear, RowParallelLinear and Reshape, for one device; and what mixtures of
experts have: MoeSelect, the linear layers of the experts, and MoeReduce."""

from __future__ import annotations

import numpy as np

from kvcache_pmx._body import INT64, Body, Function
from kvcache_pmx._call import Call, Refusal


def parallel_embedding(call: Call) -> Function:
    """The rows of the weight that the ids name."""
    # The public documentation and the public reference say different things about both.
    if call.integer("padding_idx", -1) >= 0:
        raise Refusal(f"padding_idx {call.integer('padding_idx')} is not supported, expected -1")
    if call.number("max_norm", 0.0) != 0.0:
        raise Refusal(f"max_norm {call.number('max_norm', 0.0)} is not supported, expected 0")
    for name, axis in [("num_embeddings", 0), ("embedding_dims", 1), ("embedding_dim", 1)]:
        check_whole_weight(call, 1, axis, name)
    body = Body()
    return body.returns(call.names("ids", "W"), body.node("Gather", "W", "ids"))


def linear(call: Call) -> Function:
    """X times the transposed weight, plus the bias where there is one."""
    for name, axis in [("out_features", 0), ("in_features", 1)]:
        check_whole_weight(call, 1, axis, name)
    check_bias(call, 2)
    body = Body()
    y = body.node("MatMul", "X", body.node("Transpose", "W", perm=[1, 0]))
    if call.has_input(2):
        y = body.node("Add", y, "B")
    return body.returns(call.names("X", "W", "B"), y)


def reshape(call: Call) -> Function:
    """The tensor in another shape: 0 keeps a dimension, -1 is what is left."""
    body = Body()
    return body.returns(call.names("data", "shape"), body.node("Reshape", "data", "shape"))


def check_bias(call: Call, index: int) -> None:
    """Refuses a node whose attribute bias_term says something else than its inputs."""
    given = call.has_input(index)
    if call.flag("bias_term", given) != given:
        raise Refusal(f"bias_term {call.integer('bias_term')}, but the bias is {'given' if given else 'missing'}")


def check_whole_weight(call: Call, index: int, axis: int, attribute: str) -> None:
    """Refuses a weight that is one device's part of a larger one."""
    expected, got = call.integer(attribute, -1), call.dimension(index, axis)
    if expected >= 0 and got is not None and got != expected:
        raise Refusal(
            f"axis {axis} of the weight is {got}, expected {attribute} {expected}: one device's slice of a model that "
            "was exported for several is not supported"
        )


def moe_select(call: Call) -> Function:
    """Each token once for each of its experts, sorted by expert; the experts' weights; the way back; where each begins.

    Sorted is what comes out of comparing `expert * rows + row`: rows of one expert keep their order.
    """
    experts, chosen = call.integer("num_experts"), call.integer("num_experts_per_token")
    if not 1 <= chosen <= experts:
        raise Refusal(f"num_experts_per_token {chosen}, expected 1 to num_experts {experts}")
    body = Body()
    scores, expert = body.multiple("TopK", 2, body.float32("scores"), body.integers(chosen), axis=-1)
    weights = body.node("CastLike", body.node("Softmax", scores, axis=-1), "scores")
    flat = body.node("Reshape", expert, body.integers(-1))
    rows = body.dimension(flat, 0)
    order = body.node("Add", body.node("Mul", flat, rows), body.count_up(rows))
    permutation = _sorting(body, order, rows)
    token = body.node("Div", permutation, body.integer(chosen))
    flat_x = body.node("Reshape", "X", body.node("Concat", body.integers(-1), _last(body, "X"), axis=0))
    expanded = body.node("Concat", body.node("Shape", expert), _last(body, "X"), axis=0)
    sorted_x = body.node("Reshape", body.node("Gather", flat_x, token), expanded)
    back = body.node("Reshape", _sorting(body, permutation, rows), body.node("Shape", expert))
    # An expert begins after all rows of lower ones.
    lower = body.node("Less", body.unsqueeze(flat, 0), body.constant(np.arange(experts + 1, dtype=np.int64)[:, None]))
    offsets = body.node("ReduceSum", body.node("Cast", lower, to=INT64), body.integers(1), keepdims=0)
    return body.returns(call.names("X", "scores"), sorted_x, weights, back, offsets)


def moe_linear(call: Call) -> Function:
    """Each expert's rows times its transposed weight, plus its bias where there is one."""
    experts = call.integer("num_experts")
    for axis, name in enumerate(("num_experts", "out_features", "in_features")):
        check_whole_weight(call, 2, axis, name)
    if experts < 1:
        raise Refusal(f"num_experts {experts}, expected at least 1")
    check_bias(call, 3)
    body = Body()
    flat_x = body.node("Reshape", "X", body.node("Concat", body.integers(-1), _last(body, "X"), axis=0))
    weights = body.multiple("Split", experts, body.node("Transpose", "W", perm=[0, 2, 1]), axis=0, num_outputs=experts)
    biases = body.multiple("Split", experts, "B", axis=0, num_outputs=experts) if call.has_input(3) else []
    parts = []
    for i, weight in enumerate(weights):
        begin, end = (body.slice("expert_offset", j, j + 1, 0) for j in (i, i + 1))
        part = body.node("Slice", flat_x, begin, end, body.integers(0))
        part = body.node("MatMul", part, body.node("Squeeze", weight, body.integers(0)))
        parts.append(body.node("Add", part, biases[i]) if biases else part)
    y = body.node("Concat", *parts, axis=0)
    leading = body.node("Slice", body.node("Shape", "X"), body.integers(0), body.integers(-1), body.integers(0))
    shape = body.node("Concat", leading, body.unsqueeze(body.dimension("W", 1), 0), axis=0)
    return body.returns(call.names("X", "expert_offset", "W", "B"), body.node("Reshape", y, shape))


def moe_reduce(call: Call) -> Function:
    """The sum of each token's experts, weighted, in the tokens' own order."""
    body = Body()
    flat = body.node("Reshape", "Y", body.node("Concat", body.integers(-1), _last(body, "Y"), axis=0))
    rows = body.float32(body.node("Gather", flat, "invert_permutation"))
    weighted = body.node("Mul", rows, body.unsqueeze(body.float32("expert_weights"), -1))
    total = body.node("ReduceSum", weighted, body.integers(-2), keepdims=0)
    return body.returns(call.names("Y", "expert_weights", "invert_permutation"), body.node("CastLike", total, "Y"))


def _sorting(body: Body, values: str, length: str) -> str:
    """The indices that sort `values`, ascending; all of them are different."""
    return body.multiple("TopK", 2, values, body.unsqueeze(length, 0), axis=0, largest=0)[1]


def _last(body: Body, x: str) -> str:
    """The length of the last axis, as a list of one."""
    return body.unsqueeze(body.dimension(x, -1), 0)
