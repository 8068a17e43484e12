"""The public PMX implementation through the conformance kit: what it does is what the golden cases expect."""

from __future__ import annotations

import pytest
from kvcache_ops import conformance

from pmx_conformance import FILE, PROFILE, checkout, key_value_cache

pytestmark = pytest.mark.skipif(checkout() is None, reason=f"PMX_CHECKOUT names no checkout of PMX that has {FILE}")


def test_legal_calls() -> None:
    """Of what it has, every call that must succeed has the oracle's bits. Illegal calls it does not check."""
    report = conformance.run(key_value_cache, profile=PROFILE)
    unchecked = [case for case in report.failures if case.difference.kind in ("not-refused", "could-not-run")]
    unchecked += [case for case in report.failures if case.difference.details.get("refused")]
    wrong = [case for case in report.failures if case not in unchecked]
    print(report.text(rules=True))
    assert report.passed > 100 and not wrong, [str(case.difference) for case in wrong]
