"""`python -m kvcache_ops conformance`: on a callable, and on a library of ONNX Runtime in a process of its own."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy.random
import pytest
from kvcache_ops import conformance
from kvcache_ops._command import main
from kvcache_ops.conformance._library import Library
from kvcache_ops.conformance._run import run_suites

from kvcache import find_library
from test_conformance import some_cases

FEW = ["--suite", "key-value-cache", "--cases", some_cases("cases", "chunked-prefill").name]


def test_a_callable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 0, 1, 2; what is asked for on standard output or in a file."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine.py").write_text(
        "import kvcache_ops\n"
        "class Right:\n"
        "    @staticmethod\n"
        "    def call(attributes, inputs, cache, scale):\n"
        "        return kvcache_ops.run(attributes, **inputs, cache=cache, scale=scale)\n"
        "def wrong(*call):\n"
        "    key, value = Right.call(*call)\n"
        "    return value, key\n"
    )
    assert main(["conformance", "mine:Right.call", *FEW]) == 0
    out = capsys.readouterr().out
    assert "passed, 0 failed" in out.splitlines()[-1] and "mine:Right.call" in out and "KeyValueCache" in out
    assert main(["conformance", "mine:wrong", *FEW, "--report", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["implementation"] == "mine:wrong" and document["summary"]["passed"] == 0
    assert main(["conformance", "mine:wrong", *FEW, "--report", "junit"]) == 1
    assert len(ElementTree.fromstring(capsys.readouterr().out).findall(".//failure")) == document["summary"]["failed"]
    file = tmp_path / "report.json"
    assert main(["conformance", "mine:Right.call", *FEW, "--report", "json", "--output", str(file)]) == 0
    assert json.loads(file.read_text())["conforms"] and "passed, 0 failed" in capsys.readouterr().out
    for arguments, text in [
        (["mine"], "expected MODULE:CALLABLE"),
        (["no_such_module:f"], "no_such_module"),
        (["mine:nothing"], "mine has no nothing"),
        (["mine:Right", *FEW], "cannot be called with"),
        (["mine:wrong", "--filter", "no such case"], "no_case"),
        (["mine:wrong", "--profile", str(tmp_path / "absent")], "profile"),
        (["mine:wrong", "--suite", "static", "--cases", str(tmp_path / "absent")], "cases"),
        (["--ort-library", "/no/such/library.so"], "/no/such/library.so"),
        (["--ort-library", numpy.random.mtrand.__file__], "RegisterCustomOps"),
        (["--ort-library", str(find_library()), "--provider", "cuda"], "CUDAExecutionProvider"),
        (["--ort-library", str(find_library()), "--cases", str(tmp_path)], "expected one --suite"),
        (["--export-onnx", str(tmp_path / "tests"), "--filter", "no such case"], "no_case"),
    ]:
        assert main(["conformance", *arguments]) == 2
        got = capsys.readouterr()
        assert text in got.err and len(got.err.splitlines()) == 1 and not got.out


@pytest.mark.runtime
@pytest.mark.parametrize("domains", [(), ("--domain", "pmx.dynamic_batching", "--static-domain", "pmx")])
def test_our_library_conforms(domains: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Every golden case in ONNX Runtime, with the messages that it asks for; some of them in the older domains."""
    options = ["--messages", "--report", "json", *domains, *(["--filter", "f16-int4-f16"] if domains else [])]
    assert main(["conformance", "--ort-library", str(find_library()), *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {case["suite"] for case in document["cases"]} == set(conformance.SUITES)
    assert document["summary"]["passed"] == len(document["cases"]) > (20 if domains else 1200)


def test_a_library_without_the_operators_is_a_fault_of_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    """It is not tested at all. One that has some of them is: cases of the others are unsupported."""
    library = ["--ort-library", str(find_library()), "--domain", "no.such.domain", "--filter", "decode-mode0-f32-f32"]
    assert main(["conformance", *library, "--suite", "key-value-cache"]) == 2
    got = capsys.readouterr()
    assert not got.out and got.err.startswith("library: ") and "no.such.domain (--domain)" in got.err
    both = ["--suite", "key-value-cache", "--suite", "static", "--filter", "large-layers40"]
    assert main(["conformance", *library, *both]) == 0
    assert "unsupported: the library registers no KeyValueCache in no.such.domain (" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("with_signal", "text"), [(signal.SIGSEGV, "ended with SIGSEGV"), (signal.SIGSTOP, "no answer within 2 s")]
)
def test_a_crash_and_a_hang_fail_their_case_and_the_others_are_run(with_signal: int, text: str) -> None:
    """By another process."""

    class Misbehaving(Library):
        calls = 0

        def __call__(self, *call: Any) -> Any:
            self.calls += 1
            if self.calls == 2:
                assert self.worker is not None and self.worker.process.pid is not None
                os.kill(self.worker.process.pid, with_signal)
                self.limit = 2
            else:
                self.limit = 60
            return super().__call__(*call)

    options: dict[str, Any] = {"profile": None, "messages": False, "random": 0, "seed": 0, "cases": None, "name": None}
    library = Misbehaving(find_library())
    report = run_suites(library, ["key-value-cache"], int4="unpacked", filter="decode-mode0-f32", **options)
    (failure,) = report.failures
    assert failure.difference is not None and report.passed == len(report.cases) - 1 > 1
    assert failure.difference.kind == "could-not-run" and text in failure.difference.text
