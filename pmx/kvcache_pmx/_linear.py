"""ParallelEmbedding, Linear, ColumnParallelLinear, RowParallelLinear and Reshape, for one device."""

from __future__ import annotations

from kvcache_pmx._body import Body, Function
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
