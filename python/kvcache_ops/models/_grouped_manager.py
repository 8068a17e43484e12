"""The caches of a model: one for each group of layers that see as many tokens, used as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from operator import methodcaller
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcache_ops._errors import KvCacheError
from kvcache_ops.manager import Append, HostMemory, Manager, Step
from kvcache_ops.models._layer_groups import LayerGroups
from kvcache_ops.ops._cache_spec import Cache, CacheSpec

# What all managers do, or the first refuses.
_ON_EACH = ("create", "free", "seq_len", "pos_max", "context_shift", "defrag", "offload_prefix", "check")
_WINDOWS = 4  # windows that a group has room for at least, where the others' cache is short


class GroupsStep:
    """The open steps of all groups, which end together. Its tensors are the first group's, which all have, but for
    `cachestarts`: another group's has its number after a dot."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        name, _, group = name.partition(".")
        return getattr(self._steps[int(group or 0)], name)

    def __enter__(self) -> GroupsStep:
        return self

    def __exit__(self, *error: object) -> None:
        _each(self._steps, "__exit__", *error)

    def rollback(self) -> None:
        """Ends the steps as if they had never begun."""
        _each(self._steps, "rollback")

    def found(self) -> list[list[int]]:
        """By group and append: how many tokens it has found."""
        # The order of a step depends on what it has found.
        return [
            [cached for _, cached in sorted(zip(step.order.tolist(), step.cached.tolist()))] for step in self._steps
        ]


class GroupsManager:
    """The managers of all groups as one, for an engine: all of them make a change, or none does.

    Sequences have one id and the same rows in all of them. A prefix is found as far as each group has what it needs of
    it. The methods in `_ON_EACH` return what the first manager's does.
    """

    def __init__(self, managers: Sequence[Manager]) -> None:
        self._managers = managers

    def __getattr__(self, name: str) -> Any:
        if name not in _ON_EACH:
            raise AttributeError(f"managers of several groups have no {name}")
        return lambda *arguments, **more: _each(self._managers, name, *arguments, **more)[0]

    def seq_rm(self, s: int, p0: int) -> int:
        """Removes the rows from position p0 on. Caches with a window come first: only they may refuse."""
        return int(_each(self._managers[::-1], "seq_rm", s, p0)[-1])

    def begin_step(self, appends: Sequence[Append], memories: Sequence[HostMemory]) -> GroupsStep:
        """Opens a step of each group, of appends by tokens."""
        while True:
            step = self._open(appends, memories)
            found = [min(cached) for cached in zip(*step.found())]
            if all(found == cached for cached in step.found()):
                return step
            step.rollback()
            appends = [Append(a.s, tokens=a.tokens, most_cached=most) for a, most in zip(appends, found)]

    def _open(self, appends: Sequence[Append], memories: Sequence[HostMemory]) -> GroupsStep:
        steps: list[Step] = []
        try:
            for manager, memory in zip(self._managers, memories):
                steps.append(manager.begin_step(appends, memory))
        except BaseException:
            _each(steps, "rollback")
            raise
        return GroupsStep(steps)

    def find_prefix(self, append: Append) -> int:
        """How many tokens of an append all groups find, as a step would."""
        found, before = append.n, -1
        while found != before:
            before = found
            for manager in self._managers:
                found = manager.find_prefix(Append(append.s, tokens=append.tokens, most_cached=found))
        return found

    def update(self, memories: Sequence[HostMemory]) -> None:
        """Makes the copies that are queued."""
        for manager, memory in zip(self._managers, memories):
            manager.update(memory)

    def flush(self, timeout: float) -> bool:
        """Whether all that was put is written, after at most that many seconds."""
        end = monotonic() + timeout
        return all([manager.flush(max(end - monotonic(), 0.0)) for manager in self._managers])

    def tiers(self) -> list[dict[str, Any]]:
        """As `Manager` has it; what managers have counted is summed."""
        counts = ("hits", "bytes_read", "bytes_written", "puts", "writes_dropped")
        tiers = []
        for tier in zip(*_each(self._managers, "tiers")):
            reasons = dict.fromkeys(reason for each in tier for reason in each["misses"])
            misses = {reason: sum(each["misses"].get(reason, 0) for each in tier) for reason in reasons}
            tiers.append(tier[0] | {name: sum(each[name] for each in tier) for name in counts} | {"misses": misses})
        return tiers

    def stats(self) -> dict[str, Any]:
        """Of the first group, with the sums of all groups' slots."""
        stats: list[dict[str, Any]] = _each(self._managers, "stats")
        return stats[0] | {name: sum(s[name] for s in stats) for name in ("slots", "used", "free", "cached", "shared")}


