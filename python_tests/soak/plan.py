"""Who runs: lanes with their formats, modes, layouts, sessions and caches, what is made and destroyed beside them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import onnxruntime

from attention_node import Attention
from setting import FLOAT, HALF, INT4, INT8, Setting
from soak.answers import Answers
from soak.churn import Churn
from soak.lane import Lane, Sizes
from soak.lane_node import Node
from soak.place import Place
from soak.refusals import Refusals
from soak.rows import Rows

FORMATS = [
    Setting(FLOAT, FLOAT),
    Setting(HALF, HALF),
    Setting(HALF, INT8, HALF, quant_bit=8),
    Setting(FLOAT, INT4, FLOAT, quant_bit=4),
]
NODES = [Node(Attention(setting), fused) for setting, fused in product(FORMATS, (False, True))]

# Large enough that a call is split among the threads of the session: see PARALLEL_BYTES and PARALLEL_COST.
WIDE_NODES = [
    Node(Attention(Setting(HALF, HALF, num_heads=8, head_dim=64)), fused=False),
    Node(Attention(Setting(HALF, INT8, HALF, quant_bit=8, num_heads=4, head_dim=128)), fused=True),
]
WIDE = Sizes(sequences=4, longest=600, prompt=560, max_t=2560, page_size=128, share=0.0005, move_every=40)

Caches = list[tuple[str, int]]  # the manager's mode, and cache_layout


class Sessions:
    """One session for each node, with these options."""

    def __init__(self, threads: int = 1, arena: bool = True):
        self._options = dict(threads=threads, arena=arena)
        self._made: dict[Node, onnxruntime.InferenceSession] = {}

    def of(self, node: Node) -> onnxruntime.InferenceSession:
        """The session of a node, made at its first use."""
        if node not in self._made:
            self._made[node] = node.session(**self._options)
        return self._made[node]

    def __len__(self) -> int:
        return len(self._made)


@dataclass
class Plan:
    """All that runs, and what there is of it."""

    lanes: list[Lane]
    churn: Churn
    refusals: Refusals
    sessions: list[Sessions]  # that lanes run on

    def rehearse(self, directory: Path) -> None:
        """Everything once, so that all that is made at its first use has been made."""
        for lane in self.lanes:
            lane.rehearse(directory)
        for i in range(2 * len(NODES)):
            self.churn.once(i)
            self.refusals.once(i)


def make_lane(name: str, node: Node, sizes: Sizes, caches: Caches, sessions: Sessions, seed: int) -> Lane:
    """A lane that lives in these caches by turns."""

    def new_place(mode: str, layout: int) -> Place:
        placed = node.placed(mode, layout, sizes.page_size)
        return Place(placed, mode, sizes.max_t, sessions.of(placed))

    places = [partial(new_place, *cache) for cache in caches]
    rows = Rows(node)
    answers = Answers(node, rows, sizes.longest + sizes.prompt)
    return Lane(f"{name}: {node.name}", places[0](), places, rows, answers, sizes, seed)


def make_plan(directory: Path, seed: int) -> Plan:
    """A lane for each format and operator, with sessions of its own; pairs that share sessions; pairs that share a
    cache and its manager, too; pairs of wide rows; and one in the mode cells."""
    shared, wide, cells = Sessions(), Sessions(threads=2, arena=False), Sessions()
    alone = [Sessions() for _ in NODES]
    lanes: list[Lane] = []

    def add(name: str, node: Node, sizes: Sizes, caches: Caches, sessions: Sessions) -> Lane:
        lanes.append(make_lane(name, node, sizes, caches, sessions, seed + len(lanes)))
        return lanes[-1]

    for i, (node, sessions) in enumerate(zip(NODES, alone)):
        caches = [("paged", i % 4), ("runs", (i + 1 + i // 4) % 4)]
        add("own session", node, Sizes(), caches, sessions)
        if i % 3 == 0:
            for _ in range(2):
                add("shared session", node, Sizes(), caches, shared)
    for node in (NODES[3], NODES[4]):
        first, second = (add("shared cache", node, Sizes(move_every=0), [("paged", 2)], shared) for _ in range(2))
        second.place = first.place
    for node in WIDE_NODES:
        for _ in range(2):
            add("wide", node, WIDE, [("paged", 3), ("runs", 0)], wide)
    add("cells", NODES[2], Sizes(move_every=0), [("cells", 1)], cells)
    return Plan(lanes, Churn(NODES, directory), Refusals(NODES[0], directory), [shared, wide, cells, *alone])
