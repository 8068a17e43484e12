"""Managers and memory for tests of the binding `kvcache_ops.manager`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from kvcache_ops.manager import Append, CacheSpec, HostMemory, Manager, Rope

MODES = ("paged", "runs", "cells")


def make_spec(mode: str = "paged", **changes: Any) -> CacheSpec:
    """A small float32 cache."""
    sizes = dict(max_tokens=64, num_kv_heads=2, head_dim=4, num_layers=2)
    return CacheSpec(**sizes | dict(dtype="float32", cache_mode=int(mode == "paged"), page_size=4) | changes)


def make(mode: str = "paged", **changes: Any) -> tuple[Manager, HostMemory]:
    """A manager of a small cache, and its memory: fields of the cache, and arguments of the manager."""
    of_cache = {field.name for field in fields(CacheSpec)} & changes.keys()
    spec = make_spec(mode, **{name: changes.pop(name) for name in of_cache})
    return make_manager(spec, mode, **changes), HostMemory(spec, *spec.allocate())


def make_manager(spec: CacheSpec, mode: str | None = None, **changes: Any) -> Manager:
    """A manager of a cache whose heads can be rotated."""
    return Manager(spec, mode=mode, **dict(rope=Rope(4)) | changes)


def sequence(manager: Manager, memory: HostMemory, n: int) -> int:
    """A new sequence of n rows."""
    s = manager.create()
    manager.begin_step([Append(s, n=n)], memory).commit()
    return s
