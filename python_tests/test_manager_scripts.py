"""Random scripts of all operations on `kvcache_ops.manager`, in all modes, layouts and types: see manager_script.py.

The seed is in the test's name; `KVCACHE_TEST_SEED` shifts all of them.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sample import every

from kvcache import CacheFormat
from managed_cache import Rules
from manager_script import Script
from setting import FLOAT, HALF, INT4, INT8

FIRST_SEED = int(os.environ.get("KVCACHE_TEST_SEED", "0"))

FORMATS = {
    "float32": CacheFormat(FLOAT, FLOAT),
    "float16": CacheFormat(HALF, HALF),
    "float32 in float16": CacheFormat(FLOAT, HALF),
    "float16 in float32": CacheFormat(HALF, FLOAT),
    "int8 as it is": CacheFormat(INT8, INT8),
    "int8": CacheFormat(HALF, INT8, HALF, quant_bit=8, quant_group=8),
    "float32 in int8": CacheFormat(FLOAT, INT8, FLOAT, quant_bit=8, quant_group=4),
    "int4": CacheFormat(HALF, INT4, HALF, quant_bit=4, quant_group=16),
    "float32 in int4": CacheFormat(FLOAT, INT4, FLOAT, quant_bit=4, quant_group=8),
}


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 4 // every(2)))
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("mode", ["paged", "runs", "cells"])
def test_a_script(mode: str, name: str, seed: int, tmp_path: Path) -> None:
    """Rows, positions, tensors, masks and refusals are the naive model's, whatever happens to the sequences."""
    random = np.random.default_rng([seed, list(FORMATS).index(name)])
    rules = Rules(
        FORMATS[name],
        key_form="raw" if random.random() < 0.2 else "roped",
        style=str(random.choice(["neox", "gptj"])),
        prefix_sharing=bool(random.random() < 0.6),
    )
    print(rules)
    Script(seed, mode, rules, tmp_path).run(100)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 4 // every(2)))
@pytest.mark.parametrize("mode", ["paged", "runs", "cells"])
def test_a_script_with_a_window(mode: str, seed: int, tmp_path: Path) -> None:
    """What a window has passed goes, sinks stay, and what reaches back too far is refused."""
    random = np.random.default_rng([seed, 99])
    rules = Rules(
        list(FORMATS.values())[seed % len(FORMATS)],
        window=int(random.integers(2, 9)),
        sink=int(random.integers(0, 6)),
        slack=int(random.integers(0, 4)),
        prefix_sharing=bool(random.random() < 0.5),
    )
    print(rules)
    Script(seed, mode, rules, tmp_path).run(80)


def test_scripts_do_all_that_they_can(tmp_path: Path) -> None:
    """In these ones every operation succeeds and is refused; prefixes are found, and steps run out of room."""
    counts: Counter[str] = Counter()
    for seed, mode in enumerate(("paged", "paged", "runs", "cells")):
        script = Script(seed, mode, Rules(FORMATS["float32"]), tmp_path)
        script.run(200)
        counts.update(script.counts)
    for name in ("fork", "free", "remove", "copy", "keep", "add", "divide", "context_shift", "defrag", "compact"):
        assert counts[name] > 0, f"{name}: {counts}"
    for name in ("copy refused", "add refused", "divide refused", "context_shift refused", "no room for a step"):
        assert counts[name] > 0, f"{name}: {counts}"
    for name in ("step commit", "step with", "step rollback", "step raise", "reload", "load one", "prefix rows"):
        assert counts[name] > 0, f"{name}: {counts}"
