"""What the samples of a case say: times, and ratios to the limit and among contenders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from cases import HEAD_DIM, NUM_HEADS, Case
from kernel import KERNEL
from limit import ORDERS as LIMITS
from measure import Contender, Spread, difference, one_after_the_other, ratio, share, time_ns, times
from roofline import ORDERS as ROOFLINES
from runtime import EMPTY, IN_RUNTIME

# After the names of contenders that work on aligned tensors, where the case's own begin past a line.
ALIGNED = ", aligned"


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

    def of_fastest(self, names: dict[str, int], contender: Contender) -> Spread | None:
        """How near a contender comes to the fastest of these loops: 1 is as fast; None where none was measured."""
        phase, limited = contender.phase, self.case.limited
        if phase != "op":
            loop, scale = self.fastest(names, phase, contender.threads), 1
        elif len(limited) == 1:
            # The other phase is too small for loops of its own.
            (phase,) = limited
            loop, scale = self.fastest(names, phase, contender.threads), self.case.bytes("op") / self.case.bytes(phase)
        else:
            parts = [self.fastest(names, part, contender.threads) for part in limited]
            loop, scale = one_after_the_other(*parts) if all(parts) else None, 1
        return ratio(loop, contender, scale) if loop else None

    def fastest(self, names: dict[str, int], phase: str, threads: int) -> Contender | None:
        """The fastest of these loops on so many threads; in cache, where a call may be too short, on fewer too."""
        runs = [each for each in self.contenders if each.name in names and each.phase == phase]
        runs = [each for each in runs if each.threads == threads or (each.threads < threads and not self.case.cold)]
        return min(runs, key=lambda each: time_ns(each).median, default=None)

    def of_limit(self, contender: Contender) -> Spread | None:
        """How near a contender comes to the limit."""
        return self.of_fastest(LIMITS, contender)

    def of_roofline(self, contender: Contender) -> Spread | None:
        """How near a contender comes to the roofline for the case's access pattern."""
        return self.of_fastest(ROOFLINES, contender)

    def of_aligned(self, contender: Contender) -> Spread | None:
        """How near a contender comes to itself on aligned tensors."""
        aligned = self.find(contender.name + ALIGNED, contender.phase, contender.threads)
        return ratio(aligned, contender) if aligned else None

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
        for contender in self.contenders:
            size = self.case.bytes(contender.phase)
            is_held = contender.name not in (EMPTY, *LIMITS)  # against the limit
            spreads = {
                "microseconds": time_ns(contender).scaled(1e-3),
                "of_limit": self.of_limit(contender) if is_held else None,
                "of_roofline": self.of_roofline(contender) if is_held and contender.name not in ROOFLINES else None,
                "of_aligned": self.of_aligned(contender),
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
            label = f"{contender.name} {contender.phase}"
            line = f"  {label:35} {contender.threads}t {time_ns(contender).median / 1e3:10.2f} us"
            line += f" {row['gigabytes_per_second']:6.1f} GB/s"
            for name in ("of_limit", "of_roofline", "of_aligned"):
                if row[name]:
                    line += f"  {name.replace('_', ' ')} {Spread(**row[name])}"
            if row["ours_over"]:
                line += f"  the operator is {self.ours_over(contender)} times as fast"
            if row["share"] and row["share"] < 0.9 and self.case.cold:
                line += f"  HELD A PROCESSOR {row['share']:.0%} OF THE TIME"
            lines.append(line)
        return "\n".join(lines)


def is_ours(contender: Contender) -> bool:
    """Whether it is this project's, or no contender at all."""
    return contender.name.removesuffix(ALIGNED) in (KERNEL, IN_RUNTIME, EMPTY, *LIMITS, *ROOFLINES)
