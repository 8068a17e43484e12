"""Attention in whole numpy arrays, right and wrong, through the conformance kit: right ones pass, the flaw of each
wrong one is named, and no other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from zlib import crc32

import pytest
from kvcache_ops import conformance
from sample import every

import vectorized_attention
from vectorized_attention import Right, RightInT1

CASES = Path(__file__).resolve().parents[1] / "golden/attention_cases"
# Cases of masks, sequences and refusals, which tell most wrong implementations apart.
TELLING = ("alibi", "batch", "causal", "chunked", "mask", "packed", "pages", "reads", "refuse", "shared")


@pytest.mark.parametrize("right", (Right, RightInT1))
def test_a_right_one_passes(right: type[Right]) -> None:
    """Every case, and nothing is diagnosed."""
    report = conformance.run(right(), suite="attention")
    report.raise_for_failures()
    assert report.passed == len(report.cases) > 300
    assert "diagnosis" not in json.loads(report.json())


@pytest.fixture(scope="module")
def some_cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Telling cases, and a twentieth of the others, the same whatever others there are: a diagnosis takes longer than
    all calls."""
    folder = tmp_path_factory.mktemp("cases")
    for case in CASES.iterdir():
        if crc32(case.name.encode()) % 20 == 0 or case.name.startswith(TELLING):
            shutil.copytree(case, folder / case.name)
    return folder


@pytest.mark.parametrize("wrong", list(vectorized_attention.WRONG)[:: every(6)], ids=lambda wrong: wrong.__name__)
def test_the_flaw_of_each_wrong_one_is_named(wrong: type[Right], some_cases: Path) -> None:
    """First and alone: for the run as a whole, and for each case that failed."""
    report = conformance.run(wrong(), suite="attention", cases=some_cases)
    name = vectorized_attention.WRONG[wrong]
    assert report.passed and {case.diagnosis and case.diagnosis.mistake for case in report.failures} == {name}
    (line,) = json.loads(report.json())["diagnosis"]
    failed = report.failed
    explained = f"{failed} of {failed} failures are" if failed > 1 else "the failure is"
    assert line.startswith(f"{explained} what {name} gives: "), line
