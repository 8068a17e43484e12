"""The page of the Python package stands by itself: what it shows is what happens."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "python/README.md"


def blocks(language: str) -> list[str]:
    """The blocks of a language, each behind as many empty lines as are before it, so that tracebacks name its lines."""
    text = PAGE.read_text()
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return ["\n" * text.count("\n", 0, block.start(1)) + block[1] for block in found]


def test_the_python_blocks_run() -> None:
    """As they stand, one after the other, in one program; each has assertions of its own."""
    names: dict[str, object] = {}
    code = blocks("python")
    assert len(code) >= 5
    for block in code:
        assert "assert" in block
        exec(compile(block, PAGE.name, "exec"), names)


def test_the_commands_run() -> None:
    """Those of the package succeed, and print what the page shows."""
    lines = [line for block in blocks("sh") for line in block.split("\n") if line.startswith("python -m kvcache_ops")]
    assert len(lines) == 2
    printed = ""
    for line in lines:
        command = [sys.executable, *shlex.split(line)[1:]]
        printed += subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (shown,) = blocks("text")
    assert shown.strip() in printed
