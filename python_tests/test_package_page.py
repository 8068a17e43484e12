"""The page of the Python package stands by itself: what it shows is what happens."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pages

PAGE = pages.ROOT / "python/README.md"


def blocks(language: str) -> list[str]:
    """The texts of the blocks of a language."""
    return [block.text for block in pages.blocks(PAGE) if block.language == language]


def test_the_python_blocks_run() -> None:
    """As they stand, one after the other, in one program."""
    assert pages.run(PAGE) >= 5


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
