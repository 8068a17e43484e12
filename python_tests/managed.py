"""Managers and memory for tests of the binding `kvcache_ops.manager`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from kvcache_ops.manager import Append, CacheSpec, HostMemory, Manager, ManagerError, Rope

MODES = ("paged", "runs", "cells")


def make_spec(mode: str = "paged", max_t: int = 64, **changes: Any) -> CacheSpec:
    """A small float32 cache."""
    arguments = dict(
        num_layer=2, num_heads=2, head_dim=4, max_t=max_t, cache_type="float32", mode=mode, page_size=4, rope=Rope(4)
    )
    return CacheSpec(**(arguments | changes))


def make_arrays(spec: CacheSpec) -> tuple[np.ndarray, np.ndarray | None]:
    """Zeros for `cache` and `scale`."""
    *axes, head_dim = spec.cache_shape
    packed = spec.cache_type == "int4"
    cache = np.zeros((*axes, head_dim // 2 if packed else head_dim), np.uint8 if packed else spec.cache_type)
    return cache, None if spec.scale_shape is None else np.zeros(spec.scale_shape, spec.scale_type)


def make(mode: str = "paged", max_t: int = 64, **changes: Any) -> tuple[Manager, HostMemory]:
    """A manager of a small cache, and its memory."""
    spec = make_spec(mode, max_t, **changes)
    return Manager(spec), HostMemory(spec, *make_arrays(spec))


def sequence(manager: Manager, memory: HostMemory, n: int) -> int:
    """A new sequence of n rows."""
    s = manager.create()
    manager.begin_step([Append(s, n=n)], memory).commit()
    return s


@contextmanager
def refused(kind: str, error: type[ManagerError] = ManagerError, **details: Any):
    """Expects a refusal of this kind with these numbers, and of this very class."""
    with pytest.raises(ManagerError) as caught:
        yield
    assert (caught.value.kind, type(caught.value)) == (kind, error), repr(caught.value)
    assert str(caught.value) and isinstance(caught.value, ValueError)
    got = {name: caught.value.details.get(name, "absent") for name in details}
    assert got == details
