"""Who runs, and the run: a rehearsal, warm-up, then the steps that are measured, between two quiet moments."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from attention_node import Attention
from setting import FLOAT, HALF, INT4, INT8, Setting
from soak.beside import Churn, Refusals
from soak.lane import Budget, Lane, Sizes
from soak.place import Answers, Node, Place, new_session, placed
from soak.process import Sample, quiet_sample

FORMATS = [
    Setting(FLOAT, FLOAT),
    Setting(HALF, HALF),
    Setting(HALF, INT8, HALF, quant_bit=8),
    Setting(FLOAT, INT4, FLOAT, quant_bit=4),
]
NODES: list[Node] = [node for setting in FORMATS for node in (setting, Attention(setting))]
# Large enough that a call is split among the threads of the session: see PARALLEL_BYTES and PARALLEL_COST.
WIDE_NODES: list[Node] = [
    Setting(HALF, HALF, num_heads=8, head_dim=64),
    Attention(Setting(HALF, INT8, HALF, quant_bit=8, num_heads=4, head_dim=128)),
]
WIDE = Sizes(sequences=4, longest=600, prompt=560, max_t=2560, page_size=128, share=0.0005, move_every=40)
WARM_UP, LEAST_WARM_UP = 0.2, 2000  # of the steps, and where there are few, half of them at most
EVERY = 400  # steps for each of which a session is made and destroyed, and calls are refused


@dataclass
class Outcome:
    """What has happened, and what the process had before and after the measured steps."""

    seconds: float
    threads: int  # that ran at once
    sessions: int  # of lanes
    counts: Counter[str]
    start: Sample
    end: Sample


class Plan:
    """A lane for each format and operator, with sessions of its own; pairs that share sessions; pairs that share a
    cache and its manager, too; pairs of wide rows. For other `nodes` only the first."""

    def __init__(self, directory: Path, seed: int, nodes: list[Node]):
        self.directory, self.lanes, self.nodes, self._seed = directory, [], nodes, seed
        self.sessions: list[Callable] = []
        shared, wide = self._sessions(), self._sessions(threads=2, arena=False)
        for i, node in enumerate(nodes):
            caches = [("paged", i % 4), ("runs", (i + 1 + i // 4) % 4)]
            self._add("own session", node, Sizes(), caches, self._sessions())
            for _ in range(2 if i % 3 == 0 and nodes is NODES else 0):
                self._add("shared session", node, Sizes(), caches, shared)
        self.beside = [Churn(nodes, directory), Refusals(NODES[0], directory)]
        if nodes is not NODES:
            return
        for node in (NODES[3], NODES[4]):
            first, second = (
                self._add("shared cache", node, Sizes(move_every=0), [("paged", 2)], shared) for _ in range(2)
            )
            second.place = first.place
        for node in (*WIDE_NODES, *WIDE_NODES):
            self._add("wide", node, WIDE, [("paged", 3), ("runs", 0)], wide)

    def _sessions(self, **options: int) -> Callable:
        """One session for each node, with these options, made at its first use."""
        self.sessions.append(lru_cache(maxsize=None)(lambda node: new_session(node, **options)))
        return self.sessions[-1]

    def _add(self, name: str, node: Node, sizes: Sizes, caches: list[tuple[str, int]], sessions: Callable) -> Lane:
        """A lane that lives in these caches by turns: the manager's mode, and cache_layout."""

        def new_place(mode: str, layout: int) -> Place:
            there = placed(node, mode, layout, sizes.page_size)
            return Place(there, mode, sizes.max_t, sessions(there))

        places = [partial(new_place, *cache) for cache in caches]
        answers = Answers(node, sizes.longest + sizes.prompt)
        title, seed = f"{name}: {node.operator} {node}", self._seed + len(self.lanes)
        self.lanes.append(Lane(title, places[0](), places, answers, sizes, seed))
        return self.lanes[-1]

    def rehearse(self) -> None:
        """Everything once, so that all that is made at its first use has been made."""
        for lane in self.lanes:
            lane.rehearse(self.directory)
        for i in range(2 * len(self.nodes)):
            for one in self.beside:
                one.once(i)

    def run(self, steps: int) -> None:
        """So many steps of all lanes, each a thread, and the others beside them; an error of any is raised."""
        budget = Budget(steps)

        def guarded(work: Callable, *arguments: object) -> None:
            try:
                work(*arguments)
            except BaseException as error:  # raised below
                budget.errors.append(error)

        threads = [threading.Thread(target=guarded, args=(lane.run, budget, self.directory)) for lane in self.lanes]
        threads += [threading.Thread(target=guarded, args=(paced, one.once, budget)) for one in self.beside]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if budget.errors:
            raise budget.errors[0]

    def counts(self) -> Counter[str]:
        """What has happened, by name."""
        counts: Counter[str] = Counter()
        for one in (*self.lanes, *self.beside):
            counts += one.counts
        for lane in self.lanes:
            counts["attention checked" if lane.fused else "rows checked"] += lane.answers.checked
        return counts


def paced(once: Callable[[int], None], budget: Budget) -> None:
    """Calls `once` for each so many steps, to the end of the budget."""
    done = 0
    while done < budget.taken // EVERY or not budget.is_spent():
        if done < budget.taken // EVERY:
            once(done)
            done += 1
        else:
            time.sleep(0.005)


def soak(
    steps: int,
    directory: Path,
    seed: int = 0,
    nodes: list[Node] = NODES,
    before_step: Callable[[Lane], None] | None = None,
) -> Outcome:
    """Runs it all; raises what a thread has found. Tests have lanes of their own and disturb each of their steps."""
    began = time.perf_counter()
    plan = Plan(directory, seed, nodes)
    for lane in plan.lanes if before_step else ():
        lane.before_step = partial(before_step, lane)
    warm_up = max(int(steps * WARM_UP), min(LEAST_WARM_UP, steps // 2))
    plan.rehearse()
    plan.run(warm_up)
    start = quiet_sample()
    plan.run(steps - warm_up)
    end = quiet_sample()
    for lane in plan.lanes:
        lane.finish()
    sessions = sum(sessions.cache_info().currsize for sessions in plan.sessions)
    return Outcome(time.perf_counter() - began, len(plan.lanes) + 2, sessions, plan.counts(), start, end)
