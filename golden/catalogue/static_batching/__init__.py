"""The golden cases of KeyValueCache of static batching, one module per subject."""

from __future__ import annotations

from . import batches, combinations, large, refused, values
from .case import StaticCase

MODULES = (combinations, batches, values, large, refused)


def all_cases() -> list[StaticCase]:
    """Every case, run through the oracle."""
    cases = [case for module in MODULES for case in module.cases()]
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), "names are unique"
    assert all(case.steps for case in cases), "a case has steps"
    return cases
