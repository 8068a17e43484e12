#!/usr/bin/env python3
"""KeyValueCache in whole arrays: every token of a call is gathered or scattered at once, by arrays of slots. Right, and
wrong in many ways, each a class that changes one method.

It shares the oracle's checks of illegal calls, and nothing else. With a CLASS as argument it is a program that serves
cases, for `kvcache-conformance --program ... --serve`.
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
        slots = self.slots(a, i, *ragged(np.diff(i.seqstarts), i.start_pos))
        x = np.stack([i.current_key, i.current_value], 1)  # (tokens, 2, H, Dh)
        if a.quant_bit == 0:
            cache[slots, a.layer_idx] = x
            return
        codes, steps = self.quantized(a, x)
        cache[slots, a.layer_idx] = self.packed(codes) if a.quant_bit == 4 else codes
        self.keep_scale(scale[:, a.layer_idx], slots, steps)

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
            rows = codes * np.repeat(scale[slots, a.layer_idx], a.quant_group, -1)  # int8 times T3 is T3
        heads = self.repeated(rows.astype(t1), a.num_repeat)
        outputs = np.zeros_like(heads)
        outputs[i.kvstarts[owners] + positions] = heads
        return outputs[:, 0], outputs[:, 1]

    def slots(self, a: Any, i: Any, owners: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Where tokens are in the cache."""
        if a.cache_mode == 0:
            return i.cachestarts[owners] + positions
        return self.on_page(i.cachestarts, owners, *np.divmod(positions, a.page_size), a.page_size)

    def on_page(self, table: np.ndarray, owners: np.ndarray, page: np.ndarray, rest: np.ndarray, size: int) -> Any:
        """The slots of tokens by their pages and their places there."""
        return table[owners, page] + rest

    def repeated(self, heads: np.ndarray, num_repeat: int) -> np.ndarray:
        """The heads of the outputs."""
        return np.repeat(heads, num_repeat, axis=-2)

    def quantized(self, a: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The codes (..., Dh) of current tokens, int8, and the steps of their groups (..., Dh / quant_group), of T1."""
        qmax = {4: 7, 8: 127}[a.quant_bit]
        groups = x.reshape(*x.shape[:-1], x.shape[-1] // a.quant_group, a.quant_group)
        steps = np.maximum(abs(groups).max(-1, keepdims=True) / x.dtype.type(qmax), x.dtype.type(1e-5))
        codes = self.integer(self.quotient(groups, steps)).clip(-qmax, qmax)
        return np.nan_to_num(codes).astype(np.int8).reshape(x.shape), steps[..., 0]

    def quotient(self, x: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Values in steps."""
        return x / steps

    def integer(self, quotient: np.ndarray) -> np.ndarray:
        """To nearest, ties to even."""
        return np.rint(quotient)

    def packed(self, codes: np.ndarray) -> np.ndarray:
        """Two codes in a byte."""
        nibbles = codes.view(np.uint8) & 15
        return nibbles[..., ::2] | nibbles[..., 1::2] << 4

    def unpacked(self, packed: np.ndarray) -> np.ndarray:
        """The codes, int8."""
        nibbles = np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], 2 * packed.shape[-1])
        return (nibbles ^ 8).astype(np.int8) - np.int8(8)


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


class HalfAway(Right):
    """Like round() of C."""

    def integer(self, quotient: np.ndarray) -> np.ndarray:
        whole = np.trunc(quotient)
        return whole + np.sign(quotient) * (abs(quotient - whole) >= 0.5)


class Reciprocal(Right):
    """Times 1 / s."""

    def quotient(self, x: np.ndarray, steps: np.ndarray) -> np.ndarray:
        return x * (1 / steps)


class PageNumbers(Right):
    """Entries of the page table times page_size."""

    def on_page(self, table: np.ndarray, owners: np.ndarray, page: np.ndarray, rest: np.ndarray, size: int) -> Any:
        return table[owners, page] * size + rest


