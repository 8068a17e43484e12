"""A case of static batching."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from oracle.static_batching import (
    STATIC_INPUTS,
    StaticAttributes,
    StaticInputs,
    static_cache_shape,
    static_key_value_cache,
)

from ..case import Case, indices


@dataclass
class StaticCase(Case):
    """A case whose calls are of `batch` sequences with `start_pos` past and `seqlen` current tokens each."""

    heading, input_names = {"domain": "opmx"}, STATIC_INPUTS
    attributes_type, shape = StaticAttributes, staticmethod(static_cache_shape)

    def inputs(self, batch: int, start_pos: int, seqlen: int, /, **changes: np.ndarray) -> StaticInputs:
        """The inputs of the next call: random current tokens."""
        shape = (batch, seqlen, self.num_heads, self.head_dim)
        inputs = StaticInputs(
            current_key=self.random("current_key", *shape),
            current_value=self.random("current_value", *shape),
            # A scalar or of shape [1]: even steps the one, odd steps the other.
            start_pos=indices(start_pos).reshape(() if len(self.steps) % 2 == 0 else (1,)),
        )
        return replace(inputs, **changes)

    def run(self, inputs: StaticInputs) -> dict[str, np.ndarray]:
        key, value = static_key_value_cache(inputs, self.cache, self.scale, self.set_attributes, self.types)
        return dict(key=key, value=value)


def begin(name: str, about: str, types: str, *, max_b: int = 3, max_s: int = 6, **given: Any) -> StaticCase:
    """A case without steps, as `Case.begin` makes it."""
    return StaticCase.begin(name, about, types, max_b, max_s, **given)
