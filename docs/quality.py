"""Draws quality.svg, the perplexity of the trained model over the bytes of its cache, from quality.csv.

    python docs/quality.py            writes docs/quality.svg
    python docs/quality.py --check    fails if it is not what this script would write

`examples/writing.py --record` writes quality.csv from what it measures.
"""

from __future__ import annotations

import csv
import sys
from math import ceil, floor, log2
from pathlib import Path

from svg import COLORS, FAINT, INK, MARGIN, WIDTH, Picture

DOCS = Path(__file__).parent
DATA, PLOT = DOCS / "quality.csv", DOCS / "quality.svg"
LEFT, RIGHT, HEIGHT = MARGIN + 56, WIDTH - MARGIN - 24, 240.0
DOT = 8.0
# By the type of the cache, the first word of its name; the colors are those of the manager's pictures.
COLORS_BY_TYPE = {"float32": "ab", "float16": "ab", "int8": "a", "int4": "b"}


def ticks(lowest: float, highest: float) -> list[float]:
    """Round numbers, four to eight, the outermost outside of both."""
    step = 10.0 ** floor(log2(highest - lowest) / log2(10))
    while (highest - lowest) / step < 4:
        step /= 2
    return [step * i for i in range(floor(lowest / step), ceil(highest / step) + 1)]


def draw() -> Picture:
    """The picture of all rows of quality.csv."""
    with DATA.open(newline="", encoding="utf-8") as file:
        rows = [(row["cache"], int(row["bytes per token"]), float(row["perplexity"])) for row in csv.DictReader(file)]
    description = "; ".join(f"{name}: {size} bytes, {quality:.3f}" for name, size, quality in rows)
    picture = Picture(
        "Perplexity over the bytes of a token in the cache",
        f"Perplexity of the held-back text, by cache format and its bytes per token. {description}.",
    )
    picture.heading("Perplexity of held-back text over the cache's bytes per token", "bold")
    picture.heading(
        "a model of 0.87 million parameters, 4 layers, 2 cache heads of 32; after the type the group; lower is better",
        "small faint",
    )
    top = picture.y + 24
    bottom = top + HEIGHT
    sizes = [2**i for i in range(floor(log2(min(r[1] for r in rows))), ceil(log2(max(r[1] for r in rows))) + 1)]
    levels = ticks(min(row[2] for row in rows), max(row[2] for row in rows))

    def x(size: float) -> float:
        return LEFT + (RIGHT - LEFT) * log2(size / sizes[0]) / log2(sizes[-1] / sizes[0])

    def y(quality: float) -> float:
        return bottom - (bottom - top) * (quality - levels[0]) / (levels[-1] - levels[0])

    for level in levels:
        picture.line([(LEFT, y(level)), (RIGHT, y(level))], "#d0d7de")
        picture.text(MARGIN, y(level) + 4, f"{level:.4g}", "small faint")
    for size in sizes:
        picture.line([(x(size), bottom), (x(size), bottom + 5)], INK)
        picture.text(x(size), bottom + 18, str(size), "small mid")
    picture.line([(LEFT, bottom), (RIGHT, bottom)], INK)
    picture.text((LEFT + RIGHT) / 2, bottom + 36, "bytes per token, in all layers, scales included", "small mid")
    for name, size, quality in rows:
        colors = COLORS[COLORS_BY_TYPE[name.split(",")[0]]]
        picture.line([(x(size), bottom), (x(size), y(quality))], FAINT)
        picture.box(x(size) - DOT / 2, y(quality) - DOT / 2, DOT, DOT, colors)
        for line, words in enumerate((f"{quality:.2f}", name.replace(", groups of ", "/"))):
            picture.text(x(size), y(quality) - DOT - 12 * line, words, "small mid")
    picture.y = bottom + 44
    return picture


def main() -> int:
    """Writes or checks."""
    drawn = draw().svg()
    if sys.argv[1:] == ["--check"]:
        if not PLOT.is_file() or PLOT.read_text(encoding="utf-8") != drawn:
            print(f"{PLOT.name} is out of date: run `make docs`", file=sys.stderr)
            return 1
        print("docs/quality.svg is up to date with docs/quality.csv")
        return 0
    PLOT.write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
