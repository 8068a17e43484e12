"""Implementations in whole numpy arrays, right and wrong, through the conformance kit: the right ones pass, the flaw of
each wrong one is named, and no other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from kvcache_ops import conformance

import vectorized
import vectorized_attention
from vectorized import HalfAway, NibblesSwapped, Right

ROOT = Path(__file__).resolve().parents[1]
# Cases of which few tell wrong implementations apart.
TELLING = {
    "key-value-cache": ("edges", "group", "layer", "pages", "poison", "rounding", "scale"),
    "attention": ("alibi", "causal", "chunked", "mask", "packed-more", "shared"),
}
FOLDERS = {"key-value-cache": "cases", "attention": "attention_cases"}
RIGHT = [vectorized.Right, vectorized_attention.Right, vectorized_attention.RightInT1]
WRONG = vectorized.WRONG | vectorized_attention.WRONG


def suite_of(implementation: type) -> str:
    """The suite of an implementation."""
    return "key-value-cache" if issubclass(implementation, Right) else "attention"


@pytest.fixture(scope="module")
def some_cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A fifteenth of the cases of a suite, the same whatever others there are, and those that tell."""
    folder = tmp_path_factory.mktemp("cases")
    for suite, name in FOLDERS.items():
        for case in (ROOT / "golden" / name).iterdir():
            if crc32(case.name.encode()) % 15 == 0 or case.name.startswith(TELLING[suite]):
                shutil.copytree(case, folder / suite / case.name)
    return {suite: folder / suite for suite in FOLDERS}


def diagnosis(report: conformance.Report) -> list[str]:
    """What explains the failures, a line for each reason."""
    return json.loads(report.json()).get("diagnosis", [])


@pytest.mark.parametrize("right", RIGHT, ids=lambda right: f"{right.__module__}.{right.__name__}")
def test_the_right_ones_pass(right: type) -> None:
    """Every case, and random ones of those that there are; nothing is diagnosed."""
    suite = suite_of(right)
    report = conformance.run(right(), suite=suite, random=200 if suite == "key-value-cache" else 0, seed=11)
    report.raise_for_failures()
    assert report.passed == len(report.cases) > 300 and diagnosis(report) == []


@pytest.mark.parametrize("wrong", list(WRONG), ids=lambda wrong: f"{wrong.__module__}.{wrong.__name__}")
def test_the_flaw_of_each_wrong_one_is_named(wrong: type, some_cases: dict[str, Path]) -> None:
    """For the run as a whole, and for each case that failed."""
    suite = suite_of(wrong)
    report = conformance.run(wrong(), suite=suite, cases=some_cases[suite])
    name = WRONG[wrong]
    assert report.passed and {case.diagnosis and case.diagnosis.mistake for case in report.failures} == {name}
    (line,) = diagnosis(report)
    assert f"what {name} gives" in line, line


def test_a_flaw_of_a_part_is_named_with_the_part() -> None:
    """One type of all. Fewer cases leave open which part it is."""
    report = conformance.run(vectorized.partly(HalfAway, lambda a: a.quant_bit == 4))
    (line,) = diagnosis(report)
    assert "what half-away-from-even gives" in line and "Only where T2 is int4." in line, line


def test_what_is_unknown_is_not_explained_away(some_cases: dict[str, Path]) -> None:
    """Neither garbage nor a refusal of legal calls is taken for a known mistake."""
    for wrong in (vectorized.GarbageInOdd, vectorized.RefusesGroups):
        report = conformance.run(wrong(), cases=some_cases["key-value-cache"])
        named = {case.diagnosis.mistake for case in report.failures if case.diagnosis is not None}
        assert len(report.failures) > 5 and not named, (wrong, named)
    assert {case.difference.kind for case in report.failures if case.difference} == {"refused"}
    assert "quant_group > 16" in report.text()


def test_what_an_implementation_says_does_nothing_to_a_terminal(some_cases: dict[str, Path]) -> None:
    """Control characters of its messages are shown, not sent."""

    def refuse(*_: Any) -> Any:
        raise ValueError("\x1b]0;title\x07\x1b[2J\r\u202e")

    text = conformance.run(refuse, cases=some_cases["key-value-cache"]).text(rules=True)
    assert not set(text) & set("\x1b\x07\r\u202e")
    assert "\\u{1b}[2J" in text


def test_the_shape_of_a_packed_cache_is_compared(some_cases: dict[str, Path]) -> None:
    """Its bytes alone do not make it right."""

    def flat(attributes: Any, inputs: Any, cache: Any, scale: Any) -> Any:
        key, value = Right()(attributes, inputs, cache, scale)
        return key, value, cache.reshape(-1) if cache.dtype == "uint8" else cache, scale

    report = conformance.run(flat, cases=some_cases["key-value-cache"])
    legal = [case.difference for case in report.failures if not case.name.startswith("refuse")]
    assert legal and {(difference.kind, difference.tensor) for difference in legal} == {("form", "cache")}


@pytest.mark.parametrize("wrong", (Right, NibblesSwapped), ids=lambda value: value.__name__)
def test_as_a_program_that_serves(wrong: type[Right], tmp_path: Path) -> None:
    """The same through kvcache-conformance, which starts Python once for each job."""
    built = os.environ.get("KVCACHE_CONFORMANCE")
    cargo = ["cargo", "run", "--quiet", "--locked", "--manifest-path", str(ROOT / "Cargo.toml")]
    command = [built] if built else [*cargo, "-p", "kvcache-conformance", "--"]
    command += ["--program", f"'{sys.executable}' '{vectorized.__file__}' {wrong.__name__}", "--serve", "--jobs", "2"]
    output = tmp_path / "report.json"
    command += [
        "--filter",
        "mode0" if wrong is Right else "layout3-paged",
        "--suite",
        "key-value-cache",
        "--report",
        "json",
        "--output",
        str(output),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == (wrong is not Right), done.stdout + done.stderr
    report = json.loads(output.read_text())
    assert report["summary"]["passed"] >= 12
    if wrong is not Right:
        failed = [case for case in report["cases"] if case["verdict"] == "failed"]
        assert failed and {case["diagnosis"]["mistake"] for case in failed} == {"nibbles-swapped"}
