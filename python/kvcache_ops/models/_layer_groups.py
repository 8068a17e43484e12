"""Which layers of a model share a cache: those that see as many tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvcache_ops.ops._cache_spec import CacheSpec


@dataclass(frozen=True)
class LayerGroups:
    """`windows`: how many tokens the layers of each group see, the most first, None for all; `of`: each layer's group.

    The graph has `cache`, `scale` and `cachestarts` of each group: the first's by these names, another's with its
    number after a dot. All other inputs are the same for all groups.
    """

    windows: tuple[int | None, ...]
    of: tuple[int, ...]

    @classmethod
    def one(cls, num_layers: int) -> LayerGroups:
        """One cache of all layers, which keeps all tokens."""
        return cls((None,), (0,) * num_layers)

    @classmethod
    def of_metadata(cls, given: dict[str, Any] | None, num_layers: int) -> LayerGroups:
        """As a model has them; one that was built before there were any has one cache."""
        return cls.one(num_layers) if given is None else cls(tuple(given["windows"]), tuple(given["of"]))

    @classmethod
    def by_window(cls, windows: Sequence[int | None], context: int) -> LayerGroups:
        """Layers of one window together; a window as long as the context, or 0, is none."""
        kept = [max(window, 2) if window and window < context else None for window in windows]  # a manager's least
        order = sorted(set(kept), key=lambda window: window or context, reverse=True)
        return cls(tuple(order), tuple(order.index(window) for window in kept))

    def spec(self, group: int, whole: CacheSpec) -> CacheSpec:
        """The cache of a group, of the one of all layers."""
        return replace(whole, num_layers=self.of.count(group))

    def index(self, layer: int) -> int:
        """The number of a layer in its group's cache."""
        return self.of[:layer].count(self.of[layer])

    def inputs(self, group: int) -> dict[str, str]:
        """The graph's names of the inputs that groups have of their own."""
        return {name: f"{name}.{group}" if group else name for name in ("cachestarts", "cache", "scale")}
