"""Checks what can be checked of the book without building it or running its programs.

    python docs/check.py    a line for each thing that is wrong; the exit status says whether there is any

- SUMMARY.md names every page of this folder, once.
- Links of all Markdown files of the repository lead to files that exist, and to anchors in them.
- The rows of a table have as many cells.
- Every code block is of a language that a test runs (`LANGUAGES`), is a part of a file, or says why it does not run.

The blocks run elsewhere: Python in python_tests/test_book.py and test_package_page.py, Rust as doctests of the crates
that include the page, C in capi/tests.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections import Counter
from pathlib import Path

from pages import DOCS, ROOT, Block, anchors, blocks, links, tokens

SUMMARY = DOCS / "SUMMARY.md"
# Output, trees and formulas are "text". "py" is Python that needs torch: `make test-torch` runs it.
LANGUAGES = {"python", "py", "rust", "c", "sh", "toml", "yaml", "json", "text"}
INCLUDED = re.compile(r'include_str!\("([^"]+\.md)"\)')


def other_pages() -> list[Path]:
    """The repository's Markdown files beside the book."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name != "target" and path.name[0] != "."]
    found = [path for folder in folders if folder != DOCS for path in folder.rglob("*.md")]
    return sorted([*ROOT.glob("*.md"), *(path for path in found if "target" not in path.parts)])


def wrong_summary(pages: list[Path]) -> list[str]:
    """Pages that the table of contents misses, or has twice."""
    count = Counter((DOCS / target).resolve() for target, _ in links(SUMMARY))
    wrong = [f"{SUMMARY.name}: {path.name} is listed {count[path]} times" for path in pages if count[path] != 1]
    return wrong + [f"{SUMMARY.name}: {path.name} is no page" for path in count if path not in pages]


def broken_links(page: Path) -> list[str]:
    """Links of a page that lead nowhere. Links to other sites are not followed: the check needs no network."""
    wrong = []
    for link, line in links(page):
        path, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:") or "::" in path:  # rustdoc resolves paths of Rust
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or not target.is_relative_to(ROOT):
            wrong.append(f"{page.relative_to(ROOT)}:{line}: there is no {link} in the repository")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            wrong.append(f"{page.relative_to(ROOT)}:{line}: {target.name} has no anchor #{anchor}")
    return wrong


def uneven_tables(page: Path) -> list[str]:
    """Rows of tables with more or fewer cells than the first: a reader would not see what is too much."""
    lines, wrong = page.read_text(encoding="utf-8").split("\n"), []
    for first, end in (token.map for token in tokens(page) if token.type == "table_open"):
        bars = [len(re.findall(r"(?<!\\)\|", line)) for line in lines[first:end]]
        rows = (first + row + 1 for row, count in enumerate(bars) if count != bars[0])
        wrong += [f"{page.relative_to(ROOT)}:{row}: another number of cells than in the first row" for row in rows]
    return wrong


def wrong_blocks(page: Path, doctested: set[Path]) -> list[str]:
    """Code blocks of a page that nothing runs, or that are not a part of the file that they name."""
    wrong = []
    for block in blocks(page):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        if block.part_of is not None:
            if not is_part(block):
                wrong.append(f"{where}: these lines are not in {block.part_of}")
        elif block.not_run is None:
            if block.attributes:
                wrong.append(f"{where}: {','.join(block.attributes)} needs a comment `not run: ...` or `part of: PATH`")
            if block.language not in LANGUAGES or (block.language == "rust" and page not in doctested):
                wrong.append(f"{where}: nothing runs blocks of {block.language or 'no language'} of this page")
    return wrong


def is_part(block: Block) -> bool:
    """Whether a block is in the file of which it is said to be a part; how far it is indented there is no matter."""
    path = ROOT / str(block.part_of)
    whole = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
    lines = block.text.rstrip().split("\n")
    parts = ("\n".join(whole[start : start + len(lines)]) for start in range(len(whole) - len(lines) + 1))
    return any(textwrap.dedent(part) == textwrap.dedent("\n".join(lines)) for part in parts)


def main() -> int:
    """Prints what is wrong."""
    pages = sorted(path for path in DOCS.glob("*.md") if path != SUMMARY)
    libraries = [*ROOT.glob("*/src/lib.rs"), *ROOT.glob("*/*/src/lib.rs")]
    doctested = {(lib.parent / path).resolve() for lib in libraries for path in INCLUDED.findall(lib.read_text())}
    everywhere = [*pages, *other_pages()]
    wrong = wrong_summary(pages)
    for page in everywhere:
        wrong += broken_links(page) + uneven_tables(page) + wrong_blocks(page, doctested)
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(f"docs: the book's {len(pages)} pages, {len(everywhere)} files in all: in order")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
