"""Interleaved measurement: in each round every contender is measured once, and ratios are taken within a round."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from native import Measured

# A contender that takes so many seconds for one call is measured in a few rounds only.
SLOW_SECONDS, SLOW_ROUNDS = 0.15, 3

# A round counts if its threads held a processor for such a part of the time, provided that there are so many rounds.
ENOUGH_SHARE, ENOUGH_ROUNDS = 0.9, 3

# In shorter calls the clocks themselves take a part of the time.
TELLING_SECONDS = 0.2e-3

# The round before the first, which does not count.
WARM_UP = -1

# Samples of a fast call last about so long, by repetition.
SAMPLE_SECONDS = 0.5e-3


@dataclass
class Contender:
    """Something that is measured; `sample(turn, iterations)` runs it on the layer that is the turn's."""

    name: str
    threads: int
    sample: Callable[[int, int], Measured]
    cold: bool = True  # a cold call must not be repeated on the same layer
    rest_seconds: float = 0  # how long its threads may keep on spinning
    iterations: int = 1
    measured: dict[int, Measured] = field(default_factory=dict)  # by round; meanwhile at WARM_UP


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """The spread of some values, at least one."""
        low, median, high = np.quantile(values, (0.25, 0.5, 0.75))
        return cls(float(median), float(low), float(high))

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


def run_rounds(contenders: list[Contender], rounds: int, seconds: float) -> None:
    """Measures all contenders, in turn, for `rounds` rounds or, after at least five, until the time is over.

    As long as others disturb a contender in nearly every round, there are further ones, for up to three times the time.
    """
    for contender in contenders:
        calibrate(contender)
    begin = time.monotonic()
    turn = 1
    for round_number in range(3 * rounds):
        spent = (time.monotonic() - begin) / seconds
        over = round_number >= rounds or (round_number >= min(5, rounds) and spent > 1)
        if over and (spent > 3 or not any(map(is_disturbed, contenders))):
            break
        turn += 1  # where the contenders are a multiple of the layers, each still meets every layer
        # Each round begins with another contender, so that nobody always comes after the same one.
        first = round_number % len(contenders)
        for contender in contenders[first:] + contenders[:first]:
            if round_number < SLOW_ROUNDS or contender.measured[WARM_UP].ns < SLOW_SECONDS * 1e9:
                contender.measured[round_number] = contender.sample(turn, contender.iterations)
                time.sleep(contender.rest_seconds)
                turn += 1
    for contender in contenders:
        del contender.measured[WARM_UP]


def is_disturbed(contender: Contender) -> bool:
    """Whether a call that is long enough to tell has held its processors in too few rounds."""
    measured = [each for i, each in contender.measured.items() if i != WARM_UP]
    quiet = sum(not each.share < ENOUGH_SHARE for each in measured)
    return quiet < min(ENOUGH_ROUNDS, len(measured)) and measured[-1].ns > TELLING_SECONDS * 1e9


def calibrate(contender: Contender) -> None:
    """Warms a contender up and chooses how often a sample repeats it."""
    measured = contender.sample(0, 1)
    if not contender.cold:
        for _ in range(3):
            contender.iterations = max(1, round(SAMPLE_SECONDS * 1e9 / max(measured.ns, 1)))
            measured = contender.sample(0, contender.iterations)
    contender.measured[WARM_UP] = measured
    time.sleep(contender.rest_seconds)


def times(*contenders: Contender) -> list[list[float]]:
    """Nanoseconds of one iteration of each contender, by rounds that all of them took part in.

    Rounds in which others held the processors of one of them do not count, if enough remain.
    """
    rounds = sorted(set.intersection(*(set(contender.measured) for contender in contenders)))
    quiet = [i for i in rounds if not any(each.measured[i].share < ENOUGH_SHARE for each in contenders)]
    kept = quiet if len(quiet) >= ENOUGH_ROUNDS else rounds
    return [[contender.measured[i].ns for i in kept] for contender in contenders]
