"""Builds the book with mdBook, whose links check.py has checked.

    python docs/book.py MDBOOK FOLDER [--repository URL]

Pages link to files of the repository beside the book. In the built book such a link leads to the file in this checkout
or, with `--repository`, below that address, where the book is to be read without one.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pages import DOCS, ROOT

OUTSIDE = re.compile(r"(?<=\]\()\.\./(?=[^)]*\))")


def main() -> int:
    """Builds a copy of the pages whose links out of the book are addresses; what mdBook warns of is an error."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("mdbook", help="the program")
    parser.add_argument("folder", type=Path, help="where the book goes")
    parser.add_argument("--repository", default=ROOT.as_uri(), help="the address of the repository's files")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(DOCS, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py", "*.jinja", "__pycache__"))
        for page in Path(copy).glob("*.md"):
            text = page.read_text(encoding="utf-8")
            page.write_text(OUTSIDE.sub(f"{arguments.repository.rstrip('/')}/", text), encoding="utf-8")
        done = subprocess.run([arguments.mdbook, "build", "--dest-dir", folder, copy], capture_output=True, text=True)
    print(done.stderr, end="", file=sys.stderr)
    if done.returncode != 0 or re.search(r"^\s*(WARN|ERROR)", done.stderr, re.MULTILINE):
        sys.exit("mdBook did not build the book without warnings")
    (folder / "book.toml").unlink(missing_ok=True)  # mdBook copies what is in its folder
    print(f"the book is in {folder}: open index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
