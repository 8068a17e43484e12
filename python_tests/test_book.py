"""The Python of the book and of the front page runs as it stands, and the package's commands do too."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from io import StringIO
from pathlib import Path

import onnx
import pytest

import pages
from pmx_export import Params, export
from sessions import find_library

CASES = "golden/cases"
# Their programs begin with a model in the working folder.
WITH_EXPORT, WITH_CHECKPOINT, WITH_SERVER = "pmx.md", "models.md", "http.md"
WITH_MODEL = (WITH_EXPORT, WITH_CHECKPOINT, WITH_SERVER)
BOOK = sorted(pages.DOCS.glob("*.md"))
PROGRAMS = [
    page for page in [pages.ROOT / "README.md", *BOOK] if pages.python_blocks(page) and page.name not in WITH_MODEL
]


def lines(text: str) -> list[str]:
    """Lines, each with those that a backslash joins to it."""
    return text.replace("\\\n", " ").split("\n")


COMMANDS = [
    (page, line)
    for page in BOOK
    if page.name not in WITH_MODEL
    for block in pages.blocks(page)
    if block.language == "sh" and block.not_run is None
    for line in lines(block.text)
    if line.startswith("python -m kvcache_ops") and not line.endswith(" doctor")  # which test_command.py runs
]
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
INFERENCE = hasattr(onnx.defs.OpSchema, "set_type_and_shape_inference_function")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder: what a page writes does not stay."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PROGRAMS, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path, folder: Path) -> None:
    """The blocks of a page are one program from top to bottom; they assert what they say."""
    if page.name == "onnx.md" and not INFERENCE:
        pytest.skip("this onnx takes no inference functions from Python")
    assert pages.run(page, replace={CASES: str(pages.ROOT / CASES)}) > 0


def test_the_model_without_the_package(folder: Path) -> None:
    """The chapter on ONNX Runtime shows what it prints."""
    command = [sys.executable, str(pages.ROOT / "examples/attention.py"), find_library()]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (shown,) = (block.text for block in pages.blocks(pages.DOCS / "onnxruntime.md"))
    assert shown.splitlines()[1:] == printed.splitlines()


def test_the_book_has_programs() -> None:
    """The list is found by looking, so it must not be empty."""
    assert {"README.md", "operator.md", "python.md", "manager.md"} <= {page.name for page in PROGRAMS}
    assert COMMANDS


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=lambda value: getattr(value, "name", value))
def test_a_command_of_the_package_runs(page: Path, line: str) -> None:
    """With this interpreter instead of `python`."""
    subprocess.run([sys.executable, *shlex.split(line, comments=True)[1:]], check=True, capture_output=True)


def test_flags_are_those_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The book names no flag that a command or the example of a cluster does not have; some are other programs'."""
    from kvcache_ops.cli._command import main

    for command in "build", "chat", "conformance", "generate", "perplexity", "serve", "size":
        with pytest.raises(SystemExit):
            main([command, "--help"])
    known = FLAG.findall(capsys.readouterr().out + (pages.ROOT / "examples/cluster/cluster.py").read_text())
    told = {flag for page in BOOK for flag in FLAG.findall(page.read_text())}
    of_others = {"--cflags", "--libs", "--mask-rank", "--open"}  # pkg-config, kvcache_pmx, cargo
    of_others |= {"--bind", "--maxmemory", "--maxmemory-policy", "--requirepass"}  # redis-server
    assert told - set(known) == of_others


