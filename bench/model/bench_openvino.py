"""The benchmark of the engine against OpenVINO GenAI's continuous batching: the same weights in both, in one run.

    bench_openvino.py SmolLM2-135M-Instruct.Q4_1.gguf    everything; writes openvino.md and .json in target/bench
    bench_openvino.py FILE --quick                       caches of 8 bits alone, shorter prompts
    bench_openvino.py FILE --weights Q4_0 --activations int16    other weights; ours with these activations

The file's weights are written as Q8_0 or Q4_0 first: OpenVINO reads the minima of Q4_1 wrongly. Each contender is a
process of its own, whose scheduler gets the same prompts; ratios are taken within a round. Answers are greedy. Before a
cache is measured, at least half of 16 answers must begin with the same token in both, since weights, products and
caches are rounded to 8 bits.
"""

from __future__ import annotations

import os
import site
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import gguf
import numpy as np
from kvcache_ops.engine import Engine
from kvcache_ops.models import build, load

from bench_model import OURS, REST, Process
from harness import ROOT, Contender, Groups, Measured, Row, WrongAnswer, arguments, quotient, run

OPENVINO = "OpenVINO GenAI"
CACHES = {"float16": "f16", "int8": "u8", "int4": "u4"}  # ours, theirs
BUDGET = 512  # tokens of a step, of both schedulers
STEPS = 16  # of decoding, in a sample
CHECKED, CHECKED_TOKENS = 16, 512  # prompts whose answers' first tokens are compared
GOALS = {"prompt of 1024": 1.0, "prompt of 4096": 1.0, "decode, batch 16, depth 64": 1.0}
for packages in os.environ.get("PEERS", "").split():  # folders of packages that are not installed
    site.addsitedir(packages)

# The answers, the seconds to the first token of all, and the seconds from there.
Answered = tuple[list[list[int]], float, float]


class OurEngine:
    """`kvcache_ops.engine.Engine`."""

    def __init__(self, source: str, cache: str, folder: str, tokens: int, activations: str, threads: int) -> None:
        model = load(build(source, f"{folder}/{cache}", cache=cache, activations=activations))
        sizes = {"max_tokens": tokens, "max_batch": 16, "token_budget": BUDGET}
        self._engine = Engine(model, **sizes, threads=threads, threaded=False, prefix_sharing=False)

    def answer(self, prompts: list[list[int]], new: int) -> Answered:
        """Answers of `new` tokens to prompts."""
        begin = time.perf_counter()
        requests = [self._engine.submit(prompt, max_new_tokens=new) for prompt in prompts]

        def step_until(enough: int) -> float:
            while any(request.finish is None and len(request.answer) < enough for request in requests):
                self._engine.step()
            return time.perf_counter()

        first = step_until(1)
        return [request.answer for request in requests], first - begin, step_until(new) - first


class TheirPipeline:
    """OpenVINO GenAI's `ContinuousBatchingPipeline`."""

    def __init__(self, source: str, cache: str, folder: str, tokens: int, _: str, threads: int) -> None:
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens, scheduler.enable_prefix_caching = BUDGET, False
        scheduler.num_kv_blocks = tokens // 32 + 1  # a block has 32 tokens on a CPU
        properties = {"INFERENCE_NUM_THREADS": threads, "KV_CACHE_PRECISION": CACHES[cache]}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(source, scheduler, "CPU", properties)
        self._count = 0

    def answer(self, prompts: list[list[int]], new: int) -> Answered:
        """Answers of `new` tokens to prompts."""
        import openvino
        import openvino_genai

        config = openvino_genai.GenerationConfig(max_new_tokens=new, ignore_eos=True)
        begin, answers = time.perf_counter(), list[list[int]]()
        handles = []
        for prompt in prompts:
            self._count += 1
            handles.append(self._pipeline.add_request(self._count, openvino.Tensor(np.array([prompt])), config))
            answers.append([])

        def step_until(enough: int) -> float:
            while any(len(answer) < enough for answer in answers):
                self._pipeline.step()
                for answer, handle in zip(answers, handles):
                    while handle.can_read():
                        answer.extend(handle.read()[0].generated_ids)
            return time.perf_counter()

        first = step_until(1)
        return answers, first - begin, step_until(new) - first


MAKERS: dict[str, Callable[..., object]] = {OURS: OurEngine, OPENVINO: TheirPipeline}


