"""What a cache's format costs a model in quality: perplexity, copying a pass key, going on with what is repeated.

    quality.py SmolLM2-135M-Instruct.Q4_1.gguf     writes quality.md and quality.json in target/bench
    quality.py FILE FILE --windows 8 --prompts 4   of several models, in less time
    quality.py FILE --window 4096 --prompts 0      in longer windows, perplexity and KL alone

The divergence from the model with a float32 cache ranks formats more surely than perplexity, which can fall by chance:
KL is the mean over tokens of sum(p log(p / q)), p being the exact model's distribution and q the format's, in 1/1000
nat. For it a file of each engine keeps the exact model's logits, as float16 below the largest: 11 GB for Gemma 3 and
all windows.

Perplexity is of Jane Austen's words (examples/austen/NOTICE says whose they are): the last chapters of six novels and
the ones before of two, chapters.txt, in windows of 512 tokens, or as many as --window says; formats are compared on the
same tokens, and errors are one standard error over windows or prompts. A pass key of five digits stands somewhere in
400 tokens of the text, and is asked for after them; what is repeated is a list of twelve words, three times. Weights
and inputs of products are as they are served: quantized.

llama.cpp (LLAMA_CPP is the folder of its libraries) gets the same tokens. Its products round otherwise, so a format's
cost is over the float32 cache of the same engine. With float32 caches, both engines must give each window nearly the
same loss.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from math import exp
from pathlib import Path
from typing import BinaryIO

import numpy as np
from kvcache_ops.models._perplexity import losses_of
from tokenizers import Tokenizer

from harness import ROOT, WrongAnswer, markdown, write
from llama_cpp import LIBRARIES, VERSION, LlamaCpp
from ours import Ours

OURS, LLAMA_CPP = "ours", f"llama.cpp {VERSION}"
GGML = {"int8": "q8_0", "int4": "q4_0"}  # both in groups of 32 with a float16 scale, as ours
# The most that a window's loss may differ between the engines' float32 caches. Inputs of products that are rounded to 8
# bits in two ways make up to 0.01.
BOUND = 0.03
CHUNK = 128  # tokens whose logits are in memory at once
FILLER = 400  # tokens around a pass key
PROMPT = 1024  # tokens of a pass key's or a list's prompt, at most
WORDS, TIMES = 12, 3


@dataclass(frozen=True)
class Format:
    """A cache's type, the size of its groups, and whether keys are rotated, in llama.cpp values, too."""

    engine: str
    cache: str
    group: int = 32
    rotation: bool = False

    def __str__(self) -> str:
        if self.engine == LLAMA_CPP:
            return f"llama.cpp's {GGML.get(self.cache, self.cache)}" + ", rotated" * self.rotation
        groups = f", groups of {self.group}" * (self.cache in GGML)
        return self.cache + groups + ", keys rotated" * self.rotation


def formats() -> Iterator[Format]:
    """All of them, llama.cpp's beside ours of the same bytes."""
    integers = [("int8", 8), ("int8", 32), *product(["int4"], (8, 16, 32, 64))]
    for cache, group in [("float32", 32), ("float16", 32), *integers]:
        for engine in (OURS, LLAMA_CPP) if group == 32 and LIBRARIES.is_dir() else (OURS,):
            for rotation in (False, True) if cache in GGML else (False,):
                yield Format(engine, cache, group, rotation)


# What is compared window by window.
PAIRS = [
    (Format(OURS, "int8", rotation=True), Format(OURS, "int8")),
    (Format(OURS, "int8", rotation=True), Format(LLAMA_CPP, "int8", rotation=True)),
    (Format(OURS, "int4", rotation=True), Format(OURS, "int4")),
    (Format(OURS, "int4", rotation=True), Format(LLAMA_CPP, "int4", rotation=True)),
    (Format(OURS, "int4"), Format(LLAMA_CPP, "int4")),
    (Format(LLAMA_CPP, "int4", rotation=True), Format(LLAMA_CPP, "int4")),
]


