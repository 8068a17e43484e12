"""What the cache manager decides, in its smallest form: the numbers of the pictures in `manager.md` come from here.

Three ways to give slots to sequences (`Pages`, `Runs`, `Cells`), each with `owners()`: for each slot, the row that each
sequence has there. No step can be refused or rolled back here; the crate `kvcache-manager` is the real one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Owners = list[dict[str, int]]
Copy = tuple[int, int, int]  # source slot, destination slot, rows


def one_token_first(appends: dict[str, int]) -> list[tuple[str, int]]:
    """The order of a step's entries: those of one token come first."""
    return sorted(appends.items(), key=lambda append: append[1] != 1)


class Pages:
    """Pages with reference counts, copy-on-write and prefix sharing."""

    def __init__(self, num_pages: int, page_size: int):
        self.page_size = page_size
        self.refcount = [0] * num_pages
        self.tables: dict[str, list[int]] = {}
        self.tokens: dict[str, list[int]] = {}
        self._free = list(reversed(range(num_pages)))
        self._sealed: dict[tuple[int, ...], int] = {}  # tokens up to a full page's end -> that page

    def step(self, appends: dict[str, list[int]]) -> tuple[dict[str, int], list[Copy]]:
        """Appends tokens; gives the rows that were found in the prefix index, and the copies before the writes."""
        cached = {}
        for seq, tokens in appends.items():
            self.tokens.setdefault(seq, [])
            table = self.tables.setdefault(seq, [])
            while not self.tokens[seq] and len(table) < (len(tokens) - 1) // self.page_size:
                page = self._sealed.get(tuple(tokens[: (len(table) + 1) * self.page_size]))
                if page is None:
                    break
                self.refcount[page] += 1
                table.append(page)
            cached[seq] = len(table) * self.page_size if not self.tokens[seq] else 0
        start_pos = {seq: len(self.tokens[seq]) + cached[seq] for seq in appends}
        copies = [copy for seq in self._last_writer_last(appends) for copy in self._unshare(seq, start_pos[seq])]
        for seq, tokens in appends.items():
            self.tokens[seq] += tokens
            while len(self.tables[seq]) * self.page_size < len(self.tokens[seq]):
                self.tables[seq].append(self._take())
            for index in range(len(self.tokens[seq]) // self.page_size):
                prefix = tuple(self.tokens[seq][: (index + 1) * self.page_size])
                self._sealed.setdefault(prefix, self.tables[seq][index])
        return cached, copies

    def fork(self, seq: str, new: str) -> None:
        """A sequence with the rows of another: all its pages are shared."""
        self.tables[new], self.tokens[new] = list(self.tables[seq]), list(self.tokens[seq])
        for page in self.tables[seq]:
            self.refcount[page] += 1

    def cachestarts(self) -> dict[str, list[int]]:
        """The first slot of each page."""
        return {seq: [page * self.page_size for page in table] for seq, table in self.tables.items()}

    def owners(self) -> Owners:
        """For each slot, the row that each sequence has there."""
        owners: Owners = [{} for _ in range(len(self.refcount) * self.page_size)]
        for seq, tokens in self.tokens.items():
            for row in range(len(tokens)):
                owners[self.tables[seq][row // self.page_size] * self.page_size + row % self.page_size][seq] = row
        return owners

    def _last_writer_last(self, appends: dict[str, list[int]]) -> list[str]:
        """Of a page's writers, the one with the most rows in it, the last of equals, writes in place: it comes last."""
        return sorted(appends, key=lambda seq: len(self.tokens[seq]) % self.page_size)

    def _unshare(self, seq: str, start_pos: int) -> list[Copy]:
        """Takes a page in the place of a shared one that is to be written; copies the rows below `start_pos`."""
        rows = start_pos % self.page_size
        page = self.tables[seq][-1] if rows else None
        if page is None or self.refcount[page] == 1:
            return []
        self.refcount[page] -= 1
        self.tables[seq][-1] = self._take()
        return [(page * self.page_size, self.tables[seq][-1] * self.page_size, rows)]

    def _take(self) -> int:
        page = self._free.pop()
        self.refcount[page] = 1
        return page


@dataclass
class Search:
    """A search for neighboring free cells."""

    slot: int | None
    head: int
    tried: list[int] = field(default_factory=list)  # where each attempt began


def find_slot(busy: list[bool], head: int, used: int, n: int) -> Search:
    """Finds `n` neighboring free cells, from `head` on and then from the beginning."""
    size, start = len(busy), head
    if n > size:
        return Search(None, start)
    if head > used + 2 * n:
        head = 0
    tested, tried = 0, []
    while True:
        if head + n > size:
            tested += size - head
            head = 0
        else:
            tried.append(head)
            first_busy = next((i for i in range(n) if busy[head + i]), None)
            if first_busy is None:
                return Search(head, head, tried)
            head += first_busy + 1
            tested += first_busy + 1
        if tested >= size:
            return Search(None, start, tried)


def n_kv(last: int, size: int, pad: int) -> int:
    """The cells that attention sees; `last` is the last used cell + 1."""
    return min(size, max(pad, -(-last // pad) * pad))


class Cells:
    """Cells that any sequence takes anywhere; `head` is where the next search begins."""

    def __init__(self, size: int):
        self.head = 0
        self.rows: Owners = [{} for _ in range(size)]

    def step(self, appends: dict[str, int]) -> Search:
        """Appends rows in neighboring cells, entries of one token first."""
        n = sum(appends.values())
        search = self.find_slot(n)
        assert search.slot is not None, "the pictures' steps have room"
        cell = search.slot
        for seq, count in one_token_first(appends):
            first = 1 + max((rows[seq] for rows in self.rows if seq in rows), default=-1)
            for row in range(first, first + count):
                self.rows[cell][seq] = row
                cell += 1
        self.head = 0 if cell == len(self.rows) else cell
        return search

    def find_slot(self, n: int) -> Search:
        """Where a step of `n` tokens would go."""
        return find_slot([bool(rows) for rows in self.rows], self.head, self.used, n)

    def seq_rm(self, seq: str, first: int, end: int) -> None:
        """Removes rows `first..end` of a sequence; the others close up. `head` falls to the first freed cell."""
        for cell, rows in enumerate(self.rows):
            row = rows.get(seq, -1)
            if first <= row < end:
                del rows[seq]
                if not rows:
                    self.head = min(self.head, cell)
            elif row >= end:
                rows[seq] -= end - first

    @property
    def used(self) -> int:
        """Cells that have an owner."""
        return sum(map(bool, self.rows))

    @property
    def last(self) -> int:
        """The last used cell + 1."""
        return max((cell + 1 for cell, rows in enumerate(self.rows) if rows), default=0)

    def owners(self) -> Owners:
        """For each slot, the row that each sequence has there."""
        return self.rows


class Runs:
    """A run of neighboring cells for each sequence, with a reserve."""

    def __init__(self, size: int):
        self.size = size
        self.starts: dict[str, int] = {}
        self.reserves: dict[str, int] = {}
        self.lens: dict[str, int] = {}

    def step(self, appends: dict[str, int], reserve: dict[str, int]) -> None:
        """Appends rows; a new sequence takes its reserve. The pictures' runs never grow."""
        for seq, count in appends.items():
            if seq not in self.starts:
                busy = [any(self._has(other, slot) for other in self.starts) for slot in range(self.size)]
                self.reserves[seq] = max(count, reserve[seq])
                head = max((self.starts[other] + self.reserves[other] for other in self.starts), default=0)
                slot = find_slot(busy, head, sum(busy), self.reserves[seq]).slot
                assert slot is not None, "the pictures' sequences have room"
                self.starts[seq], self.lens[seq] = slot, 0
            self.lens[seq] += count
            assert self.lens[seq] <= self.reserves[seq], "the pictures' runs never grow"

    def owners(self) -> Owners:
        """For each slot, the row that each sequence has there."""
        owners: Owners = [{} for _ in range(self.size)]
        for seq, start in self.starts.items():
            for row in range(self.lens[seq]):
                owners[start + row][seq] = row
        return owners

    def reserved(self) -> set[int]:
        """The slots that a sequence keeps for rows to come."""
        return {start + row for seq, start in self.starts.items() for row in range(self.lens[seq], self.reserves[seq])}

    def _has(self, seq: str, slot: int) -> bool:
        return self.starts[seq] <= slot < self.starts[seq] + self.reserves[seq]


@dataclass
class Row:
    """A row of a sequence: its position, and the position that its stored key is rotated for."""

    position: int
    rotated: int

    @property
    def pending(self) -> int:
        """What an update has to turn the key by."""
        return self.position - self.rotated


def discarded(n_past: int, n_new: int, n_ctx: int, n_keep: int) -> int:
    """The positions that a context shift removes; 0 where there is room."""
    return 0 if n_past + n_new < n_ctx else (n_past - n_keep) // 2


def check() -> None:
    """The golden numbers of the specification that the model covers."""
    for busy, head, n, slot in [({0, 1, 4}, 6, 3, 5), ({0, 1, 4}, 0, 3, 5), ({0, 2, 4, 6}, 0, 2, None)]:
        found = find_slot([cell in busy for cell in range(8)], head, len(busy), n)
        assert (found.slot, found.head) == (slot, head if slot is None else slot), f"G1: {found}"
    for head, expected in [(10, 10), (11, 0)]:
        found = find_slot([cell < 4 for cell in range(16)], head, 4, 3)
        assert found.tried[0] == expected, f"G2: {found}"
    sizes = [(6, 1024, 32), (33, 1024, 32), (6, 1024, 256), (300, 1024, 256), (12, 20, 32), (0, 1024, 32)]
    assert [n_kv(*size) for size in sizes] == [32, 64, 256, 512, 20, 32], "G3"
    assert discarded(2048, 1, 2048, 4) == 1022 and discarded(16, 1, 16, 2) == 7 and discarded(5, 1, 5, 4) == 0, "G13"
    pages = Pages(250, 4)
    pages.step({"a": [7] * 6})
    pages.fork("a", "b")
    _, copies = pages.step({"a": [1], "b": [2]})
    assert (sum(map(bool, pages.refcount)), copies) == (3, [(4, 8, 2)]), f"G15: {copies}"
    pages = Pages(250, 16)
    pages.step({"0": list(range(1000))})
    for seq in "1234567":
        pages.fork("0", seq)
    copied = 0
    for token in range(100):
        _, copies = pages.step({seq: [10000 * int(seq) + token] for seq in "01234567"})
        copied += sum(rows for *_, rows in copies)
    assert (sum(map(bool, pages.refcount)), copied) == (118, 56), f"G16: {copied}"
