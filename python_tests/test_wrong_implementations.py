"""The golden oracles in numpy as implementations under test: they pass the kit's own random cases, whose answers come
from an oracle in Rust; changed in one function, one fails with its flaw's name. (Rust tests diagnose known mistakes.)
"""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from kvcache_ops import conformance

from oracle import attention
from oracles import attention_oracle, cache_oracle, static_oracle


@pytest.mark.parametrize(("suite", "oracle"), [("key-value-cache", cache_oracle), ("static", static_oracle)])
def test_both_oracles_agree(suite: str, oracle: Callable) -> None:
    """On random calls, legal and illegal; they are the same for the same seed."""
    report = conformance.run(oracle, suite=suite, int4="unpacked", random=100, seed=11, filter="random")
    report.raise_for_failures()
    assert report.passed == len({case.name for case in report.cases}) >= 100
    names = [
        [case.name for case in conformance.run(oracle, suite=suite, random=9, seed=seed, filter="random-").cases]
        for seed in (1, 1, 2)
    ]
    assert names[0] == names[1] != names[2]


def test_a_flaw_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the run as a whole, and for each case that failed."""
    monkeypatch.setattr(attention, "exp", np.exp2)
    report = conformance.run(attention_oracle, suite="attention", int4="unpacked", filter="chunked")
    assert {case.diagnosis and case.diagnosis.mistake for case in report.failures} == {"softmax-of-base-2"}
    (line,) = json.loads(report.json())["diagnosis"]
    assert "what softmax-of-base-2 gives" in line, line
