"""The guides to PMX exports and to ONNX tools do what they say."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from pmx_export import export
from pmx_params import Params, random_weights

DOCS = Path(__file__).resolve().parents[1] / "docs"


def blocks(page: str, language: str) -> list[str]:
    """The blocks of a language, each behind as many empty lines as are before it, so that tracebacks name its lines."""
    text = (DOCS / page).read_text()
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return ["\n" * text.count("\n", 0, block.start(1)) + block[1] for block in found]


@pytest.fixture(params=[{}, {"cache_quant_bit": 8}, {"fused_kvcache": False}], ids=["fused", "int8", "unfused"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with an export as the exporter leaves it, weights in a file beside the model."""
    params = Params(vocab_size=64, **request.param)
    home = tmp_path / "export/model_slice_0"
    home.mkdir(parents=True)
    model = export(params, random_weights(params))
    onnx.save(model, home / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    monkeypatch.chdir(tmp_path)
    return home


def run_blocks(page: str, count: int) -> None:
    """Runs the Python blocks as they stand, in one program; each has assertions of its own."""
    names: dict[str, object] = {}
    code = blocks(page, "python")
    assert len(code) == count
    for block in code:
        assert "assert" in block
        exec(compile(block, page, "exec"), names)


def test_the_guide_to_exports(folder: Path) -> None:
    """It leaves a model beside the export."""
    run_blocks("pmx.md", 4)
    assert (folder / "lowered.onnx").exists()


@pytest.mark.skipif(
    not hasattr(onnx.defs.OpSchema, "set_type_and_shape_inference_function"),
    reason="this onnx takes no inference functions from Python",
)
def test_the_guide_to_tools() -> None:
    """In whatever order the tests are run."""
    run_blocks("onnx.md", 3)


def test_the_command_runs(folder: Path) -> None:
    """It writes the model that the blocks run."""
    (block,) = blocks("pmx.md", "sh")
    (line,) = (line for line in block.split("\n") if line.startswith("python"))
    subprocess.run([sys.executable, *shlex.split(line)[1:]], check=True, capture_output=True)
    assert onnx.load(folder / "lowered.onnx", load_external_data=False).functions
