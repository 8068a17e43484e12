"""Keys that are rotated before they are quantized: what they are in the cache, and what that is good for."""

from __future__ import annotations

from dataclasses import replace

import kvcache_ops
import numpy as np
import pytest
from kvcache_ops import CacheSpec, step_indices

HEADS, KV_HEADS, TOKENS = 4, 2, 96


def hadamard(order: int) -> np.ndarray:
    """Sylvester's matrix, normalized."""
    matrix = np.ones((1, 1))
    while len(matrix) < order:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.sqrt(order)


def keys_like_qwen2(random: np.random.Generator, head_dim: int) -> np.ndarray:
    """Keys with a bias that is the same for all tokens, and large in a few channels of a head."""
    bias = np.zeros((KV_HEADS, head_dim))
    for head in bias:
        head[random.choice(head_dim, 3, replace=False)] = [20, -12, 8]
    return (random.standard_normal((TOKENS, KV_HEADS, head_dim)) + bias).astype(np.float32)


def attended(spec: CacheSpec, query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """All tokens at once, each attending to those up to its own."""
    indices = step_indices(seqlens=[TOKENS], start_pos=[0], cachestarts=[0])
    cache = spec.allocate()
    state = dict(cache=cache.cache, scale=cache.scale)
    return kvcache_ops.multi_head_cache_attention(
        spec, query, key, value, **indices.attention(), **state, num_heads=HEADS
    )


@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_rotation_is_for_keys_with_large_channels(head_dim: int) -> None:
    """With biases as those of Qwen2's first and last layers, int4 errs about half as much; without any, not more."""
    random = np.random.default_rng(5)
    query = random.standard_normal((TOKENS, HEADS, head_dim)).astype(np.float32)
    value = random.integers(-7, 8, (TOKENS, KV_HEADS, head_dim)).astype(np.float32)
    value[..., ::32] = 7  # so that int4 has them exactly, and keys alone err
    exact = CacheSpec(TOKENS, KV_HEADS, head_dim, dtype="float32", num_layers=1)
    int4 = replace(exact, quant_bit=4, quant_group=32, cache_dtype=None, scale_dtype="float16")
    for key, gain in (
        (keys_like_qwen2(random, head_dim), 1.8),
        (random.standard_normal((TOKENS, KV_HEADS, head_dim)).astype(np.float32), 0.9),
    ):
        expected = attended(exact, query, key, value)
        plain, rotated = (attended(spec, query, key, value) for spec in (int4, replace(int4, quant_rotation=1)))
        errors = [float(np.sqrt(np.mean((got - expected) ** 2))) for got in (plain, rotated)]
        assert errors[0] > gain * errors[1], errors


def test_the_cache_has_rotated_keys() -> None:
    """The codes are those of a cache without the attribute that is given rotated keys; values are as they were."""
    random = np.random.default_rng(6)
    key, value = (random.standard_normal((TOKENS, KV_HEADS, 24)).astype(np.float32) for _ in range(2))
    spec = CacheSpec(TOKENS, KV_HEADS, 24, dtype="float32", quant_bit=8, quant_group=12)
    indices = step_indices(seqlens=[TOKENS], start_pos=[0], cachestarts=[0])
    product = (key.reshape(-1, 8) @ hadamard(8)).reshape(key.shape).astype(np.float32)
    caches, outputs = [], []
    for of, given in ((replace(spec, quant_rotation=1), key), (spec, product)):
        cache = of.allocate()
        outputs.append(kvcache_ops.run(of, given, value, *indices, cache.cache, cache.scale))
        caches.append(cache)
    # Sums in another order: a code may be the next one.
    codes = [cache.cache.astype(int) for cache in caches]
    assert np.abs(codes[0] - codes[1]).max() <= 1 and np.array_equal(codes[0][:, :, 1], codes[1][:, :, 1])
    assert np.abs(outputs[0][0] - key).max() < 0.03 and np.array_equal(outputs[0][1], outputs[1][1])
