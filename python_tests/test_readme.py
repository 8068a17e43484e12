"""The examples of the README, of the page about ONNX Runtime and of the manager's page do what they say."""

import re
from pathlib import Path

import pytest

from kvcache import find_library

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
RUNTIME = ROOT / "docs" / "onnxruntime.md"
MANAGER = ROOT / "docs" / "manager.md"
LIBRARY = "target/release/libkvcache_ort.so"


def python_blocks(page: Path) -> list[str]:
    """The page's Python blocks, each behind as many empty lines as are before it, so that tracebacks name its lines."""
    text = page.read_text()
    blocks = re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return ["\n" * text.count("\n", 0, block.start(1)) + block[1] for block in blocks]


@pytest.mark.parametrize("page", [README, RUNTIME], ids=lambda page: page.stem)
def test_the_python_example_runs(page: Path) -> None:
    """The block runs as it stands, but for the place of the library, if it has one; it ends with assertions."""
    (code,) = python_blocks(page)
    assert "assert" in code.splitlines()[-1]
    exec(compile(code.replace(LIBRARY, str(find_library())), page.name, "exec"), {})


def test_the_managers_page_runs() -> None:
    """Its blocks are one program from top to bottom, with assertions of its own."""
    blocks = python_blocks(MANAGER)
    assert len(blocks) > 1 and all("assert" in code for code in blocks[1:])
    names: dict[str, object] = {}
    for code in blocks:
        exec(compile(code, MANAGER.name, "exec"), names)
