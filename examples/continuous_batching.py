"""Continuous batching in ONNX Runtime, for several cache formats; `make run` runs this.

Readers' questions, as bytes, arrive one after another at a small decoder; they join and leave its batch between
steps, their keys and values live in pages of one cache, and the pages of the instruction they all begin with are
shared. The decoder attends by `MultiHeadCacheAttention`, straight over the cache; beside it stand the same decoder
with `KeyValueCache` and `MultiHeadAttention`, and with `KeyValueCache` and standard operators. The weights are random
numbers from a seed (nothing is downloaded), so the answers mean nothing; the logits are right or wrong all the same,
and every one is compared with a recomputation of its whole sequence without a cache. The exit status is 1 if one is
further off than its bound.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

import numpy as np
import onnxruntime

from decoder import Decoder
from engine import Engine
from kvcache import FORMATS, NUMPY_TYPES, CacheFormat, find_library
from questions import prompts
from recomputation import BOUNDS, Recomputation
from scheduler import Request, Scheduler

DECODER = Decoder()
# What `Engine` attends by, and how the table calls it.
GRAPHS = {
    "fused": "MultiHeadCacheAttention",
    "packed": "KeyValueCache, MultiHeadAttention",
    "standard": "KeyValueCache, standard ops",
}
HOW = """MB moved, counted by formats and shapes: what the nodes between cache and attention read and write of keys,
values and scores, for each token. MultiHeadCacheAttention reads each row of the cache once. Behind KeyValueCache all
rows are written in the graph's type and read again; standard operators have them repeated for the query heads,
converted to float32 and transposed, and score every token against the keys of the whole batch."""
SCORE_BYTES = 40  # MatMul writes 4, Mul, Where, Softmax and Where read and write 8 each, MatMul reads 4


@dataclass
class Report:
    """What one cache format and one graph came to."""

    name: str
    attention: str
    bytes_per_token: float
    bytes_moved: float
    tokens_per_second: float
    difference: float
    bound: float
    same_choices: float

    @property
    def within(self) -> bool:
        """Whether every logit is within the bound; a NaN is not."""
        return bool(self.difference <= self.bound)


def bytes_moved(
    decoder: Decoder, format: CacheFormat, row_bytes: float, attention: str, tokens: int, keys: int
) -> float:
    """By one step of `tokens` new tokens over `keys` rows; `row_bytes`: a row of the cache, in all layers."""
    number = np.dtype(NUMPY_TYPES[format.current_type]).itemsize
    row = 2 * decoder.num_layer * decoder.num_kv_heads * decoder.head_dim  # numbers
    moved = (tokens + keys) * row_bytes  # stored, and read
    if attention == "packed":
        moved += keys * row * number * 2
    elif attention == "standard":
        converted = 0 if number == 4 else number + 4
        moved += keys * row * decoder.num_repeat * (number + converted + 8 + 4)  # written; converted; transposed; read
        moved += tokens * keys * decoder.num_layer * decoder.num_heads * SCORE_BYTES
    return moved


def serve(
    name: str, attention: str, decoder: Decoder, arguments: argparse.Namespace, recomputation: Recomputation
) -> Report:
    """Serves all requests with one cache format and graph, then compares every logit with recomputation."""
    title, format = f"{name}, {GRAPHS[attention]}", FORMATS[name]
    max_t = arguments.pages * arguments.page_size
    places = dict(max_t=max_t, mode=arguments.mode, page_size=arguments.page_size)
    engine = Engine(decoder, format, **places, threads=arguments.threads, attention=attention)
    detailed = (name, attention) == (arguments.formats[0], arguments.attention[0])
    if detailed:
        print(f"{title}: cache {list(engine.cache.spec.cache_shape)}", flush=True)
    requests = [
        Request(f"#{i:02}", prompt, arguments.new_tokens, arrives=3 * i)
        for i, prompt in enumerate(prompts(arguments.requests))
    ]
    tokens, begin = 0, time.perf_counter()
    scheduler = Scheduler(engine.manager, engine.memory, arguments.max_batch)
    for step, turn in enumerate(scheduler.serve(requests, engine.run)):
        tokens += turn.tokens
        if detailed and (step % 25 == 0 or turn.events):
            stats = engine.manager.stats()
            batch = f"{turn.batch} in the batch, {turn.tokens:4} tokens, {stats['used']:4} of {stats['slots']} slots"
            print(f"  step {step:4}: {batch}" + "".join(f"  {event}" for event in turn.events), flush=True)
    seconds = time.perf_counter() - begin
    stats, row_bytes = engine.manager.stats(), engine.cache.spec.bytes_per_token
    print(f"{title}: {tokens} tokens in {step + 1} steps, {stats['prefix_hits']} more were shared", flush=True)
    engine.manager.check()
    if stats["used"]:
        sys.exit(f"{name}: {stats['used']} slots were never given back")
    difference, same = recomputation.compare(request.answer for request in requests)
    bound = BOUNDS[name] if arguments.bound is None else arguments.bound
    moved = sum(bytes_moved(decoder, format, row_bytes, attention, *step) for step in engine.attended)
    return Report(name, attention, row_bytes, moved / tokens, tokens / seconds, difference, bound, same)


def parse_arguments(decoder: Decoder) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--formats", nargs="+", choices=FORMATS, default=list(FORMATS), help="cache formats to serve with"
    )
    parser.add_argument("--attention", nargs="+", choices=GRAPHS, help="what attends; all that can")
    parser.add_argument("--requests", type=int, default=12, help="how many questions arrive")
    parser.add_argument("--new-tokens", type=int, default=32, help="how many tokens each gets as its answer")
    parser.add_argument("--mode", choices=("paged", "runs", "cells"), default="paged", help="how rows are kept")
    parser.add_argument("--max-batch", type=int, default=8, help="how many requests run at once")
    parser.add_argument("--pages", type=int, default=72, help="pages in the cache")
    parser.add_argument("--page-size", type=int, default=16, help="tokens in a page")
    parser.add_argument("--threads", type=int, default=0, help="threads inside an operator; 0 takes all cores")
    parser.add_argument("--bound", type=float, help="largest difference allowed, in the place of each format's own")
    arguments = parser.parse_args()
    arguments.attention = arguments.attention or (["standard"] if arguments.mode == "cells" else list(GRAPHS))
    longest = max(map(len, prompts(arguments.requests))) + arguments.new_tokens - 1  # the last is never stored
    if longest > min(decoder.max_positions, arguments.pages * arguments.page_size):
        parser.error(f"{longest} tokens in the longest sequence are more than the decoder or the cache has room for")
    return arguments


def main(decoder: Decoder = DECODER) -> int:
    """Serves with every format, prints the table, returns the exit status."""
    arguments = parse_arguments(decoder)
    try:
        print(f"operator library {find_library()}, onnxruntime {onnxruntime.__version__}")
    except FileNotFoundError as error:
        sys.exit(str(error))
    print(
        f"decoder of {decoder.num_layer} layers, {decoder.num_heads} heads over {decoder.num_kv_heads} cache heads of "
        f"{decoder.head_dim}, random weights (seed {decoder.seed}); byte tokens of {arguments.requests} questions, "
        f"{arguments.new_tokens} new tokens each"
    )
    reports = []
    for name in arguments.formats:
        recomputation = Recomputation(decoder, FORMATS[name], threads=arguments.threads)
        reports += [serve(name, attention, decoder, arguments, recomputation) for attention in arguments.attention]

    print(
        "\ncache format  bytes kept/token  attention by                       MB moved/token  tokens/s  "
        "largest logit difference    bound  same likeliest token"
    )
    for report in reports:
        print(
            f"{report.name:12}  {report.bytes_per_token:16.0f}  {GRAPHS[report.attention]:33}  "
            f"{report.bytes_moved / 1e6:14.2f}  {report.tokens_per_second:8.0f}  "
            f"{report.difference:24.2g}  {report.bound:7.2g}  {report.same_choices:20.1%}"
            + ("" if report.within else "  BEYOND THE BOUND")
        )
    print(HOW)
    within = all(report.within for report in reports)
    print("every logit is within its bound of full recomputation" if within else "wrong: see BEYOND THE BOUND above")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