class LayoutsConfused(Right):
    """2 and 3 taken one for the other."""

    layouts = ("TLKH", "LTKH", "LKHT", "LKTH")

    def by_token(self, a: Any, i: Any, state: np.ndarray) -> np.ndarray:
        if a.cache_layout in (2, 3):
            state = state.reshape(*state.shape[:2], state.shape[3], state.shape[2], state.shape[4])
        return super().by_token(a, i, state)


class RepeatTiled(Right):
    """Repeated heads come after all others."""

    def repeated(self, heads: np.ndarray, num_repeat: int) -> np.ndarray:
        return np.tile(heads, (num_repeat, 1))


class ScaleStale(Right):
    """Codes are stored, their scales are not."""

    def keep_scale(self, scale: np.ndarray, slots: np.ndarray, steps: np.ndarray) -> None:
        pass


class LoadsBeforeStores(Right):
    """Outputs are gathered before tokens are scattered."""

    def run(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        outputs = self.gather(a, i, cache, scale)
        self.scatter(a, i, cache, scale)
        return outputs


class LayerIgnored(Right):
    """Layer 0 always."""

    def run(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        a.layer_idx = 0
        return super().run(a, i, cache, scale)


class Float16InFloat32(Right):
    """Steps and quotients in float32, whatever T1 is."""

    def quantized(self, a: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return super().quantized(a, x.astype(np.float32))


class RoundedAtRandom(Right):
    """Up or down, the likelier the nearer."""

    def integer(self, quotient: np.ndarray) -> np.ndarray:
        return np.floor(quotient + np.random.default_rng(7).random(quotient.shape, np.float32))


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


class RefusesGroups(Right):
    """Knows no groups of more than 16, and says so by an exception without a kind."""

    def run(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        if a.quant_bit and a.quant_group > 16:
            raise ValueError("quant_group > 16")
        return super().run(a, i, cache, scale)


class GarbageInOdd(Right):
    """What nobody does on purpose: every seventh element of key is 3 where the last kvstarts is odd."""

    def gather(self, a: Any, i: Any, cache: np.ndarray, scale: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        key, value = super().gather(a, i, cache, scale)
        if i.kvstarts[-1] % 2:
            key = key.copy()
            key.reshape(-1)[::7] = 3
        return key, value


# The name of each one's flaw among the known mistakes.
WRONG: dict[type[Right], str] = {
    NibblesSwapped: "nibbles-swapped",
    HalfAway: "half-away-from-even",
    Reciprocal: "reciprocal-multiplication",
    PageNumbers: "page-index-for-slot",
    LayoutsConfused: "layouts-confused-2-3",
    RepeatTiled: "repeat-interleaved",
    ScaleStale: "scale-stale",
    LoadsBeforeStores: "loads-before-stores",
    LayerIgnored: "layer-ignored",
    Float16InFloat32: "float16-computed-in-float32",
    RoundedAtRandom: "codes-off-by-one",
    SlotsCheckedLate: "state-changed-before-refusal",
}


def partly(wrong: type[Right], where: Callable[[Any], bool]) -> Right:
    """An implementation that is wrong in the calls whose attributes and types say so, and right in others."""

    class Partly(Right):
        def __call__(self, attributes: dict[str, int], inputs: Arrays, cache: np.ndarray, scale: Any) -> Any:
            facts = SimpleNamespace(**attributes, t1=inputs["current_key"].dtype.name)
            return (wrong() if where(facts) else Right())(attributes, inputs, cache, scale)

    return Partly()


def run_case(implementation: Callable[..., Any], folder: Path, output: Path) -> None:
    """Runs one case of a folder, and writes what a program writes."""
    import yaml
    from safetensors.numpy import load_file, save_file

    case, tensors = yaml.safe_load((folder / "case.yaml").read_text()), load_file(folder / "tensors.safetensors")
    attributes = vars(Attributes(**case["attributes"]))
    cache, scale = tensors["cache"], tensors.get("scale")
    if "int4" in case:
        *axes, last = case["int4"]["cache"]
        cache = cache.reshape(*axes, -1 if cache.size else last // 2)
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
    tested = globals()[sys.argv[1]]()
    for line in sys.stdin:
        run_case(tested, *map(Path, line.rstrip("\n").split("\t")))
        print("done", flush=True)
