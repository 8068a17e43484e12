#!/usr/bin/env python3
"""KeyValueCache in whole arrays: every token of a call is gathered or scattered at once, by arrays of slots. Right, and
wrong in many ways, each a class that changes one method.

It shares the oracle's checks of illegal calls, and nothing else. As a program, for `kvcache-conformance --program`, it
runs one case: vectorized.py CLASS CASE OUTPUT.
"""
# ruff: noqa: D102 -- a method that is overridden is documented in Right.

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))

from oracle.call import Attributes, Inputs, Types
from oracle.rules import broken_rules

Arrays = dict[str, np.ndarray]


class Refused(Exception):
    """An illegal call."""


class Right:
    """What the specification says. int4 is packed, two in a uint8."""

    # The axes of cache before the last: tokens, layers, keys and values, heads.
    layouts = ("TLKH", "LTKH", "LKTH", "LKHT")

    def __call__(self, attributes: dict[str, int], inputs: Arrays, cache: np.ndarray, scale: np.ndarray | None) -> Any:
        """Writes cache and scale in place; gives key and value."""
        refuse_illegal(attributes, inputs, cache, scale)
        a, i = SimpleNamespace(**attributes), SimpleNamespace(**inputs)
        with np.errstate(all="ignore"):
            return self.run(a, i, self.by_token(a, i, cache), self.by_token(a, i, scale) if a.quant_bit else None)

    def run(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Makes a legal call."""
        self.scatter(a, i, cache, scale)
        return self.gather(a, i, cache, scale)

    def by_token(self, a: Any, i: Any, state: np.ndarray) -> np.ndarray:
        """A view of cache or scale as (MaxT, L, 2, H, last)."""
        axes = self.layouts[a.cache_layout]
        return state.transpose(*(axes.index(axis) for axis in "TLKH"), 4)

    def scatter(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> None:
        """Stores the current tokens."""
        slots = self.slots(a, i, *self.current_tokens(a, i))
        x = np.stack([i.current_key, i.current_value], 1)  # (tokens, 2, H, Dh)
        if a.quant_bit == 0:
            cache[slots, a.layer_idx] = x
            return
        codes, steps = self.quantized(a, x)
        cache[slots, a.layer_idx] = self.packed(codes) if a.quant_bit == 4 else codes
        self.keep_scale(scale[:, a.layer_idx], slots, steps)

    def current_tokens(self, a: Any, i: Any) -> tuple[np.ndarray, np.ndarray]:
        """The sequences of the current tokens, and their positions there."""
        return ragged(np.diff(i.seqstarts), i.start_pos)

    def keep_scale(self, scale: np.ndarray, slots: np.ndarray, steps: np.ndarray) -> None:
        """Stores the steps of a layer."""
        scale[slots] = steps

    def gather(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Loads all tokens of each sequence."""
        kvlens = np.diff(i.kvstarts)
        owners, positions = ragged(kvlens, 0 * kvlens)
        slots = self.slots(a, i, owners, positions)
        rows = cache[slots, a.layer_idx]  # (tokens, 2, H, last)
        t1 = i.current_key.dtype
        if a.quant_bit != 0:
            codes = self.unpacked(rows) if a.quant_bit == 4 else rows
            rows = self.dequantized(a, codes, scale[slots, a.layer_idx], t1)
        heads = self.repeated(rows.astype(t1), a.num_repeat)
        outputs = np.zeros_like(heads)
        outputs[self.output_rows(i, owners, positions)] = heads
        return outputs[:, 0], outputs[:, 1]

    def slots(self, a: Any, i: Any, owners: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Where tokens are in the cache."""
        if a.cache_mode == 0:
            return i.cachestarts[owners] + positions
        return self.on_page(i.cachestarts, owners, *np.divmod(positions, a.page_size), a.page_size)

    def on_page(self, table: np.ndarray, owners: np.ndarray, page: np.ndarray, rest: np.ndarray, size: int) -> Any:
        """The slots of tokens by their pages and their places there."""
        return table[owners, page] + rest

    def output_rows(self, i: Any, owners: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """The rows of key and value that tokens have."""
        return i.kvstarts[owners] + positions

    def repeated(self, heads: np.ndarray, num_repeat: int) -> np.ndarray:
        """The heads of the outputs."""
        return np.repeat(heads, num_repeat, axis=-2)

    def quantized(self, a: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The codes (..., Dh) of current tokens, int8, and the steps of their groups (..., Dh / quant_group), of T1."""
        qmax = self.qmax(a.quant_bit)
        groups = x.reshape(*x.shape[:-1], x.shape[-1] // a.quant_group, a.quant_group)
        steps = self.step(self.amax(groups), qmax)
        codes = self.clipped(a, self.integer(self.quotient(groups, steps)), qmax)
        return codes.reshape(x.shape), steps[..., 0]

    def qmax(self, quant_bit: int) -> int:
        """The largest code."""
        return {4: 7, 8: 127}[quant_bit]

    def amax(self, groups: np.ndarray) -> np.ndarray:
        """The largest magnitudes, (..., 1)."""
        return abs(groups).max(-1, keepdims=True)

    def step(self, amax: np.ndarray, qmax: int) -> np.ndarray:
        """The steps between codes."""
        return np.maximum(amax / amax.dtype.type(qmax), amax.dtype.type(1e-5))

    def quotient(self, x: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Values in steps."""
        return x / steps

    def integer(self, quotient: np.ndarray) -> np.ndarray:
        """To nearest, ties to even."""
        return np.rint(quotient)

    def clipped(self, a: Any, rounded: np.ndarray, qmax: int) -> np.ndarray:
        """As codes of int8; 0 for NaN."""
        return np.nan_to_num(rounded.clip(-qmax, qmax)).astype(np.int8)

    def packed(self, codes: np.ndarray) -> np.ndarray:
        """Two codes in a byte."""
        nibbles = codes.view(np.uint8) & 15
        return nibbles[..., ::2] | nibbles[..., 1::2] << 4

    def unpacked(self, packed: np.ndarray) -> np.ndarray:
        """The codes, int8."""
        nibbles = np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], 2 * packed.shape[-1])
        return (nibbles ^ 8).astype(np.int8) - np.int8(8)

    def dequantized(self, a: Any, codes: np.ndarray, scale: np.ndarray, t1: np.dtype) -> np.ndarray:
        """The values of codes (..., Dh)."""
        return codes * np.repeat(scale, a.quant_group, -1)  # int8 times T3 is T3


def current(i: Any) -> Arrays:
    """The current tokens."""
    return {"current_key": i.current_key, "current_value": i.current_value}


def ragged(lengths: np.ndarray, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For sequences one behind the other, to which sequence each token belongs, and its position, from `first` on."""
    owners = np.repeat(np.arange(len(lengths)), lengths)
    behind = np.cumsum(lengths) - lengths
    return owners, np.arange(len(owners)) - behind[owners] + first[owners]


def refuse_illegal(attributes: dict[str, int], inputs: Arrays, cache: np.ndarray, scale: np.ndarray | None) -> None:
    """Raises Refused for an illegal call."""
    t2 = "int4" if cache.dtype == np.uint8 else cache.dtype.name
    unpacked = np.empty((*cache.shape[:-1], 2 * cache.shape[-1]), np.int8) if t2 == "int4" else cache
    types = Types(inputs["current_key"].dtype.name, t2, None if scale is None else scale.dtype.name)
    if broken := broken_rules(Inputs(**inputs), unpacked, scale, Attributes(**attributes), types):
        raise Refused(broken[0])


class NibblesSwapped(Right):
    """The first of two codes is in the high nibble."""

    def packed(self, codes: np.ndarray) -> np.ndarray:
        packed = super().packed(codes)
        return packed << 4 | packed >> 4

    def unpacked(self, packed: np.ndarray) -> np.ndarray:
        return super().unpacked(packed << 4 | packed >> 4)


class HalfUp(Right):
    """floor(x + 0.5)."""

    def integer(self, quotient: np.ndarray) -> np.ndarray:
        return np.floor(quotient + 0.5)


class HalfAway(Right):
    """Like round() of C."""

    def integer(self, quotient: np.ndarray) -> np.ndarray:
        whole = np.trunc(quotient)
        return whole + np.sign(quotient) * (abs(quotient - whole) >= 0.5)


class Truncated(Right):
    """A cast where rint() belongs."""

    def integer(self, quotient: np.ndarray) -> np.ndarray:
        return np.trunc(quotient)


class ProductNotRounded(Right):
    """Codes times scales in float32, whatever T3 is."""

    def dequantized(self, a: Any, codes: np.ndarray, scale: np.ndarray, t1: np.dtype) -> np.ndarray:
        return super().dequantized(a, codes, scale.astype(np.float32), t1)


class StepInsteadOfScale(Right):
    """Current tokens are given back as codes times steps, before those are rounded to T3."""

    def gather(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        outputs = super().gather(a, i, cache, scale)
        if a.quant_bit != 0:
            owners, positions = self.current_tokens(a, i)
            for output, current in zip(outputs, (i.current_key, i.current_value)):
                codes, steps = self.quantized(a, current)
                values = codes * np.repeat(steps, a.quant_group, -1)
                output[i.kvstarts[owners] + positions] = self.repeated(values, a.num_repeat)
        return outputs


class PageNumbers(Right):
    """Entries of the page table times page_size."""

    def on_page(self, table: np.ndarray, owners: np.ndarray, page: np.ndarray, rest: np.ndarray, size: int) -> Any:
        return table[owners, page] * size + rest


class PageOfNextToken(Right):
    """Tokens counted from 1."""

    def slots(self, a: Any, i: Any, owners: np.ndarray, positions: np.ndarray) -> np.ndarray:
        if a.cache_mode == 0:
            return super().slots(a, i, owners, positions)
        return i.cachestarts[owners, (positions + 1) // a.page_size] + positions % a.page_size


class LastPageOffByOne(Right):
    """As many pages as fill up: tokens of the last one, which is not full, go to the page before."""

    def on_page(self, table: np.ndarray, owners: np.ndarray, page: np.ndarray, rest: np.ndarray, size: int) -> Any:
        full = np.maximum(self.kvlens[owners] // size, 1)
        return table[owners, np.minimum(page, full - 1)] + rest

    def slots(self, a: Any, i: Any, owners: np.ndarray, positions: np.ndarray) -> np.ndarray:
        self.kvlens = np.diff(i.kvstarts)
        return super().slots(a, i, owners, positions)


class AxesConfused(Right):
    """2 and 3 taken one for the other, by the axes that the cache has: numpy does not broadcast them."""

    layouts = ("TLKH", "LTKH", "LKHT", "LKTH")


class LayoutsConfused(AxesConfused):
    """The same, in the memory that the cache has."""

    def by_token(self, a: Any, i: Any, state: np.ndarray) -> np.ndarray:
        if a.cache_layout in (2, 3):
            state = state.reshape(*state.shape[:2], state.shape[3], state.shape[2], state.shape[4])
        return super().by_token(a, i, state)


class KvstartsIgnored(Right):
    """Outputs begin where current tokens do."""

    def output_rows(self, i: Any, owners: np.ndarray, positions: np.ndarray) -> np.ndarray:
        return i.seqstarts[owners] + positions


class RepeatTiled(Right):
    """Repeated heads come after all others."""

    def repeated(self, heads: np.ndarray, num_repeat: int) -> np.ndarray:
        return np.tile(heads, (num_repeat, 1))


class EpsMissing(Right):
    """No least scale."""

    def step(self, amax: np.ndarray, qmax: int) -> np.ndarray:
        return amax / amax.dtype.type(qmax)


class ScaleStale(Right):
    """Codes are stored, their scales are not."""

    def keep_scale(self, scale: np.ndarray, slots: np.ndarray, steps: np.ndarray) -> None:
        pass


class Reciprocal(Right):
    """Times 1 / s."""

    def quotient(self, x: np.ndarray, steps: np.ndarray) -> np.ndarray:
        return x * (1 / steps)


class LoadsBeforeStores(Right):
    """Outputs are gathered before tokens are scattered."""

    def run(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        outputs = self.gather(a, i, cache, scale)
        self.scatter(a, i, cache, scale)
        return outputs


class KeyAndValueSwapped(Right):
    """The outputs in another order."""

    def gather(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        return super().gather(a, i, cache, scale)[::-1]


class QmaxOfEight(Right):
    """int4 from -8 to 7, with a step of amax / 8."""

    def qmax(self, quant_bit: int) -> int:
        return {4: 8, 8: 127}[quant_bit]

    def clipped(self, a: Any, rounded: np.ndarray, qmax: int) -> np.ndarray:
        return super().clipped(a, rounded.clip(-qmax, 7 if qmax == 8 else qmax), qmax)


class ScalePerHead(Right):
    """All groups of a head have the largest one's scale."""

    def amax(self, groups: np.ndarray) -> np.ndarray:
        return np.broadcast_to(super().amax(groups).max(-2, keepdims=True), (*groups.shape[:-1], 1))


class Float16InFloat32(Right):
    """Steps and quotients in float32, whatever T1 is."""

    def quantized(self, a: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return super().quantized(a, x.astype(np.float32))


class StartPosIgnored(Right):
    """Current tokens over the past ones."""

    def current_tokens(self, a: Any, i: Any) -> tuple[np.ndarray, np.ndarray]:
        return ragged(np.diff(i.seqstarts), 0 * i.start_pos)


class Int4Clamped(QmaxOfEight):
    """The same step, with codes up to 7 in magnitude."""

    def clipped(self, a: Any, rounded: np.ndarray, qmax: int) -> np.ndarray:
        return Right.clipped(self, a, rounded, 7 if qmax == 8 else qmax)


class Int4Wraps(QmaxOfEight):
    """The same step, with a code of 8, which is -8."""

    def clipped(self, a: Any, rounded: np.ndarray, qmax: int) -> np.ndarray:
        return Right.clipped(self, a, rounded, qmax)


class KeyInValue(Right):
    """Keys and values swapped in the cache."""

    def by_token(self, a: Any, i: Any, state: np.ndarray) -> np.ndarray:
        return super().by_token(a, i, state)[:, :, ::-1]


class LayerIgnored(Right):
    """Layer 0 always."""

    def run(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        a.layer_idx = 0
        return super().run(a, i, cache, scale)


class MeanForAmax(Right):
    """The mean magnitude instead of the largest."""

    def amax(self, groups: np.ndarray) -> np.ndarray:
        return abs(groups).mean(-1, keepdims=True)


class NanReplaced(Right):
    """NaN becomes 0 before it is stored."""

    def scatter(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> None:
        tokens = {name: np.where(np.isnan(x), x.dtype.type(0), x) for name, x in current(i).items()}
        super().scatter(a, SimpleNamespace(**vars(i) | tokens), cache, scale)


class NanToNum(Right):
    """What is not finite is replaced, as nan_to_num() has it."""

    def scatter(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> None:
        tokens = {name: x if x.dtype == np.int8 else np.nan_to_num(x) for name, x in current(i).items()}
        super().scatter(a, SimpleNamespace(**vars(i) | tokens), cache, scale)


class KeysOnly(Right):
    """Values are not stored."""

    def scatter(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> None:
        states = [state for state in (cache, scale) if state is not None]
        before = [state[:, :, 1].copy() for state in states]
        super().scatter(a, i, cache, scale)
        for state, values in zip(states, before):
            state[:, :, 1] = values


class ScaleOfAllTokens(Right):
    """amax over the axis of tokens, too."""

    def amax(self, groups: np.ndarray) -> np.ndarray:
        of_each = super().amax(groups)
        return np.broadcast_to(of_each.max(0, keepdims=True), of_each.shape) if len(of_each) else of_each


class ScaleOfKeyAndValue(Right):
    """amax over the axis of keys and values, too."""

    def amax(self, groups: np.ndarray) -> np.ndarray:
        of_each = super().amax(groups)
        return np.broadcast_to(of_each.max(1, keepdims=True), of_each.shape)


class ScalesTiled(Right):
    """Scales are tiled along a head where they are loaded."""

    def dequantized(self, a: Any, codes: np.ndarray, scale: np.ndarray, t1: np.dtype) -> np.ndarray:
        return codes * np.tile(scale, a.quant_group)


class SignAndMagnitude(Right):
    """Nibbles with a bit for the sign."""

    def packed(self, codes: np.ndarray) -> np.ndarray:
        return super().packed((abs(codes) | (codes < 0) * np.int8(8)).astype(np.int8))

    def unpacked(self, packed: np.ndarray) -> np.ndarray:
        nibbles = super().unpacked(packed) & 15
        return np.where(nibbles & 8, -(nibbles & 7), nibbles & 7).astype(np.int8)


class NibblesSwappedInLoads(Right):
    """The other way round than they are stored."""

    def unpacked(self, packed: np.ndarray) -> np.ndarray:
        return super().unpacked(packed << 4 | packed >> 4)


class FirstRepetition(Right):
    """num_repeat heads, of which the first alone is written."""

    def repeated(self, heads: np.ndarray, num_repeat: int) -> np.ndarray:
        repeated = super().repeated(heads, num_repeat)
        repeated[..., np.arange(repeated.shape[-2]) % num_repeat != 0, :] = 0
        return repeated


class AmaxOfFirst8(Right):
    """One vector of each group."""

    def amax(self, groups: np.ndarray) -> np.ndarray:
        return super().amax(groups[..., :8])


class ScaleOfFirstHead(Right):
    """An index of the head forgotten."""

    def dequantized(self, a: Any, codes: np.ndarray, scale: np.ndarray, t1: np.dtype) -> np.ndarray:
        return super().dequantized(a, codes, np.broadcast_to(scale[:, :, :1], scale.shape), t1)


class ScaleOfFirstLayer(Right):
    """A layer of the scales forgotten, where they are loaded."""

    def gather(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        if a.quant_bit != 0:
            scale = scale.copy()
            scale[:, a.layer_idx] = scale[:, 0]
        return super().gather(a, i, cache, scale)


class RoundedAtRandom(Right):
    """Up or down, the likelier the nearer."""

    def integer(self, quotient: np.ndarray) -> np.ndarray:
        return np.floor(quotient + np.random.default_rng(7).random(quotient.shape, np.float32))


class ScaleOfNextSlot(Right):
    """An index of scales that is one too large, and wraps."""

    def gather(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        return super().gather(a, i, cache, scale if scale is None else np.roll(scale, -1, 0))


class ScaleOfFirstToken(Right):
    """One scale of a sequence for all its tokens."""

    def dequantized(self, a: Any, codes: np.ndarray, scale: np.ndarray, t1: np.dtype) -> np.ndarray:
        return super().dequantized(a, codes, scale[self.first], t1)

    def gather(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        self.first = np.repeat(i.kvstarts[:-1], np.diff(i.kvstarts))
        return super().gather(a, i, cache, scale)


class ProductOfFloat16(Right):
    """Codes times scales in float16, whatever T3 is."""

    def dequantized(self, a: Any, codes: np.ndarray, scale: np.ndarray, t1: np.dtype) -> np.ndarray:
        return super().dequantized(a, codes, scale.astype(np.float16), t1)


class KeysTiled(Right):
    """Repeated heads of keys come after all others, those of values do not."""

    def repeated(self, heads: np.ndarray, num_repeat: int) -> np.ndarray:
        repeated = super().repeated(heads, num_repeat)
        repeated[:, 0] = np.tile(heads[:, 0], (num_repeat, 1))
        return repeated


class ChunkOnOnePage(Right):
    """Current tokens behind the first one, beyond the end of its page."""

    def scatter(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> None:
        owners, positions = self.current_tokens(a, i)
        self.before = (positions - i.start_pos[owners]) * a.cache_mode
        super().scatter(a, i, cache, scale)

    def slots(self, a: Any, i: Any, owners: np.ndarray, positions: np.ndarray) -> np.ndarray:
        before, self.before = getattr(self, "before", 0), 0
        return super().slots(a, i, owners, positions - before) + before


class ScaleOfValuesStale(Right):
    """The scales of keys alone are stored."""

    def keep_scale(self, scale: np.ndarray, slots: np.ndarray, steps: np.ndarray) -> None:
        scale[slots, 0] = steps[:, 0]


class AmaxRunsOn(Right):
    """A maximum that is not reset from token to token."""

    def amax(self, groups: np.ndarray) -> np.ndarray:
        return np.maximum.accumulate(super().amax(groups), 0)


class ElementsRepeated(Right):
    """np.repeat() along the wrong axis."""

    def repeated(self, heads: np.ndarray, num_repeat: int) -> np.ndarray:
        shape = super().repeated(heads, num_repeat).shape
        return np.repeat(heads, num_repeat, axis=-1).reshape(shape)


class ValuesOfHeadsFirst(Right):
    """current_value with the strides of (H, tokens, Dh)."""

    def scatter(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> None:
        tokens, heads, head_dim = i.current_value.shape
        value = i.current_value.reshape(heads, tokens, head_dim).swapaxes(0, 1)
        super().scatter(a, SimpleNamespace(**(vars(i) | {"current_value": value})), cache, scale)


class RestOfPageCleared(Right):
    """Zeros behind the last token, to the end of its page."""

    def scatter(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> None:
        super().scatter(a, i, cache, scale)
        for b in np.flatnonzero(np.diff(i.seqstarts)) if a.cache_mode == 1 else ():
            page, last = divmod(i.kvstarts[b + 1] - i.kvstarts[b] - 1, a.page_size)
            first = i.cachestarts[b, page]
            cache[first + last + 1 : first + a.page_size, a.layer_idx] = 0


class LoadsFromFirstSequence(Right):
    """cachestarts of sequence 0 for all loads of offset mode."""

    def gather(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        starts = i.cachestarts if a.cache_mode else np.broadcast_to(i.cachestarts[:1], i.cachestarts.shape)
        return super().gather(a, SimpleNamespace(**(vars(i) | {"cachestarts": starts})), cache, scale)

    def slots(self, a: Any, i: Any, owners: np.ndarray, positions: np.ndarray) -> np.ndarray:
        return super().slots(a, i, owners, positions).clip(max=self.last)

    def run(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        self.last = max(len(cache) - 1, 0)
        return super().run(a, i, cache, scale)


class ZeroPointOf128(Right):
    """Codes of int8 as unsigned bytes around 128."""

    def clipped(self, a: Any, rounded: np.ndarray, qmax: int) -> np.ndarray:
        codes = super().clipped(a, rounded, qmax)
        return codes ^ np.int8(-128) if a.quant_bit == 8 else codes

    def dequantized(self, a: Any, codes: np.ndarray, scale: np.ndarray, t1: np.dtype) -> np.ndarray:
        return super().dequantized(a, codes ^ np.int8(-128) if a.quant_bit == 8 else codes, scale, t1)


class SlotsCheckedLate(Right):
    """Where tokens go is checked as they are stored, when others have been."""

    late = ("cache_range", "page_range", "too_many_pages", "write_conflict")

    def __call__(self, attributes: dict[str, int], inputs: Arrays, cache: np.ndarray, scale: np.ndarray | None) -> Any:
        try:
            return super().__call__(attributes, inputs, cache, scale)
        except Refused as refusal:
            if str(refusal) in self.late:
                cache.reshape(-1).view(np.uint8)[:1] ^= 1
            raise


# What the diagnosis calls each.
WRONG: dict[type[Right], str] = {
    NibblesSwapped: "nibbles-swapped",
    HalfUp: "half-up",
    HalfAway: "half-away-from-even",
    Truncated: "truncation",
    ProductNotRounded: "dequantize-not-rounded-to-t3",
    StepInsteadOfScale: "scale-and-product-not-rounded",
    PageNumbers: "page-index-for-slot",
    PageOfNextToken: "page-of-next-token",
    LastPageOffByOne: "last-page-not-counted",
    AxesConfused: "layouts-2-and-3-refused",
    LayoutsConfused: "layouts-confused-2-3",
    KvstartsIgnored: "kvstarts-ignored",
    RepeatTiled: "repeat-interleaved",
    EpsMissing: "eps-missing",
    ScaleStale: "scale-stale",
    Reciprocal: "reciprocal-multiplication",
    LoadsBeforeStores: "loads-before-stores",
    KeyAndValueSwapped: "key-and-value-swapped",
    QmaxOfEight: "qmax-8-of-int4",
    Int4Clamped: "qmax-8-of-int4-for-the-scale",
    Int4Wraps: "qmax-8-of-int4-wraps",
    ScalePerHead: "scale-per-head",
    Float16InFloat32: "float16-computed-in-float32",
    StartPosIgnored: "start-pos-ignored",
    KeyInValue: "key-and-value-swapped-in-cache",
    LayerIgnored: "layer-ignored",
    MeanForAmax: "mean-for-amax-in-pairs",
    NanReplaced: "nan-replaced-on-store",
    NanToNum: "non-finite-replaced-on-store",
    KeysOnly: "values-not-stored",
    ScaleOfAllTokens: "scale-of-all-tokens",
    ScaleOfKeyAndValue: "scale-shared-by-key-and-value",
    ScalesTiled: "scales-tiled-in-loads",
    SignAndMagnitude: "nibbles-with-a-sign-bit",
    NibblesSwappedInLoads: "nibbles-swapped-in-loads",
    FirstRepetition: "first-repetition-alone",
    AmaxOfFirst8: "amax-of-first-8",
    ScaleOfFirstHead: "scale-of-first-head-in-loads",
    ScaleOfFirstLayer: "layer-ignored-by-loads-of-scale",
    RoundedAtRandom: "codes-off-by-one",
    ScaleOfNextSlot: "scale-of-next-slot-in-loads",
    ScaleOfFirstToken: "scale-of-first-token-in-loads",
    ProductOfFloat16: "product-of-float16",
    KeysTiled: "repeat-interleaved-of-keys",
    ChunkOnOnePage: "current-tokens-on-one-page",
    ScaleOfValuesStale: "scales-of-values-not-stored",
    AmaxRunsOn: "amax-not-reset-between-tokens",
    ElementsRepeated: "elements-repeated",
    ValuesOfHeadsFirst: "current-heads-first-of-values",
    RestOfPageCleared: "rest-of-page-cleared",
    LoadsFromFirstSequence: "slots-of-first-sequence-in-loads",
    ZeroPointOf128: "codes-offset-by-128",
    SlotsCheckedLate: "state-changed-before-refusal",
}


def partly(wrong: type[Right], where: Callable[[Any], bool]) -> Right:
    """An implementation that is wrong in the calls whose attributes and types say so, and right in others."""

    class Partly(Right):
        def __call__(self, attributes: dict[str, int], inputs: Arrays, cache: np.ndarray, scale: Any) -> Any:
            facts = SimpleNamespace(**attributes, t1=inputs["current_key"].dtype.name)
            return (wrong() if where(facts) else Right())(attributes, inputs, cache, scale)

    return Partly()


# Flaws of a part of an implementation, and how the diagnosis tells the part.
PARTLY: list[tuple[type[Right], Callable[[Any], bool], str]] = [
    (HalfAway, lambda a: a.quant_bit == 4, "Only where T2 is int4."),
    (KeyAndValueSwapped, lambda a: a.cache_layout == 3, "Only where cache_layout is 3."),
    (StartPosIgnored, lambda a: a.cache_mode == 1, "Only where cache_mode is 1."),
    (RepeatTiled, lambda a: a.num_repeat == 4, "Only where num_repeat is 4."),
    (ScaleStale, lambda a: a.cache_layout == 2 and a.t1 == "float16", "Only where "),
]


class RefusesOdd(Right):
    """Refuses calls for a reason that nobody knows: any last kvstarts that is odd."""

    def run(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        if i.kvstarts[-1] % 2:
            raise Refused("odd")
        return super().run(a, i, cache, scale)


class RefusesOddWithoutBounds(RefusesOdd):
    """The same, and max_seqlen and max_kvlen are not checked."""

    def __call__(self, attributes: dict[str, int], inputs: Arrays, cache: np.ndarray, scale: np.ndarray | None) -> Any:
        bounds = dict.fromkeys(("max_seqlen", "max_kvlen"), np.array(2**62))
        return super().__call__(attributes, inputs | bounds, cache, scale)


class RefusesForTwoReasons(RefusesOdd):
    """Refuses sequences without current tokens in paged mode, too, and says so."""

    def run(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        if a.cache_mode == 1 and (np.diff(i.seqstarts) == 0).any():
            raise Refused(f"sequence {np.flatnonzero(np.diff(i.seqstarts) == 0)[0]} is empty")
        return super().run(a, i, cache, scale)


class RefusesMixedBatches(Right):
    """Refuses decode steps beside prompts, of which no known mistake is."""

    def run(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        seqlens = np.diff(i.seqstarts)
        if (seqlens == 1).any() and (seqlens > 1).any():
            raise Refused("mixed")
        return super().run(a, i, cache, scale)


class GarbageInOdd(Right):
    """Outputs of which no known mistake is: every seventh element where the last kvstarts is odd."""

    def gather(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        key, value = super().gather(a, i, cache, scale)
        if i.kvstarts[-1] % 2:
            key = key.copy()
            key.reshape(-1)[::7] = 3
        return key, value


class RefusesPaged(Right):
    """Knows no page tables."""

    def run(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        if a.cache_mode == 1:
            raise Refused("no pages")
        return super().run(a, i, cache, scale)


def run_case(implementation: Callable[..., Any], folder: Path, output: Path) -> None:
    """Runs one case of a folder, and writes what a program writes."""
    import yaml
    from safetensors.numpy import load_file, save_file

    case, tensors = yaml.safe_load((folder / "case.yaml").read_text()), load_file(folder / "tensors.safetensors")
    attributes = vars(Attributes(**case["attributes"]))
    cache, scale = tensors["cache"], tensors.get("scale")
    if "int4" in case:
        cache = cache.reshape(*case["int4"]["cache"][:-1], -1)
    results, refusals = {}, {}
    for call in range(len(case["steps"])):
        inputs = {name: tensors[f"{call}.{name}"] for name in Inputs.__dataclass_fields__}
        try:
            results[f"{call}.key"], results[f"{call}.value"] = implementation(attributes, inputs, cache, scale)
        except Refused as refusal:
            refusals[f"{call}.error"] = str(refusal)
        results[f"{call}.cache"] = cache.copy() if "int4" not in case else cache.reshape(-1).copy()
        if scale is not None:
            results[f"{call}.scale"] = scale.copy()
    save_file({name: np.ascontiguousarray(array) for name, array in results.items()}, output, metadata=refusals)


if __name__ == "__main__":
    run_case(globals()[sys.argv[1]](), Path(sys.argv[2]), Path(sys.argv[3]))
