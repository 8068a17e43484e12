#!/usr/bin/env python3
"""Writes the golden cases: inputs from the catalogue, outputs from the oracle.

generate.py            writes golden/cases, golden/static_cases, golden/attention_cases and golden/quantized_cases
generate.py --check    writes nothing; names every file that differs from what would be written
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from catalogue import SUITES, all_cases, quantized_matmul
from catalogue.folder import files

GOLDEN = Path(__file__).resolve().parent
FOLDERS = (*SUITES, quantized_matmul.FOLDER)


def main() -> int:
    """Runs the command and returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the files with the oracle")
    arguments = parser.parse_args()

    expected = {
        f"{folder}/{case.name}/{name}": content
        for folder, cases in all_cases().items()
        for case in cases
        for name, content in files(case).items()
    } | quantized_matmul.files()
    if not arguments.check:
        write(expected)
        print(f"wrote {len(expected)} files, {sum(map(len, expected.values())) / 1e6:.2f} MB")
        return 0
    drifted = drift(expected)
    print(*drifted, f"{len(expected)} files, {len(drifted)} drifted", sep="\n")
    return 1 if drifted else 0


def drift(expected: dict[str, bytes]) -> list[str]:
    """One line for each file in the folders of the cases that is not what the oracle makes."""
    paths = [path for folder in FOLDERS for path in (GOLDEN / folder).rglob("*")]
    found = {path.relative_to(GOLDEN).as_posix(): path for path in paths if not path.is_dir()}
    lines = []
    for name in sorted(found.keys() | expected.keys()):
        if name not in expected:
            lines.append(f"extra    {name}")
        elif name not in found:
            lines.append(f"missing  {name}")
        elif found[name].read_bytes() != expected[name]:
            lines.append(f"differs  {name}")
    return lines


def write(expected: dict[str, bytes]) -> None:
    """Replaces the folders of the cases by the expected files."""
    for folder in FOLDERS:
        shutil.rmtree(GOLDEN / folder, ignore_errors=True)
    for name, content in expected.items():
        path = GOLDEN / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    sys.exit(main())
