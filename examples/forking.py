"""A second answer to one question: a fork shares all pages until one of the two writes; `make run` runs this.

Two continuations of one text are decoded in one batch, the second from the second likeliest token on. Nothing is copied
but the rows of one page: the last, which both want to write. Every logit is compared with a recomputation of its whole
sequence.
"""

from __future__ import annotations

import sys

import numpy as np

from decoder import Decoder
from engine import Engine
from kvcache import FORMATS
from questions import prompts
from recomputation import BOUNDS, Recomputation

PAGE_SIZE = 16
NEW_TOKENS = 24


def main() -> int:
    """Decodes, forks, decodes both; returns the exit status."""
    decoder = Decoder(num_layer=2)
    engine = Engine(decoder, FORMATS["float32"], max_t=32 * PAGE_SIZE, page_size=PAGE_SIZE)
    manager = engine.manager
    first = manager.create()
    tokens = {first: prompts(1)[0]}
    logits = {first: [engine.decode(tokens)[first]]}

    def go_on(steps: int) -> None:
        for _ in range(steps):
            new = engine.decode({seq: tokens[seq][-1:] for seq in tokens})
            for seq, rows in new.items():
                logits[seq].append(rows)
                tokens[seq].append(int(rows[-1].argmax()))

    tokens[first].append(int(logits[first][0][-1].argmax()))
    go_on(NEW_TOKENS)
    report(manager, f"one answer of {manager.seq_len(first)} rows")
    fork = manager.fork(first)
    report(manager, "forked")
    second_likeliest = int(logits[first][-1][-1].argsort()[-2])
    tokens[fork] = [*tokens[first][:-1], second_likeliest]
    logits[fork] = list(logits[first])
    go_on(1)
    report(manager, "each has stored a token of its own")
    go_on(NEW_TOKENS)
    report(manager, "both go on")

    recomputation = Recomputation(decoder, FORMATS["float32"])
    difference, _ = recomputation.compare((tokens[seq][:-1], [(0, np.concatenate(logits[seq]))]) for seq in tokens)
    common = next(i for i, (a, b) in enumerate(zip(tokens[first], tokens[fork])) if a != b)
    print(f"  the answers differ from token {common} on; largest logit difference from recomputation {difference:.2g}")
    if not difference <= BOUNDS["float32"] or manager.stats()["shared"] != common // PAGE_SIZE * PAGE_SIZE:
        print("wrong: a logit is beyond its bound, or other rows are shared than those of the pages before the fork")
        return 1
    return 0


def report(manager, event: str) -> None:
    """Says how many slots are in use, and how many of them two sequences share."""
    stats = manager.stats()
    print(f"  {event + ':':42} {stats['used']:3} slots, {stats['shared']:3} of them shared", flush=True)


if __name__ == "__main__":
    print("\na fork that diverges")
    sys.exit(main())
