"""The golden cases, one module per subject: a case, or several, from each function that takes nothing and is not
private. A name must be unique in its suite."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType

from . import (
    addressing,
    arithmetic,
    attention,
    batches,
    combinations,
    conversion,
    decoding,
    extensions,
    large,
    refused_attributes,
    refused_indices,
    refused_shapes,
    refused_slots,
    refused_types,
    rotation,
    serving,
    shapes,
    static_batching,
    static_scales,
)
from .case import Case

REFUSED = (refused_attributes, refused_types, refused_shapes, refused_indices, refused_slots)
EXTENSIONS = (extensions, static_scales, rotation)
VALUES = (combinations, shapes, arithmetic, conversion)
OWN = (*VALUES, addressing, serving, batches, decoding, large, *EXTENSIONS, *REFUSED)
# The modules of each operator's cases, by the folder that these are written to.
SUITES = {"cases": OWN, "static_cases": static_batching.MODULES, "attention_cases": attention.MODULES}


def cases_of(module: ModuleType) -> Iterator[Case]:
    """The cases of a module, run through the oracle."""
    for name, function in inspect.getmembers(module, inspect.isfunction):
        own = function.__module__ == module.__name__ and not name.startswith("_")
        if own and not inspect.signature(function).parameters:
            made = function()
            yield from [made] if isinstance(made, Case) else made


def all_cases() -> dict[str, list[Case]]:
    suites = {folder: [case for module in modules for case in cases_of(module)] for folder, modules in SUITES.items()}
    for cases in suites.values():
        assert len({case.name for case in cases}) == len(cases), "names are unique"
        assert all(case.steps for case in cases), "a case has steps"
    return suites