class Answers(Contender):
    """A process that answers prompts; a sample is the time to the first tokens, or the time from there."""

    def __init__(self, name: str, process: Process, prompts: Callable[[int], list], is_prompt: bool) -> None:
        super().__init__(name, [], process.threads)
        self._process, self._prompts, self._is_prompt = process, prompts, is_prompt

    def warm_up(self) -> None:
        """Nothing: all processes have answered something."""

    def sample(self, turn: int) -> Measured:
        """Raises `WrongAnswer` unless answers are whole."""
        time.sleep(REST)
        count, new = len(self.measured), 1 if self._is_prompt else STEPS + 1
        answers, first, rest = self._process("answer", self._prompts(count), new)[0]
        if {len(answer) for answer in answers} != {new}:
            raise WrongAnswer(f"{self.name}: answers of {[len(answer) for answer in answers]} tokens, not {new}")
        return Measured((first if self._is_prompt else rest) * 1e9)


class Caches:
    """The two processes of a cache's format, and what is measured of them."""

    def __init__(self, cache: str, source: Path, text: list[int], tokens: int, activations: str, threads: int) -> None:
        self._cache, self._text, self._processes = cache, text, dict[str, Process]()
        self._given = str(source), cache, str(source.parent), tokens, activations, threads

    def rows(self, what: str, batch: int, depth: int, is_prompt: bool) -> list[Row]:
        """The engine's speed, and how many times as fast as its peer it is."""
        if not self._processes:
            self._processes = {name: Process(make, *self._given) for name, make in MAKERS.items()}
            prompts = [self._text[31 * i :][:CHECKED_TOKENS] for i in range(CHECKED)]
            ours, theirs = (process("answer", prompts, 1)[0][0] for process in self._processes.values())
            same = sum(a == b for a, b in zip(ours, theirs))
            print(f"{self._cache}: {same} of {CHECKED} answers begin with the same token", flush=True)
            if 2 * same < CHECKED:
                raise WrongAnswer(f"{same} of {CHECKED} answers of {OPENVINO} begin as ours")

        def measured(count: int) -> list[list[int]]:
            return [self._text[97 * (count * batch + b) :][:depth] for b in range(batch)]

        ours, theirs = (Answers(name, each, measured, is_prompt) for name, each in self._processes.items())
        tokens, goal = (depth if is_prompt else STEPS) * batch, GOALS.get(what, 0)
        return [
            Row(f"{self._cache}, {what}", [ours], lambda ns: tokens / ns * 1e9, unit="tokens/s"),
            Row(f"{self._cache}, {what}, {OPENVINO} of ours", [theirs, ours], quotient, at_least=goal),
        ]

    def end(self) -> None:
        """Ends the processes."""
        for process in self._processes.values():
            process.end()


def groups(made: Iterable[tuple[str, Caches]], quick: bool) -> Groups:
    """All groups by name."""
    for cache, caches in made:
        for depth in (1024,) if quick else (1024, 4096):
            yield f"{cache} prompt {depth}", partial(caches.rows, f"prompt of {depth}", 1, depth, True)
        for batch, depth in [(1, 64), (1, 1024), (16, 64)] + ([] if quick else [(1, 4096), (16, 1024)]):
            what = f"decode, batch {batch}, depth {depth}"
            yield f"{cache} {what}", partial(caches.rows, what, batch, depth, False)
        caches.end()


def write_as(kind: gguf.GGMLQuantizationType, source: Path, target: Path) -> None:
    """Writes a copy of a GGUF file with its matrices in another type."""
    reader, file_type = gguf.GGUFReader(source), gguf.LlamaFileType[f"MOSTLY_{kind.name}"]
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            value = int(file_type) if name == "general.file_type" else field.contents()
            element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, value, field.types[0], element)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values.astype(np.float32))
        else:
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    """Measures everything, and writes the report."""
    parser = arguments(__doc__, rounds=5, quick_rounds=3, seconds=300)
    parser.add_argument("source", type=Path, help="a GGUF file")
    parser.add_argument("--weights", choices=("Q8_0", "Q4_0"), default="Q8_0", help="of both contenders")
    parser.add_argument("--activations", default="auto", help="of our products: int8 or int16 (as build chooses)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of each contender")
    chosen = parser.parse_args()
    if find_spec("openvino_genai") is None:
        print("OpenVINO GenAI is missing: nothing is measured")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder, "weights.gguf")
        write_as(gguf.GGMLQuantizationType[chosen.weights], chosen.source, weights)
        tokenizer = load(build(weights, f"{folder}/{OURS}")).tokenizer
        text = tokenizer.encode((ROOT / "examples/austen/held_out.txt").read_text(encoding="utf-8")).ids
        made = [
            (cache, Caches(cache, weights, text, 24576, chosen.activations, chosen.threads))
            for cache in (["int8"] if chosen.quick else CACHES)
        ]
        run(groups(made, chosen.quick), "openvino", chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
