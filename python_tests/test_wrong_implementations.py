"""Implementations in whole numpy arrays, right and wrong, through the conformance kit: the right one passes, the flaw
of each wrong one is named, and no other."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kvcache_ops import conformance

import vectorized
from vectorized import NibblesSwapped, PageNumbers, Right

ROOT = Path(__file__).resolve().parents[1]
# Cases of the arithmetic: few of them tell wrong implementations apart.
ARITHMETIC = ("edges", "group", "poison", "rounding", "scale")


def test_the_right_one_passes() -> None:
    """Every case, and random ones."""
    report = conformance.run(Right(), random=200, seed=11)
    report.raise_for_failures()
    assert report.passed == len(report.cases) > 700
    assert "diagnosis" not in json.loads(report.json())


@pytest.fixture(scope="module")
def some_cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fifth of the cases, and those of the arithmetic: a diagnosis takes longer than all calls."""
    folder = tmp_path_factory.mktemp("cases")
    for number, case in enumerate(sorted((ROOT / "golden/cases").iterdir())):
        if number % 5 == 0 or case.name.startswith(ARITHMETIC):
            shutil.copytree(case, folder / case.name)
    return folder


@pytest.mark.parametrize("wrong", vectorized.WRONG, ids=lambda wrong: wrong.__name__)
def test_the_flaw_of_each_wrong_one_is_named(wrong: type[Right], some_cases: Path) -> None:
    """For the run as a whole, and for each case that failed."""
    report = conformance.run(wrong(), cases=some_cases)
    name = vectorized.WRONG[wrong]
    assert report.passed and {case.diagnosis and case.diagnosis.mistake for case in report.failures} == {name}
    assert_named(json.loads(report.json()), name)


def assert_named(report: dict[str, Any], name: str) -> None:
    """One line explains all failures, by this mistake alone."""
    (line,) = report["diagnosis"]
    failed = report["summary"]["failed"]
    expected = f"{failed} of {failed} failures are" if failed > 1 else "the failure is"
    assert line.startswith(f"{expected} what {name} gives: "), line


@pytest.mark.skipif(shutil.which("cargo") is None, reason="there is no cargo, which builds the program")
@pytest.mark.parametrize(
    ("wrong", "cases"),
    [(Right, "layout3-paged-f16"), (NibblesSwapped, "layout3-paged-f16"), (PageNumbers, "pages-at-slots")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_as_a_program(wrong: type[Right], cases: str, tmp_path: Path) -> None:
    """The same through kvcache-conformance, which starts Python for each case."""
    program = f"'{sys.executable}' '{vectorized.__file__}' {wrong.__name__} {{case}} {{output}}"
    command = ["cargo", "run", "--quiet", "--locked", "--manifest-path", str(ROOT / "Cargo.toml")]
    command += ["-p", "kvcache-conformance", "--", "--program", program, "--filter", cases]
    output = tmp_path / "report.json"
    command += ["--suite", "key-value-cache", "--report", "json", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == (wrong is not Right), done.stdout + done.stderr
    report = json.loads(output.read_text())
    if wrong is Right:
        assert report["summary"]["passed"] == 12 and "diagnosis" not in report
    else:
        assert_named(report, vectorized.WRONG[wrong])
