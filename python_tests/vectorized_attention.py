"""Attention over the whole packed batch at once, under a mask of blocks: in float32, right, and wrong in many ways,
each a class that changes one method.

It shares the oracle's checks of illegal calls, and nothing else.
"""
# ruff: noqa: D102 -- a method that is overridden is documented in Right.

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

import vectorized
from oracle.attention_call import AttentionAttributes, AttentionInputs, CacheAttentionInputs
from oracle.attention_rules import broken_attention_rules, broken_cache_attention_rules
from oracle.call import Types
from vectorized import Arrays, Refused, ragged

INFINITY = np.float32(np.inf)


class Right:
    """What the specification says. int4 is packed, two in a uint8."""

    stored = vectorized.Right()

    def __call__(
        self, op_type: str, attributes: dict[str, int], inputs: Arrays, cache: np.ndarray, scale: np.ndarray | None
    ) -> np.ndarray:
        """Writes cache and scale in place, if there are; gives attn_output."""
        refuse_illegal(op_type, attributes, inputs, cache, scale)
        a, i = SimpleNamespace(**attributes), SimpleNamespace(**inputs)
        a.num_kv_heads = a.num_kv_heads or a.num_heads
        with np.errstate(all="ignore"):
            if op_type == "MultiHeadAttention":
                return self.attend(a, i, i.key, i.value)
            a.num_repeat = 1
            by_token = self.stored.by_token
            states = by_token(a, i, cache), by_token(a, i, scale) if a.quant_bit else None
            return self.attend(a, i, *self.stored.run(a, i, *states))

    def attend(self, a: Any, i: Any, key: np.ndarray, value: np.ndarray) -> np.ndarray:
        """The output for packed keys and values."""
        query = i.query.astype(np.float32)
        key, value = (self.of_query_heads(a, array.astype(np.float32)) for array in (key, value))
        scores = np.stack([query[:, h] @ key[:, h].T for h in range(a.num_heads)]) if a.num_heads else query
        scores = scores * np.float32(1 / np.sqrt(a.head_dim))  # (Hq, queries, keys)
        hidden = self.hidden(a, i)
        for mask in self.masks(a, i):
            hidden = hidden | (mask == -INFINITY)
            scores = scores + mask
        weights = self.weights(np.where(hidden, -INFINITY, scores), i)
        return self.finished(a, i, self.summed(weights, value, np.broadcast_to(hidden, weights.shape)))

    def of_query_heads(self, a: Any, heads: np.ndarray) -> np.ndarray:
        """The key heads, or value heads, of all query heads."""
        return np.repeat(heads, a.num_heads // a.num_kv_heads, axis=1)

    def positions(self, i: Any) -> tuple[np.ndarray, ...]:
        """The sequences of queries and keys, the positions of queries among keys, and those of keys."""
        n, m = np.diff(i.seqstarts), np.diff(i.kvstarts)
        owners, positions = ragged(n, m - n)
        return owners, ragged(m, 0 * m)[0], positions, ragged(m, 0 * m)[1]

    def hidden(self, a: Any, i: Any) -> np.ndarray:
        """Which keys each query does not see, (queries, keys), but for masks."""
        owners, of_keys, positions, j = self.positions(i)
        hidden = owners[:, None] != of_keys
        if a.is_causal:
            n = np.diff(i.seqstarts)
            is_causal = (n > 1) & (np.arange(len(n)) >= min(i.decoding_batches.item(), len(n)))
            hidden = hidden | is_causal[owners, None] & self.behind(i, positions, j)
        return hidden

    def behind(self, i: Any, positions: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Which keys lie behind each query."""
        return j > positions[:, None]

    def masks(self, a: Any, i: Any) -> list[np.ndarray]:
        """ALiBi's mask and attn_mask, (Hq or 1, queries, keys), with zeros outside of the blocks."""
        owners, of_keys, positions, j = self.positions(i)
        own = owners[:, None] == of_keys
        masks = []
        if a.is_alibi:
            distance = (j - positions[:, None]).astype(np.float32)
            bias = self.slopes(a)[:, None, None] * distance
            masks.append(np.where(own & (distance <= 0), bias, np.where(own, -INFINITY, 0)))
        if getattr(i, "attn_mask", None) is not None and i.attn_mask.size:
            masks.append(np.where(own, self.columns(a, i, i.attn_mask).astype(np.float32), 0))
        return masks

    def slopes(self, a: Any) -> np.ndarray:
        """The slopes of ALiBi."""
        c = 1 << (a.num_heads.bit_length() - 1)
        exponents = [8 * (k + 1) / c for k in range(c)] + [4 * (2 * k + 1) / c for k in range(a.num_heads - c)]
        return np.exp2(-np.array(exponents, np.float32))

    def columns(self, a: Any, i: Any, mask: np.ndarray) -> np.ndarray:
        """The planes of attn_mask with a column for every key."""
        planes = mask if mask.ndim == 3 else mask[None]
        return planes[..., : i.kvstarts[-1]]

    def weights(self, scores: np.ndarray, i: Any) -> np.ndarray:
        """The weights of scores; zeros for a row of -inf."""
        exps = np.where(scores == -INFINITY, 0, self.exp(scores - scores.max(-1, keepdims=True, initial=-INFINITY)))
        return exps / np.where((scores == -INFINITY).all(-1, keepdims=True), 1, exps.sum(-1, keepdims=True))

    def exp(self, scores: np.ndarray) -> np.ndarray:
        """The exponential."""
        return np.exp(scores)

    def summed(self, weights: np.ndarray, value: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        """The weighted sums, (queries, Hq, Dh): a hidden value has no part in them, NaN or not."""
        output = np.empty((weights.shape[1], weights.shape[0], value.shape[-1]), np.float32)
        for h in range(weights.shape[0]):
            terms = weights[h, :, :, None] * value[None, :, h]
            output[:, h] = np.where(hidden[h, :, :, None], 0, terms).sum(1)
        return output

    def finished(self, a: Any, i: Any, output: np.ndarray) -> np.ndarray:
        """The output as it is given back."""
        return output.astype(i.query.dtype)


class RightInT1(Right):
    """Scores and normalized weights are rounded to T1, as the public PMX implementation rounds them."""

    def weights(self, scores: np.ndarray, i: Any) -> np.ndarray:
        t1 = i.query.dtype
        return super().weights(scores.astype(t1).astype(np.float32), i).astype(t1).astype(np.float32)


def refuse_illegal(
    op_type: str, attributes: dict[str, int], inputs: Arrays, cache: np.ndarray | None, scale: np.ndarray | None
) -> None:
    """Raises Refused for an illegal call."""
    given = AttentionAttributes(**attributes)
    t1 = inputs["query" if op_type == "MultiHeadAttention" else "current_key"].dtype.name
    if op_type == "MultiHeadAttention":
        broken = broken_attention_rules(AttentionInputs(**inputs), given, Types(t1, t1))
    else:
        t2 = "int4" if cache.dtype == np.uint8 else cache.dtype.name
        unpacked = np.empty((*cache.shape[:-1], 2 * cache.shape[-1]), np.int8) if t2 == "int4" else cache
        types = Types(t1, t2, None if scale is None else scale.dtype.name)
        broken = broken_cache_attention_rules(CacheAttentionInputs(**inputs), unpacked, scale, given, types)
    if broken:
        raise Refused(broken[0])


class HeadsTiled(Right):
    """Query head h on key head h % Hk."""

    def of_query_heads(self, a: Any, heads: np.ndarray) -> np.ndarray:
        return np.tile(heads, (1, a.num_heads // a.num_kv_heads, 1))


class CausalMaskAtStart(Right):
    """np.tril() of queries and keys."""

    def behind(self, i: Any, positions: np.ndarray, j: np.ndarray) -> np.ndarray:
        n = np.diff(i.seqstarts)
        return j > ragged(n, 0 * n)[1][:, None]


class SlopesOfAnyNumber(Right):
    """2^(-8k/n) for n heads."""

    def slopes(self, a: Any) -> np.ndarray:
        return np.exp2(-8 * np.arange(1, a.num_heads + 1, dtype=np.float32) / a.num_heads)


class MaskRowsTooShort(Right):
    """A mask as if it had no padding."""

    def columns(self, a: Any, i: Any, mask: np.ndarray) -> np.ndarray:
        planes = mask if mask.ndim == 3 else mask[None]
        total = i.kvstarts[-1]
        return planes.reshape(-1)[: planes.size // planes.shape[-1] * total].reshape(*planes.shape[:-1], total)


class BaseTwo(Right):
    """exp2() without log2(e)."""

    def exp(self, scores: np.ndarray) -> np.ndarray:
        return np.exp2(scores)


class HiddenRowsNan(Right):
    """-inf - -inf."""

    def weights(self, scores: np.ndarray, i: Any) -> np.ndarray:
        exps = np.exp(scores - scores.max(-1, keepdims=True, initial=-INFINITY))
        return exps / exps.sum(-1, keepdims=True)

    def summed(self, weights: np.ndarray, value: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        # A key of its own sequence that is hidden, so that there is one whose weight is NaN.
        nan = np.isnan(weights).all(-1, keepdims=True) & hidden.all(-1, keepdims=True)
        return np.where(nan[..., 0].T[..., None], np.nan, super().summed(weights, value, hidden))


class OutputOfFloat32(Right):
    """Not of T1."""

    def finished(self, a: Any, i: Any, output: np.ndarray) -> np.ndarray:
        return output


class NibblesSwapped(Right):
    """The first of two codes is in the high nibble."""

    stored = vectorized.NibblesSwapped()


# The name of each one's flaw among the known mistakes.
WRONG = {
    HeadsTiled: "query-heads-interleaved",
    CausalMaskAtStart: "causal-mask-at-start",
    SlopesOfAnyNumber: "alibi-slopes-of-any-number",
    MaskRowsTooShort: "mask-stride-of-keys",
    BaseTwo: "softmax-of-base-2",
    HiddenRowsNan: "rows-without-keys-nan",
    OutputOfFloat32: "output-of-float32",
    NibblesSwapped: "nibbles-swapped",
}
