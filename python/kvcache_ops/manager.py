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

from kvcache_ops._errors import CapacityError, ManagerError
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
from kvcache_ops._tier import tier
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
