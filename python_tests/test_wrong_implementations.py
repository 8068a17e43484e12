"""The golden oracles in numpy as implementations under test: they pass the kit's own random cases, whose answers come
from an oracle in Rust; changed in one function, one fails with its flaw's name. (Rust tests diagnose known mistakes.)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kvcache_ops import conformance

from oracle import attention, key_value_cache
from oracle.call import Attributes
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


# The functions as they are, for those that change them.
head_index, load_head, quantize = key_value_cache.head_index, key_value_cache.load_head, key_value_cache.quantize


def interleaved(output: np.ndarray, cache: np.ndarray, scale: Any, slot: int, kv: int, a: Attributes) -> None:
    """Repeated heads come after all others."""
    for i, x in enumerate(output):
        h = i % (len(output) // a.num_repeat)
        row = head_index(a.cache_layout, slot, a.layer_idx, kv, h)
        load_head(x, cache, scale, row, a.quant_bit, a.quant_group)


# The module, the function that is changed, to what, the known mistake that it is, and which cases are run.
WRONG = [
    (key_value_cache, "load", interleaved, "repeat-interleaved", "repeat"),
    (key_value_cache, "head_index", lambda c, slot, _, *row: head_index(c, slot, 0, *row), "layer-ignored", "layer"),
    (key_value_cache, "quantize", lambda x, *t: quantize(x.astype("f4"), *t), "float16-computed-in-float32", "f16"),
    (attention, "exp", np.exp2, "softmax-of-base-2", "chunked"),
    (
        attention,
        "alibi_slopes",
        lambda n: [2 ** (-8 * k / n) for k in range(1, n + 1)],
        "alibi-slopes-of-any-number",
        "alibi",
    ),
]


@pytest.mark.parametrize(("module", "name", "wrong", "mistake", "cases"), WRONG, ids=[row[3] for row in WRONG])
def test_the_flaw_is_named(
    module: Any, name: str, wrong: Callable, mistake: str, cases: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the run as a whole, and for each case that failed."""
    monkeypatch.setattr(module, name, wrong)
    suite, implementation = (
        ("attention", attention_oracle) if module is attention else ("key-value-cache", cache_oracle)
    )
    report = conformance.run(implementation, suite=suite, int4="unpacked", filter=cases)
    assert report.failures
    assert {case.diagnosis and case.diagnosis.mistake for case in report.failures} == {mistake}
    (line,) = json.loads(report.json())["diagnosis"]
    assert f"what {mistake} gives" in line, line
