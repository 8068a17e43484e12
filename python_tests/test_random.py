"""Random calls against the golden oracle, which is numpy and shares nothing with the library.

Each seed draws the types, the attributes, the sizes and the ragged batches of a short life of one cache: sequences
grow, share beginnings, stand still and are left out. (Random calls that must be refused are the conformance kit's.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from compare import Arrays, assert_same_arrays, assert_same_bits
from kvcache import LAYOUT_AXES
from ragged import RaggedCache
from setting import INT8, LEGAL_TYPES, Setting

pytestmark = pytest.mark.runtime

# Around the widths of vectors: one less, the width, one more.
HEAD_DIMS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 128)
SEQLENS = (0, 0, 1, 1, 1, 2, 3, 5, 8, 17, 40)


def each_seed(seeds: Iterable[int], check: Callable[[int], object]) -> None:
    """A failure names its seed."""
    for seed in seeds:
        try:
            check(seed)
        except (Exception, pytest.fail.Exception) as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def random_setting(random: np.random.Generator, types: tuple) -> Setting:
    """A legal node."""
    *_, quant_bit = types
    quant_group = int(random.choice((2, 4, 6, 8, 16, 32, 64, 128) + ((1, 3, 5) if quant_bit == 8 else ())))
    groups = int(random.integers(1, 4)) if quant_group < 64 else 1
    num_layer = int(random.integers(1, 4))
    return Setting(
        *types,
        quant_group=quant_group,
        num_layer=num_layer,
        layer_idx=int(random.integers(num_layer)),
        num_repeat=int(random.choice((1, 1, 2, 3, 4, 8))),
        cache_mode=int(random.integers(2)),
        cache_layout=int(random.integers(len(LAYOUT_AXES))),
        page_size=int(random.choice((1, 2, 3, 4, 7, 16, 128))),
        num_heads=int(random.integers(1, 5)),
        head_dim=quant_group * groups if quant_bit else int(random.choice(HEAD_DIMS)),
    )


def random_current(random: np.random.Generator, setting: Setting, tokens: int) -> Arrays:
    """Keys and values of one kind: ordinary, rounding ties, denormals, huge, some of them not finite."""
    current = setting.current(random, tokens)
    if setting.t1 == INT8:
        return current
    kind = random.integers(6)
    for name, x in current.items():
        if kind == 1:
            current[name] = (random.integers(-14, 15, x.shape) / 2).astype(x.dtype)
        elif kind == 2:
            current[name] = (x * np.finfo(x.dtype).smallest_subnormal * 8).astype(x.dtype)
        elif kind == 3:
            current[name] = (random.uniform(-1, 1, x.shape) * float(np.finfo(x.dtype).max)).astype(x.dtype)
        elif kind == 4:
            non_finite = random.choice([np.nan, np.inf, -np.inf], x.shape).astype(x.dtype)
            current[name] = np.where(random.random(x.shape) < 0.05, non_finite, x)
    return current


def life_of_a_cache(seed: int) -> None:
    """Four calls on one cache."""
    random = np.random.default_rng(seed)
    setting = random_setting(random, LEGAL_TYPES[seed % len(LEGAL_TYPES)])
    count = int(random.integers(0, 6))
    plan = [[int(random.choice(SEQLENS)) for _ in range(count)] for _ in range(4)]
    capacities = [sum(seqlens) for seqlens in zip(*plan)] if count else []
    ragged = RaggedCache(random, capacities, setting.page_size if setting.cache_mode else None)
    memory = setting.memory(random, ragged.max_t)
    expected = memory.copy()
    # NaNs that arithmetic makes have the hardware's sign and payload; a cache of T1 itself keeps every bit.
    any_nan = setting.quant_bit != 0 or setting.t1 != setting.t2
    for call, seqlens in enumerate(plan):
        if call == 1 and count >= 2 and random.random() < 0.5:
            ragged.share(reader=1, owner=0)
        members = [int(member) for member in random.permutation(count)[: random.integers(count + 1)]]
        new = [min(seqlens[member], ragged.room(member)) for member in members]
        inputs = random_current(random, setting, sum(new)) | ragged.step(random, members, new)
        for name, array, oracle in zip(("key", "value"), setting.run(inputs, memory), setting.oracle(inputs, expected)):
            assert_same_bits(name, array, oracle, any_nan)
        assert_same_arrays(memory.arrays, expected.arrays, any_nan)


def test_random_calls() -> None:
    """Key, value, cache and scale of every call are the oracle's, bit for bit."""
    each_seed(range(2 * len(LEGAL_TYPES)), life_of_a_cache)
