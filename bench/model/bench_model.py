"""The benchmark of a whole model: one GGUF file in kvcache_ops and in its peers, in one run.

    bench_model.py SmolLM2-135M-Instruct.Q4_1.gguf     everything; writes model.md and model.json in target/bench
    bench_model.py FILE --quick                        int8 alone, short prompts, depths of 0 and 1024

Each contender is a process of its own. They are measured in turn; ratios are taken within a round. After each figure
their logits are compared, of the same tokens in all of them: what differs by more than rounding to 8 bits explains ends
the benchmark. Peers are llama.cpp (LLAMA_CPP is the folder of its libraries), ONNX Runtime's GroupQueryAttention in a
loop like ours and in onnxruntime-genai, and transformers on torch. What is not installed has an empty column.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import genai
import naive
import numpy as np
from group_query import GroupQuery
from llama_cpp import LIBRARIES, VERSION, LlamaCpp
from ours import OurEngine, Ours

from figures import ROOT, Spread, markdown, write

OURS, LLAMA_CPP, GROUP_QUERY = "kvcache_ops", f"llama.cpp {VERSION}", "GroupQueryAttention, float32"
GENAI, NAIVE = genai.TITLE or "onnxruntime-genai", naive.TITLE or "transformers"
LENGTH = 8192  # tokens of a sequence, the model's context
SEQUENCES = 16
FEW = 4  # sequences of GroupQueryAttention, whose cache is float32
PREFIX = 2048
QUIET = 0.9  # of its threads' processors, which spin where they wait
REST = 0.05  # seconds, in which workers that have nothing to do cease to spin
# The root mean square of the logits' differences, in standard deviations. What is rounded to 8 bits makes 0.03 to 0.3,
# most in the first tokens of a text; a token that is left out 0.2 to 3.
BOUND = 0.4
GOALS = {
    "prompt of 1024": {GROUP_QUERY: 1.0, GENAI: 1.0},
    "prompt of 4096": {LLAMA_CPP: 1.0},
    "decode, batch 1, depth 1024": {LLAMA_CPP: 1.0, GROUP_QUERY: 1.2, GENAI: 1.2},
    "decode, batch 16, depth 1024": {LLAMA_CPP: 1.3},
}


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
    """A process, to be told what to do; `shares` is how much of its threads' processors it held in each call.

    The last of its arguments is how many threads it has.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any, sequences: int = 0) -> None:
        self.sequences = sequences  # and one more, that others are copied from
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=serve, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self._connection.recv()
        self._threads, self.shares = arguments[-1], list[float]()

    def __call__(self, name: str, *arguments: Any) -> tuple[Any, float]:
        """What a method gives, and its seconds."""
        self._connection.send((name, arguments))
        result, seconds, share = self._connection.recv()
        self.shares.append(share / self._threads)
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
        given, sizes = (str(arguments.source), cache), (LENGTH, arguments.threads)
        many, few = {"sequences": SEQUENCES}, {"sequences": FEW}
        self.contenders = {OURS: Contender(Ours, *given, str(folder / cache), SEQUENCES, *sizes, **many)}
        if LIBRARIES.is_dir():
            self.contenders[LLAMA_CPP] = Contender(LlamaCpp, *given, SEQUENCES, *sizes, **many)
        if cache == "float16":
            self.contenders[GROUP_QUERY] = Contender(GroupQuery, str(arguments.source), FEW, *sizes, **few)
            if genai.TITLE:
                self.contenders[GENAI] = Contender(genai.Genai, str(arguments.source), *sizes, sequences=1)
            if naive.TITLE:
                self.contenders[NAIVE] = Contender(
                    naive.Transformers, str(arguments.source), arguments.threads, sequences=1
                )
        self._cache, self._text, self._rounds = cache, text, arguments.rounds
        self.rows: list[dict[str, Any]] = []

    def prompt(self, tokens: int) -> None:
        """A prompt in an empty sequence."""
        count = self._rounds if tokens < 1024 else max(self._rounds - 1, 1)
        rounds = self._measure(count, lambda i: ("prompt", 1, 0, self._text[:tokens]))
        self._report(f"prompt of {tokens}", tokens, rounds)

    def hold(self, depth: int) -> None:
        """Computes the rows that sequences at any depth get copies of."""
        for contender in self.contenders.values():
            contender("prompt", contender.sequences, self._text[:depth])

    def decode(self, batch: int, depth: int, steps: int) -> None:
        """One token after another, of so many sequences that have so many."""
        for contender in self.contenders.values():
            if batch <= contender.sequences:
                contender("place", batch, contender.sequences, self._text[:depth])
        self._round("decode", batch, self._text, batch, depth, 1)  # llama.cpp copies now
        first = depth + 1
        rounds = self._measure(self._rounds, lambda i: ("decode", batch, self._text, batch, first + i * steps, steps))
        self._report(f"decode, batch {batch}, depth {depth}", batch * steps, rounds)

    def first_token(self) -> None:
        """What is behind a prefix that the cache has."""
        for contender in self.contenders.values():
            contender("prompt", 0, self._text[:PREFIX])
        new = self._text[PREFIX : PREFIX + 64]
        self._report(
            f"first token, {len(new)} behind a prefix of {PREFIX}", len(new), [self._round("step", 1, {0: new})]
        )

    def _measure(self, count: int, told: Callable[[int], tuple[Any, ...]]) -> list[dict[str, float]]:
        """So many rounds in which ours held its processors, of at most three times as many; all, if it never did."""
        rounds, quiet = [], []
        while len(quiet) < count and len(rounds) < 3 * count:
            rounds.append(self._round(*told(len(rounds))))
            if self.contenders[OURS].shares[-1] >= QUIET:
                quiet.append(rounds[-1])
        return quiet or rounds

    def _round(self, name: str, batch: int, *arguments: Any) -> dict[str, float]:
        """Each contender of so many sequences, in turn: its seconds. Their logits must agree."""
        done = {}
        for key, contender in self.contenders.items():
            if batch <= contender.sequences:
                time.sleep(REST)
                done[key] = contender(name, *arguments)
        first, *others = self.contenders.items()
        self.contenders = dict([*others, first])  # nobody always comes after the same one
        ours = np.atleast_2d(done[OURS][0])
        for key, (logits, _) in done.items():
            difference = np.sqrt(np.square(ours - logits).mean(-1)) / ours.std(-1)
            if not difference.max() < BOUND:
                sys.exit(f"{name}: {key}'s logits differ by {difference.max():.2f} standard deviations")
        return {key: seconds for key, (_, seconds) in done.items()}

    def _report(self, what: str, tokens: int, rounds: list[dict[str, float]]) -> None:
        speeds = {key: Spread.of([tokens / each[key] for each in rounds]).median for key in rounds[0]}
        others = [key for key in speeds if key != OURS]
        ratios = {key: vars(Spread.of([each[key] / each[OURS] for each in rounds])) for key in others}
        self.rows.append({"cache": self._cache, "what": what, "tokens/s": speeds, "ratios": ratios})
        print(" | ".join(cells(self.rows[-1])), flush=True)


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    said = [row["cache"], row["what"], f"{row['tokens/s'][OURS]:.0f}"]
    for peer in (LLAMA_CPP, GROUP_QUERY, GENAI, NAIVE):
        if peer in row["ratios"]:
            goal = GOALS.get(row["what"], {}).get(peer)
            beside = "" if goal is None else f" (goal >= {goal:g})"
            said += [f"{row['tokens/s'][peer]:.0f}", f"{Spread(**row['ratios'][peer])}{beside}"]
        else:
            said += ["", ""]
    return said