@dataclass(frozen=True)
class Quality:
    """What was measured of a format: for each window a loss and the KL, for each prompt the part that was right."""

    bytes_per_token: int
    losses: list[float]
    divergences: list[float]  # in nat
    passkeys: list[float]
    repetitions: list[float]

    def cells(self, exact: Quality) -> list[str]:
        """A row of the table, without the name."""
        loss = np.array(self.losses)
        perplexity = exp(loss.mean())
        return [
            str(self.bytes_per_token),
            f"{perplexity:.2f} ± {perplexity * error(loss):.2f}",
            *(["", ""] if self is exact else [percent(loss - exact.losses), thousandths(np.array(self.divergences))]),
            *(
                f"{np.mean(right):.0%} ± {error(np.array(right)):.0%}" if right else ""
                for right in (self.passkeys, self.repetitions)
            ),
        ]


def percent(cost: np.ndarray) -> str:
    """What a loss that is higher by so much in each window makes of perplexity."""
    ratio = exp(cost.mean())
    return f"{100 * ratio - 100:+.2f} ± {100 * ratio * error(cost):.2f} %"


def thousandths(values: np.ndarray) -> str:
    """The mean of values in nat, in 1/1000."""
    return f"{1000 * values.mean():.1f} ± {1000 * error(values):.1f}"


def error(values: np.ndarray) -> float:
    """The standard error of the mean."""
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def losses(
    model: Ours | LlamaCpp, windows: list[list[int]], exact: BinaryIO, is_exact: bool
) -> tuple[list[float], list[float]]:
    """Of each window, over all of its tokens but the first: the mean of -log p, and the KL from the exact model, whose
    logits are in the file, or are written to it."""
    exact.seek(0)
    found = []
    for window in windows:
        model.clear(0)
        total = np.zeros(2)
        for first in range(0, len(window), CHUNK):
            following = window[first + 1 : first + CHUNK + 1]
            logits = model.step({0: window[first : first + CHUNK]}, every=True)[: len(following)]
            total[0] += losses_of(logits, following).sum()
            if is_exact:
                (logits - logits.max(axis=1, keepdims=True)).astype(np.float16).tofile(exact)
            else:
                kept = np.fromfile(exact, np.float16, logits.size).reshape(logits.shape)
                total[1] += divergences(kept.astype(np.float32), logits).sum()
        found.append(total / (len(window) - 1))
    mean_losses, kl = np.array(found).T.tolist()
    return mean_losses, kl


