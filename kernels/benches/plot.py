"""The plot: how near to the limit each contender comes, over the size of the work."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen before)
from matplotlib.axes import Axes  # noqa: E402

from direct import KERNEL  # noqa: E402
from runtime import EMPTY  # noqa: E402

FORMATS = ("f32", "f16", "int8", "int4")


def draw(rows: list[dict], path: Path) -> None:
    """On the left our load phase by type of cache; on the right all contenders with the whole operator on float16."""
    threads = max(row["threads"] for row in rows)
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5), sharey=True)
    loads = [row for row in rows if (row["contender"], row["phase"], row["threads"]) == (KERNEL, "load", threads)]
    for kind in FORMATS:
        series(left, [row for row in loads if form(row).partition("-")[0] == kind], kind, "none")
    left.set_title(f"load phase, called directly, {threads} threads")
    wholes = [row for row in rows if row["phase"] == "op" and row["contender"] != EMPTY and is_size(row["case"])]
    for name in dict.fromkeys(row["contender"] for row in wholes):
        most = max(row["threads"] for row in wholes if row["contender"] == name)
        series(right, [row for row in wholes if (row["contender"], row["threads"]) == (name, most)], name, "-")
    right.set_title(f"whole operator, f16, layout 2, paged, num_repeat 1, up to {threads} threads")
    for axes in (left, right):
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlabel="bytes read once and written once")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    left.set_ylabel("speed, of the fastest copy")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def is_size(case: str) -> bool:
    """Whether a case differs only in size from the others that this is true for."""
    return case.startswith("decode-b4-") and ".f16.layout2.paged.r1." in case


def form(row: dict) -> str:
    """The format in a case's name."""
    return row["case"].split(".")[1]


def series(axes: Axes, rows: list[dict], label: str, line: str) -> None:
    """Medians with quartiles, over size."""
    rows = sorted((row for row in rows if row["of_limit"]), key=lambda row: row["bytes"])
    if rows:
        medians = [row["of_limit"]["median"] for row in rows]
        below = [row["of_limit"]["median"] - row["of_limit"]["low"] for row in rows]
        above = [row["of_limit"]["high"] - row["of_limit"]["median"] for row in rows]
        sizes = [row["bytes"] for row in rows]
        axes.errorbar(sizes, medians, [below, above], fmt="o", linestyle=line, markersize=4, alpha=0.7, label=label)
