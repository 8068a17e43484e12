"""Random calls with up to two defects, against the golden oracle's own rules, which share nothing with the library.

A call is accepted exactly where the oracle finds no broken rule, and then does what the oracle does. Otherwise it is
refused by a rule that is broken, and changes nothing. The seed is in the test's name.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from compare import assert_same_arrays, assert_same_bits
from kvcache import LAYOUT_AXES
from node import INPUTS
from oracle.call import Attributes, Inputs, Types
from oracle.rules import INDEX_INPUTS, broken_rules
from oracle_call import oracle_call, unpack_int4
from ragged import RaggedCache
from sample import every
from setting import LEGAL_TYPES, TYPE_NAMES, Memory, Setting

BLOCKS, BLOCK = 40 // every(2), 50
FAR = (0, -1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63))


def random_setting(random: np.random.Generator) -> Setting:
    """A legal node with small heads."""
    num_layer = int(random.integers(1, 3))
    return Setting(
        *LEGAL_TYPES[random.integers(len(LEGAL_TYPES))],
        quant_group=int(random.choice((2, 4))),
        num_layer=num_layer,
        layer_idx=int(random.integers(num_layer)),
        num_repeat=int(random.integers(1, 3)),
        cache_mode=int(random.integers(2)),
        cache_layout=int(random.integers(len(LAYOUT_AXES))),
        page_size=int(random.integers(1, 5)),
        num_heads=int(random.integers(1, 3)),
        head_dim=4,
    )


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


def random_call(random: np.random.Generator, setting: Setting) -> tuple[dict[str, np.ndarray], Memory]:
    """A call on a cache that holds something, with none to two defects."""
    members = list(range(random.integers(len(LAYOUT_AXES))))
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


def rules_broken_by(setting: Setting, inputs: dict[str, np.ndarray], memory: Memory) -> list[str]:
    """What the oracle says."""
    cache = memory.cache if memory.int4_shape is None else unpack_int4(memory.cache, memory.int4_shape)
    t3 = None if setting.t3 is None else TYPE_NAMES[setting.t3]
    types = Types(TYPE_NAMES[setting.t1], TYPE_NAMES[setting.t2], t3)
    operands = Inputs(**{name: inputs[name] for name in INPUTS[:8]})
    return broken_rules(operands, cache, memory.scale, Attributes(**setting.attributes), types)


def play(seed: int) -> str:
    """Plays one call; the kind of its refusal, or "done"."""
    random = np.random.default_rng(seed)
    setting = random_setting(random)
    inputs, memory = random_call(random, setting)
    before = memory.copy()
    broken = rules_broken_by(setting, inputs, before)
    if not broken:
        key, value = setting.run(inputs, memory)
        expected_key, expected_value = oracle_call(setting, inputs, before)
        assert_same_bits("key", key, expected_key)
        assert_same_bits("value", value, expected_value)
        assert_same_arrays(memory.arrays, before.arrays)
        return "done"
    with pytest.raises(Exception) as refusal:
        setting.run(inputs, memory)
    named = [kind for kind in broken if f"{kind}: " in str(refusal.value)]
    assert named, f"broken: {broken}, got: {refusal.value}"
    assert_same_arrays(memory.arrays, before.arrays)
    return named[0]


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_defects(block: int) -> None:
    """A block of seeds; a failure names its own."""
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        try:
            play(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_the_defects_reach_the_rules() -> None:
    """The first seeds break every rule that indices and lengths can, and leave calls that are legal."""
    kinds = Counter(play(seed) for seed in range(600))
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
