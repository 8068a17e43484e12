"""What a page of Markdown consists of: its code blocks, its links, and the anchors that links can name.

Parsed by markdown-it-py, which keeps to CommonMark: a fence in a list item or a link over two lines is found as a
reader sees it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# What stands in a comment directly before a block: why it does not run, or the file that it is a part of.
NOT_RUN = re.compile(r"<!--\s*not run:\s*(?P<reason>.+?)\s*-->", re.DOTALL)
PART_OF = re.compile(r"<!--\s*part of:\s*(?P<path>\S+)\s*-->")
ID = re.compile(r"""<[a-z0-9]+\s[^>]*\b(?:id|name)=["']([^"']+)["']""")
HREF = re.compile(r"""<[a-z0-9]+\s[^>]*\b(?:href|src)=["']([^"']+)["']""")


@dataclass(frozen=True)
class Block:
    """A code block: its language, its text, and the line of the page on which the text begins, from 1.

    `attributes` stand behind the language, as rustdoc has them: "ignore" for what it must not compile.
    """

    language: str
    attributes: list[str]
    text: str
    line: int
    not_run: str | None = None
    part_of: str | None = None


@dataclass(frozen=True)
class Link:
    """Where a link or an image points to, and the line of its paragraph."""

    target: str
    line: int


def tokens(page: Path) -> list[Token]:
    """The page, parsed."""
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page, in order."""
    found = []
    parsed = tokens(page)
    for before, token in zip([None, *parsed], parsed):
        if token.type == "code_block":
            raise ValueError(f"{page.name}:{_line(token)}: an indented code block has no language: fence it")
        if token.type != "fence":
            continue
        comment = before.content if before is not None and before.type == "html_block" else ""
        not_run, part_of = NOT_RUN.search(comment), PART_OF.search(comment)
        language, *attributes = token.info.strip().split(",")
        found.append(
            Block(
                language=language,
                attributes=attributes,
                text=token.content,
                line=_line(token) + 1,
                not_run=not_run and not_run["reason"],
                part_of=part_of and part_of["path"],
            )
        )
    return found


def python_blocks(page: Path) -> list[Block]:
    """The Python blocks that run: all but those that give a reason, and parts of files that are tested as such."""
    return [b for b in blocks(page) if b.language == "python" and b.not_run is None and b.part_of is None]


def run(page: Path, names: dict[str, object] | None = None, replace: dict[str, str] | None = None) -> int:
    """Runs the Python blocks of a page as one program, from top to bottom, and says how many there are.

    Tracebacks have the page's name and line. Each block asserts something, but for a first one that only imports and
    makes what the others use. `replace` exchanges texts, such as the place of a library.
    """
    names = {} if names is None else names
    found = python_blocks(page)
    for index, block in enumerate(found):
        if index > 0 or len(found) == 1:
            assert "assert" in block.text, f"{page.name}:{block.line}: a block without an assertion proves nothing"
        text = block.text
        for old, new in (replace or {}).items():
            text = text.replace(old, new)
        exec(compile("\n" * (block.line - 1) + text, str(page), "exec"), names)
    return len(found)


def links(page: Path) -> list[Link]:
    """The targets of all links and images of a page."""
    found = []
    for token in tokens(page):
        if token.type == "html_block":
            found += [Link(target, _line(token)) for target in HREF.findall(token.content)]
        for child in token.children or []:
            target = child.attrGet("href") or child.attrGet("src")
            if target is not None:
                found.append(Link(unquote(str(target)), _line(token)))
            if child.type == "html_inline":
                found += [Link(target, _line(token)) for target in HREF.findall(child.content)]
    return found


def anchors(page: Path) -> set[str]:
    """The names behind `#` that a link to this page can have."""
    found: set[str] = set()
    parsed = tokens(page)
    for token, inline in pairwise(parsed):
        if token.type == "heading_open":
            slug = name = slug_of("".join(child.content for child in inline.children or []))
            count = 0
            while name in found:
                count += 1
                name = f"{slug}-{count}"
            found.add(name)
    for token in parsed:
        for part in [token, *(token.children or [])]:
            if part.type in ("html_block", "html_inline"):
                found.update(ID.findall(part.content))
    return found


def slug_of(heading: str) -> str:
    """The anchor of a heading, as mdBook and GitHub make it."""
    kept = (c for c in heading.strip().lower() if c.isalnum() or c in "-_" or c.isspace())
    return "".join("-" if c.isspace() else c for c in kept)


def images(page: Path) -> dict[str, str]:
    """The images of a page: the description of each, in one line, by its path."""
    return {
        str(child.attrGet("src")): " ".join(child.content.split())
        for token in tokens(page)
        for child in token.children or []
        if child.type == "image"
    }


def _line(token: Token) -> int:
    assert token.map is not None, f"a token without lines: {token.type}"
    return token.map[0] + 1
