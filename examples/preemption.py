"""More requests than pages: the youngest gives way, and finds its pages again; `make run` runs this.

A cache that cannot hold all requests at once refuses a step, and nothing has changed. The scheduler frees the youngest
and tries again. Of what the preempted request had stored, its full pages stay in the prefix index until others need
them. Every logit, of the tokens that were computed twice as well, is compared with a recomputation.
"""

from __future__ import annotations

import sys

from decoder import Decoder
from engine import Engine
from kvcache import FORMATS
from questions import prompts
from recomputation import BOUNDS, Recomputation
from scheduler import Request, Scheduler

PAGE_SIZE, PAGES = 16, 27


def main() -> int:
    """Serves six requests in a cache that is too small for them; returns the exit status."""
    decoder = Decoder(num_layer=2)
    engine = Engine(decoder, FORMATS["float32"], max_t=PAGES * PAGE_SIZE, page_size=PAGE_SIZE)
    requests = [Request(f"#{i}", prompt, 40) for i, prompt in enumerate(prompts(6))]
    preempted = 0
    for step, turn in enumerate(Scheduler(engine.manager, engine.memory, max_batch=4).serve(requests, engine.run)):
        preempted += len(turn.preempted)
        if turn.events:
            stats = engine.manager.stats()
            places = f"{stats['used'] // PAGE_SIZE:2} pages in use, {stats['cached'] // PAGE_SIZE:2} cached"
            print(f"  step {step:3}: {turn.batch} ran, {places}  {'  '.join(turn.events)}", flush=True)

    needed = sum(len(request.tokens) - 1 for request in requests)
    computed = sum(request.computed for request in requests)
    difference, _ = Recomputation(decoder, FORMATS["float32"]).compare(request.answer for request in requests)
    print(
        f"  {preempted} times a request was preempted; the six have {needed} rows, of which {computed} were computed; "
        f"largest logit difference {difference:.2g}"
    )
    if not difference <= BOUNDS["float32"] or not preempted or computed >= needed:
        print("wrong: a logit is beyond its bound, nobody was preempted, or more was computed than there is")
        return 1
    return 0


if __name__ == "__main__":
    print("\npreemption when pages run out")
    sys.exit(main())
