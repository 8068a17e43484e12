"""The manager of a KV cache: which slots hold which tokens of which sequence, and the inputs of each step.

    spec = CacheSpec(num_layer=2, num_heads=8, head_dim=64, max_t=1024, page_size=16)
    memory = HostMemory(spec, np.zeros(spec.cache_shape, np.float16))
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
    CacheSpec,
    HostMemory,
    Manager,
    Rope,
    Step,
    find_slot,
    n_kv,
)

__all__ = [
    "Append",
    "CacheSpec",
    "CapacityError",
    "HostMemory",
    "Manager",
    "ManagerError",
    "Rope",
    "Step",
    "find_slot",
    "n_kv",
]
