"""Several calls on one cache, as a server makes them."""

from __future__ import annotations

from collections.abc import Iterator

from .case import Case, Sequence, begin

# quant_bit, types, the modes of the decode chain, the mode of the chunked prefill
SETTINGS = (
    (0, "f32 f32", (0,), 1),
    (0, "f16 f16", (1,), 0),
    (0, "f16 f32", (0,), None),
    (0, "int8 int8", (1,), None),
    (8, "f32 int8 f32", (0, 1), 1),
    (8, "f16 int8 f16", (0, 1), 0),
    (4, "f16 int4 f16", (0, 1), 1),
    (4, "f32 int4 f32", (0, 1), 0),
)


def cases() -> Iterator[Case]:
    for number, (bits, types, modes, chunk_mode) in enumerate(SETTINGS):
        for mode in (0, 1):
            label = f"mode{mode}-{types.replace(' ', '-')}"
            cache_layout = (number + mode) % 4
            attributes = dict(quant_bit=bits, cache_mode=mode, cache_layout=cache_layout)
            given = (label, types, f"inputs.packed outputs.packed cache-mode.{mode} cache-layout.{cache_layout}")
            if mode in modes:
                yield decode(*given, attributes)
            if mode == chunk_mode:
                yield chunked_prefill(*given, attributes)


def decode(label: str, types: str, rules: str, attributes: dict[str, int]) -> Case:
    """Sequences join and leave; the slots of one that left are used by one that joins."""
    about = (
        "Prefill of two sequences, decode steps of one token each; a third joins, the first leaves and a fourth"
        " takes its slots; two more steps."
    )
    a, b, c, d = (0, 6, 11, 1)
    if attributes["cache_mode"] == 1:
        a, b, c, d = (9, 3), (0, 12), (15, 6), (3, 9)
        attributes = attributes | dict(page_size=3)
    case = begin(f"decode-{label}", about, types, proves=rules, num_heads=1, max_t=18, num_repeat=2, **attributes)
    case.call(Sequence(0, 4, a), Sequence(0, 2, b))
    case.call(Sequence(4, 1, a), Sequence(2, 1, b))
    case.call(Sequence(0, 2, c), Sequence(5, 1, a), Sequence(3, 1, b))
    case.call(Sequence(2, 1, c), Sequence(4, 1, b), Sequence(0, 3, d))
    return case.call(Sequence(3, 1, c), Sequence(3, 1, d))


def chunked_prefill(label: str, types: str, rules: str, attributes: dict[str, int]) -> Case:
    about = "A prompt of 4 + 3 + 2 tokens beside a sequence that decodes: start_pos > 0 with seqlen > 1."
    a, b = 1, 10
    if attributes["cache_mode"] == 1:
        a, b = (7, 0, 11), (4,)
        attributes = attributes | dict(page_size=4)
    case = begin(f"chunked-prefill-{label}", about, types, proves=rules, num_heads=1, max_t=15, **attributes)
    case.call(Sequence(0, 4, a), Sequence(0, 1, b))
    case.call(Sequence(4, 3, a), Sequence(1, 1, b))
    return case.call(Sequence(2, 1, b), Sequence(7, 2, a))
