"""The public PMX implementation through the conformance kit: where it does otherwise than the specification.

It checks no argument. So illegal calls, of which it fails many, are left out here.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from kvcache_ops import conformance
from kvcache_ops.conformance import CaseResult

from pmx_conformance import FILE, checkout, key_value_cache

pytestmark = pytest.mark.skipif(checkout() is None, reason=f"PMX_CHECKOUT names no checkout of PMX that has {FILE}")

# In paged mode it writes by an index, for which torch converts no types.
NO_CONVERSION = "Index put requires the source and destination dtypes match"
# It groups the rows of a sequence for quantization, also if there are none.
NO_ROWS = "cannot reshape tensor of 0 elements"
# It stores and loads each sequence before the next.
SEQUENCE_BY_SEQUENCE = "sequence-by-sequence"


def is_legal(case: CaseResult) -> bool:
    """Whether the call that went wrong is one that must succeed."""
    difference = case.difference
    return difference.kind not in ("not-refused", "refused-as") and not difference.details.get("refused")


def deviation(case: CaseResult) -> str:
    """What PMX does otherwise; what the report says if it is none of the known deviations."""
    difference, diagnosis = case.difference, case.diagnosis
    if difference.kind == "refused":
        known = [message for message in (NO_CONVERSION, NO_ROWS) if message in difference.text]
        return known[0] if known else difference.text
    return SEQUENCE_BY_SEQUENCE if diagnosis and diagnosis.mistake == SEQUENCE_BY_SEQUENCE else difference.text


def test_legal_calls() -> None:
    """Of the types that it has: the oracle's bits, but for three deviations, each of which is there."""
    report = conformance.run(key_value_cache, profile=Path(__file__).with_name("pmx_profile.yaml"))
    deviations = Counter(deviation(case) for case in report.failures if is_legal(case))
    assert report.passed > 200, report
    assert set(deviations) == {NO_CONVERSION, NO_ROWS, SEQUENCE_BY_SEQUENCE}
