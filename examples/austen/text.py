"""The text that the model learns from: Jane Austen's six novels, out of the Debian package `r-cran-janeaustenr`.

    apt-get download r-cran-janeaustenr
    dpkg-deb --extract r-cran-janeaustenr_*.deb package
    python text.py package texts

writes texts/training.txt and texts/held_back.txt, a paragraph a line. The last chapter of each novel is held back: the
model never sees it, and perplexity is measured on it. Needs `rdata`, since the package keeps the novels in a database
of R.
"""

from __future__ import annotations

import argparse
import re
import struct
import zlib
from pathlib import Path

DATABASE = "usr/lib/R/site-library/janeaustenr/data/Rdata"
NOVELS = ("sensesensibility", "prideprejudice", "mansfieldpark", "emma", "northangerabbey", "persuasion")
HEADING = re.compile(r"\s*(chapter|volume) +[0-9ivxlc]+\s*$", re.IGNORECASE)
# What follows the last sentence of a novel.
ENDINGS = re.compile(r"\s*(finis|the end|a note on the text|northanger abbey was written in 1797.*)\s*$", re.IGNORECASE)


def novels(package: Path) -> dict[str, list[str]]:
    """The lines of each novel, from the unpacked package."""
    import rdata

    def read(data: bytes):
        return rdata.conversion.convert(rdata.parser.parse_data(data, extension=".rds"))

    variables = read((package / f"{DATABASE}.rdx").read_bytes())["variables"]
    database = (package / f"{DATABASE}.rdb").read_bytes()

    def lines(name: str) -> list[str]:
        first, size = map(int, variables[name])
        (unpacked,) = struct.unpack_from(">I", database, first)
        data = zlib.decompress(database[first + 4 : first + size])
        assert len(data) == unpacked
        return [str(line) for line in read(data)]

    return {name: lines(name) for name in NOVELS}


def chapters(lines: list[str]) -> list[list[str]]:
    """The paragraphs of each chapter, without what stands before the first and after the last."""
    found: list[list[str]] = []
    paragraph: list[str] = []
    for line in [*lines, ""]:
        if HEADING.match(line):
            found.append([])
        elif ENDINGS.match(line):
            break
        elif line.strip():
            paragraph.append(line.strip())
            continue
        words = re.sub(r"\s+", " ", " ".join(paragraph).replace("_", ""))  # underscores stand for italics
        if found and re.search("[A-Za-z]", words):
            found[-1].append(words)
        paragraph = []
    return [chapter for chapter in found if chapter]  # a volume's heading stands before its first chapter's


def main() -> None:
    """Writes both texts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("package", type=Path, help="the unpacked package")
    parser.add_argument("folder", type=Path, help="where the texts go")
    arguments = parser.parse_args()
    books = [chapters(lines) for lines in novels(arguments.package).values()]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("training", slice(None, -1)), ("held_back", slice(-1, None))):
        paragraphs = [paragraph for book in books for chapter in book[part] for paragraph in chapter]
        (arguments.folder / f"{name}.txt").write_text("\n".join(paragraphs) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