@pytest.fixture(params=[{}, {"quant_bit": 8}, {"fused": False}], ids=["fused", "int8", "unfused"])
def exported(request: pytest.FixtureRequest, folder: Path) -> Path:
    """An export as the exporter leaves it, weights in a file beside the model."""
    home = folder / "export/model_slice_0"
    home.mkdir(parents=True)
    model = export(Params(**request.param))
    onnx.save(model, home / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    return home


def test_the_guide_to_exports(exported: Path) -> None:
    """It leaves a model beside the export."""
    assert pages.run(pages.DOCS / WITH_EXPORT) == 2
    assert (exported / "lowered.onnx").exists()


def test_the_command_that_lowers(exported: Path) -> None:
    """It writes the model that the blocks run."""
    (block,) = (block for block in pages.blocks(pages.DOCS / WITH_EXPORT) if block.language == "sh")
    (line,) = (line for line in block.text.split("\n") if line.startswith("python"))
    subprocess.run([sys.executable, *shlex.split(line)[1:]], check=True, capture_output=True)
    assert onnx.load(exported / "lowered.onnx", load_external_data=False).functions


def test_the_guide_to_models(folder: Path) -> None:
    """On a tiny file of that name, whose answers make no sense."""
    from tiny_models import write_gguf

    write_gguf(folder / "SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1")
    assert pages.run(pages.DOCS / WITH_CHECKPOINT) == 3


def test_the_commands_of_the_guide_to_models(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands run one after the other, on that file and some text; the chat ends with its input."""
    from kvcache_ops.cli._command import main

    from tiny_models import write_gguf

    write_gguf(folder / "SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1")
    (folder / "text.txt").write_text("It is the theme of all the others. " * 40)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr(sys, "stdin", StringIO("the theme\n/quit\n"))
    (block,) = (block for block in pages.blocks(pages.DOCS / WITH_CHECKPOINT) if block.language == "sh")
    commands = [shlex.split(line)[3:] for line in lines(block.text) if line]
    assert [command[0] for command in commands] == ["build", "generate", "chat", "perplexity"]
    for command in commands:
        assert main([*command, *(["--max-new-tokens", "5"] if command[0] == "chat" else [])]) == 0


def test_the_page_of_the_server(folder: Path) -> None:
    """OpenAI's client runs the page's program against a server with a tiny model."""
    from kvcache_ops import models

    from served import serving
    from tiny_models import write_gguf

    path = models.build(write_gguf(folder / "tiny.gguf"), folder / "tiny")
    with serving(path) as served:
        replaced = {"127.0.0.1:8000": f"127.0.0.1:{served.port}", "smollm2": "tiny"}
        assert pages.run(pages.DOCS / WITH_SERVER, replace=replaced) == 1


PAGE = pages.DOCS / "conformance.md"


def block(language: str, containing: str) -> str:
    """The one block of the page with these words."""
    (found,) = (block.text for block in pages.blocks(PAGE) if block.language == language and containing in block.text)
    return found


def test_the_program_in_numpy_conforms(tmp_path: Path) -> None:
    """The chapter's command runs the cases of a layout: all pass but int4, which is not run."""
    line = block("text", "operator_in_numpy.py").replace("\\\n", "").replace("'python ", f"'{sys.executable} ")
    _, *command = shlex.split(line)
    command += ["--report", "json", "--output", str(tmp_path / "report.json")]
    done = subprocess.run([sys.executable, *command], cwd=pages.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["conforms"] and report["summary"]["passed"] >= 10 and report["summary"]["not_run"] >= 4


def test_the_program_in_cpp_reads_cases(tmp_path: Path) -> None:
    """It refuses negative positions, as some cases want, and does no other call."""
    compiling, running = block("text", "conformance.cpp").splitlines()
    subprocess.run(shlex.split(compiling.replace("-O2 -o mine", f"-O0 -o {tmp_path}/mine")), cwd=pages.ROOT, check=True)
    command = [sys.executable, *shlex.split(running)[1:], "--only", "T1=float32", "--only", "quant_bit=0"]
    command += ["--only", "cache_mode=0", "--only", "cache_layout=0", "--report", "json", "--output", "report.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "report.json").read_text())["summary"]
    assert summary["passed"] >= 3 and summary["unsupported"] > 300 and not summary["failed"]
