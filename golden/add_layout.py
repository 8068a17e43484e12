#!/usr/bin/env python3
"""Proves that a new cache_layout takes what CONTRIBUTING.md's recipe says and no more.

Follows the recipe in a copy of this repository, with a layout that is like none of the others, and shows that the
suite there has cases of it, that the oracle and every CPU kernel agree on them, and that no other case has changed. The
copy and its builds lie in cargo's target folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
# The copy builds in a folder of its own: cargo would take the repository's crates for the copy's.
COPY, COPY_TARGET = TARGET / "added-layout/repository", TARGET / "added-layout/target"
SUITES = (Path("golden/cases"), Path("golden/attention_cases"))

# Heads outside of tokens, layers inside of keys and values; the axes in Rust, and as the schema and the oracle write
# them.
CODE, NAME, RUST_AXES, AXES = 4, "Added", "Head, Token, Kv, Layer", ("H", "MaxT", "2", "L")

# The recipe: in each file, what is replaced by what; @ stands for what is replaced.
RECIPE = {
    "schema/src/cache_layout.rs": {
        "    HeadMajor = 3,\n": f"@    /// `({', '.join(AXES)}, Dh)`\n    {NAME} = {CODE},\n",
        f"[Self; {CODE}]": f"[Self; {CODE + 1}]",
        "Self::KvMajor, Self::HeadMajor": f"@, Self::{NAME}",
        "Self::HeadMajor => [Layer, Kv, Head, Token],\n": f"@            Self::{NAME} => [{RUST_AXES}],\n",
    },
    "schema/key_value_cache.yaml": {
        "HeadMajor, axes: [L, 2, H, MaxT]}\n": f"@  - {{code: {CODE}, name: {NAME}, axes: [{', '.join(AXES)}]}}\n"
    },
    "golden/oracle/layouts.py": {'    3: ("L", "2", "H", "MaxT"),\n': f"@    {CODE}: {AXES},\n"},
}


def main() -> int:
    """Runs the proof and gives its exit status."""
    copy()
    python("golden/generate.py")
    for cases in SUITES:
        compare_cases(cases)
    python("docs/operator_pages.py")
    cargo("build", "--package=kvcache-conformance", "--bin", "kvcache-conformance")
    cargo("test")
    # The golden cases, and random ones whose results the kit's oracle predicts.
    program("kvcache-conformance", "--backend", "all", "--random", "1000")
    print(f"layout {CODE} takes {', '.join(RECIPE)} and no other file")
    return 0


def copy() -> None:
    """Makes COPY the repository with the recipe's edits, without what is built and without the cases, which are made
    anew. Files keep their time, for cargo."""
    cases = {ROOT / folder for folder in SUITES}

    def left_out(folder: str, names: list[str]) -> list[str]:
        built = {name for name in names if name.startswith(".") or name in ("__pycache__", "target")}
        return [name for name in names if name in built or Path(folder, name).resolve() in cases | {TARGET}]

    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(ROOT, COPY, ignore=left_out)
    for path, changes in RECIPE.items():
        content = (ROOT / path).read_text()
        for old, new in changes.items():
            if content.count(old) != 1:
                sys.exit(f"{path} does not have {old!r} once, which the recipe replaces")
            content = content.replace(old, new.replace("@", old))
        (COPY / path).write_text(content)
        shutil.copystat(ROOT / path, COPY / path)


def files(folder: Path) -> list[Path]:
    """Every file below a folder, relative to it."""
    return [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]


def compare_cases(cases: Path) -> None:
    """The new layout has cases in a suite, and the old cases are as they were, but for the one that refuses the first
    code behind the last layout."""
    refusals = (f"refuse-cache-layout-{CODE}", f"refuse-cache-layout-{CODE + 1}")
    old, new = ({path: (root / cases / path).read_bytes() for path in files(root / cases)} for root in (ROOT, COPY))
    changed = sorted(path.parts[0] for path in old if path.parts[0] != refusals[0] and old[path] != new.get(path))
    if changed:
        sys.exit(f"cases that have nothing to do with layout {CODE} have changed: {changed}")
    added = {path.parts[0] for path in new.keys() - old.keys()} - {refusals[1]}
    strangers = sorted(name for name in added if not name.startswith(f"layout{CODE}-"))
    if not added or strangers:
        sys.exit(f"{len(added)} cases were added, of which {strangers} are not the layout's")
    print(f"{cases}: {len(added)} cases of layout {CODE}, and the {len(old) // 2} others as they were")


def python(*command: str) -> None:
    """Runs a program of the copy."""
    subprocess.run([sys.executable, *command], cwd=COPY, check=True)


def cargo(*command: str) -> None:
    """Runs cargo in the copy, for the schema and other packages of the command."""
    environment = os.environ | {"CARGO_TARGET_DIR": str(COPY_TARGET)}
    cargo = shutil.which("cargo") or sys.exit("cargo is not in the PATH")
    fixed = ["--quiet", "--locked", "--package=kvcache-schema"]
    subprocess.run([cargo, command[0], *fixed, *command[1:]], cwd=COPY, env=environment, check=True)


def program(name: str, *arguments: str) -> None:
    """Runs what cargo has built in the copy."""
    subprocess.run([COPY_TARGET / "debug" / name, *arguments], cwd=COPY, check=True)


if __name__ == "__main__":
    sys.exit(main())
