"""Cases of refused calls as rows of tables. A row has

- the case's name after "refuse-", what it is about, the ids of the rules that it proves;
- what it begins with: `types`, where they are not f32 f32, sizes and attributes;
- its calls: the kind of error, what the message mentions, and the changes that break the rule, as `Case.refuse` takes
  them; a `batch` among them replaces the legal call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from .case import Case

# What a table's rows are: name, about, rules, what the case begins with, and its calls.
Row = tuple[Any, ...]
Change = Callable[[np.ndarray], np.ndarray]


def refusals(begin: Callable[..., Case], legal: tuple[Any, ...], table: Iterable[Row]) -> Iterator[Case]:
    """A case for each row; `legal` is the call that the changes make illegal."""
    for name, about, rules, given, *calls in table:
        case = begin(f"refuse-{name}".replace("_", "-"), about, proves=rules, **{"types": "f32 f32"} | given)
        for error, mentions, changes in calls:
            changes = dict(batch=legal) | changes
            case.refuse(error, mentions.split(", "), *changes.pop("batch"), **changes)
        yield case


def with_entry(place: int | tuple[int, ...], value: int) -> Change:
    """Makes one entry another."""

    def changed(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array[place] = value
        return array

    return changed


def of_type(element: str) -> Change:
    """Makes the elements those of another type."""
    return lambda array: array.astype(element)


def of_shape(*shape: int) -> Change:
    """Makes the shape another, of as many elements."""
    return lambda array: array.reshape(shape)
