"""Some of the golden cases."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@cache
def some_cases(suite: str, word: str) -> TemporaryDirectory:
    """A folder of those cases whose names contain a word, for the conformance kit: the suites that it holds are read
    whole, which takes most of the time of a run of few cases."""
    folder = TemporaryDirectory()
    for case in (GOLDEN / suite).glob(f"*{word}*"):
        Path(folder.name, case.name).symlink_to(case, target_is_directory=True)
    return folder
