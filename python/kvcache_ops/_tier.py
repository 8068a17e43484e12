"""A tier by its address."""

from __future__ import annotations

import re

from kvcache_ops._errors import KvCacheError
from kvcache_ops._native import FileTier, HostTier, ObjectTier, RedisTier

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
