"""The plots: how near to the limit each contender comes, over the size of the work, and case by case."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from direct import KERNEL
from runtime import IN_RUNTIME

SIZE = "bytes read once and written once"
OURS, CEILING = "tab:blue", "tab:gray"

# In cache the limit is another copy: in between, lines are broken.
BREAK = "the limit is memcpy in cache, else the fastest copy"


def draw_sizes(rows: list[dict], path: Path) -> None:
    """For each number of threads the load phase by type of cache, and the whole operator beside what people use."""
    rows = [row for row in rows if is_size(row["case"]) and row["of_limit"]]
    counts = sorted({row["threads"] for row in rows})
    if not counts:
        return
    figure, grid = plt.subplots(len(counts), 2, figsize=(13, 4.5 * len(counts)), squeeze=False)
    for threads, (left, right) in zip(counts, grid):
        here = [row for row in rows if row["threads"] == threads]
        loads = [row for row in here if (row["contender"], row["phase"]) == (KERNEL, "load")]
        for color, kind in zip(("tab:blue", "tab:orange"), ("f16", "int8-g8-f16-s16")):
            of_kind = [row for row in loads if row["case"].split(".")[1] == kind]
            lines(left, of_kind, "of_limit", f"{kind}, kernel", color=color)
            lines(left, of_kind, "traffic_of_limit", f"{kind}, same traffic", color=color, linestyle="--", marker="x")
        left.set(title=f"load phase, layout 2, threads: {threads}", ylim=(0, None))
        wholes = [row for row in here if row["phase"] == "op" and ".f16." in row["case"]]
        for name in dict.fromkeys(row["contender"] for row in wholes):
            style = {"linewidth": 2.5, "color": OURS} if name == IN_RUNTIME else {"linewidth": 1}
            lines(right, [row for row in wholes if row["contender"] == name], "of_limit", name, **style)
        kernels = [row for row in wholes if row["contender"] == KERNEL]
        lines(right, kernels, "traffic_of_limit", "same traffic", color=CEILING, linestyle="--", marker="x")
        right.set(title=f"whole operator, f16, layout 2, threads: {threads}", yscale="log")
        for axes in (left, right):
            axes.axhline(1, color="black", linewidth=0.8)
            axes.text(0.01, 1, "the limit", transform=axes.get_yaxis_transform(), va="bottom", fontsize="small")
            axes.set(xscale="log", xlabel=SIZE, ylabel="speed, of the limit")
            axes.grid(alpha=0.3)
            axes.legend(fontsize="small")
    figure.text(0.5, 0.002, f"medians with quartiles; {BREAK}", ha="center", fontsize="small")
    figure.tight_layout(rect=(0, 0.015, 1, 1))
    figure.savefig(path)
    plt.close(figure)


def draw_cases(rows: list[dict], path: Path) -> None:
    """Each cold case's phases by the most threads: ours, and how far the same traffic comes."""
    rows = [row for row in rows if row["contender"] == KERNEL and row["phase"] != "op" and row["traffic_of_limit"]]
    most = max((row["threads"] for row in rows), default=0)
    rows = [row for row in rows if row["case"].endswith(".cold") and row["threads"] == most]
    rows.sort(key=lambda row: (row["phase"], row["case"]), reverse=True)
    if not rows:
        return
    figure, axes = plt.subplots(figsize=(11, 1.5 + 0.2 * len(rows)))
    for key, color, marker, label in (
        ("of_limit", OURS, "o", "ours"),
        ("traffic_of_limit", CEILING, "|", "same traffic"),
    ):
        spreads = [row[key] for row in rows]
        medians = [spread["median"] for spread in spreads]
        axes.errorbar(medians, range(len(rows)), xerr=errors(spreads), fmt=marker, color=color, label=label)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [f"{row['phase']}  {row['case']}" for row in rows], fontsize="x-small")
    axes.set(xlabel=f"speed, of the limit; threads: {most}", xlim=(0, None), ylim=(-1, len(rows)))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="lower left")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def is_size(case: str) -> bool:
    """Whether a case differs only in size and type from the others that this is true for."""
    return case.startswith("decode-b4-") and ".layout2.paged.r1." in case


def errors(spreads: list[dict]) -> list[list[float]]:
    """From the quartiles to the medians."""
    below = [spread["median"] - spread["low"] for spread in spreads]
    return [below, [spread["high"] - spread["median"] for spread in spreads]]


def lines(axes: Axes, rows: list[dict], key: str, label: str, **style: object) -> None:
    """Medians with quartiles over size, in cache and out of it."""
    style = {"marker": "o", "markersize": 4, "capsize": 2, "label": label} | style
    for place in (".warm", ".cold"):
        part = sorted((row for row in rows if row["case"].endswith(place)), key=lambda row: row["bytes"])
        if part:
            spreads = [row[key] for row in part]
            medians = [spread["median"] for spread in spreads]
            container = axes.errorbar([row["bytes"] for row in part], medians, errors(spreads), **style)
            # The second part continues the first.
            style |= {"label": None, "color": container[0].get_color()}
