"""The benchmark of a whole model: one GGUF file in kvcache_ops and in its peers, in one run.

    bench_model.py SmolLM2-135M-Instruct.Q4_1.gguf     everything; writes model.md and model.json in target/bench
    bench_model.py FILE --quick                        int8 alone, short prompts, depths of 0 and 1024

Each contender is a process of its own. They are measured in turn; ratios are taken within a round. After each run their
logits are compared, of the same tokens in all of them: what differs by more than rounding to 8 bits explains ends the
benchmark. The peer is llama.cpp, where LLAMA_CPP is the folder of its libraries.
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
from functools import cached_property, partial
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np

from harness import ROOT, Contender, Groups, Measured, Row, WrongAnswer, arguments, quotient, run
from llama_cpp import LIBRARIES, VERSION, LlamaCpp
from ours import OurEngine, Ours

OURS, LLAMA_CPP = "kvcache_ops", f"llama.cpp {VERSION}"
LENGTH = 8192  # tokens of a sequence, the model's context
SEQUENCES = 16
PREFIX, NEW = 2048, 64
REST = 0.05  # seconds, in which workers that have nothing to do cease to spin
# The root mean square of the logits' differences, in standard deviations. What is rounded to 8 bits makes 0.03 to 0.3,
# most in the first tokens of a text; a token that is left out 0.2 to 3.
BOUND = 0.4
GOALS = {
    "prompt of 4096": {LLAMA_CPP: 1.0},
    "decode, batch 1, depth 1024": {LLAMA_CPP: 1.0},
    "decode, batch 16, depth 1024": {LLAMA_CPP: 1.3},
}


def serve(connection: Any, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """A contender's process: makes it, runs the commands that it receives, and sends how long each took."""
    peer = make(*arguments)
    connection.send(None)
    while (told := received(connection)) is not None:
        begin, used = time.perf_counter(), time.process_time()
        name, given = told
        result = decode(peer, *given) if name == "decode" else getattr(peer, name)(*given)
        seconds = time.perf_counter() - begin
        connection.send((result, seconds, (time.process_time() - used) / seconds))
    connection.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def received(connection: Any) -> Any:
    """What comes next; ends the process where nothing comes any more."""
    try:
        return connection.recv()
    except EOFError:
        sys.exit()


def decode(peer: Any, text: list[int], batch: int, first: int, steps: int) -> np.ndarray:
    """Steps of one token of each sequence, whose logits are looked at; the logits of the last step."""
    for step in range(first, first + steps):
        logits = peer.step({b: [text[step + b]] for b in range(batch)})
        logits.argmax(1)
    return logits


class Process:
    """A process that receives commands. The last of its arguments is how many threads it has."""

    def __init__(self, make: Callable[..., Any], *arguments: Any, sequences: int = 0) -> None:
        self.sequences, self.threads = sequences, arguments[-1]  # and one more, that others are copied from
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=serve, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self._connection.recv()

    def __call__(self, name: str, *arguments: Any) -> tuple[Any, float, float]:
        """What a method gives, its seconds, and the part of them in which each thread held a processor."""
        self._connection.send((name, arguments))
        result, seconds, share = self._connection.recv()
        return result, seconds, share / self.threads

    def end(self) -> int:
        """Ends the process; returns the most memory that it had, in bytes."""
        self._connection.send(None)
        peak = self._connection.recv()
        self._process.join()
        return peak


class Told(Contender):
    """A process that gets one command after another; `told` gives the command for each sample's number."""

    def __init__(
        self, name: str, process: Process, told: Callable[[int], tuple], logits: dict[int, np.ndarray]
    ) -> None:
        super().__init__(name, [], process.threads)
        self._process, self._told, self._logits = process, told, logits

    def warm_up(self) -> None:
        """Nothing: all processes have computed something."""

    def sample(self, turn: int) -> Measured:
        """Raises `WrongAnswer` unless the logits are near the first contender's."""
        time.sleep(REST)
        count = len(self.measured)
        logits, seconds, share = self._process(*self._told(count))
        logits = np.atleast_2d(logits)
        first = self._logits.setdefault(count, logits)
        difference = (np.sqrt(np.square(first - logits).mean(-1)) / first.std(-1)).max()
        if not difference < BOUND:
            raise WrongAnswer(f"{self.name}: logits differ by {difference:.2f} standard deviations")
        # Peers' threads spin, or wait by design.
        return Measured(seconds * 1e9, share if self.name == OURS else nan)


def known(name: str, value: float, unit: str = "", at_most: float = inf) -> Row:
    """A row of a number that is known without rounds."""
    return Row(name, [Contender(name, [], measured=[Measured(value)])], lambda value: value, at_most, unit=unit)