class Caches:
    """A cache for each of a model's groups of layers: what `Model.caches` gives.

    caches, managers: by group. manager: all of them as one, whose methods take `memory` in the place of a HostMemory.
    longest: the most rows of a sequence that there is room for.
    """

    def __init__(
        self,
        groups: LayerGroups,
        spec: CacheSpec,
        context_length: int,
        new_manager: Callable[..., Manager],
        max_tokens: int,
        batch: int | None,
        step_tokens: int,
        window_tokens: int | None,
        **options: Any,
    ) -> None:
        self._groups, page = groups, spec.page_size
        self.caches: list[Cache] = []
        self.managers: list[Manager] = []
        self._most: list[float] = []  # rows that a sequence takes at most
        for group, window in enumerate(groups.windows):
            slots, most, own = max_tokens, inf, dict(options)
            if window is not None and batch is not None:
                held = window + (options.get("slack") or 0) + page  # rows of a sequence between two steps
                least = held + step_tokens
                if window_tokens is not None and window_tokens < least:
                    message = f"window_tokens is {window_tokens}, expected at least {least}: a window of {window}"
                    raise KvCacheError(f"{message}, a page and the {step_tokens} tokens of a step", "engine_range")
                room = window_tokens or step_tokens + held * min(batch, max(_WINDOWS, max_tokens // (16 * window)))
                room = -(-room // page) * page + page  # and the null page
                if room < max_tokens if group else least + page <= max_tokens:
                    slots, most = room if group else max_tokens, least
                    own |= {"window": window, "keep_rows": True}
            if len(groups.windows) > 1 or most < inf:
                own["rope"] = None  # positions cannot change in one group alone, nor where rows have no pages
            cache = groups.spec(group, replace(spec, max_tokens=slots)).allocate()
            self.caches.append(cache)
            self.managers.append(new_manager(cache.spec, group, **own))
            self._most.append(most)
        memories = [HostMemory(cache.spec, *cache) for cache in self.caches]
        self.manager: Manager | GroupsManager = self.managers[0]
        self.memory: Any = memories[0]
        if groups.windows != (None,):
            self.manager = GroupsManager(self.managers)
            self.memory = memories
        self.longest = max_tokens if self._most[0] == inf else context_length

    @property
    def nbytes(self) -> int:
        """The bytes of all caches."""
        return sum(cache.spec.cache_bytes + cache.spec.scale_bytes for cache in self.caches)

    @property
    def held_bytes(self) -> int:
        """Bytes of the slots that sequences have, or that are kept for prompts to come."""
        stats = [manager.stats() for manager in self.managers]
        each = zip(self.caches, stats)
        return sum((slots["used"] + slots["cached"]) * cache.spec.bytes_per_token for cache, slots in each)

    def free(self) -> list[int]:
        """Of each cache the slots that no sequence holds, cached ones included."""
        return [stats["free"] + stats["cached"] for stats in (manager.stats() for manager in self.managers)]

    def has_room(self, tokens: int, sequences: int, free: list[int]) -> bool:
        """Whether so many slots are enough for this many tokens of one sequence, while that many sequences grow."""
        each = zip(self.caches, self._most, free)
        return all(min(tokens, most) + sequences * cache.spec.page_size <= slots for cache, most, slots in each)

    def bind(self, io_binding: Any) -> None:
        """Binds all memory to the graph's inputs: once, for every later run."""
        for group, cache in enumerate(self.caches):
            names = self._groups.inputs(group)
            cache.bind(io_binding, names["cache"], names["scale"])

    def ortvalues(self) -> dict[str, Any]:
        """Feeds of `session.run` on all memory, by the graph's inputs."""
        values: dict[str, Any] = {}
        for group, cache in enumerate(self.caches):
            names = self._groups.inputs(group)
            values |= {names[name]: value for name, value in cache.ortvalues().items()}
        return values


class StepInputs:
    """What a session's inputs get of a step, beside the caches."""

    def __init__(self, session: Any) -> None:
        names = [value.name for value in session.get_inputs()]
        self._names = [name for name in names if hasattr(Step, name.partition(".")[0])]
        self._masked = "attn_mask" in names

    def __call__(self, step: Step | GroupsStep, rows: Sequence[int]) -> dict[str, NDArray[Any]]:
        """The arrays by name; rows: the tokens whose logits are asked for."""
        feeds = {name: np.atleast_1d(np.asarray(getattr(step, name), np.int64)) for name in self._names}
        feeds["logit_rows"] = np.array(rows, np.int64)
        if self._masked:
            feeds["attn_mask"] = step.mask()
        return feeds


def _each(all_: Sequence[Any], name: str, *arguments: object, **more: object) -> list[Any]:
    """Calls a method of each. No Python code runs between the calls, so no interrupt comes there."""
    return list(map(methodcaller(name, *arguments, **more), all_))
