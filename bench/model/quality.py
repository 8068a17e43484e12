"""What a cache's format costs a model in quality: perplexity, copying a pass key, going on with what is repeated.

    quality.py SmolLM2-135M-Instruct.Q4_1.gguf     writes quality.md and quality.json in target/bench

Perplexity is of Jane Austen's words (examples/austen/NOTICE says whose they are): the last chapters of six novels and
the ones before of two, chapters.txt, in windows of 512 tokens; formats are compared on the same tokens, and errors are
one standard error over windows or prompts. A pass key of five digits stands somewhere in 400 tokens of the text, and is
asked for after them; what is repeated is a list of twelve words, three times. Weights and inputs of products are as
they are served: quantized.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from math import exp
from pathlib import Path

import numpy as np
from kvcache_ops.models._perplexity import losses_of

from harness import ROOT, markdown, write
from ours import Ours

# Types, groups, and whether keys are rotated.
FLOATS = [("float32", 32, False), ("float16", 32, False)]
INT8 = [("int8", 8, False), ("int8", 32, False), ("int8", 32, True)]
FORMATS = FLOATS + INT8 + [("int4", group, rotation) for group in (8, 16, 32, 64) for rotation in (False, True)]
WINDOW = 512
CHUNK = 128  # tokens whose logits are in memory at once
PROMPTS = 16
FILLER = 400  # tokens around a pass key
WORDS, TIMES = 12, 3


@dataclass(frozen=True)
class Quality:
    """What was measured of a format: a loss for each window, and for each prompt the part that was right."""

    cache: str
    group: int
    rotation: bool
    bytes_per_token: int
    losses: list[float]
    passkeys: list[float]
    repetitions: list[float]

    def cells(self, exact: Quality) -> list[str]:
        """A row of the table."""
        loss, cost = np.array(self.losses), np.array(self.losses) - exact.losses
        perplexity, ratio = exp(loss.mean()), exp(cost.mean())
        name = self.cache if self.cache.startswith("float") else f"{self.cache}, groups of {self.group}"
        name += ", keys rotated" if self.rotation else ""
        return [
            name,
            str(self.bytes_per_token),
            f"{perplexity:.2f} ± {perplexity * error(loss):.2f}",
            "" if self is exact else f"{100 * ratio - 100:+.2f} ± {100 * ratio * error(cost):.2f} %",
            *(f"{np.mean(right):.0%} ± {error(np.array(right)):.0%}" for right in (self.passkeys, self.repetitions)),
        ]


def error(values: np.ndarray) -> float:
    """The standard error of the mean."""
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def losses(model: Ours, windows: list[list[int]]) -> list[float]:
    """Of each window: the mean of -log p over all of its tokens but the first."""
    found = []
    for window in windows:
        model.clear(0)
        total = 0.0
        for first in range(0, len(window), CHUNK):
            following = window[first + 1 : first + CHUNK + 1]
            logits = model.step({0: window[first : first + CHUNK]}, every=True)[: len(following)]
            total += float(losses_of(logits, following).sum())
        found.append(total / (len(window) - 1))
    return found


def passkeys(model: Ours, text: list[int], random: np.random.Generator) -> list[float]:
    """Of each pass key, 1 if all five digits are copied."""
    right = []
    for i in range(PROMPTS):
        key = "".join(str(digit) for digit in random.integers(0, 10, 5))
        filler, at = text[i * FILLER :][:FILLER], int(random.integers(0, FILLER))
        said = model.tokenizer.encode(f" The pass key is {key}. Remember it: {key} is the pass key.\n").ids
        asked = model.tokenizer.encode("\nWhat is the pass key? The pass key is ").ids
        model.clear(0)
        tokens, answer = filler[:at] + said + filler[at:] + asked, []
        for _ in key:
            tokens = [int(model.step({0: tokens})[0].argmax())]
            answer += tokens
        right.append(float(model.tokenizer.decode(answer).strip() == key))
    return right


def repetition(model: Ours, text: str, random: np.random.Generator) -> list[float]:
    """Of each list, the part of the last repetition's tokens that are the likeliest ones."""
    vocabulary, right = sorted({word for word in text.split() if word.isalpha() and word.islower()}), []
    for _ in range(PROMPTS):
        words = " " + " ".join(random.choice(vocabulary, WORDS, replace=False))
        tokens = model.tokenizer.encode(words).ids
        model.clear(0)
        logits = model.step({0: tokens * TIMES}, every=True)
        last = (TIMES - 1) * len(tokens)
        right.append(float(np.mean(logits[last - 1 : -1].argmax(axis=1) == tokens)))
    return right


def main() -> int:
    """Measures every format, and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a GGUF file")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench", help="folder of the report")
    arguments = parser.parse_args()
    texts = (ROOT / "examples/austen/held_back.txt", Path(__file__).with_name("chapters.txt"))
    text, begin = "".join(path.read_text(encoding="utf-8") for path in texts), time.monotonic()
    measured: list[Quality] = []
    for cache, group, rotation in FORMATS:
        with tempfile.TemporaryDirectory() as folder:
            options = {"quant_group": group, "rotation": rotation}
            model = Ours(str(arguments.source), cache, folder, 1, 2 * WINDOW, arguments.threads, **options)
            tokens = model.tokenizer.encode(text).ids
            windows = [tokens[first : first + WINDOW] for first in range(0, len(tokens) - WINDOW + 1, WINDOW)]
            random = np.random.default_rng(7)
            values = losses(model, windows), passkeys(model, tokens, random), repetition(model, text, random)
            measured.append(Quality(cache, group, rotation, model.bytes_per_token, *values))
        print(" | ".join(measured[-1].cells(measured[0])), flush=True)
    header = ["cache", "bytes for a token", "perplexity", "above float32's", "pass keys copied", "words repeated"]
    table = markdown(header, [quality.cells(measured[0]) for quality in measured])
    said = f"{len(windows)} windows of {WINDOW} tokens"
    report = {"text": said, "formats": [asdict(quality) for quality in measured]}
    write(arguments.out, "quality", time.monotonic() - begin, report, said, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
