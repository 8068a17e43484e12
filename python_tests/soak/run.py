"""Runs a plan: a rehearsal, warm-up, then the steps that are measured, between two moments at which nothing runs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from soak.budget import Budget
from soak.plan import Plan, make_plan
from soak.resources import Sample, Sampler, quiet_sample

WARM_UP = 0.2  # of the steps
STEPS_PER_SESSION = 400  # a session is made and destroyed for so many steps
STEPS_PER_REFUSAL = 400


@dataclass
class Outcome:
    """What has happened, and what the process had meanwhile."""

    seconds: float
    threads: int  # that ran at once
    sessions: int
    counts: Counter[str]
    rows_checked: int
    answers_checked: int
    last_answers: int
    start: Sample
    samples: list[Sample]
    end: Sample


def paced(once: Callable[[int], None], every: int, budget: Budget) -> None:
    """Calls `once` for each so many steps, to the end of the budget."""
    done = 0
    while True:
        due = budget.taken // every
        if done >= due:
            if budget.is_spent():
                return
            time.sleep(0.005)
            continue
        once(done)
        done += 1


def run_part(plan: Plan, steps: int, directory: Path) -> Sampler:
    """So many steps of all lanes, each a thread, and the others beside them; an error of any is raised."""
    budget = Budget(steps)

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # raised below
                budget.fail(error)

        return run

    works: list[Callable[[], None]] = [lambda lane=lane: lane.run(budget, directory) for lane in plan.lanes]
    works.append(lambda: paced(plan.churn.once, STEPS_PER_SESSION, budget))
    works.append(lambda: paced(plan.refusals.once, STEPS_PER_REFUSAL, budget))
    threads = [threading.Thread(target=guarded(work)) for work in works]
    sampler = Sampler(lambda: budget.taken)
    for thread in [*threads, sampler]:
        thread.start()
    for thread in threads:
        thread.join()
    sampler.stop()
    if budget.errors:
        raise budget.errors[0]
    return sampler


def soak(steps: int, directory: Path, seed: int = 0, prepare: Callable[[Plan], None] = lambda plan: None) -> Outcome:
    """Runs it all. `prepare` may change the plan.

    # Errors
    What a thread has found: an answer that is not what it must be, or an exception.
    """
    began = time.perf_counter()
    plan = make_plan(directory, seed)
    prepare(plan)
    warm_up = int(steps * WARM_UP)
    plan.rehearse(directory)
    run_part(plan, warm_up, directory)
    start = quiet_sample(0)
    sampler = run_part(plan, steps - warm_up, directory)
    end = quiet_sample(steps - warm_up)
    last_answers = 0
    for lane in plan.lanes:
        lane.finish()
        last_answers += sum(sequence.answer is not None for sequence in lane.sequences)
    counts = Counter(plan.churn.counts) + plan.refusals.counts
    rows_checked = answers_checked = 0
    for lane in plan.lanes:
        counts += lane.counts
        if lane.place.node.fused:
            answers_checked += lane.answers.checked
        else:
            rows_checked += lane.answers.checked
    return Outcome(
        time.perf_counter() - began,
        len(plan.lanes) + 2,
        sum(map(len, plan.sessions)),
        counts,
        rows_checked,
        answers_checked,
        last_answers,
        start,
        sampler.samples(),
        end,
    )
