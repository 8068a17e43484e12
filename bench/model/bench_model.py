"""The benchmark of a whole model: the same GGUF file in kvcache_ops on ONNX Runtime and in llama.cpp, in one run.

    bench_model.py SmolLM2-135M-Instruct.Q4_1.gguf     everything; writes model.md and model.json in target/bench
    bench_model.py FILE --quick                        int8 alone, short prompts, depths of 0 and 1024

Each contender is a process of its own. They are measured in turn; ratios are taken within a round. After each figure
their logits are compared, of the same tokens in all of them: what differs by more than rounding to 8 bits explains ends
the benchmark. Where llama.cpp's library is not in the folder that LLAMA_CPP names, its column stays empty.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from kvcache_ops.models import load
from llama_cpp import VERSION, LlamaCpp

from figures import ROOT, markdown, provenance
from measure import Spread
from ours import OurEngine, Ours

OURS, LLAMA_CPP = "kvcache_ops", f"llama.cpp {VERSION}"
LENGTH = 8192  # tokens of a sequence, the model's context
SEQUENCES = 16
PREFIX = 2048
# The root mean square of the logits' differences, in standard deviations. Inputs of products that are rounded to 8 bits
# make 0.03 to 0.07, int8 caches up to 0.3; a token that is left out makes 0.2 to 3.
BOUNDS = {"float16": 0.15, "int8": 0.4}
GOALS = {("prompt", 4096): 1.0, ("decode", 1, 1024): 1.0, ("decode", 16, 1024): 1.3}


def serve(connection: Any, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """A contender's process: makes it, then does what it is told, and says how long that took."""
    peer = make(*arguments)
    connection.send(None)
    while (told := connection.recv()) is not None:
        begin, used = time.perf_counter(), time.process_time()
        name, given = told
        result = decode(peer, *given) if name == "decode" else getattr(peer, name)(*given)
        seconds = time.perf_counter() - begin
        connection.send((result, seconds, (time.process_time() - used) / seconds))
    connection.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def decode(peer: Any, text: list[int], batch: int, first: int, steps: int) -> np.ndarray:
    """Steps of one token of each sequence, whose logits are looked at; those of the last step."""
    for step in range(first, first + steps):
        logits = peer.step({b: [text[step + b]] for b in range(batch)})
        logits.argmax(1)
    return logits


class Contender:
    """A process, to be told what to do; `shares` of the processors that it held while it was measured."""

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=serve, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self._connection.recv()
        self.shares: list[float] = []

    def __call__(self, name: str, *arguments: Any) -> tuple[Any, float]:
        """What a method gives, and its seconds."""
        self._connection.send((name, arguments))
        result, seconds, share = self._connection.recv()
        self.shares.append(share)
        return result, seconds

    def end(self) -> int:
        """Ends the process; gives the most memory that it had, in bytes."""
        self._connection.send(None)
        peak = self._connection.recv()
        self._process.join()
        return peak


class Benchmark:
    """The contenders of one format of cache, and what was measured of them."""

    def __init__(self, arguments: argparse.Namespace, folder: Path, cache: str, text: list[int]) -> None:
        given = (str(arguments.source), cache)
        sizes = (SEQUENCES, LENGTH, arguments.threads)
        self.contenders = {OURS: Contender(Ours, *given, str(folder / cache), *sizes)}
        if "LLAMA_CPP" in os.environ:
            self.contenders[LLAMA_CPP] = Contender(LlamaCpp, *given, *sizes)
        self._cache, self._text, self._rounds = cache, text, arguments.rounds
        self.rows: list[dict[str, Any]] = []

    def prompt(self, tokens: int) -> None:
        """A prompt in an empty sequence."""
        rounds = [self._round("prompt", 0, self._text[:tokens]) for _ in range(self._rounds)]
        self._report(f"prompt of {tokens}", tokens, rounds, GOALS.get(("prompt", tokens)))

    def hold(self, depth: int) -> None:
        """Computes the rows that sequences at any depth get copies of."""
        self._round("prompt", SEQUENCES, self._text[:depth])

    def decode(self, batch: int, depth: int, steps: int) -> None:
        """One token after another, of so many sequences that have so many."""
        for contender in self.contenders.values():
            contender("place", batch, SEQUENCES, self._text[:depth])
        self._round("decode", self._text, batch, depth, 1)  # llama.cpp copies now
        firsts = [depth + 1 + i * steps for i in range(self._rounds)]
        rounds = [self._round("decode", self._text, batch, first, steps) for first in firsts]
        name = f"decode, batch {batch}, depth {depth}"
        self._report(name, batch * steps, rounds, GOALS.get(("decode", batch, depth)))

    def first_token(self) -> None:
        """What is behind a prefix that the cache has."""
        new, seconds = self._text[PREFIX : PREFIX + 64], {}
        for name, contender in self.contenders.items():
            contender("prompt", 0, self._text[:PREFIX])
            seconds[name] = contender("step", {0: new})[1]
        self._report(f"first token, 64 behind a prefix of {PREFIX}", 64, [seconds], None)

    def _round(self, name: str, *arguments: Any) -> dict[str, float]:
        """Each contender in turn: its seconds. Their logits must agree."""
        done = {key: contender(name, *arguments) for key, contender in self.contenders.items()}
        ours = np.atleast_2d(done[OURS][0])
        for key, (logits, _) in done.items():
            difference = np.sqrt(np.square(ours - logits).mean(-1)) / ours.std(-1)
            if not difference.max() < BOUNDS[self._cache]:
                sys.exit(f"{name}: {key}'s logits differ by {difference.max():.2f} standard deviations")
        return {key: seconds for key, (_, seconds) in done.items()}

    def _report(self, name: str, tokens: int, rounds: list[dict[str, float]], goal: float | None) -> None:
        speeds = {key: Spread.of([tokens / each[key] for each in rounds]).median for key in self.contenders}
        row: dict[str, Any] = {"cache": self._cache, "what": name, "tokens/s": speeds, "goal": goal}
        if LLAMA_CPP in speeds:
            row["ratio"] = vars(Spread.of([each[LLAMA_CPP] / each[OURS] for each in rounds]))
        self.rows.append(row)
        print(" | ".join(cells(row)), flush=True)


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    speeds = [f"{row['tokens/s'][key]:.0f}" if key in row["tokens/s"] else "" for key in (OURS, LLAMA_CPP)]
    ratio = str(Spread(**row["ratio"])) if "ratio" in row else ""
    return [row["cache"], row["what"], *speeds, ratio, f">= {row['goal']:g}" if row["goal"] is not None else ""]


