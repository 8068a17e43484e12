"""Just enough SVG for the pictures of the book: rows of slots, brackets, arrows and text.

They are drawn on a card of its own color, which reads on a light page and on a dark one.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from html import escape

MARGIN = 24
WIDTH = 760
INK, FAINT, CARD = "#1f2328", "#59636e", "#ffffff"
# By the sequences that have a row in a slot: fill and border.
COLORS = {"a": ("#cfe3ff", "#2f6fbf"), "b": ("#ffe0bd", "#b8690f"), "ab": ("#d6efcf", "#3d7f2f")}
FREE = ("#f6f8fa", "#b7bec6")
# What a legend shows with a dashed border.
DASHED = ("reserved", "stored")
STYLE = (
    "text{font-family:Helvetica,Arial,'DejaVu Sans',sans-serif;font-size:13px;fill:" + INK + "}"
    ".small{font-size:11px}.tiny{font-size:9px}.faint{fill:" + FAINT + "}.bold{font-weight:bold}"
    ".mono{font-family:Consolas,Menlo,'DejaVu Sans Mono',monospace;font-size:12px}.mid{text-anchor:middle}"
)


class Picture:
    """A picture that grows downwards: `y` is where the next thing goes."""

    def __init__(self, title: str, description: str):
        self.title = title
        self.description = description
        self.y = MARGIN + 12
        self._parts: list[str] = []

    def text(self, x: float, y: float, words: str, classes: str = "") -> None:
        """A line of text, its baseline at `y`."""
        named = f' class="{classes}"' if classes else ""
        self._parts.append(f'<text x="{_number(x)}" y="{_number(y)}"{named}>{escape(words)}</text>')

    def heading(self, words: str, classes: str = "") -> None:
        """A line of text at the left margin."""
        self.text(MARGIN, self.y, words, classes)
        self.y += 18

    def box(
        self, x: float, y: float, width: float, height: float, colors: tuple[str, str], dashed: bool = False
    ) -> None:
        """A rectangle of a fill and a border."""
        fill, border = colors
        dash = ' stroke-dasharray="3 2"' if dashed else ""
        at = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
        self._parts.append(f'<rect {at} fill="{fill}" stroke="{border}"{dash}/>')

    def line(self, points: Iterable[tuple[float, float]], color: str = FAINT, arrow: bool = False) -> None:
        """Straight lines from point to point."""
        path = " L".join(f"{_number(x)} {_number(y)}" for x, y in points)
        self._path(f"M{path}", color, arrow)

    def curve(self, x0: float, x1: float, y: float, depth: float) -> None:
        """An arrow that leaves `x0` downwards (upwards for a negative depth) and arrives at `x1`."""
        x0, x1, low = _number(x0), _number(x1), _number(y + depth)
        self._path(f"M{x0} {_number(y)} C{x0} {low} {x1} {low} {x1} {_number(y)}", INK, arrow=True)

    def bracket(self, x0: float, x1: float, y: float, words: str) -> None:
        """A bracket below a stretch, and what it is."""
        self.line([(x0, y), (x0, y + 5), (x1, y + 5), (x1, y)], INK)
        self.text((x0 + x1) / 2, y + 19, words, "mid small")

    def slots(
        self, x: float, y: float, size: float, owners: list[dict[str, int]], reserved: Set[int] = frozenset()
    ) -> None:
        """Slots side by side: the row's index in each, the color of its owners; reserved ones have dashed borders."""
        for slot, rows in enumerate(owners):
            left = x + slot * size
            colors = COLORS["".join(sorted(rows))] if rows else FREE
            self.box(left, y, size, size, colors, dashed=slot in reserved)
            words = "/".join(dict.fromkeys(str(row) for row in rows.values()))
            self.text(left + size / 2, y + size / 2 + 4, words, "mid small")

    def svg(self) -> str:
        """The whole file."""
        height = _number(self.y + MARGIN - 12)
        size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        card = f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{_number(self.y + MARGIN - 13)}" rx="8"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title description">',
            f'<title id="title">{escape(self.title)}</title>',
            f'<desc id="description">{escape(self.description)}</desc>',
            f"<style>{STYLE}</style>",
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>',
            f'{card} fill="{CARD}" stroke="{FREE[1]}"/>',
            *self._parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def _path(self, path: str, color: str, arrow: bool) -> None:
        end = ' marker-end="url(#arrow)"' if arrow else ""
        self._parts.append(f'<path d="{path}" fill="none" stroke="{color}"{end}/>')


def legend(picture: Picture, names: dict[str, str]) -> None:
    """What the colors are."""
    x = MARGIN
    for owners, words in names.items():
        picture.box(x, picture.y - 11, 14, 14, COLORS.get(owners, FREE), dashed=owners in DASHED)
        picture.text(x + 20, picture.y, words, "small")
        x += 36 + 7 * len(words)
    picture.y += 24


def _number(value: float) -> str:
    """A coordinate of one decimal place at most."""
    return f"{value:.1f}".removesuffix(".0")
