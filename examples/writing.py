"""A small trained model writes, with caches of several formats; `make run` runs this where it has no network.

The model was trained on Jane Austen's novels without the last chapter of each (austen/README.md). It continues a few
beginnings in one batch, and then predicts the held-out chapters with each cache format: the perplexity shows what a
format costs in quality. The exit status is 1 if one differs from docs/quality.csv.
"""

from __future__ import annotations

import argparse
import csv
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnxruntime

from kvcache import find_library
from trained import CONTEXT, KEPT_AS, TrainedModel, held_back_text, perplexity, tokenizer

RECORD = Path(__file__).resolve().parents[1] / "docs/quality.csv"
INDENT = " " * 4
NEW_TOKENS = 72  # after each beginning
TEMPERATURE = 0.6
TOLERANCE = 2e-3  # of a recorded perplexity; formats of neighboring quality are further apart

BEGINNINGS = (
    "It is a truth universally acknowledged, that",
    "Emma was sorry to",
    "The ball was",
    "Captain Wentworth had",
    "Mrs. Bennet was delighted with",
    '"My dear Fanny," said Edmund,',
    "Catherine opened the door, and",
    "Elinor, who had not heard the letter,",
    "Mr. Knightley looked at her with",
    "The rain",
    '"I have not the pleasure of understanding you," said',
    "As soon as they were gone, Elizabeth walked",
)


def write(model: TrainedModel) -> list[list[int]]:
    """All beginnings grow in one batch, token by token; each follows a line's end, as a paragraph of the novels does.

    A token is the one of the largest sum of its logit and a number of Gumbel's distribution: a draw by probability.
    """
    random = [np.random.default_rng(i) for i in range(len(BEGINNINGS))]
    texts = {model.manager.create(): tokenizer().encode("\n" + beginning) for beginning in BEGINNINGS}
    new = {seq: list(tokens) for seq, tokens in texts.items()}
    for _ in range(NEW_TOKENS):
        for (seq, logits), draw in zip(sorted(model.decode(new).items()), random):
            chosen = logits[-1] / TEMPERATURE + draw.gumbel(size=logits.shape[1])
            new[seq] = [int(chosen.argmax())]
            texts[seq] += new[seq]
    for seq in texts:
        model.manager.free(seq)
    return list(texts.values())


def recorded() -> dict[str, tuple[int, float]]:
    """What docs/quality.csv says, by format: bytes for a token, and the perplexity."""
    with RECORD.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    return {name: (int(nbytes), float(measured)) for name, nbytes, measured in rows}


def main() -> int:
    """Measures every format, prints what is written with the first one and the table, returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--formats", nargs="+", choices=KEPT_AS, default=list(KEPT_AS), help="cache formats")
    parser.add_argument("--record", action="store_true", help="writes docs/quality.csv from what all formats gave")
    arguments = parser.parse_args()
    if arguments.record and arguments.formats != list(KEPT_AS):
        parser.error("--record takes all formats")
    try:
        print(f"operator library {find_library()}, onnxruntime {onnxruntime.__version__}")
    except FileNotFoundError as error:
        sys.exit(str(error))
    measured: list[tuple[str, int, float]] = []
    for name in arguments.formats:
        model = TrainedModel(KEPT_AS[name], max_t=len(BEGINNINGS) * CONTEXT, fused=True)
        for tokens in write(model) if not measured else []:
            print()
            for paragraph in tokenizer().decode(tokens).strip("\n").split("\n"):
                print(textwrap.fill(paragraph, 100, initial_indent=INDENT, subsequent_indent=INDENT))
        found = perplexity(model, tokenizer().encode(held_back_text()), CONTEXT)
        measured.append((name, model.cache.spec.bytes_per_token, found))

    if arguments.record:
        with RECORD.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["cache", "bytes per token", "perplexity"])
            writer.writerows([name, nbytes, f"{found:.4f}"] for name, nbytes, found in measured)
    expected, right = recorded(), True
    print(f"\n{'cache':20}  bytes/token  perplexity")
    for name, nbytes, found in measured:
        line = f"{name:20}  {nbytes:11}  {found:10.3f}"
        if not abs(found / expected[name][1] - 1) <= TOLERANCE or nbytes != expected[name][0]:
            right = False
            line += f"  WRONG: expected {expected[name][0]} bytes, perplexity {expected[name][1]:.3f}"
        print(line)
    print("every perplexity is what docs/quality.csv says" if right else "wrong: see WRONG above")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
