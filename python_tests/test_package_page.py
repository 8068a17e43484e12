"""The package as a user has it: its page needs no other, and its library names no folder of the builder's machine.

`make test-wheel` runs this with the published wheel.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import kvcache_ops
import pytest

import pages

PAGE = pages.ROOT / "python/README.md"


def blocks(language: str) -> list[str]:
    """The texts of the blocks of a language."""
    return [block.text for block in pages.blocks(PAGE) if block.language == language]


def test_the_python_blocks_run() -> None:
    """The blocks run as they stand, one after the other, in one program."""
    assert pages.run(PAGE) >= 5


def test_the_commands_run() -> None:
    """The package's commands succeed, and print what the page shows."""
    lines = [line for block in blocks("sh") for line in block.split("\n") if line.startswith("python -m kvcache_ops")]
    assert len(lines) == 2
    printed = ""
    for line in lines:
        command = [sys.executable, *shlex.split(line)[1:]]
        printed += subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (shown,) = blocks("text")
    assert shown.strip() in printed


@pytest.mark.skipif(Path(kvcache_ops.library_path()).is_symlink(), reason="a build for tests, in no wheel")
def test_its_version_and_no_path_of_the_machine_that_built_it() -> None:
    """The module's version is the wheel's; it holds neither the builder's home nor the place of the repository."""
    assert kvcache_ops.__version__ == version("kvcache_ops")
    content = Path(kvcache_ops.library_path()).read_bytes()
    cargo = os.environ.get("CARGO_HOME") or Path.home() / ".cargo"
    for path in (cargo, Path.home(), pages.ROOT):
        assert f"{path}/".encode() not in content
