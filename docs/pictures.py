"""Writes the pictures of the book. With `--check` compares them instead, and their descriptions with the pages'.

Run by `make docs`; the check by `make test`. What they show is computed by `operator_model.py` and `cache_model.py`.
"""

from __future__ import annotations

import sys

import cache_model
import manager_pictures
import operator_pictures
from pages import DOCS, images

FOLDER = DOCS / "pictures"
PICTURES = operator_pictures.PICTURES | manager_pictures.PICTURES


def stale() -> list[str]:
    """What is not as this script would have it: a file, or a description in a page."""
    cache_model.check()
    shown = [(page, images(page)) for page in sorted(DOCS.glob("*.md"))]
    wrong = [f"{path.name} is no picture" for path in sorted(FOLDER.glob("*")) if path.stem not in PICTURES]
    for name, draw in PICTURES.items():
        picture, path = draw(), FOLDER / f"{name}.svg"
        if not path.is_file() or path.read_text(encoding="utf-8") != picture.svg():
            wrong.append(f"{path.relative_to(DOCS)} is out of date")
        descriptions = [
            (page, found[f"pictures/{name}.svg"]) for page, found in shown if f"pictures/{name}.svg" in found
        ]
        if not descriptions:
            wrong.append(f"no page shows pictures/{name}.svg; its description: {picture.description}")
        for page, description in descriptions:
            if description != picture.description:
                wrong.append(f"{page.name}: the description of pictures/{name}.svg should be: {picture.description}")
    return wrong


def main() -> int:
    """Writes or checks; the number of things that are wrong is not 0."""
    if sys.argv[1:] == ["--check"]:
        wrong = stale()
        for line in wrong:
            print(line, file=sys.stderr)
        if wrong:
            print("run `make docs`", file=sys.stderr)
        else:
            print("docs/pictures are up to date with docs/pictures.py")
        return 1 if wrong else 0
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
