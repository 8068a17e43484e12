"""Scale, soft cap, sliding window and sinks: all combinations, and each at its edges."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from ..bits import random_values
from ..case import Case, Sequence, indices, quantized
from ..large import sequences
from .case import mask, over_cache, packed, small_scores

# A decode step, a chunk, a prompt, one without queries, three tokens of a speculative step.
LENGTHS = [(6, 1), (4, 3), (0, 5), (4, 0), (2, 3)]
GIVEN = dict(scale=0.375, softcap=1.5, local_window_size=3)
RULES = dict(scale="scores.scale", softcap="scores.softcap", local_window_size="window", sink="head-sink")
TYPES = {
    "f32 f32": 0, "f16 int8 f32": 8, "f32 int4 f16": 4, "bf16 bf16": 0, "f16 f16": 0, "f32 fp8 f32": 8, "f32 f16": 0,
    "bf16 int4 f32": 4,
}  # fmt: skip


def cases() -> Iterator[Case]:
    """Each combination over a cache, with masks, types, layouts, modes and mass that vary along them; then packed."""
    for number, given in enumerate(product((True, False), repeat=4)):
        names = [name for name, is_given in zip(RULES, given, strict=True) if is_given]
        if names:
            yield combination(number, names)
        if len(names) > 2:
            yield combination(number, names, is_packed=True)


def combination(number: int, names: list[str], is_packed: bool = False) -> Case:
    attributes: dict[str, Any] = {name: value for name, value in GIVEN.items() if name in names}
    attributes |= dict(is_causal=int(number % 3 != 1), is_alibi=number // 2 % 2)
    rank, decoding, heads = (None, 2, 3, None, 2)[number % 5], (0, 1, 2, 9)[(number + is_packed) % 4], (4, 2)
    label = "-".join(name.split("_")[-1].replace("size", "window") for name in names)
    rules = " ".join(RULES[name] for name in names) + (" mass" if number % 2 else "")
    if "local_window_size" in names and attributes["is_causal"] == 0:
        rules += " window.without-causal"
    about = f"{', '.join(names)}: is_causal {attributes['is_causal']}, is_alibi {attributes['is_alibi']}"
    about += f", {'no' if rank is None else f'a rank {rank}'} mask, {decoding} of five sequences decoding."
    if is_packed:
        batch, _ = sequences(LENGTHS)
        T1 = ("f32", "f16", "bf16")[number % 3]
        case = packed(f"packed-{label}", about, T1, heads, (8, 40)[number % 2], proves=rules, **attributes)
    else:
        types, quant_bit = list(TYPES.items())[number % len(TYPES)]
        T1, page_size = types.split()[0], 3 * (number // 2 % 2)
        batch, max_t = sequences(LENGTHS, page_size)
        attributes |= dict(cache_layout=number % 4) | quantized(types, quant_bit, 8)
        attributes |= dict(cache_mode=1, page_size=page_size) if page_size else {}
        case = over_cache(label, about, types, heads, (16, 24)[number % 2], proves=rules, max_t=max_t, **attributes)
    changes: dict[str, Any] = dict(decoding_batches=decoding)
    if rank is not None:
        changes["attn_mask"] = mask(case, batch, heads=heads[0] if rank == 3 else None, width=32)
    if "sink" in names:
        changes["head_sink"] = sinks(case, heads[0])
    return small_scores(case.with_mass() if number % 2 else case, *batch, **changes)


def sinks(case: Case, count: int) -> np.ndarray:
    """A sink for each head, of the size of scores; every fourth is none."""
    values = random_values(f"{case.name} sink", (count,), case.types.T1)
    values = (values / values.dtype.type(np.abs(values).max() / 2)).astype(values.dtype)
    values[3::4] = -np.inf
    return values


def borders() -> Iterator[Case]:
    """Windows that begin at the borders of blocks of keys, and beside them."""
    rules = "window precision"
    lengths = [(m - 2, 2) for m in (127, 128, 129, 1087, 1088, 1089)]
    for window, T1 in ((64, "f32"), (65, "f16")):
        about = f"A window of {window}, whose first key is 61 to 65, or 1021 to 1025."
        case = packed(f"large-window-{window}", about, T1, (2, 1), 4, proves=rules, local_window_size=window)
        yield small_scores(case.with_mass(), *sequences(lengths)[0])
    lengths = [(m - 2, 2) for m in (1023, 1024, 1025, 1100)]
    for window, types, quant_bit in ((1024, "f16 f16", 0), (1023, "f16 int8 f16", 8)):
        about = f"A window of {window} over as many keys, some more, and some fewer."
        batch, max_t = sequences(lengths, 16)
        given = dict(max_t=max_t, cache_mode=1, page_size=16, local_window_size=window) | quantized(types, quant_bit, 4)
        name = f"large-window-{window}-{types.replace(' ', '-')}"
        yield small_scores(over_cache(name, about, types, (4, 1), 4, proves=rules, **given), *batch)
    about = "A prompt of 200 tokens of int4 with a window of 63 and sinks, in two chunks, the second of 9 tokens."
    types = "f16 int4 f16"
    given = dict(max_t=200, local_window_size=63, cache_layout=3) | quantized(types, 4, 16)
    case = over_cache("large-window-63-prompt", about, types, (2, 1), 16, proves=f"{rules} head-sink", **given)
    small_scores(case, Sequence(0, 191, 0), head_sink=sinks(case, 2))
    yield small_scores(case, Sequence(191, 9, 0), head_sink=sinks(case, 2))


def windows() -> Iterator[Case]:
    """Windows of one key and of more than there are, without a causal mask, and of rows that see nothing."""
    batch, max_t = sequences(LENGTHS)
    for window, label in ((1, "1"), (2**40, "huge")):
        about = f"A window of {window}: a query sees itself alone, or all that it does without a window."
        case = over_cache(f"window-{label}", about, "f32 f32", (2, 1), 8, proves="window", max_t=max_t,
                          local_window_size=window)  # fmt: skip
        yield small_scores(case, *batch, decoding_batches=1)
    for is_causal, decoding in ((0, 0), (1, 9)):
        about = f"is_causal {is_causal}, {decoding} sequences decoding: a window hides what is before it all the same."
        given = dict(is_causal=is_causal, local_window_size=2)
        case = packed(f"packed-window-causal{is_causal}-decoding{decoding}", about, "f32", (2, 1), 8,
                      proves="window window.without-causal", **given).with_mass()  # fmt: skip
        yield small_scores(case, *batch, decoding_batches=decoding)
    about = "Four queries on two keys, three on none, with sinks: the window, or the mask, hides all keys of some rows."
    name = "packed-window-hides-rows"
    given = dict(is_causal=0, local_window_size=1)
    case = packed(name, about, "f32", (2, 1), 8, proves="window rows-without-keys head-sink", **given).with_mass()
    changes = dict(seqstarts=indices([0, 4, 7, 9]), kvstarts=indices([0, 2, 2, 6]), max_seqlen=indices([4]))
    changes |= {name: random_values(f"{case.name} {name}", (6, 1, 8), "float32") for name in ("key", "value")}
    changes["query"] = random_values(f"{name} query", (9, 2, 8), "float32") / np.float32(16)
    values = random_values(f"{name} mask", (9, 6), "float32")
    values[2, 0], values[7, 4] = -np.inf, -np.inf  # of row 7 the first key that its window leaves, of row 2 one hidden
    values[8, 5] = -np.inf  # of row 8 the only one
    changes |= dict(head_sink=sinks(case, 2), attn_mask=values, max_kvlen=indices([4]))
    yield case.call(*[Sequence(0, 0)] * 3, **changes)
    about = "NaN and infinities in keys and values that the window hides, in slots that no call has stored, too."
    for types in ("f32 f32", "f16 int8 f16"):
        quant = quantized(types, 8 * (types != "f32 f32"), 8)
        given = dict(max_t=max_t, local_window_size=2) | quant
        name = f"window-hides-nan-{types.replace(' ', '-')}"
        case = over_cache(name, about, types, (2, 1), 8, proves="window weights.hidden non-finite.reach", **given)
        for state in (case.scale, case.first_scale) if quant else (case.cache, case.first_cache):
            state[[0, 2, 4, 7, 8]] = np.array([np.nan, np.inf, -np.inf, np.nan, np.inf])[:, None, None, None, None]
        inputs = case.inputs(*batch)
        inputs.current_key[4, 0, 2] = inputs.current_value[5, 0, 1] = np.nan  # tokens 0 and 1 of the prompt
        changes = dict(current_key=inputs.current_key, current_value=inputs.current_value)
        yield small_scores(case, *batch, decoding_batches=1, **changes)


def scores() -> Iterator[Case]:
    """Soft caps of large and small scores, and scales of either sign and of any size."""
    batch, _ = sequences(LENGTHS)
    for cap, size, T1 in ((30.0, 4096, "f32"), (0.5, 1, "f16"), (16384.0, 1 / 16, "f32")):
        about = f"A cap of {cap} on scores of which many are about {64 * size:g}."
        case = packed(f"packed-softcap-{cap:g}", about, T1, (4, 2), 16, proves="scores.softcap", softcap=cap)
        query = case.inputs(*batch).query
        yield case.call(*batch, query=(query * query.dtype.type(size)).astype(query.dtype))
    about = "Products that are infinite are capped, too: neither hidden nor alone. NaN stays, for who sees it."
    given = dict(proves="scores.softcap weights.hidden non-finite.reach", softcap=2.0)
    case = packed("packed-softcap-of-infinity", about, "f32", (1, 1), 8, **given)
    inputs = case.inputs(*batch)
    inputs.key[[2, 9], 0, 1], inputs.key[15, 0, 2] = (np.inf, -np.inf), np.nan
    yield small_scores(case, *batch, key=inputs.key)
    for label, scale, size in (("negative", -0.5, 1 / 16), ("2p-120", 2.0**-120, 1), ("512", 512.0, 1 / 1024)):
        about = f"A scale of {scale:g}, where 1 / sqrt(head_dim) is 0.25."
        case = packed(f"packed-scale-{label}", about, ("f32", "bf16")[scale > 1], (2, 1), 16, proves="scores.scale",
                      scale=scale)  # fmt: skip
        query = case.inputs(*batch).query
        yield case.call(*batch, query=(query * query.dtype.type(size)).astype(query.dtype))


def head_sinks() -> Iterator[Case]:
    """Sinks of any size, of none, and tensors that count as absent."""
    batch, max_t = sequences(LENGTHS)
    for T1, large in (("f32", 1e30), ("f16", 60000), ("bf16", 1e30)):
        about = "Sinks far above all scores, which leave nothing, far below, -inf, 0, NaN, and near the scores."
        case = packed(f"packed-sinks-{T1}", about, T1, (6, 2), 8, proves="head-sink non-finite.reach").with_mass()
        values = np.array([large, -large, -np.inf, 0, np.nan, 1.25]).astype(case.inputs(*batch).query.dtype)
        yield small_scores(case, *batch, head_sink=values)
    about = "No sink but -inf, a tensor without elements of another type and rank, then none at all."
    rules = "head-sink head-sink.empty"
    for case in (
        over_cache("sinks-of-none", about, "f16 int8 f16", (2, 1), 8, proves=rules, quant_bit=8),
        packed("packed-sinks-of-none", about, "f16", (2, 1), 8, proves=rules),
    ):
        small_scores(case, Sequence(0, 3, 2), head_sink=np.full(2, -np.inf, np.float16))
        small_scores(case, Sequence(3, 2, 2), head_sink=np.zeros((3, 0), np.int64))
        yield small_scores(case, Sequence(5, 1, 2))
    about = "A mask that hides every key of some rows, which a sink leaves zeros, and finite numbers far below it."
    case = over_cache("sinks-of-hidden-rows", about, "bf16 int8 f32", (4, 2), 8, max_t=max_t, quant_bit=8, is_causal=0,
                      proves="head-sink rows-without-keys attn-mask").with_mass()  # fmt: skip
    values = mask(case, batch, forbidden=0.0)
    values[(1, 5), :] = np.where(np.isnan(values[(1, 5), :]), np.nan, -np.inf)
    values[2, :] -= values.dtype.type(20000)
    yield small_scores(case, *batch, attn_mask=values, head_sink=sinks(case, 4))
