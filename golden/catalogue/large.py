"""Many heads, sequences, tokens, repeats, layers and pages, one or two of them at a time, in small heads: an
implementation with room for fewer does not pass. Numbers are such that powers of two up to 1024 are behind."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from .case import Case, Sequence, begin

# Past and current tokens of each sequence, by turns.
LENGTHS = ((0, 3), (4, 1), (2, 0), (3, 2), (0, 1))


def sequences(lengths: list[tuple[int, int]], page_size: int = 0) -> tuple[list[Sequence], int]:
    """Sequences of these lengths and the slots that they need: one after the other, or pages from the last down."""
    counts = [start_pos + seqlen for start_pos, seqlen in lengths]
    if page_size == 0:
        ends = list(accumulate(counts, initial=0))
        return [Sequence(*length, first) for length, first in zip(lengths, ends, strict=False)], ends[-1]
    pages = [-(-count // page_size) for count in counts]
    slots = iter(range(page_size * (sum(pages) - 1), -1, -page_size))
    places = [tuple(next(slots) for _ in range(count)) for count in pages]
    return [Sequence(*length, place) for length, place in zip(lengths, places, strict=True)], page_size * sum(pages)


def large(
    name: str, about: str, types: str, proves: str, lengths: list[tuple[int, int]], page_size: int = 0, **given: int
) -> Case:
    """A case of one call, in a cache that it fills; one head of two elements where nothing else is given."""
    batch, max_t = sequences(lengths, page_size)
    given = dict(num_heads=1, head_dim=2) | given | (dict(cache_mode=1, page_size=page_size) if page_size else {})
    return begin(f"large-{name}", about, types, proves=proves, max_t=max_t, **given).call(*batch)


def batches() -> Iterator[Case]:
    """Many sequences, many heads, and both."""
    rules = "inputs.packed outputs.packed"
    about = "24 heads and 20 sequences, some of them idle."
    lengths = [LENGTHS[b % 5] for b in range(20)]
    yield large("heads24-batch20-offset", about, "f16 f16", rules, lengths, num_heads=24, cache_layout=1)
    paged, of_pages = dict(quant_bit=8, quant_group=2, page_size=3, cache_layout=3), f"{rules} pages.unaligned"
    yield large("heads24-batch20-paged", about, "f16 int8 f16", of_pages, lengths, num_heads=24, **paged)
    about = "600 sequences, every fourth of which is idle."
    lengths = [((0, 1), (1, 1), (1, 0), (0, 2))[b % 4] for b in range(600)]
    yield large("batch600", about, "f16 f32", f"{rules} starts.empty", lengths, cache_layout=2)
    about = "600 heads of two sequences."
    lengths = [(1, 1), (0, 1)]
    attributes = dict(quant_bit=4, quant_group=2, cache_layout=0)
    yield large("heads600", about, "f16 int4 f16", f"{rules} int4.nibbles", lengths, num_heads=600, **attributes)


def lengths() -> Iterator[Case]:
    """Many tokens of one sequence, beside a short one."""
    about = "A sequence of 1100 tokens, 600 of them current; beside it one of two tokens."
    for name, types, mode, attributes in (
        ("offset", "f16 f16", 0, dict(cache_layout=0)),
        ("page-size-16", "f16 int8 f16", 1, dict(quant_bit=8, quant_group=2, page_size=16, cache_layout=2)),
        ("page-size-1", "f16 int4 f16", 1, dict(quant_bit=4, quant_group=2, page_size=1, cache_layout=1)),
    ):
        rules, lengths = f"cache-mode.{mode} outputs.packed", [(500, 600), (1, 1)]
        yield large(f"kvlen1100-{name}", about, types, rules, lengths, **attributes)


def attributes() -> Iterator[Case]:
    """Many repeats, layers, and neighbors of a group."""
    about = "2 heads, each repeated 300 times."
    yield large("repeat300", about, "f16 f16", "num-repeat", [(1, 2), (0, 1)], num_heads=2, num_repeat=300)
    for cache_layout, layer_idx in enumerate((39, 0, 17, 38)):
        about = f"Layer {layer_idx} of 40: the others keep every byte."
        layers, rules = dict(num_layer=40, layer_idx=layer_idx, cache_layout=cache_layout), "layer untouched-layers"
        yield large(f"layers40-layout{cache_layout}", about, "f16 f16", rules, [(1, 2), (0, 1)], **layers)
    for bits, quant_group, head_dim, types in (
        (8, 256, 512, "f16 int8 f16"),
        (4, 256, 256, "f32 int4 f16"),
        (8, 1040, 1040, "f32 int8 f32"),
        (4, 520, 1040, "f16 int4 f32"),
    ):
        about = f"int{bits} in groups of {quant_group}, head_dim {head_dim}."
        groups = dict(head_dim=head_dim, quant_bit=bits, quant_group=quant_group)
        yield large(f"group{quant_group}-int{bits}", about, types, "quantizing.groups", [(1, 1), (0, 1)], **groups)
