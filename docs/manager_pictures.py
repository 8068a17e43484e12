"""The pictures of `manager.md`. Every number comes from `cache_model.py`; `pictures.py` writes and checks them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from cache_model import Cells, Copy, Pages, Row, Runs, discarded, n_kv, one_token_first
from svg import COLORS, FREE, INK, MARGIN, WIDTH, Picture, legend


def cells() -> Picture:
    """A removal, the search for a step's cells, and the cells that attention sees."""
    size, n, pad = 40, 3, 32
    model = Cells(size)
    model.step({"a": 12})
    model.step({"b": 7})
    stages = [("Prompts of 12 and of 7 tokens are stored.", _copied(model), model.head, [])]
    model.seq_rm("a", 4, 6)
    stages.append(("seq_rm(a, 4, 6): two cells are free, head falls to the first.", _copied(model), model.head, []))
    hole = model.head
    search = model.step({"b": n})
    title = f"Sequence b appends {n} tokens. find_slot({n}) begins at head; behind each busy cell it begins again."
    stages.append((title, _copied(model), model.head, search.tried))
    view = n_kv(model.last, size, pad)
    picture = Picture(
        "Cells: find_slot, head, freed cells and n_kv",
        f"Forty cells in three stages. First a prompt of 12 tokens has cells 0 to 11 and one of 7 has cells 12 to 18. "
        f"Then rows 4 and 5 of the first are removed: cells {hole} and {hole + 1} are free and head is {hole}. Then a "
        f"step of {n} tokens searches from cell {hole}, where only 2 are free, and finds cells {search.slot} to "
        f"{model.head - 1}; head is {model.head}. The last used cell + 1 is {model.last}, so attention sees "
        f"n_kv = {view} cells.",
    )
    legend(picture, {"a": "row of a", "b": "row of b", "": "free"})
    cell = (WIDTH - 2 * MARGIN) / size
    for words, owners, head, tried in stages:
        picture.heading(words)
        picture.y += 20 if tried else 0
        picture.slots(MARGIN, picture.y, cell, owners)
        bottom = picture.y + cell
        middles = [MARGIN + (start + 0.5) * cell for start in tried]
        for x in middles[1:]:
            picture.line([(x, picture.y - 9), (x, picture.y - 2)])
        for x, what in zip(middles[:1] + middles[-1:], ["begins", f"finds cell {search.slot}"]):
            picture.line([(x, picture.y - 14), (x, picture.y - 2)], arrow=True)
            picture.text(x, picture.y - 17, what, "small mid")
        x = MARGIN + (head + 0.5) * cell
        picture.line([(x, bottom + 16), (x, bottom + 3)], arrow=True)
        picture.text(x, bottom + 28, f"head {head}", "small mid")
        picture.y = bottom + 54
    picture.y -= 20
    picture.bracket(MARGIN, MARGIN + view * cell, picture.y, f"the view: cells 0..n_kv, n_kv = {view} (pad {pad})")
    picture.y += 30
    return picture


def _copied(model: Cells) -> list[dict[str, int]]:
    return [dict(rows) for rows in model.owners()]


def tables(picture: Picture, pages: Pages, seq: str, y: float, slot: float, base: float, above: bool) -> None:
    """A row of `cachestarts`, and lines from its entries to their pages; `base` is the edge of the slots."""
    starts = pages.cachestarts()[seq]
    picture.text(MARGIN, y + 15, f"cachestarts of {seq}", "mono")
    for index, start in enumerate(starts):
        x = MARGIN + 160 + 44 * index
        picture.box(x, y, 40, 22, COLORS[seq])
        picture.text(x + 20, y + 15, str(start), "mono mid")
        shift = -0.25 if seq == "a" else 0.25
        target = MARGIN + (start + (0.5 + shift) * pages.page_size) * slot
        picture.line([(x + 20, y + 22 if above else y), (target, base)], COLORS[seq][1], arrow=True)


def page_row(picture: Picture, pages: Pages, y: float, slot: float) -> None:
    """The slots of a cache in pages, with the first slot and the reference count of each below."""
    picture.slots(MARGIN, y, slot, pages.owners())
    for page, refcount in enumerate(pages.refcount):
        x = MARGIN + page * pages.page_size * slot
        width = pages.page_size * slot
        picture.line([(x, y - 3), (x, y + slot + 3)], INK)
        picture.text(x + width / 2, y + slot + 14, f"page {page}, refcount {refcount}", "small mid faint")
    right = MARGIN + len(pages.refcount) * pages.page_size * slot
    picture.line([(right, y - 3), (right, y + slot + 3)], INK)


