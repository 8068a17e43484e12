"""SiLU, Swish, SwiGLU, GELU and GeGLU. Each is computed in float32 and rounded to the type of X once."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import TypeAlias

from kvcache_pmx._body import Body, Function
from kvcache_pmx._call import Call

# Adds the nodes of a function of one tensor, which is float32.
_Activation: TypeAlias = Callable[[Body, str], str]


def silu(call: Call) -> Function:
    """X * sigmoid(X), times a gate where there is one."""
    return _gated(call, lambda body, x: _swish(body, x, 1.0))


def swish(call: Call) -> Function:
    """X * sigmoid(beta X), times a gate where there is one."""
    beta = call.number("beta", 1.0)
    return _gated(call, lambda body, x: _swish(body, x, beta))


def gelu(call: Call) -> Function:
    """X * Phi(X), or its estimate by tanh, times a gate where there is one."""
    approximate = call.flag("approximate")
    return _gated(call, lambda body, x: _gelu(body, x, approximate))


def swiglu(call: Call) -> Function:
    """The second half of the last axis times Swish of the first half."""
    beta = call.number("beta", 1.0)
    return _of_halves(call, lambda body, x: _swish(body, x, beta))


def geglu(call: Call) -> Function:
    """The second half of the last axis times GELU of the first half."""
    approximate = call.flag("approximate")
    return _of_halves(call, lambda body, x: _gelu(body, x, approximate))


def _swish(body: Body, x: str, beta: float) -> str:
    scaled = x if beta == 1.0 else body.node("Mul", x, body.number(beta))
    return body.node("Mul", x, body.node("Sigmoid", scaled))


def _gelu(body: Body, x: str, approximate: bool) -> str:
    if approximate:
        cube = body.node("Mul", body.node("Mul", x, x), x)
        inner = body.node("Add", x, body.node("Mul", cube, body.number(0.044715)))
        probability = body.node("Tanh", body.node("Mul", inner, body.number(sqrt(2 / pi))))
    else:
        probability = body.node("Erf", body.node("Mul", x, body.number(sqrt(0.5))))
    return body.node("Mul", body.node("Mul", x, body.number(0.5)), body.node("Add", probability, body.number(1.0)))


def _gated(call: Call, activation: _Activation) -> Function:
    body = Body()
    y = activation(body, body.float32("X"))
    if call.has_input(1):
        y = body.node("Mul", y, body.float32("gate"))
    return body.returns(call.names("X", "gate"), body.node("CastLike", y, "X"))


def _of_halves(call: Call, activation: _Activation) -> Function:
    body = Body()
    x, gate = body.halves(body.float32("X"))
    y = body.node("Mul", gate, activation(body, x))
    return body.returns(call.names("X"), body.node("CastLike", y, "X"))
