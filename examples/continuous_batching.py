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
from kvcache import FORMATS, find_library
from questions import prompts
from recomputation import BOUNDS, Recomputation
from scheduler import Request, Scheduler
from traffic import HOW, bytes_moved


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


# What `Engine` attends by, and how the table calls it.
GRAPHS = {
    "fused": "MultiHeadCacheAttention",
    "packed": "KeyValueCache, MultiHeadAttention",
    "standard": "KeyValueCache, standard ops",
}


def serve(
    name: str, attention: str, decoder: Decoder, arguments: argparse.Namespace, recomputation: Recomputation
) -> Report:
    """Serves all requests with one cache format and graph, then compares every logit with recomputation."""
    title = f"{name}, {GRAPHS[attention]}"
    engine = Engine(
        decoder,
        FORMATS[name],
        max_t=arguments.pages * arguments.page_size,
        mode=arguments.mode,
        page_size=arguments.page_size,
        threads=arguments.threads,
        attention=attention,
    )
    spec = engine.cache.spec
    detailed = (name, attention) == (arguments.formats[0], arguments.attention[0])
    if detailed:
        print(f"{title}: cache {list(spec.cache_shape)}", flush=True)
    scheduler = Scheduler(engine.manager, engine.memory, arguments.max_batch)
    requests = [
        Request(f"#{i:02}", prompt, arguments.new_tokens, arrives=3 * i)
        for i, prompt in enumerate(prompts(arguments.requests))
    ]
    for request in requests:
        scheduler.submit(request)

    step, tokens, seconds = 0, 0, 0.0
    while scheduler.waiting or scheduler.running:
        begin = time.perf_counter()
        turn = scheduler.step(step, engine.run)
        seconds += time.perf_counter() - begin
        tokens += turn.tokens
        if detailed and (step % 25 == 0 or turn.events):
            stats = engine.manager.stats()
            print(
                f"  step {step:4}: {turn.batch} in the batch, {turn.tokens:4} tokens, "
                f"{stats['used']:4} of {stats['slots']} slots" + "".join(f"  {event}" for event in turn.events),
                flush=True,
            )
        step += 1

    stats = engine.manager.stats()
    print(
        f"{title}: {tokens} tokens in {step} steps, {stats['prefix_hits']} more were shared; recomputing all sequences",
        flush=True,
    )
    engine.manager.check()
    if stats["used"]:
        sys.exit(f"{name}: {stats['used']} slots were never given back")
    difference, same = compare(requests, recomputation)
    bound = BOUNDS[name] if arguments.bound is None else arguments.bound
    moved = sum(bytes_moved(decoder, FORMATS[name], spec.bytes_per_token, attention, *step) for step in engine.attended)
    return Report(name, attention, spec.bytes_per_token, moved / tokens, tokens / seconds, difference, bound, same)


def compare(requests: list[Request], recomputation: Recomputation) -> tuple[float, float]:
    """The largest difference of a logit, and the share of tokens after which the likeliest next one is the same."""
    largest, same, compared = 0.0, 0, 0
    for request in requests:
        recomputed = recomputation.logits(request.tokens[:-1])
        for first, logits in request.logits:
            truth = recomputed[first : first + len(logits)]
            largest = float(np.maximum(largest, np.abs(logits - truth).max()))  # a NaN stays, and is within no bound
            same += int((logits.argmax(1) == truth.argmax(1)).sum())
            compared += len(logits)
    return largest, same / compared


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
    possible = ["standard"] if arguments.mode == "cells" else list(GRAPHS)
    arguments.attention = arguments.attention or possible
    if not set(arguments.attention) <= set(possible):
        parser.error(f"--attention is {' '.join(arguments.attention)}: expected standard, which alone serves cells")
    for name in ("requests", "new_tokens", "max_batch", "pages", "page_size"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(arguments, name)}: expected at least 1")
    longest = max(map(len, prompts(arguments.requests))) + arguments.new_tokens - 1  # the last is never stored
    if longest > decoder.max_positions:
        parser.error(f"{longest} tokens in the longest sequence, the decoder has {decoder.max_positions} positions")
    if longest > arguments.pages * arguments.page_size:
        parser.error(f"{longest} tokens in the longest sequence, the cache has {arguments.pages * arguments.page_size}")
    return arguments


def main() -> int:
    """Serves with every format, prints the table, returns the exit status."""
    decoder = Decoder()
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
