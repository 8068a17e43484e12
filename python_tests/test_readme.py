"""The README's example does what it says."""

import re
from pathlib import Path

from kvcache import find_library

README = Path(__file__).resolve().parents[1] / "README.md"
LIBRARY = "target/release/libkvcache_ort.so"


def test_the_python_example_runs() -> None:
    """The block runs as it stands, but for the place of the library; it ends with assertions of its own."""
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert LIBRARY in code and "assert" in code
    exec(compile(code.replace(LIBRARY, str(find_library())), README.name, "exec"), {})