def paged() -> Picture:
    """The page tables of two prompts with a common beginning."""
    model = Pages(6, 4)
    common = [101, 102, 103, 104, 105, 106, 107, 108, 109]
    model.step({"a": [*common, 110]})
    cached, _ = model.step({"b": [*common, 7, 8]})
    computed = len(model.tokens["b"]) - cached["b"]
    starts = {seq: _list(row) for seq, row in model.cachestarts().items()}
    picture = Picture(
        "Pages: two sequences over one cache, with a shared prefix",
        f"A cache of six pages of 4 slots. Sequence a has 10 rows, its cachestarts are {starts['a']}. Sequence b has "
        f"11 rows and begins with the same 9 tokens: its cachestarts are {starts['b']}. Pages 0 and 1 are in both "
        f"tables and have refcount 2; {cached['b']} rows of b are cached and {computed} are computed.",
    )
    legend(picture, {"a": "row of a", "b": "row of b", "ab": "row of both", "": "free"})
    slot = (WIDTH - 2 * MARGIN) / len(model.owners())
    picture.y -= 8
    top = picture.y + 70
    tables(picture, model, "a", picture.y, slot, top - 4, above=True)
    page_row(picture, model, top, slot)
    tables(picture, model, "b", top + slot + 64, slot, top + slot + 20, above=False)
    picture.y = top + slot + 112
    picture.heading(
        f"b: cached {cached['b']}, start_pos {cached['b']}, seqlen {computed}, kvlen {len(model.tokens['b'])}. "
        "The ninth equal token is in no full page: b computes it.",
        "small",
    )
    return picture


def copy_on_write() -> Picture:
    """A fork of a page that is not full, and a step in which both append."""
    model = Pages(4, 4)
    picture = Picture("Copy-on-write: a fork of a page that is not full, and both append", "")
    legend(picture, {"a": "row of a", "b": "row of b", "ab": "row of both", "": "free"})
    model.step({"a": list(range(1, 7))})
    model.fork("a", "b")
    start_pos, before = [len(tokens) for tokens in model.tokens.values()], _used(model)
    forked(picture, model, "Sequence a has 6 rows; fork(a) gives b. No bytes move.", [])

    _, copies = model.step({"a": [21], "b": [22]})
    ((src, dst, rows),), after = copies, _used(model)
    kvstarts = [0, *accumulate(len(tokens) for tokens in model.tokens.values())]
    writes = f"{rows} rows are copied, a writes slot {dst + rows}, b slot {src + rows}."
    forked(picture, model, f"A step appends one token to each: {writes}", copies)
    summary = f"kvstarts {_list(kvstarts)}; start_pos {_list(start_pos)}"
    picture.heading(f"The step's tensors: {summary}. Pages in use: {before} before it, {after} after it.", "small")
    picture.description = (
        f"Sequence a has 6 rows in pages of 4, and b is its fork: both tables name pages 0 and 1, {before} pages are "
        f"in use. A step appends a token to each. Slots {src} and {src + rows - 1} are copied to slots {dst} and "
        f"{dst + rows - 1} first, then a writes slot {dst + rows} and b, the last owner of page 1, writes slot "
        f"{src + rows} in place. {after} pages are in use. {summary}."
    )
    return picture


def forked(picture: Picture, model: Pages, words: str, copies: list[Copy]) -> None:
    """A cache beside its tables, and the copies of a step."""
    slot = 30.0
    picture.heading(words)
    picture.y += 20 if copies else 0
    page_row(picture, model, picture.y, slot)
    for src, dst, rows in copies:
        for row in range(rows):
            picture.curve(MARGIN + (src + row + 0.5) * slot, MARGIN + (dst + row + 0.5) * slot, picture.y - 1, -26)
    for index, (seq, starts) in enumerate(model.cachestarts().items()):
        words = f"{seq}: cachestarts {_list(starts)}"
        picture.text(MARGIN + len(model.owners()) * slot + 24, picture.y + 6 + 20 * index, words, "mono")
    picture.y += slot + 40


def _used(pages: Pages) -> int:
    return sum(map(bool, pages.refcount))


