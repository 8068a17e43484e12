"""The golden cases, one module per subject. Each module has `cases()`; a name must be unique among all."""

from __future__ import annotations

from . import (
    addressing,
    arithmetic,
    batches,
    combinations,
    conversion,
    decoding,
    large,
    refused_attributes,
    refused_indices,
    refused_shapes,
    refused_slots,
    refused_types,
    serving,
    shapes,
)
from .case import Case

MODULES = (
    combinations,
    shapes,
    arithmetic,
    conversion,
    addressing,
    batches,
    decoding,
    serving,
    large,
    refused_attributes,
    refused_types,
    refused_shapes,
    refused_indices,
    refused_slots,
)


def all_cases() -> list[Case]:
    """Every case, run through the oracle."""
    cases = [case for module in MODULES for case in module.cases()]
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), "names are unique"
    assert all(case.steps for case in cases), "a case has steps"
    return cases
