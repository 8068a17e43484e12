"""What servers of language models do: float16 kept as it is, head-major, in pages of 16 slots, with grouped queries."""

from __future__ import annotations

from collections.abc import Iterator

from .case import Case
from .table import successes

# fmt: off
TABLE = (
    # One call.
    ("serving-ragged-r4",
     "Five sequences of one call: prompts of 20, 16 and 1 tokens, one that decodes, one that is idle; 4 repeats.",
     "inputs.packed outputs.packed cache-mode.1 cache-layout.3 num-repeat layer untouched-layers starts.empty",
     dict(types="f16 f16", max_t=96, num_layer=2, layer_idx=1, num_repeat=4, cache_mode=1, cache_layout=3,
          page_size=16),
     [(0, 20, (64, 16)), (15, 1, (32,)), (0, 16, (0,)), (3, 0, (80,)), (0, 1, (48,))]),
    # Three calls.
    ("serving-shared-prefix-r8",
     "A prompt of 33 tokens, whose first two pages a second sequence then shares: a call with a prompt of its own "
     "behind them, a decode step of both; 8 repeats.",
     "inputs.packed outputs.packed cache-mode.1 cache-layout.3 num-repeat order.shared-slots",
     dict(types="f16 f16", num_heads=1, max_t=80, num_repeat=8, cache_mode=1, cache_layout=3, page_size=16),
     [(0, 33, (48, 0, 64))], [(33, 1, (48, 0, 64)), (32, 5, (48, 0, 32))],
     [(37, 1, (48, 0, 32)), (34, 1, (48, 0, 64))]),
    # Five calls.
    ("serving-decode-r4",
     "Sequences join and leave: a prompt, another beside the first's decode step, which takes a second page; the first "
     "leaves, a third takes its pages in another order; 4 repeats.",
     "inputs.packed outputs.packed cache-mode.1 cache-layout.3 num-repeat",
     dict(types="f16 f16", max_t=64, num_repeat=4, cache_mode=1, cache_layout=3, page_size=16), [(0, 15, (32, 16))],
     [(15, 1, (32, 16)), (0, 3, (48,))], [(16, 1, (32, 16)), (3, 1, (48,))], [(4, 1, (48,)), (0, 17, (16, 32))],
     [(17, 1, (16, 32)), (5, 1, (48,))]),
    # Three calls.
    ("serving-chunked-prefill-r8",
     "A prompt in chunks of 10 + 10 + 14 tokens, over the borders of pages, beside one that decodes; 8 repeats.",
     "inputs.packed outputs.packed cache-mode.1 cache-layout.3 num-repeat layer",
     dict(types="f16 f16", num_heads=1, max_t=80, num_layer=2, num_repeat=8, cache_mode=1, cache_layout=3,
          page_size=16),
     [(0, 10, (64, 32, 0)), (7, 1, (16,))], [(10, 10, (64, 32, 0)), (8, 1, (16,))],
     [(9, 1, (16,)), (20, 14, (64, 32, 0))]),
    # Where a page is taken for another one that is in the cache, too.
    *((f"pages-at-slots-1-to-3-{types.replace(' ', '-')}",
       "Pages of 16 that begin at the slots 1, 2 and 3, in a cache that has pages of these numbers: entries are slots, "
       "not numbers of pages.", "cache-mode.1 pages.unaligned untouched-slots",
       dict(types=types, num_heads=1, max_t=64, cache_mode=1) | layout | dict(page_size=16),
       [(0, 1, (1,)), (0, 1, (2,)), (0, 9, (3,))], [(9, 4, (3,)), (1, 0, (1,))])
      for types, layout in (("f16 f16", dict(cache_layout=3)), ("f16 int8 f16", {}))),
)
# fmt: on


def cases() -> Iterator[Case]:
    yield from successes(TABLE)
