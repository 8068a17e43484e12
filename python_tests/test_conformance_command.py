"""`python -m kvcache_ops conformance`: on a callable, on programs, and on a library of ONNX Runtime."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy.random
import pytest
import yaml
from kvcache_ops import conformance
from kvcache_ops.cli._command import main
from kvcache_ops.conformance._call import NotRun
from kvcache_ops.conformance._library import Library
from kvcache_ops.conformance._program import Program
from kvcache_ops.conformance._run import run_suites
from safetensors.numpy import load_file, save_file

from sessions import find_library
from test_conformance import GOLDEN, some_cases

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
        (["mine:wrong", "--only", "pagesize=1", *FEW], "only: no case has a property called"),
        (["mine:wrong", "--suite", "static", "--cases", str(tmp_path / "absent")], "cases"),
        (["--ort-library", "/no/such/library.so"], "/no/such/library.so"),
        (["--ort-library", numpy.random.mtrand.__file__], "RegisterCustomOps"),
        (["--ort-library", str(find_library()), "--provider", "cuda"], "CUDAExecutionProvider"),
        (["--ort-library", str(find_library()), "--cases", str(tmp_path)], "expected one --suite"),
        (["--program", "true {case}"], "has no {output}"),
        (["--program", "true {case} {output}", "--serve"], "reads the paths from its standard input"),
        (["--program", "./nope"], "there is no program './nope'"),
        (["--program", "'"], "cannot be split into words"),
        (["--program", "true", "--suite", "attention", "--random", "5"], "no_random"),
        (["--export-onnx", str(tmp_path / "tests"), "--filter", "no such case"], "no_case"),
        (["--export-onnx", str(tmp_path / "tests"), "--only", "T1=float32"], "--only is about cases that are run"),
        (["--list", "--suite", "static", "--cases", "x" * 300], "cases"),
        (["mine:Right.call", "--suite", "static", "--suite", "key-value-cache"], "one suite at a time"),
        (["mine:Right.call", *FEW, "--output", str(tmp_path / "absent" / "file")], "No such file or directory"),
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
    """A library without the operators is not tested. Of one that has some, cases of the others are unsupported."""
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
    """Another process runs the other cases."""

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

    library = Misbehaving(find_library())
    report = run_suites(library, ["key-value-cache"], int4="unpacked", filter="decode-mode0-f32")
    (failure,) = report.failures
    assert failure.difference is not None and report.passed == len(report.cases) - 1 > 1
    assert failure.difference.kind == "could-not-run" and text in failure.difference.text


def report_on(script: str, tmp_path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """The exit status and the report on a script of the shell, by default on FEW cases.

    A case's own tensors have the names that a result needs.
    """
    program, report = tmp_path / "my program.sh", tmp_path / "report.json"
    program.write_text(script)
    command = ["--program", f"sh '{program}' {{case}} {{output}}" if "--serve" not in options else f"sh '{program}'"]
    status = main(["conformance", *command, *(options or FEW), "--report", "json", "--output", str(report)])
    return status, json.loads(report.read_text())


RIGHT = 'cp "$1/tensors.safetensors" "$2"'


def test_a_program(tmp_path: Path) -> None:
    """It passes with the right answers alone; a crash, no result and a wrong one fail their case."""
    status, report = report_on(RIGHT, tmp_path)
    assert status == 0 and report["conforms"] and report["summary"]["passed"] == len(report["cases"]) > 5
    for script, text in [
        ("echo no such operator >&2; exit 3", "the program ended with exit status 3: no such operator"),
        ("true", "wrote no result"),
        ('echo rubbish > "$2"', "result cannot be read"),
        (f"{RIGHT}; echo at the end; kill -SEGV $$", "the program ended with SIGSEGV: at the end"),
        ('mkfifo "$2"', "no regular file"),
    ]:
        status, report = report_on(script, tmp_path)
        assert status == 1 and report["summary"]["failed"] == len(report["cases"])
        assert all(text in case["difference"]["text"] for case in report["cases"]), (script, report["cases"][0])
    # It is given random cases, too, and the folders of all suites; its refusals have messages alone.
    refused = 'grep -q error "$1/case.yaml" && exit 9; ' + RIGHT
    status, report = report_on(refused, tmp_path, "--random", "30", "--seed", "5", "--filter", "random-5-")
    ended = {case["verdict"]: case.get("difference", {}).get("text") for case in report["cases"]}
    assert ended == {"passed": None, "failed": "the program ended with exit status 9"} and len(report["cases"]) == 60
    status, report = report_on(RIGHT, tmp_path, "--cases", str(GOLDEN), "--filter", "large-layers40", "--jobs", "2")
    assert {case["suite"] for case in report["cases"]} == set(conformance.SUITES) and report["summary"]["passed"] > 4


def test_a_program_that_serves_is_started_again(tmp_path: Path) -> None:
    """One process runs many cases. One that crashes or hangs fails its case, and another one runs the next."""
    script = """
    tab=$(printf '\\t')
    while IFS="$tab" read -r case output; do
        case "$(cat "$case/case.yaml")" in
            *'T2: int4'*) echo ouch >&2; kill -SEGV $$;;
            *'T2: int8'*) sleep 60;;
            *'cache_mode: 1'*) echo no pages;;
            *) cp "$case/tensors.safetensors" "$output"; echo done;;
        esac
    done
    echo end >> "$(dirname "$0")/ends"
    """
    options = ["--serve", "--timeout", "2", "--jobs", "1", *FEW]
    status, report = report_on(script, tmp_path, *options)
    texts = {case.get("difference", {}).get("text") for case in report["cases"]}
    crash, hang = "the program ended with SIGSEGV: ouch", "the program was ended after 2 seconds"
    answer = "the program answered 'no pages', expected 'done'"
    assert status == 1 and texts == {None, crash, hang, answer}
    # One that has nothing to do waits, and ends with its input.
    assert (tmp_path / "ends").read_text() == "end\n"


def test_a_program_declines_and_leaves_nothing(tmp_path: Path) -> None:
    """A case that the program declines is unsupported. A child that it leaves behind is ended."""
    save_file({}, tmp_path / "declined", {"0.unsupported": "no pages"})
    script = f"""
    (while mkdir -p "$2.left"; do :; done) &
    case "$(cat "$1/case.yaml")" in *'cache_mode: 1'*) cp '{tmp_path}/declined' "$2";; *) {RIGHT};; esac
    """
    status, report = report_on(script, tmp_path)
    reasons = {case.get("reason") for case in report["cases"] if case["verdict"] == "unsupported"}
    assert status == 0 and reasons == {"no pages"} and report["summary"]["failed"] == 0


def test_a_disk_that_is_full_fails_the_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk fails the case, and the run goes on."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        status, report = report_on(RIGHT, tmp_path)
    texts = {(case["verdict"], case["difference"]["text"]) for case in report["cases"]}
    assert status == 1 and texts == {("failed", "[Errno 28] No space left on device")}


def test_a_program_that_begins_after_an_interruption_is_ended() -> None:
    """A program that starts after the interrupt is ended at once."""
    program = Program("sleep 60", limit=60)
    program.interrupted = True
    with pytest.raises(NotRun, match="SIGKILL"):
        program._run("1", "2")


def test_a_program_that_hangs_is_ended(tmp_path: Path) -> None:
    """The program ends with every process that it has started, even if one holds its outputs open."""
    mark, start = tmp_path / "mark", time.monotonic()
    options = ["--timeout", "0.3", "--jobs", "1", "--suite", "key-value-cache", "--filter", "decode-mode0-f32-f32"]
    status, report = report_on(f"(sleep 2; touch '{mark}') & echo waiting; wait", tmp_path, *options)
    (case,) = report["cases"]
    assert status == 1 and case["difference"]["text"] == "the program was ended after 0.3 seconds: waiting"
    time.sleep(max(0, 2.5 - (time.monotonic() - start)))
    assert not mark.exists()


def test_a_packed_cache_has_its_shape(tmp_path: Path) -> None:
    """The bytes of an int4 cache lie in one row, as in the case, or have its axes, two elements in a byte."""
    name = "chunked-prefill-mode0-f32-int4-f32"
    axes = yaml.safe_load((GOLDEN / "cases" / name / "case.yaml").read_text())["int4"]["cache"]
    tensors = load_file(GOLDEN / "cases" / name / "tensors.safetensors")
    for shape, status in (((-1,), 0), ((*axes[:-1], axes[-1] // 2), 0), ((-1, 2), 1)):
        of = {key: x.reshape(shape) if key.endswith("cache") else x for key, x in tensors.items()}
        save_file(of, tmp_path / "result")
        options = ["--suite", "key-value-cache", "--filter", name]
        got, report = report_on(f"cp '{tmp_path}/result' \"$2\"", tmp_path, *options)
        assert got == status
    assert f"expected [{tensors['cache'].size}] or" in report["cases"][0]["difference"]["text"]
