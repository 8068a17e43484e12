"""Batches: ragged, with empty sequences, without sequences; bounds above the true maxima."""

from __future__ import annotations

from collections.abc import Iterator

from .bits import I64_MAX
from .case import Case, Sequence, begin, indices

TYPES = ((0, "f32 f32"), (8, "f16 int8 f32"), (4, "f32 int4 f16"))


def ragged() -> Iterator[Case]:
    """Sequences of different lengths, some of them without current tokens."""
    for bits, types in TYPES:
        for mode in (0, 1):
            label = f"mode{mode}-{types.replace(' ', '-')}"
            attributes = dict(quant_bit=bits, cache_mode=mode, page_size=2, cache_layout=(bits // 4 + mode) % 4)

            about = "Prefill, idle with a past, decode, idle without a past, chunk: five sequences of one call."
            places = (9, 0, 4, 2, 12) if mode == 0 else ((9, 13), (0,), (4, 6), (), (11, 2, 15))
            lengths = ((0, 3), (2, 0), (3, 1), (0, 0), (2, 3))
            batch = [Sequence(*length, place) for length, place in zip(lengths, places, strict=True)]
            rules = f"inputs.packed outputs.packed starts.empty cache-mode.{mode}"
            case = begin(f"ragged-{label}", about, types, proves=rules, max_t=17, num_repeat=2, **attributes)
            yield case.call(*batch)

            if mode != (bits == 8):
                continue

            about = "Idle sequences first and last: starts that repeat at both ends."
            places = (0, 3, 5, 0) if mode == 0 else ((), (3,), (5, 0), (8,))
            lengths = ((0, 0), (0, 2), (2, 1), (1, 0))
            batch = [Sequence(*length, place) for length, place in zip(lengths, places, strict=True)]
            case = begin(f"idle-at-both-ends-{label}", about, types, proves="starts.empty outputs.packed", **attributes)
            yield case.call(*batch)

            about = "No sequence stores a token: current_key is empty, the past is loaded."
            places = (6, 0) if mode == 0 else ((6, 9), (0,))
            batch = [Sequence(3, 0, places[0]), Sequence(2, 0, places[1])]
            case = begin(f"only-loads-{label}", about, types, proves="starts.empty untouched-slots", **attributes)
            yield case.call(*batch)

            about = "No sequence has a token: two sequences, empty outputs, the cache as it was."
            places = (4, 0) if mode == 0 else ((), ())
            batch = [Sequence(0, 0, place) for place in places]
            case = begin(
                f"all-idle-{label}", about, types, proves="starts.empty untouched-slots", max_t=5, **attributes
            )
            yield case.call(*batch)


def empty() -> Iterator[Case]:
    """A batch without sequences, a cache without slots."""
    for bits, types in TYPES:
        for mode in (0, 1):
            attributes = dict(quant_bit=bits, cache_mode=mode, num_layer=2, layer_idx=1, num_repeat=2)
            for max_t in (4, 0) if mode == (bits == 8) else ():
                about = f"B = 0 with MaxT = {max_t}: empty outputs, the cache as it was."
                name = f"batch-of-none-max-t-{max_t}-mode{mode}-{types.replace(' ', '-')}"
                sizes = dict(max_t=max_t, cache_layout=(0, 3)[mode])
                case = begin(name, about, types, proves="starts.empty", **sizes, **attributes)
                yield case.call() if mode == 0 else case.call(cachestarts=indices([]).reshape(0, 2))

    about = "A cache without slots and a sequence without tokens."
    case = begin("cache-of-none-offset", about, "f16 f16", proves="starts.empty slots.offset", max_t=0)
    yield case.call(Sequence(0, 0, 0))
    case = begin("cache-of-none-paged", about, "f16 f16", proves="starts.empty pages.filler", max_t=0, cache_mode=1)
    yield case.call(Sequence(0, 0, (-1,)))


def bounds() -> Iterator[Case]:
    """max_seqlen and max_kvlen are upper bounds, as scalars and in shape [1]."""
    rules = "bounds.max-seqlen bounds.max-kvlen inputs.shapes"
    for shape, value, size, mode, bits, types in (
        ((), 64, "64-scalar", 0, 0, "f32 f32"),
        ((1,), 64, "64-vector", 1, 8, "f16 int8 f16"),
        ((), I64_MAX, "i64-max-scalar", 1, 0, "f16 f16"),
        ((1,), I64_MAX, "i64-max-vector", 0, 4, "f32 int4 f32"),
    ):
        about = f"max_seqlen and max_kvlen of shape {list(shape)} are {value}, more than any sequence has."
        if mode == 0:
            about += " The first sequence ends with the cache: what follows its tokens is no slot."
        attributes = dict(quant_bit=bits, cache_mode=mode, page_size=4)
        case = begin(f"bounds-{size}-mode{mode}", about, types, proves=rules, **attributes)
        bound = indices([value]).reshape(shape)
        places = (7, 0) if mode == 0 else ((4, 8), (0,))
        yield case.call(*[Sequence(3, 2, places[0]), Sequence(0, 3, places[1])], max_seqlen=bound, max_kvlen=bound)

    about = "The exact maxima: max_seqlen a scalar, max_kvlen in shape [1], and then the other way round."
    case = begin("bounds-exact-mixed-shapes", about, "f32 f32", proves=rules)
    case.call(Sequence(0, 3, 1), max_seqlen=indices(3), max_kvlen=indices([3]))
    yield case.call(Sequence(3, 1, 1), max_seqlen=indices([1]), max_kvlen=indices(4))

    for name, larger in (("max-seqlen", {"max_seqlen": indices(9)}), ("max-kvlen", {"max_kvlen": indices([9])})):
        about = f"{name.replace('-', '_')} is more than any sequence has, the other bound is the exact maximum."
        case = begin(f"bounds-of-{name}-alone", about, "f16 f16", proves=f"bounds.{name}")
        yield case.call(Sequence(2, 3, 0), Sequence(0, 1, 7), **larger)

    about = "B = 0 with bounds above 0, as in a captured CUDA graph."
    case = begin("bounds-of-batch-of-none", about, "f16 f16", proves=rules)
    yield case.call(max_seqlen=indices(8), max_kvlen=indices([8]))
