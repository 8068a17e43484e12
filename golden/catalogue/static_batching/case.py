"""Cases of static batching: a call is of `batch` sequences with `start_pos` past and `seqlen` current tokens each."""

from __future__ import annotations

from functools import partial
from typing import Any

from oracle.static_batching import (
    STATIC_INPUTS,
    StaticAttributes,
    StaticInputs,
    static_cache_shape,
    static_key_value_cache,
)

from ..case import Case, Operator, begin_case, indices, key_and_value


def static_inputs(case: Case, batch: int, start_pos: int, seqlen: int) -> StaticInputs:
    shape = (batch, seqlen, case.num_heads, case.head_dim)
    return StaticInputs(
        current_key=case.random("current_key", *shape),
        current_value=case.random("current_value", *shape),
        # A scalar or of shape [1]: even steps the one, odd steps the other.
        start_pos=indices(start_pos).reshape(() if len(case.steps) % 2 == 0 else (1,)),
    )


STATIC_BATCHING = Operator(
    heading={"domain": "opmx"},
    inputs=static_inputs,
    input_names=STATIC_INPUTS,
    run=partial(key_and_value, oracle=static_key_value_cache),
    attributes=StaticAttributes,
    shape=static_cache_shape,
)


def begin(name: str, about: str, types: str, *, max_b: int = 3, max_s: int = 6, **given: Any) -> Case:
    """A case of static batching without steps."""
    return begin_case(STATIC_BATCHING, name, about, types, max_b, max_s, **given)
