"""The pictures of `operator.md` and `quantization.md`. Every number comes from `operator_model.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate

from operator_model import AXES, NAMES, SHAPES, memory, nibbles, paged_slot, pieces, quantize
from svg import COLORS, FREE, INK, MARGIN, WIDTH, Picture, legend

# A cache small enough to see every row of it: MaxT, L, keys and values, H.
SIZES = {"t": 3, "l": 2, "kv": 2, "h": 2}
# A call in offset mode: names, start_pos, seqlen and cachestarts of two sequences, and MaxT.
CALL = {"a": (0, 3, 8), "b": (4, 1, 0)}
CALL_MAX_T = 12
# A call in paged mode: page tables of two sequences with a common prefix of two pages.
PAGE_SIZE, PAGES = 4, 6
CACHESTARTS = [[0, 8, 16, -1], [0, 8, 4, 20]]
KVLENS, SEQLENS = [10, 13], [1, 2]
# A group whose scale is a round number, with two quotients that lie between two codes.
GROUP = [1.3, -0.625, 1.75, 0.1, -1.125, 0.875, -1.6, 0.375]


def layouts() -> Picture:
    """The same cache in the four orders of its axes."""
    said = []
    picture = Picture("The four layouts of a cache", "")
    legend(picture, {"a": "keys of layer 0", "b": "values of layer 0", "": "layer 1"})
    picture.heading(
        "Each box is a row of Dh elements: slot.head. MaxT 3, L 2, H 2; memory runs from left to right.", "small"
    )
    picture.y += 8
    for layout in AXES:
        rows = memory(layout, SIZES)
        shape = ", ".join([*(SHAPES[axis] for axis in AXES[layout]), "Dh"])
        picture.heading(f"cache_layout {layout}, {NAMES[layout]}: ({shape})", "bold")
        picture.y -= 8
        width = (WIDTH - 2 * MARGIN) / len(rows)
        for index, row in enumerate(rows):
            left = MARGIN + index * width
            picture.box(left, picture.y, width, 24, FREE if row.l else COLORS["ab"[row.kv]])
            picture.text(left + width / 2, picture.y + 16, f"{row.t}.{row.h}", "mid small" + " faint" * row.l)
        one = pieces(rows, lambda row: row.l == 0 and row.t == 1)
        two = pieces(rows, lambda row: row.l == 0 and row.t < 2)
        picture.y += 40
        words = f"In layer 0, slot 1 lies in {_count(one)}, slots 0 and 1 together in {_count(two)}."
        picture.heading(words, "small faint")
        picture.y += 14
        said.append(
            f"cache_layout {layout}, ({shape}): in layer 0, slot 1 in {_count(one)}, slots 0 and 1 in {_count(two)}"
        )
    picture.y -= 18
    picture.description = (
        "A cache of three slots, two layers and two heads as memory has it, in the four layouts. "
        + "; ".join(said)
        + "."
    )
    return picture


def _count(number: int) -> str:
    return f"{number} piece" + "s" * (number != 1)


def call() -> Picture:
    """Packed rows go into slots, then all rows of each sequence come out, packed."""
    names = list(CALL)
    seqstarts = [0, *accumulate(seqlen for _, seqlen, _ in CALL.values())]
    kvlens = [start_pos + seqlen for start_pos, seqlen, _ in CALL.values()]
    kvstarts = [0, *accumulate(kvlens)]
    current = [(name, CALL[name][0] + i) for name in names for i in range(CALL[name][1])]
    output = [(name, t) for name, kvlen in zip(names, kvlens) for t in range(kvlen)]
    slots = {(name, t): CALL[name][2] + t for name, t in output}
    picture = Picture(
        "One call: store, then load",
        f"A call with two sequences. current_key has {seqstarts[-1]} rows: tokens 0 to 2 of sequence a and token 4 of "
        f"b, seqstarts {_list(seqstarts)}. They are stored into slots {_list(slots[row] for row in current)} of a "
        f"cache of {CALL_MAX_T}, where b has tokens 0 to 3 already: cachestarts "
        f"{_list(start for *_, start in CALL.values())}, start_pos {_list(start for start, *_ in CALL.values())}. Then "
        f"key gets all {kvstarts[-1]} rows: tokens 0 to 2 of a and 0 to 4 of b, kvstarts {_list(kvstarts)}. "
        "current_value and value go the same way.",
    )
    legend(
        picture,
        {"a": "token of sequence a", "b": "token of sequence b", "": "free slot", "stored": "stored by this call"},
    )
    size, left = 34.0, MARGIN + 150
    top = picture.y + 4
    levels = [top, top + 118, top + 236]
    rows = {"current_key": (levels[0], current), "key": (levels[2], output)}
    for label, (y, boxes) in rows.items():
        picture.text(MARGIN, y + 21, label, "mono")
        for index, (name, t) in enumerate(boxes):
            picture.box(left + index * size, y, size, size, COLORS[name], dashed=label == "current_key")
            picture.text(left + (index + 0.5) * size, y + 21, str(t), "mid small")
    picture.text(MARGIN, levels[1] + 21, "cache", "mono")
    owner = {slot: row for row, slot in slots.items()}
    for slot in range(CALL_MAX_T):
        name, t = owner.get(slot, ("", -1))
        x = left + slot * size
        picture.box(x, levels[1], size, size, COLORS.get(name, FREE), dashed=(name, t) in current)
        picture.text(x + size / 2, levels[1] + 21, str(t) if name else "", "mid small")
        # Below the slots to the left, where no line to the outputs crosses the numbers.
        picture.text(x + 3, levels[1] + 10, str(slot), "tiny faint")
    for index, row in enumerate(current):
        start, end = left + (index + 0.5) * size, left + (slots[row] + 0.5) * size
        picture.line([(start, levels[0] + size + 2), (end, levels[1] - 3)], COLORS[row[0]][1], arrow=True)
    for index, row in enumerate(output):
        start, end = left + (slots[row] + 0.5) * size, left + (index + 0.5) * size
        picture.line([(start, levels[1] + size + 2), (end, levels[2] - 3)], COLORS[row[0]][1], arrow=True)
    right = left + CALL_MAX_T * size + 18
    picture.text(right, levels[0] + 21, f"seqstarts {_list(seqstarts)}", "mono")
    picture.text(right - 60, levels[0] + 66, "1. store: all of them", "small faint")
    picture.text(right, levels[1] + 12, f"start_pos {_list(s for s, *_ in CALL.values())}", "mono")
    picture.text(right, levels[1] + 30, f"cachestarts {_list(s for *_, s in CALL.values())}", "mono")
    picture.text(right - 60, levels[1] + 80, "2. load", "small faint")
    picture.text(right, levels[2] + 21, f"kvstarts {_list(kvstarts)}", "mono")
    picture.y = levels[2] + size + 14
    return picture


def paged_prefix() -> Picture:
    """Two page tables over one cache, with a common beginning."""
    owners: list[dict[str, int]] = [{} for _ in range(PAGE_SIZE * PAGES)]
    for b, (name, kvlen) in enumerate(zip("ab", KVLENS)):
        for t in range(kvlen):
            owners[paged_slot(CACHESTARTS, PAGE_SIZE, b, t)][name] = t
    stored = {
        paged_slot(CACHESTARTS, PAGE_SIZE, b, t)
        for b, (kvlen, seqlen) in enumerate(zip(KVLENS, SEQLENS))
        for t in range(kvlen - seqlen, kvlen)
    }
    token = KVLENS[1] - SEQLENS[1]
    page, rest = divmod(token, PAGE_SIZE)
    slot = paged_slot(CACHESTARTS, PAGE_SIZE, 1, token)
    shared = [start for start in CACHESTARTS[0] if start in CACHESTARTS[1]]
    picture = Picture(
        "Paged mode: two sequences with a shared prefix",
        f"A cache of {PAGES} pages of {PAGE_SIZE} slots. cachestarts is {CACHESTARTS[0]} for sequence a with "
        f"{KVLENS[0]} tokens and {CACHESTARTS[1]} for sequence b with {KVLENS[1]}. The pages at slots {_list(shared)} "
        f"are in both rows: both sequences read them and neither stores there. This call stores {SEQLENS[0]} token of "
        f"a and {SEQLENS[1]} of b, in slots {_list(sorted(stored))}. Token {token} of b is in entry {page} of its row, "
        f"{rest} slots from its start: slot {slot}. The entry -1 is never read.",
    )
    names = {"a": "token of a", "b": "token of b", "ab": "token of both", "": "free", "stored": "stored by this call"}
    legend(picture, names)
    size = (WIDTH - 2 * MARGIN) / len(owners)
    picture.y -= 8
    top = picture.y + 74
    for b, (name, starts) in enumerate(zip("ab", CACHESTARTS)):
        y, base = (picture.y, top - 4) if b == 0 else (top + size + 68, top + size + 20)
        picture.text(MARGIN, y + 15, f"cachestarts[{b}]  ({name})", "mono")
        for index, start in enumerate(starts):
            x = MARGIN + 160 + 44 * index
            picture.box(x, y, 40, 22, COLORS[name] if start >= 0 else FREE)
            picture.text(x + 20, y + 15, str(start), "mono mid" + " faint" * (start < 0))
            if start >= 0:
                target = MARGIN + (start + PAGE_SIZE / 2) * size
                picture.line([(x + 20, y + 22 if b == 0 else y), (target, base)], COLORS[name][1], arrow=True)
    for index, tokens in enumerate(owners):
        left = MARGIN + index * size
        picture.box(left, top, size, size, COLORS["".join(tokens)] if tokens else FREE, dashed=index in stored)
        picture.text(left + size / 2, top + size / 2 + 4, str(max(tokens.values(), default="")), "mid small")
        if index % PAGE_SIZE == 0:
            picture.line([(left, top - 3), (left, top + size + 3)], INK)
            words = f"slots {index} to {index + PAGE_SIZE - 1}"
            picture.text(left + PAGE_SIZE * size / 2, top + size + 14, words, "mid small faint")
    picture.y = top + size + 116
    picture.heading(
        f"Token {token} of b: cachestarts[1, {token} / {PAGE_SIZE}] + {token} % {PAGE_SIZE} = "
        f"{CACHESTARTS[1][page]} + {rest} = slot {slot}.",
        "small",
    )
    picture.y -= 6
    return picture


def quantization() -> Picture:
    """A group of eight elements becomes four bytes and a scale, and comes back."""
    group = quantize(GROUP, 4)
    packed = nibbles(group.codes)
    picture = Picture(
        "Quantization of one group by numbers",
        f"The elements {_list(map(_short, GROUP))} with quant_bit 4: amax is {_short(group.amax)}, the scale "
        f"{_short(group.amax)} / 7 = {_short(group.scale)}. Divided by it they are "
        f"{_list(map(_short, group.quotients))}; rounded, ties to even, the codes are {_list(group.codes)}. In memory "
        f"these are the bytes {_list(f'{byte:02x}' for byte in packed)}. Loaded again, code times scale: "
        f"{_list(map(_short, group.loaded))}.",
    )
    picture.heading(
        f"amax = {_short(group.amax)}; scale = max(amax / 7, 1e-5) = {_short(group.scale)}; codes from -7 to 7", "bold"
    )
    left, right = MARGIN + 40, WIDTH - MARGIN - 40
    axis = picture.y + 62

    def at(value: float) -> float:
        return (left + right) / 2 + value / (7.5 * group.scale) * (right - left) / 2

    picture.line([(left, axis), (right, axis)], INK)
    for code in range(-7, 8):
        picture.line([(at(code * group.scale), axis), (at(code * group.scale), axis + 6)], INK)
        picture.text(at(code * group.scale), axis + 20, str(code), "mid small")
    picture.text(right + 8, axis + 20, "code", "small faint")
    for x, code in zip(GROUP, group.codes):
        # A short way up where the element is, then down to its code.
        picture.line([(at(x), axis - 30), (at(code * group.scale), axis - 2)], COLORS["a"][1], arrow=True)
        picture.text(at(x), axis - 36, _short(x), "mid small")
    picture.y = axis + 52
    lines = [
        ("x", GROUP, COLORS["a"]),
        ("x / scale", group.quotients, FREE),
        ("code q", group.codes, COLORS["b"]),
        ("loaded: q * scale", group.loaded, COLORS["ab"]),
        ("loaded - x", [loaded - x for loaded, x in zip(group.loaded, GROUP)], FREE),
    ]
    width, start = 68.0, MARGIN + 150
    for label, values, colors in lines:
        picture.text(MARGIN, picture.y + 16, label, "small faint")
        for index, value in enumerate(values):
            picture.box(start + index * width, picture.y, width, 24, colors)
            picture.text(start + (index + 0.5) * width, picture.y + 16, _short(value), "mid small")
        picture.y += 28
        if label == "code q":
            picture.text(MARGIN, picture.y + 16, "bytes in cache", "small faint")
            for index, byte in enumerate(packed):
                picture.box(start + 2 * index * width, picture.y, 2 * width, 24, COLORS["b"])
                high, low = f"{byte:02x}"
                words = f"0x{high}{low}: high nibble {high}, low {low}"
                picture.text(start + (2 * index + 1) * width, picture.y + 16, words, "mid tiny")
            picture.y += 28
    picture.y += 18
    ties = [(q, code) for q, code in zip(group.quotients, group.codes) if abs(q - code) == 0.5]
    words = ", ".join(f"{_short(q)} to {code}" for q, code in ties)
    picture.heading(f"Halves go to the even neighbor: {words}.", "small")
    picture.y -= 6
    return picture


def _short(value: float) -> str:
    """A number of at most three decimal places."""
    return f"{round(value, 3) + 0.0:.3f}".rstrip("0").rstrip(".")


def _list(numbers: Iterable[object]) -> str:
    return ", ".join(map(str, numbers))


PICTURES: dict[str, Callable[[], Picture]] = {
    "layouts": layouts,
    "call": call,
    "paged-prefix": paged_prefix,
    "quantization": quantization,
}
