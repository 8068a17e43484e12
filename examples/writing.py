"""A small trained model writes, with caches of several formats; `make run` runs this where it has no network.

The model has read Jane Austen's novels, but for the last chapter of each (austen/README.md). For each cache format it
continues a few beginnings in one batch and then is asked how well it predicts the held-out chapters: the
perplexity says what a format costs in quality. The exit status is 1 if one is off what docs/quality.csv says.
"""

from __future__ import annotations

import argparse
import csv
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

from kvcache import find_library
from trained import CONTEXT, KEPT_AS, TrainedModel, held_back_text, perplexity, tokenizer

RECORD = Path(__file__).resolve().parents[1] / "docs/quality.csv"
INDENT = " " * 4
MOST_TOKENS = 400  # of CONTEXT, behind the longest beginning
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


@dataclass(frozen=True)
class Quality:
    """What a cache format costs and gives."""

    name: str
    bytes_per_token: int
    perplexity: float


@dataclass(frozen=True)
class Served:
    """What was written with a cache format: the tokens of each request, and how fast."""

    quality: Quality
    written: list[list[int]]
    tokens_per_second: float

    def same_text(self, other: Served, new_tokens: int) -> float:
        """The share of new tokens before the first that differs, over all requests."""
        agreed = 0
        for mine, theirs in zip(self.written, other.written):
            same = [a == b for a, b in zip(mine, theirs)][-new_tokens:]
            agreed += same.index(False) if False in same else new_tokens
        return agreed / (new_tokens * len(self.written))


def write(model: TrainedModel, new_tokens: int, temperature: float) -> list[list[int]]:
    """All beginnings go on in one batch, token by token; each follows a line's end, as a paragraph of the novels does.

    A token is the one of the largest sum of its logit and a number of Gumbel's distribution: a draw by probability.
    """
    random = [np.random.default_rng(i) for i in range(len(BEGINNINGS))]
    texts = {model.manager.create(): tokenizer().encode("\n" + beginning) for beginning in BEGINNINGS}
    new = {seq: list(tokens) for seq, tokens in texts.items()}
    for _ in range(new_tokens):
        for (seq, logits), draw in zip(sorted(model.decode(new).items()), random):
            chosen = logits[-1]
            if temperature:
                chosen = chosen / temperature + draw.gumbel(size=len(chosen))
            new[seq] = [int(chosen.argmax())]
            texts[seq] += new[seq]
    for seq in texts:
        model.manager.free(seq)
    return list(texts.values())


def serve(name: str, arguments: argparse.Namespace) -> Served:
    """Writes with one cache format, then measures the perplexity."""
    fused = arguments.attention == "fused"
    model = TrainedModel(KEPT_AS[name], max_t=len(BEGINNINGS) * CONTEXT, fused=fused, threads=arguments.threads)
    begin = time.perf_counter()
    written = write(model, arguments.new_tokens, arguments.temperature)
    rate = len(written) * arguments.new_tokens / (time.perf_counter() - begin)
    measured = perplexity(model, tokenizer().encode(held_back_text()), CONTEXT)
    model.manager.check()
    return Served(Quality(name, model.cache.spec.bytes_per_token, measured), written, rate)


def recorded() -> dict[str, Quality]:
    """What docs/quality.csv says, by format."""
    with RECORD.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {row["cache"]: Quality(row["cache"], int(row["bytes per token"]), float(row["perplexity"])) for row in rows}


def record(qualities: list[Quality]) -> None:
    """Writes docs/quality.csv."""
    with RECORD.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["cache", "bytes per token", "perplexity"])
        writer.writerows([quality.name, quality.bytes_per_token, f"{quality.perplexity:.4f}"] for quality in qualities)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--formats", nargs="+", choices=KEPT_AS, default=list(KEPT_AS), help="cache formats")
    parser.add_argument("--new-tokens", type=int, default=72, help="how many tokens are written after each beginning")
    parser.add_argument("--temperature", type=float, default=0.6, help="0 always takes the likeliest token")
    parser.add_argument("--threads", type=int, default=0, help="threads inside an operator; 0 takes all cores")
    parser.add_argument(
        "--attention",
        choices=("fused", "standard"),
        default="fused",
        help="one operator, or standard ones over what KeyValueCache returns",
    )
    parser.add_argument("--record", action="store_true", help="writes docs/quality.csv from what all formats gave")
    arguments = parser.parse_args()
    if arguments.record and arguments.formats != list(KEPT_AS):
        parser.error("--record takes all formats")
    if not 0 < arguments.new_tokens <= MOST_TOKENS:
        parser.error(f"--new-tokens is {arguments.new_tokens}, expected 1 to {MOST_TOKENS}")
    return arguments


def main() -> int:
    """Serves with every format, prints what is written and the table, returns the exit status."""
    arguments = parse_arguments()
    try:
        print(f"operator library {find_library()}, onnxruntime {onnxruntime.__version__}")
    except FileNotFoundError as error:
        sys.exit(str(error))
    served: list[Served] = []
    for name in arguments.formats:
        served.append(serve(name, arguments))
        if len(served) == 1:
            print(f"\nwritten with {name}:")
            for tokens in served[0].written:
                print()
                for paragraph in tokenizer().decode(tokens).strip("\n").split("\n"):
                    print(textwrap.fill(paragraph, 100, initial_indent=INDENT, subsequent_indent=INDENT))
            print()
        print(f"{name}: perplexity {served[-1].quality.perplexity:.3f}", flush=True)

    expected = {} if arguments.record else recorded()
    print(f"\n{'cache':20}  bytes/token  tokens/s  perplexity  same text")
    right = True
    for result in served:
        quality = result.quality
        line = (
            f"{quality.name:20}  {quality.bytes_per_token:11}  {result.tokens_per_second:8.0f}  "
            f"{quality.perplexity:10.3f}  {result.same_text(served[0], arguments.new_tokens):9.1%}"
        )
        known = expected.get(quality.name)
        if known:
            off = abs(quality.perplexity / known.perplexity - 1)
            if not off <= TOLERANCE or known.bytes_per_token != quality.bytes_per_token:
                right = False
                line += f"  WRONG: expected {known.bytes_per_token} bytes, perplexity {known.perplexity:.3f}"
        print(line)
    print(f"same text: the share of written tokens before the first that is not {served[0].quality.name}'s")
    if arguments.record:
        record([result.quality for result in served])
        print(f"recorded in {RECORD}")
    elif expected:
        print("every perplexity is what docs/quality.csv says" if right else "wrong: see WRONG above")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
