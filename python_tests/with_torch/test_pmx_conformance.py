"""The public PMX implementation through the conformance kit: where it does otherwise than the specification.

It checks no argument. So illegal calls, of which it fails many, are left out here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kvcache_ops import conformance
from kvcache_ops.conformance import CaseResult

from pmx_conformance import FOLDER, attend, checkout, key_value_cache, static_key_value_cache

pytestmark = pytest.mark.skipif(checkout() is None, reason=f"PMX_CHECKOUT names no checkout of PMX that has {FOLDER}")

# In paged mode it writes by an index, for which torch converts no types.
NO_CONVERSION = "Index put requires the source and destination dtypes match"
# It groups the rows of a sequence for quantization, also if there are none.
NO_ROWS = "cannot reshape tensor of 0 elements"
# It stores and loads each sequence before the next.
SEQUENCE_BY_SEQUENCE = "sequence-by-sequence"
# Hidden keys count with a weight of 0, and the weights of a query that sees no key are 0 / 0.
NOT_FINITE = "hidden-keys-and-rows-not-finite"
# MultiHeadAttention makes the mask of ALiBi and does not add it.
NO_ALIBI = "alibi-ignored"
# The causal mask of a sequence with fewer keys than queries begins at its first key.
FEWER_KEYS = "causal-mask-offset-not-negative"
# Both of the two before: no single mistake.
FEWER_KEYS_AND_NO_ALIBI = "packed-more-queries-than-keys-causal1-alibi1"

# By suite: an adapter, what it does otherwise in legal calls, and cases that pass, at least.
SUITES: dict[str, tuple[Callable[..., Any], set[str], int]] = {
    "key-value-cache": (key_value_cache, {NO_CONVERSION, NO_ROWS, SEQUENCE_BY_SEQUENCE}, 200),
    "static": (static_key_value_cache, {NO_ROWS}, 100),
    "attention": (
        attend,
        {NO_CONVERSION, NO_ROWS, SEQUENCE_BY_SEQUENCE, NOT_FINITE, NO_ALIBI, FEWER_KEYS, FEWER_KEYS_AND_NO_ALIBI},
        200,
    ),
}


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
    if case.name.endswith(FEWER_KEYS_AND_NO_ALIBI):
        return FEWER_KEYS_AND_NO_ALIBI
    return diagnosis.mistake if diagnosis else difference.text


@pytest.mark.filterwarnings("ignore:Truncating the start/stop/step of slice")
@pytest.mark.parametrize("suite", SUITES)
def test_legal_calls(suite: str) -> None:
    """Of the types that it has: what the oracle gives, but for known deviations, each of which is there."""
    implementation, known, passed = SUITES[suite]
    report = conformance.run(implementation, suite=suite, profile=Path(__file__).with_name("pmx_profile.yaml"))
    deviations = Counter(deviation(case) for case in report.failures if is_legal(case))
    assert report.passed > passed, report
    assert set(deviations) == known
