"""A prompt and a decode step of each row of the table of types that is an extension."""

from __future__ import annotations

from collections.abc import Iterator

from ..extensions import TYPES
from .case import StaticCase
from .combinations import combination


def cases() -> Iterator[StaticCase]:
    for number, (types, quant_bit) in enumerate(TYPES.items()):
        yield combination(number, number % 2, types, (1, 4)[number // 2 % 2], quant_bit)