def measure(arguments: argparse.Namespace, folder: Path, cache: str, text: list[int]) -> tuple[list[Any], list[str]]:
    """One format of cache: the table's rows, and lines of what is no speed of both."""
    benchmark = Benchmark(arguments, folder, cache, text)
    for tokens in (128, 1024) if arguments.quick else (128, 1024, 4096):
        benchmark.prompt(tokens)
    depths = (0, 1024) if arguments.quick else (0, 1024, 4096, 8000)
    benchmark.hold(depths[-1])
    for depth in depths:
        for batch in (1, SEQUENCES) if arguments.quick else (1, 4, SEQUENCES):
            benchmark.decode(batch, depth, 16 if batch == 1 else 4)
    benchmark.first_token()
    lines = []
    for name, contender in benchmark.contenders.items():
        share = np.median(contender.shares) / arguments.threads
        peak = contender.end()
        lines.append(f"{cache}, {name}: at most {peak / 1e6:.0f} MB; it held {share:.0%} of its threads' processors")
        speed = {row["what"]: row["tokens/s"][name] for row in benchmark.rows}
        for batch in (1, SEQUENCES):
            kept = speed[f"decode, batch {batch}, depth {depths[-1]}"] / speed[f"decode, batch {batch}, depth 0"]
            lines.append(f"{cache}, {name}: batch {batch} at depth {depths[-1]} has {kept:.2f} of its speed at depth 0")
    engine = Contender(OurEngine, str(folder / cache), arguments.threads)
    share = engine("own_share", text, SEQUENCES, 128, 32)[0]
    lines.append(f"{cache}, Engine: {share:.1%} of a step of {SEQUENCES} answers is its own (goal <= 3%)")
    cold, warm = engine("first_tokens", text[:PREFIX], text[PREFIX : PREFIX + 64])[0]
    lines.append(
        f"{cache}, Engine: with {PREFIX} tokens cached the first token of {PREFIX + 64} comes after "
        f"{warm * 1e3:.0f} ms, {warm / cold:.3f} of the {cold * 1e3:.0f} ms without (goal <= 0.1)"
    )
    engine.end()
    print("\n".join(lines), flush=True)
    return benchmark.rows, lines


def main() -> int:
    """Measures everything, and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a GGUF file")
    parser.add_argument("--quick", action="store_true", help="int8 alone, and less of what takes long")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of a figure")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of each contender")
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench", help="folder of the report")
    arguments = parser.parse_args()
    if "LLAMA_CPP" not in os.environ:
        print("llama.cpp is missing: LLAMA_CPP names no folder of its libraries")
    begin, rows, lines = time.monotonic(), [], []
    with tempfile.TemporaryDirectory() as folder:
        Ours(str(arguments.source), "float16", f"{folder}/float16", 1, 64, 1)
        tokenizer = load(f"{folder}/float16").tokenizer
        text = tokenizer.encode((ROOT / "examples/austen/held_back.txt").read_text(encoding="utf-8")).ids
        for cache in ("int8",) if arguments.quick else ("float16", "int8"):
            more = measure(arguments, Path(folder), cache, text)
            rows, lines = rows + more[0], lines + more[1]
    origin = provenance(time.monotonic() - begin)
    arguments.out.mkdir(parents=True, exist_ok=True)
    report = {"origin": origin, "rows": rows, "lines": lines}
    (arguments.out / "model.json").write_text(json.dumps(report, indent=1) + "\n")
    header = ["cache", "tokens/s", OURS, LLAMA_CPP, "ratio", "goal"]
    said = [*(f"- {name}: {value}" for name, value in origin.items()), "", markdown(header, [cells(r) for r in rows])]
    page = "\n".join(["# model", "", *said, "", *(f"- {line}" for line in lines)])
    (arguments.out / "model.md").write_text(page + "\n")
    print(f"wrote {arguments.out / 'model.md'}, model.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
