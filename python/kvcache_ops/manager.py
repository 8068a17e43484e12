"""The manager of a KV cache: which slots hold which tokens of which sequence, and the inputs of each step.

    spec = CacheSpec(max_tokens=1024, num_kv_heads=8, head_dim=64, num_layers=2, cache_mode=1, page_size=16)
    memory = HostMemory(spec, *spec.allocate())
    manager = Manager(spec)
    a = manager.create()
    with manager.begin_step([Append(a, tokens=[11, 12, 13])], memory) as step:
        ...  # run the model on step.token_ids, step.positions, step.seqstarts ...

A refused operation changes nothing, and raises `ManagerError` with `kind` and `details`; an argument of a wrong type
raises `TypeError`.
"""

from __future__ import annotations

import re

from kvcache_ops._errors import CapacityError, KvCacheError, ManagerError
from kvcache_ops._native import (
    Append,
    FileTier,
    HostMemory,
    HostTier,
    InfLlm,
    InfLlmStep,
    Manager,
    ObjectTier,
    RedisTier,
    Rope,
    StateCache,
    StateStep,
    Step,
    find_slot,
    infllm_partition,
    n_kv,
    self_extend_positions,
    slot_stable,
)
from kvcache_ops.ops._cache_spec import CacheSpec

__all__ = [
    "Append",
    "CacheSpec",
    "CapacityError",
    "FileTier",
    "HostMemory",
    "HostTier",
    "InfLlm",
    "InfLlmStep",
    "Manager",
    "ManagerError",
    "ObjectTier",
    "RedisTier",
    "Rope",
    "StateCache",
    "StateStep",
    "Step",
    "find_slot",
    "infllm_partition",
    "n_kv",
    "self_extend_positions",
    "slot_stable",
    "tier",
]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def tier(address: str) -> HostTier | FileTier | ObjectTier | RedisTier:
    """A tier of `Manager`: "host:4G", "file:FOLDER,20G", "redis://HOST:PORT/0", "s3://BUCKET/PREFIX" and the like.

    Sizes are in bytes, or in K, M, G or T of 2^10 and so on. Raises KvCacheError "tier_address" for another address,
    and what the tier raises.
    """
    if address.startswith(("redis:", "rediss:", "unix:")):
        return RedisTier(address)
    if "://" in address:
        return ObjectTier(address)
    found = re.fullmatch(r"(?:host:|file:(?P<folder>.+),)(?P<size>\d+)(?P<unit>[KMGT]?)", address)
    if found is None:
        expected = "host:SIZE, file:FOLDER,SIZE, redis://... or the address of an object store"
        raise KvCacheError(f"the tier is {address!r}, expected {expected}", "tier_address")
    size = int(found["size"]) * _UNITS[found["unit"]]
    return HostTier(size) if found["folder"] is None else FileTier(found["folder"], size)