def measure(arguments: argparse.Namespace, folder: Path, cache: str, text: list[int]) -> tuple[list[Any], list[str]]:
    """One format of cache: the table's rows, and lines of what is no speed of both."""
    benchmark = Benchmark(arguments, folder, cache, text)
    benchmark.hold(128)  # weights and memory come from the disk and the system the first time
    for tokens in (128, 1024) if arguments.quick else (128, 1024, 4096):
        benchmark.prompt(tokens)
    depths = (0, 1024) if arguments.quick else (0, 1024, 4096, 8000)
    benchmark.hold(depths[-1])
    for depth in depths:
        for batch in (1, SEQUENCES) if arguments.quick else (1, 4, SEQUENCES):
            benchmark.decode(batch, depth, 8 if batch == 1 else 4)
    benchmark.first_token()
    lines = []
    for name, contender in benchmark.contenders.items():
        share = np.median(contender.shares)
        peak = contender.end()
        lines.append(f"{cache}, {name}: at most {peak / 1e6:.0f} MB; it held {share:.0%} of its threads' processors")
        speed = {row["what"]: row["tokens/s"].get(name) for row in benchmark.rows}
        for batch in (1, SEQUENCES) if contender.sequences == SEQUENCES else (1,):
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
    if not LIBRARIES.is_dir():
        print(f"llama.cpp is missing: its libraries are not in LLAMA_CPP={LIBRARIES}")
    begin, rows, lines = time.monotonic(), [], []
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = Ours(str(arguments.source), "float16", f"{folder}/float16", 1, 64, 1).tokenizer
        text = tokenizer.encode((ROOT / "examples/austen/held_back.txt").read_text(encoding="utf-8")).ids
        for cache in ("int8",) if arguments.quick else ("float16", "int8"):
            more = measure(arguments, Path(folder), cache, text)
            rows, lines = rows + more[0], lines + more[1]
    peers = [title for peer in (LLAMA_CPP, GROUP_QUERY, GENAI, NAIVE) for title in (peer, "times as fast")]
    table = markdown(["cache", "tokens/s", OURS, *peers], [cells(row) for row in rows])
    said = "\n".join(f"- {line}" for line in lines)
    write(arguments.out, "model", time.monotonic() - begin, {"rows": rows, "lines": lines}, table, said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
