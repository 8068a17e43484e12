"""Checks what can be checked of the book without building it or running its programs.

    python docs/check.py    a line for each thing that is wrong; the exit status says whether there is any

- SUMMARY.md names every page of this folder, once.
- Links lead to files that exist, and to anchors in them.
- Every code block is of a language that a test runs or checks (`LANGUAGES`), or says why it does not run.
- Commands name targets of make, packages and examples of cargo, scripts, extras of pip and programs that exist.
- Pictures are shown with the description that they have, and that of quality.svg has the figures of quality.csv.

All but the first and the last hold for the repository's other Markdown files, too. The blocks run elsewhere: Python in
python_tests/test_book.py and test_package_page.py, Rust as doctests of the crates that include the page, C and C++ in
capi/tests/pages.rs.
"""

from __future__ import annotations

import csv
import html
import json
import re
import sys
import textwrap
import tomllib
from collections import Counter
from pathlib import Path

import yaml

import commands
from pages import DOCS, ROOT, Block, anchors, blocks, images, links

SUMMARY = DOCS / "SUMMARY.md"
# Languages of blocks that something runs or checks; output, trees and formulas are "text". "py" is Python that needs
# torch: `make test-torch` runs it.
LANGUAGES = ["python", "py", "rust", "c", "cpp", "sh", "toml", "yaml", "json", "text"]
# What a picture says of itself to who cannot see it.
DESCRIPTION = re.compile(r"<desc[^>]*>(.*?)</desc>", re.DOTALL)
# Beside the book, the pages whose programs run.
PYTHON = ["README.md", "python/README.md"]
C = ["capi/README.md"]


def pages() -> list[Path]:
    """The pages of the book."""
    return sorted(path for path in DOCS.glob("*.md") if path != SUMMARY)


def other_pages() -> list[Path]:
    """The repository's other Markdown files, of which only links are checked."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name != "target" and path.name[0] != "."]
    found = [path for folder in folders if folder != DOCS for path in folder.rglob("*.md")]
    return sorted([*ROOT.glob("*.md"), *(path for path in found if "target" not in path.parts)])


def summary(found: list[Path], listing: Path = SUMMARY) -> list[str]:
    """The pages that the table of contents misses, or has twice."""
    count = Counter((listing.parent / link.target).resolve() for link in links(listing))
    wrong = [f"{listing.name}: {path.name} is listed {count[path]} times" for path in found if count[path] != 1]
    return wrong + [f"{listing.name}: {path.name} is no page" for path in count if path not in found]


def broken_links(page: Path) -> list[str]:
    """The links of a page that lead nowhere. Those to other sites are not followed: the check needs no network."""
    wrong = []
    for link in links(page):
        if "://" in link.target or link.target.startswith("mailto:"):
            continue
        path, _, anchor = link.target.partition("#")
        # On a crate's page rustdoc resolves what looks like a path of Rust.
        if "::" in path:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            wrong.append(f"{name(page)}:{link.line}: there is no {link.target}")
        elif not target.is_relative_to(ROOT):
            wrong.append(f"{name(page)}:{link.line}: {link.target} is outside of the repository")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            wrong.append(f"{name(page)}:{link.line}: {path or page.name} has no anchor #{anchor}")
    return wrong


def wrong_blocks(page: Path) -> list[str]:
    """The blocks of a page that nothing runs, or that are not what they say."""
    wrong = []
    for block in blocks(page):
        where = f"{name(page)}:{block.line}"
        if block.attributes and block.part_of is None and block.not_run is None:
            wrong.append(
                f"{where}: {','.join(block.attributes)} needs a reason: a comment `not run: ...` or `part of: PATH`"
            )
        if block.part_of is not None:
            wrong += [f"{where}: {error}" for error in [not_part(block)] if error]
        elif block.not_run is not None:
            if block.language in ("sh", "text"):
                wrong.append(f"{where}: a block of {block.language} needs no reason for not running")
        elif block.language not in LANGUAGES or not runs(block.language, page):
            wrong.append(f"{where}: nothing runs blocks of {block.language or 'no language'} of this page")
        elif block.language == "sh":
            wrong += [f"{where}: {error}" for error in commands.wrong(block.text)]
        else:
            wrong += [f"{where}: {error}" for error in [unparsed(block)] if error]
    return wrong


def not_part(block: Block) -> str | None:
    """Why a block is not in the file of which it is said to be a part; how far it is indented there is no matter."""
    path = ROOT / str(block.part_of)
    if not path.is_file():
        return f"there is no {block.part_of}"
    lines, whole = block.text.rstrip().split("\n"), path.read_text(encoding="utf-8").split("\n")
    for start in range(len(whole) - len(lines) + 1):
        if textwrap.dedent("\n".join(whole[start : start + len(lines)])) == textwrap.dedent("\n".join(lines)):
            return None
    return f"these lines are not in {block.part_of}"


def runs(language: str, page: Path) -> bool:
    """Whether a test takes the programs of a page: those in Rust are doctests of the crates that include it."""
    if language == "rust":
        return page in included()
    if language in ("python", "py"):
        return page.parent == ROOT / "docs" or name(page) in PYTHON
    if language in ("c", "cpp"):
        return page.parent == ROOT / "docs" or name(page) in C
    return True


def wrong_pictures() -> list[str]:
    """Pictures that no page shows, or with another description, and figures that their plot does not have."""
    wrong = []
    shown = {(page.parent / path).resolve(): text for page in pages() for path, text in images(page).items()}
    for path in sorted([*DOCS.glob("*.svg"), *DOCS.glob("pictures/*")]):
        description = DESCRIPTION.search(path.read_text(encoding="utf-8"))
        if description is None or html.unescape(description[1]) != shown.get(path):
            wrong.append(f"{name(path)}: no page shows it with its description")
    with (DOCS / "quality.csv").open(newline="", encoding="utf-8") as file:
        rows = [(row["cache"], row["bytes per token"], float(row["perplexity"])) for row in csv.DictReader(file)]
    figures = "; ".join(f"{cache}: {size} bytes, {perplexity:.3f}" for cache, size, perplexity in rows)
    if f"{figures}." not in shown.get(DOCS / "quality.svg", ""):
        wrong.append(f"docs/quality.svg: expected the figures of quality.csv: {figures}")
    return wrong


def included() -> set[Path]:
    """The pages that crates have in their documentation."""
    return {
        (library.parent / path).resolve()
        for pattern in ("*/src/lib.rs", "*/*/src/lib.rs")
        for library in ROOT.glob(pattern)
        for path in re.findall(r'include_str!\("([^"]+\.md)"\)', library.read_text(encoding="utf-8"))
    }


def unparsed(block: Block) -> str | None:
    """Why a block of data is none."""
    parsers = {"toml": tomllib.loads, "yaml": yaml.safe_load, "json": json.loads}
    try:
        if block.language in parsers:
            parsers[block.language](block.text)
    except ValueError as error:
        return str(error)
    except yaml.YAMLError as error:
        return str(error)
    return None


def name(page: Path) -> str:
    """The page as one calls it from the repository's root."""
    return str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name


def main() -> int:
    """Prints what is wrong."""
    found = pages()
    wrong = summary(found) + wrong_pictures()
    everywhere = [*found, *other_pages()]
    for page in everywhere:
        wrong += broken_links(page) + wrong_blocks(page)
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        count = sum(len(blocks(page)) for page in everywhere)
        print(f"docs: the book's {len(found)} pages, {len(everywhere)} files and {count} code blocks in all: in order")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
