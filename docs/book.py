"""Builds the book with mdBook, whose links check.py has checked.

    python docs/book.py MDBOOK FOLDER [--repository URL]

Pages link to files of the repository beside the book. In the built book such a link leads to the file in this checkout
or, with `--repository`, below that address, where the book is to be read without one.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from pages import DOCS, ROOT

LINK = re.compile(r'(?P<before>\b(?:href|src)=")(?P<path>[^"#?:]+)(?P<after>[#?][^"]*)?(?=")')
# What mdBook copies beside the pages because it is in their folder, and no page needs.
NOT_FOR_READERS = ["*.py", "*.toml", "__pycache__/*"]


def build(mdbook: str, folder: Path) -> None:
    """Runs mdBook; what it warns of is an error."""
    done = subprocess.run([mdbook, "build", "--dest-dir", folder, DOCS], capture_output=True, text=True)
    print(done.stderr, end="", file=sys.stderr)
    if done.returncode != 0 or re.search(r"^\s*(WARN|ERROR)", done.stderr, re.MULTILINE):
        sys.exit("mdBook did not build the book without warnings")
    for pattern in NOT_FOR_READERS:
        for path in folder.glob(pattern):
            path.unlink()


def lead_out(page: Path, folder: Path, repository: str | None) -> None:
    """Turns the links of a page that lead out of the book to where the repository's files are."""
    source = DOCS / page.relative_to(folder).parent

    def replaced(link: re.Match[str]) -> str:
        if (page.parent / link["path"]).exists():
            return link[0]
        path = (source / link["path"]).resolve()
        # mdBook has taken every page of Markdown for one of its own.
        for target in [path, path.with_suffix(".md")]:
            if target.exists() and target.is_relative_to(ROOT):
                inside = target.relative_to(ROOT).as_posix()
                there = f"{repository.rstrip('/')}/{inside}" if repository else os.path.relpath(target, page.parent)
                return f"{link['before']}{there}{link['after'] or ''}"
        return link[0]

    page.write_text(LINK.sub(replaced, page.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> int:
    """Builds, and says where the book is."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("mdbook", help="the program")
    parser.add_argument("folder", type=Path, help="where the book goes")
    parser.add_argument(
        "--repository", help="the address of the repository's files; without it, those of this checkout"
    )
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    build(arguments.mdbook, folder)
    # The page of a server for addresses that it does not know: its links are from the server's root.
    (folder / "404.html").unlink()
    for page in sorted(folder.glob("*.html")):
        lead_out(page, folder, arguments.repository)
    print(f"the book is in {folder}: open index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
