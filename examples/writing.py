"""A small trained model writes, with caches of several formats; `make run` runs this where it has no network.

The model has read Jane Austen's novels, but for the last chapter of each (austen/README.md). For each cache format it
continues a few beginnings in continuous batching and then is asked how well it predicts the held-back chapters: the
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
from scheduler import Request, Scheduler, likeliest
from trained import KEPT_AS, PAGE_SIZE, TRAINED, held_back_text, perplexity, tokenizer, trained_engine

RECORD = Path(__file__).resolve().parents[1] / "docs/quality.csv"
INDENT = " " * 4
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


class Sampler:
    """Chooses tokens at random by their probabilities, sharpened; the same ones for the same seed and logits."""

    def __init__(self, seed: int, temperature: float):
        self._random = np.random.default_rng(seed)
        self._temperature = temperature

    def __call__(self, logits: np.ndarray) -> int:
        """The token of the largest sum of its logit and a number of Gumbel's distribution: one draw for each step."""
        return likeliest(logits / self._temperature + self._random.gumbel(size=len(logits)))


def requests(new_tokens: int, temperature: float = 0.0) -> list[Request]:
    """The beginnings, a new one every other step; each follows a line's end, as every paragraph has in the novels."""
    return [
        Request(
            f"#{i:02}",
            tokenizer().encode("\n" + beginning),
            new_tokens,
            arrives=2 * i,
            choose=Sampler(i, temperature) if temperature else likeliest,
        )
        for i, beginning in enumerate(BEGINNINGS)
    ]


def serve(name: str, arguments: argparse.Namespace) -> Served:
    """Serves all requests with one cache format, then measures the perplexity."""
    engine = trained_engine(
        KEPT_AS[name],
        max_t=arguments.pages * PAGE_SIZE,
        fused=arguments.attention == "fused",
        threads=arguments.threads,
    )
    served = requests(arguments.new_tokens, arguments.temperature)
    begin = time.perf_counter()
    for _ in Scheduler(engine.manager, engine.memory, arguments.max_batch).serve(served, engine.run):
        pass
    seconds = time.perf_counter() - begin
    computed = sum(request.computed for request in served)
    measured = perplexity(engine, tokenizer().encode(held_back_text()), arguments.window)
    engine.manager.check()
    quality = Quality(name, engine.cache.spec.bytes_per_token, measured)
    return Served(quality, [request.tokens for request in served], computed / seconds)


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
    parser.add_argument("--max-batch", type=int, default=6, help="how many requests run at once")
    parser.add_argument("--pages", type=int, default=64, help=f"pages in the cache, of {PAGE_SIZE} tokens")
    parser.add_argument("--window", type=int, default=TRAINED.max_positions, help="tokens that perplexity looks back")
    parser.add_argument("--threads", type=int, default=0, help="threads inside an operator; 0 takes all cores")
    parser.add_argument(
        "--attention",
        choices=("fused", "standard"),
        default="fused",
        help="one operator, or standard ones over what KeyValueCache returns",
    )
    parser.add_argument("--record", action="store_true", help="writes docs/quality.csv from what all formats gave")
    arguments = parser.parse_args()
    if arguments.record and (arguments.formats, arguments.window) != (list(KEPT_AS), TRAINED.max_positions):
        parser.error("--record takes all formats and the model's own window")
    longest = max(len(request.prompt) for request in requests(arguments.new_tokens)) + arguments.new_tokens - 1
    if max(longest, arguments.window) > min(TRAINED.max_positions, arguments.pages * PAGE_SIZE):
        parser.error(f"{max(longest, arguments.window)} tokens are more than the model or the cache has room for")
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

    expected = {} if arguments.record or arguments.window != TRAINED.max_positions else recorded()
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
