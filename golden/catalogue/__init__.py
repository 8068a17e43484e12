"""The golden cases, one module per subject. Each module has `cases()`; a name must be unique in its suite."""

from __future__ import annotations

from . import (
    arithmetic,
    attention,
    batches,
    combinations,
    conversion,
    decoding,
    large,
    refused_attributes,
    refused_indices,
    refused_shapes,
    refused_types,
    shapes,
    static_batching,
    table,
)
from .case import Case

REFUSED = (refused_attributes, refused_types, refused_shapes, refused_indices)
OWN = (combinations, shapes, arithmetic, conversion, table, batches, decoding, large, *REFUSED)
# The modules of each operator's cases, by the folder that these are written to.
SUITES = {"cases": OWN, "static_cases": static_batching.MODULES, "attention_cases": attention.MODULES}


def all_cases() -> dict[str, list[Case]]:
    """Every case of each suite, run through the oracle."""
    suites = {folder: [case for module in modules for case in module.cases()] for folder, modules in SUITES.items()}
    for cases in suites.values():
        assert len({case.name for case in cases}) == len(cases), "names are unique"
        assert all(case.steps for case in cases), "a case has steps"
    return suites
