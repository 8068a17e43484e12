"""Cases as rows of tables. A row has

- name, about, and the ids of the rules that it proves;
- what the case begins with: `types`, where they are not f32 f32, sizes and attributes; quant_bit follows from types;
- its calls. One that succeeds is a list of its sequences, each (start_pos, seqlen, place), and of changes, if there are
  any. One that is refused is the kind of error, what the message mentions, and the changes that break the rule; a
  `batch` among them replaces the legal call. `Case.inputs` says what a change may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from .case import Case, Sequence, begin

Row = tuple[Any, ...]
Change = Callable[[np.ndarray], np.ndarray]


def successes(table: Iterable[Row]) -> Iterator[Case]:
    """The cases of rows of calls that succeed. Of a list of types each makes a case; `{types}` in a name stands for
    them."""
    for name, about, rules, given, *calls in table:
        each = given.get("types", "f32 f32")
        for types in [each] if isinstance(each, str) else each:
            case = _begun(begin, name.format(types=types.replace(" ", "-")), about, rules, given | dict(types=types))
            for call in calls:
                changes = call[-1] if isinstance(call[-1], dict) else {}
                case.call(*(Sequence(*part) for part in call if part is not changes), **changes)
            yield case


def refusals(begin: Callable[..., Case], legal: tuple[Any, ...], table: Iterable[Row]) -> Iterator[Case]:
    """The cases of rows of refused calls, which are named without "refuse-"; changes make the legal call illegal."""
    for name, about, rules, given, *calls in table:
        case = _begun(begin, f"refuse-{name}".replace("_", "-"), about, rules, given)
        for error, mentions, changes in calls:
            changes = dict(batch=legal) | changes
            case.refuse(error, mentions.split(", "), *changes.pop("batch"), **changes)
        yield case


def _begun(begin: Callable[..., Case], name: str, about: str, rules: str, given: dict[str, Any]) -> Case:
    given = dict(types="f32 f32") | given
    T1, T2 = (given["types"].split() * 2)[:2]
    if T1 != T2 and T2 in ("int8", "int4") and "quant_bit" not in given:
        given = dict(quant_bit=8 if T2 == "int8" else 4) | given
    return begin(name, about, proves=rules, **given)


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
