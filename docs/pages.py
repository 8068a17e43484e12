"""What a page of Markdown consists of: its code blocks, its links, and the anchors that links can name.

Parsed by markdown-it-py, which keeps to CommonMark: a fence in a list item or a link over two lines is found as a
reader sees it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# A comment directly before a block: why it does not run, or the file that it is a part of.
COMMENT = re.compile(r"<!--\s*(?:not run:\s*(?P<not_run>.+?)|part of:\s*(?P<part_of>\S+))\s*-->", re.DOTALL)
HTML = re.compile(r"""<[a-z0-9]+\s[^>]*\b(?P<name>id|name|href|src)=["'](?P<value>[^"']+)["']""")


@dataclass(frozen=True)
class Block:
    """A code block: its language, its text, and the line of the page on which the text begins, from 1.

    `attributes` follow the language, as in rustdoc: "ignore" for what it must not compile.
    """

    language: str
    attributes: list[str]
    text: str
    line: int
    not_run: str | None = None
    part_of: str | None = None


def tokens(page: Path) -> list[Token]:
    """The page, parsed."""
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page, in order."""
    found = []
    parsed = tokens(page)
    for before, token in zip([None, *parsed], parsed):
        if token.type == "code_block":
            raise ValueError(f"{page.name}:{token.map[0] + 1}: an indented code block has no language: fence it")
        if token.type == "fence":
            comment = COMMENT.search(before.content if before is not None and before.type == "html_block" else "")
            language, *attributes = token.info.strip().split(",")
            said = comment.groupdict() if comment else {}
            found.append(Block(language, attributes, token.content, token.map[0] + 2, **said))
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


def html_attributes(token: Token, *names: str) -> Iterator[str]:
    """The values of these attributes in the HTML of a block or of a paragraph."""
    for part in [token, *(token.children or [])]:
        if part.type in ("html_block", "html_inline"):
            yield from (found["value"] for found in HTML.finditer(part.content) if found["name"] in names)


def links(page: Path) -> Iterator[tuple[str, int]]:
    """The targets of all links and images of a page, and the lines of their paragraphs."""
    for token in tokens(page):
        targets = [child.attrGet("href") or child.attrGet("src") for child in token.children or []]
        found = [unquote(str(target)) for target in targets if target is not None]
        yield from ((target, token.map[0] + 1) for target in [*found, *html_attributes(token, "href", "src")])


def anchors(page: Path) -> set[str]:
    """The names after `#` that a link to this page can have, headings as mdBook and GitHub name them."""
    parsed = tokens(page)
    found = {name for token in parsed for name in html_attributes(token, "id", "name")}
    headings: set[str] = set()
    for token, inline in pairwise(parsed):
        if token.type == "heading_open":
            text = "".join(child.content for child in inline.children or []).strip().lower()
            slug = re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text))
            names = (slug if i == 0 else f"{slug}-{i}" for i in count())
            headings.add(next(name for name in names if name not in headings))
    return found | headings
