"""Random calls against the golden oracle, which is numpy and shares nothing with the library.

Each seed draws the types, the attributes, the sizes and the ragged batches of a short life of one cache: sequences
grow, share beginnings, stand still and are left out. Half as many calls have up to two defects: such a call is refused
by a rule that the oracle finds broken, and changes nothing, or no rule is broken and it does what the oracle does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from compare import Arrays, assert_same_arrays, assert_same_bits
from kvcache import LAYOUT_AXES
from node import INPUTS
from oracle.call import Attributes, Inputs
from oracle.rules import INDEX_INPUTS, broken_rules
from ragged import RaggedCache
from setting import INT8, LEGAL_TYPES, Memory, Setting

pytestmark = pytest.mark.runtime

# Around the widths of vectors: one less, the width, one more.
HEAD_DIMS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 128)
SEQLENS = (0, 0, 1, 1, 1, 2, 3, 5, 8, 17, 40)
FAR = (0, -1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63))


def each_seed(seeds: Iterable[int], check: Callable[[int], object]) -> None:
    """A failure names its seed."""
    for seed in seeds:
        try:
            check(seed)
        except Exception as error:
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


def check_call(setting: Setting, inputs: Arrays, memory: Memory, expected: Memory) -> None:
    """Runs a call on `memory`, and the oracle on `expected`: all bits are the same."""
    # NaNs that arithmetic makes have the hardware's sign and payload; a cache of T1 itself keeps every bit.
    any_nan = setting.quant_bit != 0 or setting.t1 != setting.t2
    got = setting.run(inputs, memory)
    for name, array, oracle in zip(("key", "value"), got, setting.oracle(inputs, expected)):
        assert_same_bits(name, array, oracle, any_nan)
    assert_same_arrays(memory.arrays, expected.arrays, any_nan)


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
    for call, seqlens in enumerate(plan):
        if call == 1 and count >= 2 and random.random() < 0.5:
            ragged.share(reader=1, owner=0)
        members = [int(member) for member in random.permutation(count)[: random.integers(count + 1)]]
        new = [min(seqlens[member], ragged.room(member)) for member in members]
        inputs = random_current(random, setting, sum(new)) | ragged.step(random, members, new)
        check_call(setting, inputs, memory, expected)


def test_random_calls() -> None:
    """Key, value, cache and scale of every call are the oracle's, bit for bit."""
    each_seed(range(6 * len(LEGAL_TYPES)), life_of_a_cache)


def with_defect(random: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """An index input with an entry near or far from the right one, an entry too many or too few, or another axis."""
    kind = random.integers(8)
    if kind < 6 and x.size:
        changed, i = x.copy(), random.integers(x.size)
        near = int(x.flat[i]) + int(random.choice((-2, -1, 1, 2)))
        changed.flat[i] = random.choice(FAR) if kind < 2 else min(max(near, -(2**63)), 2**63 - 1)
        return changed
    if kind == 6 and x.ndim and x.size:
        return np.ascontiguousarray(x[:-1] if random.integers(2) else np.concatenate([x, x[-1:]]))
    return x[None].copy()


def defective_call(random: np.random.Generator, setting: Setting) -> tuple[Arrays, Memory]:
    """A call on a cache that holds something, with none to two defects."""
    members = list(range(random.integers(4)))
    capacities = [int(random.integers(7)) for _ in members]
    ragged = RaggedCache(random, capacities, setting.page_size if setting.cache_mode else None)
    memory = setting.memory(random, ragged.max_t)
    ragged.step(random, members, [int(random.integers(capacity + 1)) for capacity in capacities])
    new = [int(random.integers(ragged.room(member) + 1)) for member in members]
    inputs = setting.current(random, sum(new)) | ragged.step(random, members, new)
    for _ in range(random.integers(3)):
        name = str(random.choice((*INDEX_INPUTS, "cachestarts", "cachestarts")))
        inputs[name] = with_defect(random, inputs[name])
    if random.integers(10) == 0:
        name, axis = str(random.choice(("current_key", "current_value"))), int(random.integers(3))
        inputs[name] = np.ascontiguousarray(np.delete(inputs[name], slice(1), axis))
    return inputs, memory


def check_defects(setting: Setting, random: np.random.Generator) -> str:
    """One call; the kind of its refusal, or "done"."""
    inputs, memory = defective_call(random, setting)
    before = memory.copy()
    operands = Inputs(**{name: inputs[name] for name in INPUTS[:8]})
    broken = broken_rules(operands, before.values, before.scale, Attributes(**setting.attributes), setting.oracle_types)
    if not broken:
        check_call(setting, inputs, memory, before)
        return "done"
    with pytest.raises(Exception) as refusal:
        setting.run(inputs, memory)
    named = [kind for kind in broken if f"{kind}: " in str(refusal.value)]
    assert named, f"broken: {broken}, got: {refusal.value}"
    assert_same_arrays(memory.arrays, before.arrays)
    return named[0]


def test_random_defects() -> None:
    """Every rule that indices and lengths can break comes up, and so do legal calls."""
    kinds: Counter[str] = Counter()

    def check(seed: int) -> None:
        random = np.random.default_rng(seed)
        num_layer = int(random.integers(1, 3))
        setting = Setting(
            *LEGAL_TYPES[seed % len(LEGAL_TYPES)],
            quant_group=int(random.choice((2, 4))),
            num_layer=num_layer,
            layer_idx=int(random.integers(num_layer)),
            cache_mode=int(random.integers(2)),
            cache_layout=int(random.integers(len(LAYOUT_AXES))),
            page_size=int(random.integers(1, 5)),
            head_dim=4,
        )
        for _ in range(25):  # on one session
            kinds[check_defects(setting, random)] += 1

    each_seed(range(2 * len(LEGAL_TYPES)), check)
    assert kinds.keys() >= {
        "done",
        "cache_range",
        "kvlen_mismatch",
        "max_too_small",
        "page_range",
        "rank_mismatch",
        "shape_mismatch",
        "start_pos_negative",
        "starts_decrease",
        "starts_not_zero",
        "starts_total",
    }, kinds
