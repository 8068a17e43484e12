"""The golden cases of the attention operators, one module per subject."""

from __future__ import annotations

from . import batches, combinations, heads, large, masks, packed, ranges, refused, stored
from .case import AttentionCase

MODULES = (combinations, heads, masks, batches, stored, packed, ranges, large, refused)


def all_cases() -> list[AttentionCase]:
    """Every case, run through the oracle."""
    cases = [case for module in MODULES for case in module.cases()]
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), "names are unique"
    assert all(case.steps for case in cases), "a case has steps"
    return cases