class Model:
    """The processes of one format of cache, and what is measured of them."""

    def __init__(self, chosen: argparse.Namespace, folder: Path, cache: str, text: list[int]) -> None:
        self._chosen, self._folder, self._cache, self._text = chosen, folder / cache, cache, text
        self._is_held, self._decoded = False, dict[tuple[str, int, int], Contender]()

    @cached_property
    def processes(self) -> dict[str, Process]:
        """The processes by name, ours first; all have computed something."""
        source, sizes = str(self._chosen.source), (LENGTH, self._chosen.threads)
        many = {"sequences": SEQUENCES}
        made = {OURS: Process(Ours, source, self._cache, str(self._folder), SEQUENCES, *sizes, **many)}
        if LIBRARIES.is_dir():
            made[LLAMA_CPP] = Process(LlamaCpp, source, self._cache, SEQUENCES, *sizes, **many)
        # Weights and memory come from the disk and the system the first time.
        for process in made.values():
            process("prompt", process.sequences, self._text[:128])
        return made

    def rows(self, what: str, tokens: int, batch: int, told: Callable[[int], tuple]) -> list[Row]:
        """The speed of ours, and how many times as fast as its peers it is."""
        logits: dict[int, np.ndarray] = {}
        contenders = {
            name: Told(name, process, told, logits)
            for name, process in self.processes.items()
            if batch <= process.sequences
        }
        speed = Row(f"{self._cache}, {what}", [contenders[OURS]], lambda ns: tokens / ns * 1e9, unit="tokens/s")
        return [speed] + [
            Row(
                f"{self._cache}, {what}, {name} of ours",
                [peer, contenders[OURS]],
                quotient,
                at_least=GOALS.get(what, {}).get(name, -inf),
            )
            for name, peer in contenders.items()
            if name != OURS
        ]

    def prompt(self, tokens: int) -> list[Row]:
        """A prompt in an empty sequence."""
        return self.rows(f"prompt of {tokens}", tokens, 1, lambda count: ("prompt", 0, self._text[:tokens]))

    def decode(self, batch: int, depth: int, steps: int) -> list[Row]:
        """One token after another, of that many sequences that have that many: copies of the same rows."""
        for process in self.processes.values():
            if depth and not self._is_held:
                process("prompt", process.sequences, self._text[: self.depths[-1]])
            if batch <= process.sequences:
                process("place", batch, process.sequences, self._text[:depth])
                process("decode", self._text, batch, depth, 1)  # llama.cpp copies now
        self._is_held = depth > 0
        first = depth + 1
        what = f"decode, batch {batch}, depth {depth}"
        rows = self.rows(
            what, batch * steps, batch, lambda count: ("decode", self._text, batch, first + count * steps, steps)
        )
        self._decoded |= {(each.name, batch, depth): each for row in rows for each in row.contenders}
        return rows

    def first_token(self) -> list[Row]:
        """What is after a prefix that the cache has."""
        for process in self.processes.values():
            process("prompt", 0, self._text[:PREFIX])
        told = [("step", {0: self._text[PREFIX + NEW * i :][:NEW]}) for i in range(9)]
        return self.rows(f"first token, {NEW} behind a prefix of {PREFIX}", NEW, 1, told.__getitem__)

    @property
    def depths(self) -> tuple[int, ...]:
        """Tokens that sequences have when they decode."""
        return (0, 1024) if self._chosen.quick else (0, 1024, 4096, 8000)

    def left(self) -> list[Row]:
        """The part of the speed without a past that is left at the largest depth."""
        last = self.depths[-1]
        return [
            Row(
                f"{self._cache}, {name}, batch {batch}: speed at depth {last} of that at depth 0",
                [contender, self._decoded[name, batch, last]],
                quotient,
            )
            for (name, batch, depth), contender in self._decoded.items()
            if depth == 0 and batch in (1, SEQUENCES) and (name, batch, last) in self._decoded
        ]

    def memory_and_engine(self) -> list[Row]:
        """The most memory of each process, which ends; the engine's own part of a step, and first tokens."""
        cache, text = self._cache, self._text
        peaks = {name: process.end() for name, process in self.processes.items()}
        rows = [known(f"{cache}, {name}, most memory", peak / 1e6, "MB") for name, peak in peaks.items()]
        engine = Process(OurEngine, str(self._folder), self._chosen.threads)
        share = engine("own_share", text, SEQUENCES, 128, 32)[0]
        cold, warm = engine("first_tokens", text[:PREFIX], text[PREFIX : PREFIX + NEW])[0]
        faster, right = engine("repeating", text[:256], 128)[0]
        engine.end()
        repeat = f"{cache}, Engine: 128 tokens that repeat a text, {right} of them guessed, times as fast"
        what = f"{cache}, Engine: first token of {PREFIX + NEW}, with {PREFIX} cached"
        return [
            *rows,
            known(f"{cache}, Engine: its own part of a step of {SEQUENCES} answers", share, at_most=0.03),
            known(what, warm * 1e3, "ms"),
            known(f"{what}, of without", warm / cold, at_most=0.1),
            known(repeat, faster),
        ]

    def groups(self) -> Groups:
        """All groups by name."""
        quick = self._chosen.quick
        for tokens in (128, 1024) if quick else (128, 1024, 4096):
            yield f"{self._cache} prompt {tokens}", partial(self.prompt, tokens)
        for depth in self.depths:
            for batch in (1, SEQUENCES) if quick else (1, 4, SEQUENCES):
                steps = 8 if batch == 1 else 4
                yield f"{self._cache} decode batch {batch} depth {depth}", partial(self.decode, batch, depth, steps)
        yield f"{self._cache} first token", self.first_token
        yield f"{self._cache} left", self.left
        yield f"{self._cache} memory and engine", self.memory_and_engine


if __name__ == "__main__":
    parser = arguments(__doc__, rounds=3, quick_rounds=3, seconds=600)
    parser.add_argument("source", type=Path, help="a GGUF file")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of each contender")
    chosen = parser.parse_args()
    if not LIBRARIES.is_dir():
        print(f"llama.cpp is missing: its libraries are not in LLAMA_CPP={LIBRARIES}")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = Ours(str(chosen.source), "float16", f"{folder}/float16", 1, 64, 1).tokenizer
        text = tokenizer.encode((ROOT / "examples/austen/held_out.txt").read_text(encoding="utf-8")).ids
        models = [
            Model(chosen, Path(folder), cache, text) for cache in (("int8",) if chosen.quick else ("float16", "int8"))
        ]
        run((group for model in models for group in model.groups()), "model", chosen)
