"""What the samples of a case say: times, and ratios to the limit and among contenders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from cases import HEAD_DIM, NUM_HEADS, Case
from direct import KERNEL, LIMIT, LIMITS
from measure import Contender, Spread, difference, one_after_the_other, ratio, share, time_ns, times
from runtime import EMPTY, IN_RUNTIME
from traffic import SCHEDULES

COPY = "copy"

# A phase that moves a smaller part of what the copy moved says nothing of memory, and is not held against it.
COMPARABLE = 1 / 16


@dataclass(frozen=True)
class Result:
    """A measured case."""

    case: Case
    contenders: list[Contender]

    def find(self, name: str, phase: str, threads: int) -> Contender | None:
        """The contender of this name, phase and number of threads, if it took part."""
        keys = {contender.key: contender for contender in self.contenders}
        return keys.get((name, phase, threads))

    def threads(self) -> list[int]:
        """The numbers of threads that were measured."""
        return sorted({contender.threads for contender in self.contenders})

    def limit(self, threads: int) -> Contender:
        """The fastest copy by up to so many threads, of all ways to copy."""
        copies = [contender for contender in self.contenders if contender.phase == COPY]
        return min((copy for copy in copies if copy.threads <= threads), key=lambda copy: time_ns(copy).median)

    def of_copy(self, contender: Contender, copy: Contender | None) -> Spread | None:
        """How near a contender comes to a copy of what it must move, where that is enough to tell: 1 is as fast."""
        larger = max(self.case.store_bytes, self.case.load_bytes)  # what the copy was measured with
        scale = self.case.bytes(contender.phase) / larger
        return ratio(copy, contender, scale) if copy and scale >= COMPARABLE else None

    def of_limit(self, contender: Contender) -> Spread | None:
        """How near a contender comes to the fastest copy."""
        return self.of_copy(contender, self.limit(contender.threads))

    def of_four_pages(self, contender: Contender) -> Spread | None:
        """How near a contender comes to the streaming copy of four pages at once; None in cache."""
        return self.of_copy(contender, self.find(LIMIT, COPY, contender.threads))

    def traffic(self, phase: str, threads: int) -> Contender | None:
        """The fastest run of a phase's traffic by up to so many threads; of both phases, one after the other."""
        if phase == "op":
            store, load = (self.traffic(part, threads) for part in ("store", "load"))
            return one_after_the_other(store, load) if store and load else None
        runs = [run for run in self.contenders if run.name in SCHEDULES and run.phase == phase]
        runs = [run for run in runs if run.threads <= threads]
        return min(runs, key=lambda run: time_ns(run).median, default=None)

    def of_traffic(self, contender: Contender) -> Spread | None:
        """How near a contender comes to the same traffic without arithmetic."""
        traffic = self.traffic(contender.phase, contender.threads)
        return ratio(traffic, contender) if traffic else None

    def reach(self, kernel: Contender) -> Spread | None:
        """How near to the kernel's limit the same traffic comes."""
        traffic = self.traffic(kernel.phase, kernel.threads) if kernel.name == KERNEL else None
        return self.of_copy(traffic, self.limit(kernel.threads)) if traffic else None

    def values_per_ns(self, contender: Contender) -> Spread | None:
        """Values that one thread reads from the cache, or stores there, each nanosecond."""
        lengths = self.case.lengths
        tokens = {"load": sum(lengths.kvlens), "store": sum(lengths.seqlens)}.get(contender.phase)
        if tokens is None or contender.threads > 1:
            return None
        values = tokens * 2 * NUM_HEADS * HEAD_DIM
        return Spread.of([values / ns for ns in times(contender)[0].values()])

    def over_one_thread(self, contender: Contender) -> Spread | None:
        """What its threads gain over one."""
        one = self.find(contender.name, contender.phase, 1)
        return ratio(one, contender) if one and contender.threads > 1 else None

    def copy_over_one_thread(self, threads: int) -> Spread | None:
        """What so many threads gain in the fastest copy."""
        return ratio(self.limit(1), self.limit(threads))

    def ours_over(self, peer: Contender) -> Spread | None:
        """How many times as fast as a peer the operator in ONNX Runtime is, on as many threads."""
        ours = self.find(IN_RUNTIME, "op", peer.threads)
        return ratio(peer, ours) if ours else None

    def overhead_us(self, threads: int) -> Spread | None:
        """Microseconds that a call in ONNX Runtime takes beyond one of an operator that does nothing."""
        ours, empty = (self.find(name, "op", threads) for name in (IN_RUNTIME, EMPTY))
        return difference(ours, empty, 1e-3) if ours and empty else None

    def rows(self) -> Iterator[dict]:
        """Each contender's numbers, for the report."""
        larger = max(self.case.store_bytes, self.case.load_bytes)
        for contender in self.contenders:
            is_copy = contender.phase == COPY
            is_held = not is_copy and contender.name != EMPTY  # against copies
            size = larger if is_copy else self.case.bytes(contender.phase)
            spreads = {
                "microseconds": time_ns(contender).scaled(1e-3),
                "of_limit": self.of_limit(contender) if is_held else None,
                "of_traffic": self.of_traffic(contender) if is_held and contender.name not in SCHEDULES else None,
                "traffic_of_limit": self.reach(contender),
                "of_four_pages": self.of_four_pages(contender) if is_held else None,
                "values_per_ns": self.values_per_ns(contender),
                "over_one_thread": self.over_one_thread(contender),
                "ours_over": None if is_ours(contender) else self.ours_over(contender),
            }
            yield {
                "case": self.case.name,
                "contender": contender.name,
                "phase": contender.phase,
                "threads": contender.threads,
                "bytes": size,
                "gigabytes_per_second": size / time_ns(contender).median,
                "rounds": len(contender.measured),
                "share": share(contender),
            } | {name: spread and asdict(spread) for name, spread in spreads.items()}

    def text(self) -> str:
        """The case's lines while the benchmark runs."""
        lines = [self.case.name]
        for contender, row in zip(self.contenders, self.rows()):
            label = f"{contender.name} {contender.phase}" if contender.name in (KERNEL, *SCHEDULES) else contender.name
            line = f"  {label:33} {contender.threads}t {time_ns(contender).median / 1e3:10.2f} us"
            line += f" {row['gigabytes_per_second']:6.1f} GB/s"
            if row["of_limit"]:
                line += f"  of the limit {self.of_limit(contender)}"
            if row["of_traffic"]:
                line += f"  of the same traffic {self.of_traffic(contender)}"
            if row["ours_over"]:
                line += f"  the operator is {self.ours_over(contender)} times as fast"
            if row["share"] and row["share"] < 0.9 and self.case.cold:
                line += f"  HELD A PROCESSOR {row['share']:.0%} OF THE TIME"
            lines.append(line)
        return "\n".join(lines)


def is_ours(contender: Contender) -> bool:
    """Whether it is this project's, or no contender at all."""
    return contender.phase == COPY or contender.name in (KERNEL, IN_RUNTIME, EMPTY, *LIMITS, *SCHEDULES)