def _list(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def context_shift() -> Picture:
    """Rows are removed, the others close up, positions fall, and an update turns the keys."""
    n_ctx, n_keep = 16, 2
    rows = [Row(position, position) for position in range(n_ctx)]
    n_discard = discarded(len(rows), 1, n_ctx, n_keep)
    removed = range(n_keep, n_keep + n_discard)
    size = 34.0
    picture = Picture("Context shift: rows leave, rows close up, keys are turned", "")

    def stage(words: str, rows: list[Row], pending: bool) -> None:
        picture.heading(words)
        lines = [("position", [row.position for row in rows]), ("key rotated for", [row.rotated for row in rows])]
        if pending:
            lines.append(("pending", [row.pending for row in rows]))
        for name, values in lines:
            picture.text(MARGIN, picture.y + 16, name, "small faint")
            for index, value in enumerate(values):
                gone = name == "position" and len(rows) == n_ctx and index in removed
                colors = FREE if gone or name == "pending" else COLORS["a"]
                picture.box(MARGIN + 120 + index * size, picture.y, size, 22, colors, dashed=gone)
                picture.text(MARGIN + 120 + (index + 0.5) * size, picture.y + 15, str(value), "small mid")
            picture.y += 24
        picture.y += 26

    stage(
        f"n_past = n_ctx = {n_ctx}, n_keep = {n_keep}: positions {removed.start} to {removed.stop - 1} go.", rows, False
    )
    x0, x1 = (MARGIN + 120 + edge * size for edge in (removed.start, removed.stop))
    picture.bracket(x0, x1, picture.y - 24, f"n_discard = ({n_ctx} - {n_keep}) / 2 = {n_discard}")
    picture.y += 22
    moved = rows[removed.stop :]
    rows = rows[: removed.start] + moved
    stage(f"seq_rm: the {len(moved)} rows behind close up, as rows have no holes. Copies are queued.", rows, False)
    for row in moved:
        row.position -= n_discard
    deltas = {row.pending for row in moved}
    stage(f"seq_add of {-n_discard} behind them: metadata only. rotated + pending = position.", rows, True)
    for row in rows:
        row.rotated += row.pending
    stage("update: makes the queued copies, then turns each key with a pending delta, once.", rows, True)
    picture.y -= 14
    (delta,) = deltas
    picture.description = (
        f"A sequence of {n_ctx} rows, positions 0 to {n_ctx - 1}, in a context of {n_ctx}. Keeping {n_keep}, the shift "
        f"removes the {n_discard} positions {removed.start} to {removed.stop - 1}. The {len(moved)} rows behind close "
        f"up: {len(rows)} rows are left. Their positions fall by {n_discard}, which leaves a pending delta of "
        f"{delta} on {len(moved)} rows. An update makes the queued copies and turns these keys; no delta is pending."
    )
    return picture


def modes() -> Picture:
    """The same two sequences in the three modes."""
    size = 24
    first, second, reserve = {"a": 6, "b": 3}, {"a": 2, "b": 1}, {"a": 10, "b": 6}
    pages, runs, cells = Pages(size // 4, 4), Runs(size), Cells(size)
    pages.step({seq: [ord(seq)] * count for seq, count in first.items()})
    pages.step({seq: [1] * count for seq, count in second.items()})
    runs.step(first, reserve)
    runs.step(second, reserve)
    cells.step(first)
    search = cells.step(second)
    entries = [seq for seq, _ in one_token_first(second)]
    starts = pages.cachestarts()
    widest = max(map(len, starts.values()))
    table = [starts[seq] + [-1] * (widest - len(starts[seq])) for seq in entries]
    write = f"cells {search.slot} to {cells.head - 1}"
    view = n_kv(cells.last, size, 32)
    cachestarts = {
        "paged": f"{table}",
        "runs": f"{[runs.starts[seq] for seq in entries]}",
        "cells": f"{[search.slot, 0]}",
    }
    picture = Picture(
        "The same two sequences in the three modes",
        f"Twenty-four slots, three times. Sequence a appends {first['a']} rows and b {first['b']}; the next step "
        f"appends {second['a']} to a and {second['b']} to b, and its entry 0 is of {entries[0]}. Paged, in pages of 4: "
        f"cachestarts {cachestarts['paged']}. Runs, with reserves of {reserve['a']} and {reserve['b']}: cachestarts "
        f"{cachestarts['runs']}. Cells: the step writes {write}, the row of {entries[0]} first; cachestarts "
        f"{cachestarts['cells']}.",
    )
    legend(picture, {"a": "row of a", "b": "row of b", "": "free", "reserved": "reserved"})
    slot = (WIDTH - 2 * MARGIN) / size
    stages = [
        ("paged", ", page_size 4", pages.owners(), frozenset(), "a row for each sequence, a column for each page"),
        ("runs", ", reserves 10 and 6", runs.owners(), runs.reserved(), "an entry for each sequence"),
        ("cells", "", cells.owners(), frozenset(), f"the write, and the view of n_kv = {view} cells"),
    ]
    for mode, details, owners, reserved, words in stages:
        picture.heading(mode + details, "bold")
        picture.y -= 8
        picture.slots(MARGIN, picture.y, slot, owners, reserved)
        picture.y += slot + 16
        picture.heading(f"cachestarts {cachestarts[mode]}: {words}", "small faint")
        picture.y += 12
    picture.y -= 12
    return picture


PICTURES: dict[str, Callable[[], Picture]] = {
    "cells": cells,
    "pages": paged,
    "copy-on-write": copy_on_write,
    "context-shift": context_shift,
    "modes": modes,
}