def divergences(exact: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """sum(p log(p / q)) of each row (R, vocabulary) of logits; p is of the exact ones."""
    log_p, log_q = log_softmax(exact), log_softmax(logits)
    return (np.exp(log_p) * (log_p - log_q)).sum(axis=1, dtype=np.float64)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """log p of each row (R, vocabulary)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


class Text:
    """What a model reads, in its tokens. `first` is what every prompt begins with."""

    def __init__(self, tokenizer: Tokenizer, window: int, windows: int | None, prompts: int) -> None:
        texts = (ROOT / "examples/austen/held_out.txt", Path(__file__).with_name("chapters.txt"))
        text = "".join(path.read_text(encoding="utf-8") for path in texts)
        self._tokenizer, self.first, self.prompts = tokenizer, tokenizer.encode("").ids, range(prompts)
        self.tokens, step = self.encode(text), window - len(self.first)
        starts = range(0, len(self.tokens) - step + 1, step)[:windows]
        self.windows = [self.first + self.tokens[start : start + step] for start in starts]
        self.vocabulary = sorted({word for word in text.split() if word.isalpha() and word.islower()})

    def encode(self, text: str) -> list[int]:
        """The tokens of a text inside of a prompt."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: list[int]) -> str:
        """Their text."""
        return self._tokenizer.decode(tokens)


def passkeys(model: Ours | LlamaCpp, text: Text, random: np.random.Generator) -> list[float]:
    """Of each pass key, 1 if all five digits are copied."""
    right = []
    for i in text.prompts:
        key = "".join(str(digit) for digit in random.integers(0, 10, 5))
        filler, at = text.tokens[i * FILLER :][:FILLER], int(random.integers(0, FILLER))
        said = text.encode(f" The pass key is {key}. Remember it: {key} is the pass key.\n")
        asked = text.encode("\nWhat is the pass key? The pass key is ")
        model.clear(0)
        tokens, answer = text.first + filler[:at] + said + filler[at:] + asked, []
        for _ in key:
            tokens = [int(model.step({0: tokens})[0].argmax())]
            answer += tokens
        right.append(float(text.decode(answer).strip() == key))
    return right


def repetition(model: Ours | LlamaCpp, text: Text, random: np.random.Generator) -> list[float]:
    """Of each list, the part of the last repetition's tokens that are the likeliest ones."""
    right = []
    for _ in text.prompts:
        tokens = text.encode(" " + " ".join(random.choice(text.vocabulary, WORDS, replace=False)))
        model.clear(0)
        logits = model.step({0: text.first + tokens * TIMES}, every=True)
        right.append(float(np.mean(logits[-len(tokens) - 1 : -1].argmax(axis=1) == tokens)))
    return right


def measured(source: Path, given: argparse.Namespace) -> dict[Format, Quality]:
    """The quality of all formats of a model. Raises `WrongAnswer` where the engines' exact caches differ."""
    found: dict[Format, Quality] = {}
    given.out.mkdir(parents=True, exist_ok=True)
    length = max(given.window, PROMPT)
    exact_logits = {engine: tempfile.TemporaryFile(dir=given.out) for engine in (OURS, LLAMA_CPP)}
    for form in formats():
        with tempfile.TemporaryDirectory() as folder:
            if form.engine == OURS:
                options = {"quant_group": form.group, "rotation": form.rotation}
                model = Ours(str(source), form.cache, folder, 1, length, given.threads, **options)
                text, size = Text(model.tokenizer, given.window, given.windows, given.prompts), model.bytes_per_token
            else:
                model = LlamaCpp(str(source), form.cache, 1, length, given.threads, form.rotation)
                size = found[Format(OURS, form.cache)].bytes_per_token  # of the same codes and scales
            random = np.random.default_rng(7)
            of_windows = losses(model, text.windows, exact_logits[form.engine], form.cache == "float32")
            found[form] = Quality(size, *of_windows, passkeys(model, text, random), repetition(model, text, random))
            if form.engine == LLAMA_CPP:
                model.close()
        exact = found[Format(form.engine, "float32")]
        print(" | ".join([str(form), *found[form].cells(exact)]), flush=True)
        if form == Format(LLAMA_CPP, "float32"):
            differences = np.abs(np.array(exact.losses) - found[Format(OURS, "float32")].losses)
            print(f"float32 caches of the engines: losses of a window differ by at most {differences.max():.4f}")
            if not differences.max() < BOUND:
                raise WrongAnswer(f"{LLAMA_CPP}: the loss of a window differs by {differences.max():.3f} from ours")
    return found


def tables(found: dict[Format, Quality]) -> Iterator[str]:
    """The table of a model's formats, and the one of pairs."""
    header = ["cache", "bytes for a token", "perplexity", "above float32's", "KL, 1/1000 nat"]
    header += ["pass keys copied", "words repeated"]
    exact = {form: found[Format(form.engine, "float32")] for form in found}
    yield markdown(header, [[str(form), *of.cells(exact[form])] for form, of in found.items()])
    costs = {form: np.array(of.losses) - exact[form].losses for form, of in found.items()}
    kl = {form: np.array(of.divergences) for form, of in found.items()}
    pairs = [(a, b) for a, b in PAIRS if b in costs]
    rows = [[str(a), str(b), percent(costs[a] - costs[b]), thousandths(kl[a] - kl[b])] for a, b in pairs]
    yield markdown(["cost of", "over", "difference", "in KL, 1/1000 nat"], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, nargs="+", help="GGUF files")
    parser.add_argument("--window", type=int, default=512, help="tokens of a window")
    parser.add_argument("--windows", type=int, help="of the text, the first; all unless given")
    parser.add_argument("--prompts", type=int, default=16, help="pass keys, and lists of words")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench", help="folder of the report")
    given = parser.parse_args()
    if given.windows in (0, 1) or given.prompts == 1:
        parser.error("errors are over windows and over prompts: expected at least 2 of each, or no prompts")
    if not LIBRARIES.is_dir():
        print(f"llama.cpp is missing: its libraries are not in LLAMA_CPP={LIBRARIES}")
    report, parts, begin = [], [], time.monotonic()
    for source in given.sources:
        found = measured(source, given)
        windows = len(found[Format(OURS, "float32")].losses)
        parts += [f"## {source.name}", f"{windows} windows of {given.window} tokens", *tables(found)]
        report += [{"model": source.name} | asdict(form) | asdict(of) for form, of in found.items()]
        write(given.out, "quality", time.monotonic() - begin, {"formats": report}, *parts)
