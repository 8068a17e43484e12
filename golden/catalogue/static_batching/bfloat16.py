"""bfloat16, an extension: a prompt and a decode step of each of its rows of the table of types."""

from __future__ import annotations

from collections.abc import Iterator

from ..bfloat16 import TYPES
from .case import StaticCase
from .combinations import combination


def cases() -> Iterator[StaticCase]:
    """Everything of this module."""
    for number, (types, quant_bit) in enumerate(TYPES.items()):
        yield combination(number, number % 2, types, (1, 4)[number // 2 % 2], quant_bit)
