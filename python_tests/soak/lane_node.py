"""The node that a lane runs: one of the two operators, its types and sizes, and where rows lie."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnxruntime

from attention_node import Attention
from kvcache import create_session
from node import quiet_options
from setting import Setting


@dataclass(frozen=True)
class Node:
    """`MultiHeadCacheAttention` if `fused`, else `KeyValueCache`, with what the two have in common."""

    attention: Attention
    fused: bool

    @property
    def setting(self) -> Setting:
        """The attributes of `KeyValueCache`, and types and sizes."""
        return self.attention.cached

    @property
    def name(self) -> str:
        """For the report."""
        return f"{'fused' if self.fused else 'cache'} {self.setting}"

    @property
    def model(self) -> bytes:
        """The model of this one node."""
        return self.attention.model({}) if self.fused else self.setting.model

    def placed(self, mode: str, layout: int, page_size: int = 8) -> Node:
        """The same node for a cache of that mode of the manager and that layout."""
        cache_mode = int(mode == "paged")
        setting = replace(self.setting, cache_mode=cache_mode, cache_layout=layout, page_size=page_size)
        return replace(self, attention=replace(self.attention, cached=setting))

    def session(self, threads: int = 1, arena: bool = True) -> onnxruntime.InferenceSession:
        """A new session, with so many threads inside the operator. An arena keeps the most that it has ever needed."""
        options = quiet_options(threads)
        options.enable_cpu_mem_arena = arena
        return create_session(self.model, options)
