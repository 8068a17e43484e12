"""The program of the chapter for implementers, run by kvcache-conformance as the chapter says."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pages

PAGE = pages.DOCS / "conformance.md"


def block(language: str, containing: str) -> str:
    """The one block of the page with these words."""
    (found,) = (block.text for block in pages.blocks(PAGE) if block.language == language and containing in block.text)
    return found


@pytest.mark.skipif(shutil.which("cargo") is None, reason="there is no cargo, which builds the program")
def test_the_program_in_numpy_conforms_by_its_profile(tmp_path: Path) -> None:
    """On the cases of a layout, run by the chapter's command: all pass but those of int4, which are unsupported. What
    KVCACHE_CONFORMANCE names is run in the place of what cargo would build."""
    found = [block.text for block in pages.python_blocks(PAGE)]
    (last,) = (index for index, text in enumerate(found) if "def run_case" in text)
    program = "\n".join(found[: last + 1])
    (tmp_path / "mine.py").write_text(program.replace("golden/cases", str(pages.ROOT / "golden/cases")))
    (tmp_path / "mine.yaml").write_text(block("yaml", "outside: skip"))
    line = block("sh", "--program").replace("\\\n", "").replace("--release ", "")
    line = line.replace("'python ", f"'{sys.executable} ")
    command = [*shlex.split(line), "--report", "json", "--output", "report.json"]
    assert command[:5] == ["cargo", "run", "-p", "kvcache-conformance", "--"]
    if built := os.environ.get("KVCACHE_CONFORMANCE"):
        command[:5] = [built]
    else:
        command[2:2] = ["--quiet", "--locked", "--manifest-path", str(pages.ROOT / "Cargo.toml")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["conforms"] and report["summary"]["passed"] >= 10 and report["summary"]["unsupported"] >= 4
