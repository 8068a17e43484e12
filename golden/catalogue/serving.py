"""What servers of language models do: float16 kept as it is, head-major, in pages of 16 slots, with grouped queries."""

from __future__ import annotations

from collections.abc import Iterator

from .case import Case, Sequence, begin

PAGE_SIZE = 16
ATTRIBUTES = dict(cache_mode=1, cache_layout=3, page_size=PAGE_SIZE)
RULES = "inputs.packed outputs.packed cache-mode.1 cache-layout.3"


def cases() -> Iterator[Case]:
    """Everything of this module."""
    yield ragged()
    yield shared_prefix()
    yield continuous_batching()
    yield chunked_prefill()
    yield from pages_at_low_slots()


def pages(*numbers: int) -> tuple[int, ...]:
    """The entries of the page table for pages by their numbers: the slots that they begin with."""
    return tuple(PAGE_SIZE * number for number in numbers)


def ragged() -> Case:
    """One call."""
    about = "Five sequences of one call: prompts of 20, 16 and 1 tokens, one that decodes, one that is idle; 4 repeats."
    rules = f"{RULES} num-repeat layer untouched-layers starts.empty"
    sizes = dict(max_t=6 * PAGE_SIZE, num_layer=2, layer_idx=1, num_repeat=4)
    case = begin("serving-ragged-r4", about, "f16 f16", proves=rules, **sizes, **ATTRIBUTES)
    batch = (Sequence(0, 20, pages(4, 1)), Sequence(15, 1, pages(2)), Sequence(0, 16, pages(0)))
    return case.call(*batch, Sequence(3, 0, pages(5)), Sequence(0, 1, pages(3)))


def shared_prefix() -> Case:
    """Three calls."""
    about = (
        "A prompt of 33 tokens, whose first two pages a second sequence then shares: a call with a prompt of its own"
        " behind them, a decode step of both; 8 repeats."
    )
    rules = f"{RULES} num-repeat order.shared-slots"
    sizes = dict(num_heads=1, max_t=5 * PAGE_SIZE, num_repeat=8)
    case = begin("serving-shared-prefix-r8", about, "f16 f16", proves=rules, **sizes, **ATTRIBUTES)
    first, second = pages(3, 0, 4), pages(3, 0, 2)
    case.call(Sequence(0, 33, first))
    case.call(Sequence(33, 1, first), Sequence(32, 5, second))
    return case.call(Sequence(37, 1, second), Sequence(34, 1, first))


def continuous_batching() -> Case:
    """Five calls."""
    about = (
        "Sequences join and leave: a prompt, another beside the first's decode step, which takes a second page; the"
        " first leaves, a third takes its pages in another order; 4 repeats."
    )
    sizes = dict(max_t=4 * PAGE_SIZE, num_repeat=4)
    case = begin("serving-decode-r4", about, "f16 f16", proves=f"{RULES} num-repeat", **sizes, **ATTRIBUTES)
    first, second, third = pages(2, 1), pages(3), pages(1, 2)
    case.call(Sequence(0, 15, first))
    case.call(Sequence(15, 1, first), Sequence(0, 3, second))
    case.call(Sequence(16, 1, first), Sequence(3, 1, second))
    case.call(Sequence(4, 1, second), Sequence(0, 17, third))
    return case.call(Sequence(17, 1, third), Sequence(5, 1, second))


def chunked_prefill() -> Case:
    """Three calls."""
    about = "A prompt in chunks of 10 + 10 + 14 tokens, over the borders of pages, beside one that decodes; 8 repeats."
    sizes = dict(num_heads=1, max_t=5 * PAGE_SIZE, num_layer=2, num_repeat=8)
    rules = f"{RULES} num-repeat layer"
    case = begin("serving-chunked-prefill-r8", about, "f16 f16", proves=rules, **sizes, **ATTRIBUTES)
    prompt, decoding = pages(4, 2, 0), pages(1)
    case.call(Sequence(0, 10, prompt), Sequence(7, 1, decoding))
    case.call(Sequence(10, 10, prompt), Sequence(8, 1, decoding))
    return case.call(Sequence(9, 1, decoding), Sequence(20, 14, prompt))


def pages_at_low_slots() -> Iterator[Case]:
    """Where a page is taken for another one that is in the cache, too."""
    about = (
        "Pages of 16 that begin at the slots 1, 2 and 3, in a cache that has pages of these numbers: entries are slots,"
        " not numbers of pages."
    )
    rules = "cache-mode.1 pages.unaligned untouched-slots"
    sizes = dict(num_heads=1, max_t=4 * PAGE_SIZE)
    case = begin("pages-at-slots-1-to-3-f16-f16", about, "f16 f16", proves=rules, **sizes, **ATTRIBUTES)
    case.call(Sequence(0, 1, (1,)), Sequence(0, 1, (2,)), Sequence(0, 9, (3,)))
    yield case.call(Sequence(9, 4, (3,)), Sequence(1, 0, (1,)))

    attributes = ATTRIBUTES | dict(cache_layout=0, quant_bit=8)
    case = begin("pages-at-slots-1-to-3-f16-int8-f16", about, "f16 int8 f16", proves=rules, **sizes, **attributes)
    case.call(Sequence(0, 1, (1,)), Sequence(0, 1, (2,)), Sequence(0, 9, (3,)))
    yield case.call(Sequence(9, 4, (3,)), Sequence(1, 0, (1,)))
