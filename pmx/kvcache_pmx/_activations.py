"""SiLU, Swish, SwiGLU, GELU and GeGLU, and the norms. Each is computed in float32 and rounded to the type of X once."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import TypeAlias

from kvcache_pmx._body import Body, Function
from kvcache_pmx._call import Call, Refusal

# Adds the nodes of a function of one tensor, which is float32; the node says its parameters.
_Activation: TypeAlias = Callable[[Body, str, Call], str]


def gated(activation: _Activation, *, halves: bool = False) -> Callable[[Call], Function]:
    """The activation of X times a gate where there is one; with `halves` X is the two halves of the last axis."""

    def lowered(call: Call) -> Function:
        body, gate = Body(), ""
        x = body.float32("X")
        if halves:
            x, gate = body.halves(x)
        elif call.has_input(1):
            gate = body.float32("gate")
        y = activation(body, x, call)
        y = body.node("Mul", y, gate) if gate else y
        return body.returns(call.names(*["X", "gate"][: 2 - halves]), body.node("CastLike", y, "X"))

    return lowered


def swish(body: Body, x: str, call: Call) -> str:
    """X * sigmoid(beta X); with a beta of 1 it is SiLU."""
    beta = call.number("beta", 1.0)
    return body.node("Mul", x, body.node("Sigmoid", x if beta == 1.0 else body.node("Mul", x, body.number(beta))))


def gelu(body: Body, x: str, call: Call) -> str:
    """X * Phi(X), or its estimate by tanh."""
    if call.flag("approximate"):
        cube = body.node("Mul", body.node("Mul", x, x), x)
        inner = body.node("Add", x, body.node("Mul", cube, body.number(0.044715)))
        probability = body.node("Tanh", body.node("Mul", inner, body.number(sqrt(2 / pi))))
    else:
        probability = body.node("Erf", body.node("Mul", x, body.number(sqrt(0.5))))
    return body.node("Mul", body.node("Mul", x, body.number(0.5)), body.node("Add", probability, body.number(1.0)))


def rms_norm(call: Call) -> Function:
    """X / sqrt(mean(X^2) + eps), in float32, times the weight; X is the sum with the skip input where there is one."""
    body = Body()
    x = _with_skip(body, call, 2)
    y = body.node("Mul", _by_root_mean_square(body, call, body.float32(x)), "W")
    return body.returns(call.names("X", "W", "SkipIn"), y, *_skip_out(call, x))


def tensor_parallel_rms_norm(call: Call) -> Function:
    """RMSNorm whose mean is divided by `scale`: the share of the heads that are not padding."""
    if not call.flag("input_is_parallel"):
        raise Refusal("input_is_parallel 0 is not supported")
    body = Body()
    y = _by_root_mean_square(body, call, body.float32("X"), call.number("scale", 1.0))
    return body.returns(call.names("X", "W"), body.node("Mul", y, "W"))


def layer_norm(call: Call) -> Function:
    """(X - mean) / sqrt(variance + eps), in float32, then weight and bias.

    The variance is the one that the public reference takes, with n - 1 in the denominator: for the thousands of
    elements of a real model the difference from n is below the rounding of float16.
    """
    body = Body()
    x = _with_skip(body, call, 3)
    _last_axis(call)
    wide = body.float32(x)
    axes = body.integers(-1)
    centered = body.node("Sub", wide, body.node("ReduceMean", wide, axes))
    squares = body.node("ReduceSum", body.node("Mul", centered, centered), axes)
    others = body.node("Sub", body.float32(body.dimension(x, -1)), body.number(1.0))
    variance = body.node("Div", squares, others)
    y = _divided(body, centered, variance, call)
    if call.flag("elementwise_affine"):
        y = body.node("Add", body.node("Mul", y, "W"), "B")
    return body.returns(call.names("X", "W", "B", "SkipIn"), y, *_skip_out(call, x))


def _with_skip(body: Body, call: Call, index: int) -> str:
    """X, plus the skip input at `index` where there is one."""
    return body.node("Add", "X", "SkipIn") if call.has_input(index) else "X"


def _skip_out(call: Call, x: str) -> list[str]:
    """The second output, which only a node with a skip term has."""
    if call.outputs == 1:
        return []
    if not call.flag("skip_term"):
        raise Refusal("2 outputs, expected 1 with skip_term 0")
    return [x]


def _by_root_mean_square(body: Body, call: Call, wide: str, scale: float = 1.0) -> str:
    _last_axis(call)
    square = body.node("ReduceMean", body.node("Mul", wide, wide), body.integers(-1))
    if scale != 1.0:
        square = body.node("Div", square, body.number(scale))
    return _divided(body, wide, square, call)


def _divided(body: Body, wide: str, square: str, call: Call) -> str:
    """`wide` / sqrt(`square` + eps) in the type of X."""
    root = body.node("Sqrt", body.node("Add", square, body.number(call.number("eps", 1e-5))))
    return body.node("CastLike", body.node("Div", wide, root), "X")


def _last_axis(call: Call) -> None:
    """For other axes the public documentation and the public reference say different things."""
    axis = call.integer("axis", -1)
    if axis != -1:
        raise Refusal(f"axis {axis} is not supported, expected -1")
