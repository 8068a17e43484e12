"""Implementations in whole numpy arrays, right and wrong, through the conformance kit: the right one passes, the flaw
of each wrong one is named, and no other."""

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
from sample import every

import vectorized
from vectorized import NibblesSwapped, PageNumbers, Right

ROOT = Path(__file__).resolve().parents[1]
# Cases of which few tell wrong implementations apart.
TELLING = ("edges", "group", "layer", "pages", "poison", "rounding", "scale")


def test_the_right_one_passes() -> None:
    """Every case, and random ones."""
    report = conformance.run(Right(), random=200, seed=11)
    report.raise_for_failures()
    assert report.passed == len(report.cases) > 700
    assert "diagnosis" not in json.loads(report.json())


@pytest.fixture(scope="module")
def some_cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fifth of the cases, the same whatever others there are, and those that tell: a diagnosis takes longer
    than all calls."""
    folder = tmp_path_factory.mktemp("cases")
    for case in (ROOT / "golden/cases").iterdir():
        if crc32(case.name.encode()) % 5 == 0 or case.name.startswith(TELLING):
            shutil.copytree(case, folder / case.name)
    return folder


@pytest.mark.parametrize("wrong", list(vectorized.WRONG)[:: every(6)], ids=lambda wrong: wrong.__name__)
def test_the_flaw_of_each_wrong_one_is_named(wrong: type[Right], some_cases: Path) -> None:
    """For the run as a whole, and for each case that failed."""
    report = conformance.run(wrong(), cases=some_cases)
    name = vectorized.WRONG[wrong]
    assert report.passed and {case.diagnosis and case.diagnosis.mistake for case in report.failures} == {name}
    assert_named(json.loads(report.json()), name)


@pytest.mark.parametrize("flaw", vectorized.PARTLY[:: every(6)], ids=lambda flaw: flaw[0].__name__)
def test_a_flaw_of_a_part_is_named_with_the_part(flaw: Any) -> None:
    """One type, one mode, one layout, one value of an attribute. Fewer cases leave open which part it is."""
    wrong, where, part = flaw
    report = conformance.run(vectorized.partly(wrong, where))
    (line,) = json.loads(report.json())["diagnosis"]
    assert f"what {vectorized.WRONG[wrong]} gives" in line and part in line, line
    assert "Not in all" not in line


def test_refusals_of_unknown_reason_are_not_explained_away() -> None:
    """That a call was refused speaks for hardly any mistake that refuses other calls, if there are enough calls."""
    report = conformance.run(vectorized.RefusesOdd())
    undiagnosed = [case for case in report.failures if case.diagnosis is None]
    assert report.failed and len(undiagnosed) >= 0.9 * report.failed, json.loads(report.json())["diagnosis"]
    assert "are what no known mistake gives" in json.loads(report.json())["diagnosis"][-1]


@pytest.mark.parametrize("wrong", (vectorized.RefusesOdd, vectorized.RefusesMixedBatches, vectorized.GarbageInOdd))
def test_a_part_of_the_cases_explains_away_no_more(wrong: type[Right], some_cases: Path) -> None:
    """Nor do pairs of mistakes, of which there are so many that some fit by chance."""
    report = conformance.run(wrong(), cases=some_cases)
    undiagnosed = [case for case in report.failures if case.diagnosis is None]
    lines = json.loads(report.json())["diagnosis"]
    assert report.failed > 15 and len(undiagnosed) == report.failed, lines
    (line,) = lines
    assert "are what no known mistake gives" in line


def test_what_explains_calls_that_were_made_explains_no_refusals() -> None:
    """Where calls that were made contradict it. Random cases have bounds of 33 bits and more."""
    report = conformance.run(vectorized.RefusesOddWithoutBounds(), random=400, seed=7, filter="random")
    refused = [case for case in report.failures if case.difference.kind == "refused"]
    assert {case.diagnosis for case in refused} == {None} and len(report.failures) > len(refused) > 150
    assert "accepts-small-max-kvlen" in str(json.loads(report.json())["diagnosis"])


def test_refusals_are_told_by_what_they_say() -> None:
    """A mistake that explains those that say the same is named, however many others say something else."""
    report = conformance.run(vectorized.RefusesForTwoReasons())
    named = {(case.diagnosis and case.diagnosis.mistake, "empty" in case.difference.text) for case in report.failures}
    lines = json.loads(report.json())["diagnosis"]
    assert named == {("idle-sequences-refused", True), (None, False)}, lines
    assert "what idle-sequences-refused gives" in lines[0] and "Only where cache_mode is 1." in lines[0], lines
    assert len(lines) == 2 and "what no known mistake gives" in lines[1], lines


def test_refusals_of_a_part_are_told_by_the_part(some_cases: Path) -> None:
    """Where no special reason explains them."""
    report = conformance.run(vectorized.RefusesPaged(), cases=some_cases)
    lines = json.loads(report.json())["diagnosis"]
    assert "what legal-calls-refused gives" in lines[0] and "Only where cache_mode is 1." in lines[0], lines


def test_what_an_implementation_says_does_nothing_to_a_terminal(some_cases: Path) -> None:
    """Control characters of its messages are shown, not sent."""

    def refuse(*_: Any) -> Any:
        raise ValueError("\x1b]0;title\x07\x1b[2J\r\u202e")

    text = conformance.run(refuse, cases=some_cases).text(rules=True)
    assert not set(text) & set("\x1b\x07\r\u202e")
    assert "\\u{1b}[2J" in text


def test_the_shape_of_a_packed_cache_is_compared(some_cases: Path) -> None:
    """Its bytes alone do not make it right."""

    def flat(attributes: Any, inputs: Any, cache: Any, scale: Any) -> Any:
        key, value = Right()(attributes, inputs, cache, scale)
        return key, value, cache.reshape(-1) if cache.dtype == "uint8" else cache, scale

    report = conformance.run(flat, cases=some_cases)
    legal = [case for case in report.failures if not case.name.startswith("refuse")]
    assert legal and {(case.difference.kind, case.difference.tensor) for case in legal} == {("form", "cache")}


def assert_named(report: dict[str, Any], name: str) -> None:
    """One line explains all failures, by this mistake alone."""
    (line,) = report["diagnosis"]
    failed = report["summary"]["failed"]
    expected = f"{failed} of {failed} failures are" if failed > 1 else "the failure is"
    assert line.startswith(f"{expected} what {name} gives: "), line


@pytest.mark.parametrize(
    ("wrong", "cases"),
    [(Right, "layout3-paged-f16"), (NibblesSwapped, "layout3-paged-f16"), (PageNumbers, "pages-at-slots")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_as_a_program(wrong: type[Right], cases: str, tmp_path: Path) -> None:
    """The same through kvcache-conformance, which starts Python for each case."""
    program = f"'{sys.executable}' '{vectorized.__file__}' {wrong.__name__} {{case}} {{output}}"
    cargo = ["cargo", "run", "--quiet", "--locked", "--manifest-path", str(ROOT / "Cargo.toml")]
    built = os.environ.get("KVCACHE_CONFORMANCE")
    command = [built] if built else [*cargo, "-p", "kvcache-conformance", "--"]
    command += ["--program", program, "--filter", cases]
    output = tmp_path / "report.json"
    command += ["--suite", "key-value-cache", "--report", "json", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == (wrong is not Right), done.stdout + done.stderr
    report = json.loads(output.read_text())
    if wrong is Right:
        assert report["summary"]["passed"] == 12 and "diagnosis" not in report
    else:
        assert_named(report, vectorized.WRONG[wrong])
