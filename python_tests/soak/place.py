"""A cache, the manager of its slots, and the session that runs on it."""

from __future__ import annotations

import threading

import numpy as np
import onnxruntime
from kvcache_ops.manager import CacheSpec, HostMemory, Manager, Step

from node import FUSED_INPUTS, INPUTS, run_node
from setting import INT4, TYPE_NAMES, Memory
from soak.lane_node import Node
from soak.rows import Rows, row_ids


def manager_spec(node: Node, mode: str, max_t: int) -> CacheSpec:
    """What the manager knows of the node's cache. Keys are raw: a row keeps its bytes wherever it moves."""
    setting = node.setting
    return CacheSpec(
        num_layer=setting.num_layer,
        num_heads=setting.num_heads,
        head_dim=setting.head_dim,
        max_t=max_t,
        cache_type=TYPE_NAMES[setting.t2],
        scale_type=None if setting.t3 is None else TYPE_NAMES[setting.t3],
        quant_bit=setting.quant_bit,
        quant_group=setting.quant_group,
        cache_layout=setting.cache_layout,
        mode=mode,
        page_size=setting.page_size,
        key_form="raw",
        fingerprint=str(setting.head_dim),
    )


class Place:
    """Where sequences live. Lanes that share one take turns by `lock`, since a manager has one open step at a time."""

    def __init__(self, node: Node, mode: str, max_t: int, session: onnxruntime.InferenceSession):
        self.node, self.mode, self.session = node, mode, session
        self.spec = manager_spec(node, mode, max_t)
        memory = node.setting.memory(np.random.default_rng(5), max_t)
        if node.setting.t2 == INT4:  # as the manager wants it: two codes in a byte along the last axis
            *axes, head_dim = self.spec.cache_shape
            memory.cache = memory.cache.reshape(*axes, head_dim // 2)
        self.memory: Memory = memory
        self.host_memory = HostMemory(self.spec, memory.cache, memory.scale)
        self.manager = Manager(self.spec)
        self.lock = threading.Lock()
        names = FUSED_INPUTS if node.fused else INPUTS
        self._indices = [name for name in names[2 + node.fused :] if name not in ("cache", "scale", "attn_mask")]

    def run(self, step: Step, rows: Rows) -> list[np.ndarray]:
        """Runs the session on an open step: the operator's outputs."""
        new = rows.inputs(row_ids(step.token_ids, step.positions), self.node.fused)
        indices = {name: getattr(step, name) for name in self._indices}
        if self.mode == "cells":  # entry 0 writes these rows, entry 1 is a view and has none
            assert len(indices["start_pos"]) == 2
        return run_node(self.session, new | indices | self.memory.arrays, self.memory.int4_shape)
