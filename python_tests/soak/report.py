"""The report of a run, and the bounds that it is held against."""

from __future__ import annotations

from soak.resources import slope
from soak.run import Outcome

MIB = 2**20

# What may be more at the end of the measured steps than at their beginning, however many they are.
RESIDENT_GROWTH = 16 * MIB  # the arenas of as many threads hold pieces of pages
# Runs of 20,000 steps grow by 1 to 2 MB, one of 150,000 by 1.4, one of a million by 0.3: more steps do not take more.
HEAP_GROWTH = 4 * MIB
OBJECTS_GROWTH = 4000  # blocks of Python's: of sequences, each of which has a few


def failures(outcome: Outcome) -> list[str]:
    """Each bound that does not hold."""
    start, end = outcome.start, outcome.end
    found = []
    for name, before, after, most in [
        ("resident memory", start.resident, end.resident, RESIDENT_GROWTH),
        ("memory in use", start.heap, end.heap, HEAP_GROWTH),
        ("Python's blocks", start.objects, end.objects, OBJECTS_GROWTH),
        ("threads", start.threads, end.threads, 0),
        ("files", start.files, end.files, 0),
    ]:
        if after - before > most:
            found.append(f"{name}: {before:,} at the start, {after:,} at the end, expected {most:,} more at most")
    return found


def table(outcome: Outcome) -> str:
    """All numbers, one a line."""
    counts, start, end = outcome.counts, outcome.start, outcome.end
    samples = outcome.samples or [start, end]
    steps = end.steps
    growth = end.resident - start.resident
    heap = end.heap - start.heap
    lines = [
        ("steps", f"{counts['steps']:,} in {outcome.seconds:,.0f} s, {steps:,} of them measured"),
        ("tokens", f"{counts['tokens']:,}"),
        ("sequences", f"{counts['joins']:,} joined, {counts['leaves']:,} left, {counts['forks']:,} forked"),
        ("edits", f"{counts['cuts']:,} cuts, {counts['rollbacks']:,} steps rolled back"),
        ("saved and loaded", f"{counts['moves']:,} caches of a lane, {counts['managers']:,} single sequences"),
        ("threads", f"{outcome.threads} at once"),
        ("sessions", f"{outcome.sessions} of lanes, {counts['sessions']:,} made and destroyed"),
        ("managers", f"{counts['managers'] + counts['moves']:,} made and destroyed"),
        ("direct calls", f"{counts['direct calls']:,}"),
        ("refusals", f"{counts['refusals']:,}, {counts['out of room']:,} steps without room"),
        ("rows checked", f"{outcome.rows_checked:,} loaded, bit for bit"),
        ("answers checked", f"{outcome.answers_checked:,} of attention, bit for bit; {outcome.last_answers} afresh"),
        ("resident, start", f"{start.resident / MIB:,.1f} MiB"),
        ("resident, most", f"{max(one.resident for one in samples) / MIB:,.1f} MiB while running"),
        ("resident, end", f"{end.resident / MIB:,.1f} MiB"),
        ("resident, growth", f"{growth / MIB:+,.2f} MiB, bound {RESIDENT_GROWTH / MIB:.0f} MiB"),
        ("resident, slope", f"{slope(samples):+,.2f} bytes for each step, of {len(samples)} samples while running"),
        ("in use, growth", f"{heap:+,} bytes, {heap / steps:+,.3f} a step, bound {HEAP_GROWTH:,}"),
        ("Python's blocks", f"{end.objects - start.objects:+,}, bound {OBJECTS_GROWTH:,}"),
        ("threads, files", f"{start.threads}, {start.files} at the start; {end.threads}, {end.files} at the end"),
    ]
    return "\n".join(f"{name:<18}{value}" for name, value in lines)
