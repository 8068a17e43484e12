"""A model of `kvcache_ops.models` for the benchmark: the loop alone, and the package's engine with its run timed."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime
from kvcache_ops.engine import Engine
from kvcache_ops.manager import Append, HostMemory
from kvcache_ops.models import build, load

CHUNK = 512  # tokens of a prompt in a step, as the engine's budget


class Chunked:
    """What computes prompts as its steps, that many tokens at a time."""

    chunk = CHUNK

    def prompt(self, sequence: int, tokens: list[int]) -> np.ndarray:
        """Computes a prompt; the logits of its last token."""
        self.clear(sequence)
        for first in range(0, len(tokens), self.chunk):
            logits = self.step({sequence: tokens[first : first + self.chunk]})
        return logits[0]


class Ours(Chunked):
    """The model with a cache of `sequences` times `length` tokens, and of one sequence more, the source of the others.

    Sequences are in pages of their own: nothing is shared.
    """

    def __init__(
        self, source: str, cache: str, folder: str, sequences: int, length: int, threads: int, **options: Any
    ) -> None:
        if not (Path(folder) / "model.onnx").exists():
            build(source, folder, cache=cache, layer_groups=False, **options)  # `place` copies whole sequences
        self._model = load(folder)
        self.tokenizer = self._model.tokenizer
        spec = self._model.cache_spec((sequences + 1) * length)
        self.bytes_per_token = spec.bytes_per_token
        self._cache = spec.allocate()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = self._model.session(options)
        self._memory = HostMemory(spec, *self._cache)
        self._manager = self._model.manager(spec, prefix_sharing=False)
        self._names = [value.name for value in self._session.get_inputs()]
        self._binding = self._session.io_binding()
        self._cache.bind(self._binding)
        self._sequences: dict[int, int] = {}

    def clear(self, sequence: int) -> None:
        """Empties a sequence."""
        if sequence in self._sequences:
            self._manager.free(self._sequences.pop(sequence))
        self._sequences[sequence] = self._manager.create()

    def step(self, tokens: dict[int, list[int]], every: bool = False) -> np.ndarray:
        """Appends tokens to sequences; the logits of the last of each, or of every token, in the order of the batch."""
        appends = [Append(self._sequences[sequence], tokens=new) for sequence, new in tokens.items()]
        with self._manager.begin_step(appends, self._memory) as step:
            for name in self._names:
                if hasattr(step, name):
                    self._binding.bind_cpu_input(name, np.atleast_1d(np.asarray(getattr(step, name), np.int64)))
            rows = np.arange(len(step.token_ids)) if every else step.seqstarts[1:] - 1
            self._binding.bind_cpu_input("logit_rows", rows)
            self._binding.bind_output("logits", "cpu")
            self._session.run_with_iobinding(self._binding)
            return self._binding.get_outputs()[0].numpy()

    def place(self, sequences: int, source: int, tokens: list[int]) -> None:
        """Gives the first `sequences` copies of the source's first rows, the rows of `tokens`."""
        rows = self._manager.slots(self._sequences[source])[: len(tokens)]
        for sequence in range(sequences):
            self.clear(sequence)
        for sequence in range(sequences if tokens else 0):
            with self._manager.begin_step([Append(self._sequences[sequence], tokens=tokens)], self._memory):
                pass  # committed: the rows come from the source
            slots = self._manager.slots(self._sequences[sequence])
            for array in filter(lambda array: array is not None, self._cache):
                by_slot = np.moveaxis(array, self._cache.spec.axes.index("MaxT"), 0)
                by_slot[slots] = by_slot[rows]


class OurEngine:
    """`kvcache_ops.engine.Engine` over a model that is built already, in a process whose sessions are timed."""

    def __init__(self, folder: str, threads: int) -> None:
        self._model, self._threads, self._ran = load(folder), threads, 0.0
        run = onnxruntime.InferenceSession.run_with_iobinding

        def timed(session: onnxruntime.InferenceSession, *arguments: Any) -> None:
            begin = time.perf_counter()
            run(session, *arguments)
            self._ran += time.perf_counter() - begin

        onnxruntime.InferenceSession.run_with_iobinding = timed

    def own_share(self, tokens: list[int], batch: int, depth: int, steps: int) -> float:
        """The part of a decode step of `batch` answers that is not ONNX Runtime's run, drawing the next tokens too."""
        sizes = {"max_tokens": batch * (depth + steps + 64), "max_batch": batch, "threads": self._threads}
        engine = Engine(self._model, **sizes, threaded=False)
        prompts = [tokens[i : i + depth] for i in range(batch)]
        requests = [engine.submit(prompt, max_new_tokens=steps + 8) for prompt in prompts]
        while any(len(request.answer) < 2 for request in requests):
            engine.step()
        ran, begin = self._ran, time.perf_counter()
        for _ in range(steps):
            engine.step()
        whole = time.perf_counter() - begin
        return 1 - (self._ran - ran) / whole

    def first_tokens(self, prefix: list[int], new: list[int]) -> tuple[float, float]:
        """Seconds to the first token of a prompt, and of another one of the same prefix, which is then cached."""
        engine = Engine(self._model, max_tokens=2 * (len(prefix) + len(new) + 64), threads=self._threads)
        engine.generate([new[:8]], max_new_tokens=2)  # warm
        seconds = []
        for tokens in (new, new[::-1]):
            begin = time.perf_counter()
            engine.generate([prefix + tokens], max_new_tokens=1)
            seconds.append(time.perf_counter() - begin)
        return seconds[0], seconds[1]

    def repeating(self, tokens: list[int], steps: int) -> tuple[float, int]:
        """How many times as fast an answer that repeats its prompt is with 8 guesses a step; how many were right."""
        engines = [Engine(self._model, max_tokens=2048, threads=self._threads, prompt_lookup=n) for n in (0, 8)]
        seconds: list[list[float]] = [[], []]
        for _ in range(6):
            answers = []
            for engine, taken in zip(engines, seconds):
                begin = time.perf_counter()
                answers += engine.generate([tokens + tokens], max_new_tokens=steps)
                taken.append(time.perf_counter() - begin)
            assert answers[0].answer == answers[1].answer
        return median(seconds[0][1:]) / median(seconds[1][1:]), answers[1].guessed
