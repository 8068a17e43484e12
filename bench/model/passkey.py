"""Pass keys in texts of up to many times the length that a model was trained for, read with InfLlm and without.

    passkey.py SmolLM2-135M-Instruct.Q4_1.gguf     writes passkey.md and passkey.json in target/bench

A pass key of five digits stands somewhere in a text that says always the same, and is asked for after it. "all rows"
is attention over the whole text; "window" sees the first and the last tokens alone (StreamingLLM); Quest and InfLLM
see blocks of what is between, too. The text is read in chunks, the question token by token, for a selection lags one
step behind. InfLLM's representatives need the attention's mass, which the operator then gives, too.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np
from kvcache_ops.models import build

from harness import ROOT, markdown, write
from long_context import ASKED, FILLER, SAID, Reader

TRAINED = 8192  # tokens that the model was trained for
MOST_FOR_ALL_ROWS = 2  # times these
INIT, LOCAL, BLOCK, TOPK, CHUNK = 32, 1024, 16, 64, 512
SIZES = {"init": INIT, "local": LOCAL, "block": BLOCK, "positions": "far_fixed", "n_ctx": 4096}
WAYS = {
    "window": SIZES | {"score": "none", "topk": 0},
    "Quest": SIZES | {"score": "page_bounds", "topk": TOPK, "max_cached": 2 * TOPK},
    "InfLLM": SIZES | {"score": "representatives", "topk": TOPK, "max_cached": 2 * TOPK},
}


@dataclass(frozen=True)
class Read:
    """What came of a text."""

    way: str
    tokens: int
    right: list[bool]
    slots: int
    loads: float
    prefill: float
    decode: float

    def cells(self) -> list[str]:
        """A row of the table."""
        right = f"{sum(self.right)} of {len(self.right)}"
        numbers = (self.slots, self.loads, self.prefill, self.decode)
        return [self.way, str(self.tokens), right, *(f"{number:.1f}".removesuffix(".0") for number in numbers)]


def passkey(reader: Reader, way: str, length: int, prompts: int) -> Read:
    """Reads texts of about this many tokens, each with a key, and asks for it."""
    encode, random, right = reader.model.tokenizer.encode, np.random.default_rng(7), []
    filler, asked = encode(FILLER).ids, encode(ASKED).ids
    slots, prefill, decode, loads = 0, 0.0, 0.0, []
    for i in range(prompts):
        key = "".join(str(digit) for digit in random.integers(0, 10, 5))
        said = encode(SAID.format(key=key)).ids
        times = (length - len(said) - len(asked) - len(key)) // len(filler)
        before = int(times * (i + random.random()) / prompts)
        text = filler * before + said + filler * (times - before)
        s, begin = reader.infllm.create(), time.perf_counter()
        reader.read(s, text, CHUNK)
        slots = max(slots, reader.infllm.num_pages(s) * reader.cache.spec.page_size)
        middle, reader.loads = time.perf_counter(), []
        right.append(reader.answer(s, asked, len(key)) == key)
        end = time.perf_counter()
        prefill, decode = prefill + len(text) / (middle - begin), decode + len(reader.loads) / (end - middle)
        loads.append(np.mean(reader.loads))
        reader.infllm.free(s)
    return Read(way, length, right, slots, float(np.mean(loads)), prefill / prompts, decode / prompts)


def main() -> int:
    """Reads all texts in all ways, and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a GGUF file")
    parser.add_argument("--times", type=int, nargs="+", default=[1, 2, 4, 8, 16], help=f"lengths, times {TRAINED}")
    parser.add_argument("--ways", nargs="+", default=["all rows", "window", "Quest", "InfLLM"])
    parser.add_argument("--prompts", type=int, default=4, help="texts of each length")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench", help="folder of the report and the model")
    given, begin = parser.parse_args(), time.monotonic()
    folder = given.out / "passkey"
    if not (folder / "model.onnx").exists():
        build(given.source, folder, cache="float16", page_size=BLOCK)
    header = ["attention", "tokens", "pass keys", "slots", "loads a step", "tokens/s of the text", "of the answer"]
    found: list[Read] = []
    for times, way in product(given.times, given.ways):
        length = times * TRAINED
        if way == "all rows" and times > MOST_FOR_ALL_ROWS:
            continue
        if way == "all rows":
            rows = -(-length // BLOCK) * BLOCK
            config, slots = {"init": 0, "local": rows, "block": BLOCK, "score": "none", "topk": 0}, rows + 2 * BLOCK
        else:
            config, slots = WAYS[way], INIT + LOCAL + BLOCK * (3 + 2 * TOPK) + CHUNK
        found.append(passkey(Reader(folder, slots, given.threads, **config), way, length, given.prompts))
        print(" | ".join(found[-1].cells()), flush=True)
        table = markdown(header, [read.cells() for read in found])
        write(given.out, "passkey", time.monotonic() - begin, {"reads": [asdict(read) for read in found]}, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
