"""`python -m kvcache_ops`: doctor and its self-test, and the table of sizes."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import kvcache_ops
import numpy as np
import onnxruntime
import pytest
from kvcache_ops import CacheSpec
from kvcache_ops.cli import _doctor, _selftest
from kvcache_ops.cli._command import main

ROOT = Path(__file__).resolve().parents[1]


def test_doctor() -> None:
    """The doctor as a user calls it: what is installed, two self-tests, exit code 0. Its models are up to date."""
    models = runpy.run_path(str(ROOT / "python/selftest/write_models.py"))["models"]()
    assert models == json.loads((ROOT / "python/kvcache_ops/cli" / _selftest.FILE).read_text())
    command = [sys.executable, "-m", "kvcache_ops", "doctor", str(ROOT / "examples/austen/decoder_fused.onnx")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0 and not run.stderr, run
    lines = {name: text.strip() for name, _, text in (line.partition(":") for line in run.stdout.splitlines())}
    assert lines["kvcache_ops"] == f"{kvcache_ops.__version__}, {kvcache_ops.library_path()}"
    assert "portable" in lines["instruction sets"] and "calls use cpu-" in lines["instruction sets"]
    assert lines["CUDA"].startswith(("found", "not found: "))
    assert lines["onnxruntime"].startswith(f"{onnxruntime.__version__}, supported")
    for name in ("self-test, run()", "self-test, onnxruntime"):
        assert lines[name].startswith(f"{len(models)} of {len(models)} golden cases pass")
    assert lines["model"].endswith("decoder_fused.onnx: our nodes' attributes are known, their states are its inputs")
    assert lines["result"] == "everything that is here works"


def test_the_self_test_finds_a_wrong_bit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In whatever way the calls are made; the case is named, and the exit code is 1."""

    def wrong(call: _selftest.Call) -> _selftest.Call:
        def changed(*given: Any) -> Any:
            outputs = call(*given)
            given[3].view(np.uint8).reshape(-1)[-1] ^= 1
            return outputs

        return changed

    of_runtime = _selftest.through_onnxruntime
    monkeypatch.setattr(_doctor, "through_run", wrong(_selftest.through_run))
    monkeypatch.setattr(_doctor, "through_onnxruntime", lambda runtime: wrong(of_runtime(runtime)))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert out.count(" 0 of 17 golden cases pass") == 2 and "something does not work" in out
    assert out.count("decode-mode0-f32-f32: call 0: cache differs at element") == 2


def test_cases_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged installation is reported, not a crash."""
    monkeypatch.setattr(_selftest, "FILE", "missing.json")
    assert main(["doctor"]) == 1
    assert "the cases of the package cannot be made: FileNotFoundError" in capsys.readouterr().out


def test_an_old_onnxruntime(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An ONNX Runtime that is too old runs nothing."""
    monkeypatch.setattr(onnxruntime, "__version__", "1.19.2")
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "onnxruntime is 1.19.2, which is too old: kvcache_ops works with onnxruntime 1.20 and later" in out
    assert "self-test, onnxruntime" not in out


def test_without_onnxruntime(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime is optional: all else works. An installed one that cannot be imported is a fault."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["doctor"]) == 1
    monkeypatch.setattr(_doctor, "_installed", lambda package: None)
    capsys.readouterr()
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "not found (" in out and "self-test, run():" in out and "self-test, onnxruntime" not in out


def test_size(capsys: pytest.CaptureFixture[str]) -> None:
    """The numbers of LLaMA 8B: two bytes for each element of keys and values in float16, and so on."""
    assert main(["size", "--layers", "32", "--heads", "8", "--head-dim", "128"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["cache", "scale", "group", "current", "bytes", "per", "token", "tokens", "per", "GiB"]
    rows = {}
    for line in lines:
        cache, scale, group, *_, taken, tokens = line.split()
        rows[cache, scale, group] = (int(taken.replace(",", "")), int(tokens.replace(",", "")))
    elements = 32 * 2 * 8 * 128
    assert rows["float16", "-", "-"] == (elements * 2, 8192)
    assert rows["float32", "-", "-"] == (elements * 4, 4096)
    assert rows["int8", "-", "-"] == (elements, 16384)
    for group in (8, 32, 128):
        for cache, half_bytes in (("int8", 2), ("float8e4m3fn", 2), ("int4", 1)):
            for scale, size in (("float32", 4), ("float16", 2)):
                taken = elements * half_bytes // 2 + elements // group * size
                assert rows[cache, scale, str(group)] == (taken, 2**30 // taken)
    assert rows["bfloat16", "-", "-"] == rows["float16", "-", "-"]
    assert len(rows) == len(lines) == 22
    assert main(["size"]) == 0
    out = capsys.readouterr()
    assert out.out.splitlines() == [header, *lines] and out.err.startswith("32 layers, 8 heads, head_dim 128: ")


def test_sizes_of_other_groups(capsys: pytest.CaptureFixture[str]) -> None:
    """Groups asked for on the command line; where no usual group divides a head, the whole head is one."""
    assert main(["size", "--layers", "2", "--heads", "1", "--head-dim", "96", "--quant-group", "48"]) == 0
    assert {line.split()[2] for line in capsys.readouterr().out.splitlines()[1:]} == {"-", "48"}
    assert main(["size", "--layers", "2", "--heads", "1", "--head-dim", "36"]) == 0
    assert {line.split()[2] for line in capsys.readouterr().out.splitlines()[1:]} == {"-", "36"}
    spec = CacheSpec(1, 1, 36, num_layers=2, quant_bit=4, quant_group=36)
    assert spec.bytes_per_token == 2 * 2 * (18 + 2)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--head-dim", "100", "--quant-group", "32"], "head_dim_not_divisible: head_dim is 100"),
        (["--head-dim", "0"], "spec_range: head_dim is 0, expected at least 1"),
        (["--head-dim", "128", "--layers", "0"], "attribute_out_of_range: attribute num_layer is 0"),
    ],
)
def test_sizes_that_are_refused(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the library's sentence and exit code 2, and no half of a table."""
    assert main(["size", "--layers", "32", "--heads", "8", *arguments]) == 2
    out = capsys.readouterr()
    assert out.err.startswith(text) and not out.out
