"""What the process has: resident memory, memory in use, threads, files; and how much of it may be more at the end."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

PAGE, MIB = os.sysconf("SC_PAGE_SIZE"), 2**20


class _MallInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


_LIBC = ctypes.CDLL(None)
_LIBC.mallinfo2.restype = _MallInfo
_LIBC.malloc_trim.argtypes = [ctypes.c_size_t]


@dataclass(frozen=True)
class Sample:
    """The process at a moment."""

    resident: int  # bytes of memory that are resident
    heap: int  # bytes that malloc has given and not got back, those of all libraries
    objects: int  # blocks that Python's own allocator has given
    threads: int
    files: int


def quiet_sample() -> Sample:
    """The process while nothing runs: without garbage, and with free memory given back to the system."""
    gc.collect()
    _LIBC.malloc_trim(0)
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * PAGE
    info = _LIBC.mallinfo2()
    threads, files = (len(os.listdir(f"/proc/self/{name}")) for name in ("task", "fd"))
    return Sample(resident, info.uordblks + info.hblkhd, sys.getallocatedblocks(), threads, files)


def growth(start: Sample, end: Sample) -> Iterator[tuple[str, int, int, int]]:
    """What there was at both ends of the measured steps, and how much more there may be, however many they are."""
    yield "resident memory", start.resident, end.resident, 16 * MIB  # arenas of as many threads hold pieces of pages
    # Runs of 20,000 steps grow by 1 to 2 MB, one of 150,000 by 1.4, one of a million by 0.3: more steps take no more.
    yield "memory in use", start.heap, end.heap, 4 * MIB
    yield "Python's blocks", start.objects, end.objects, 4000  # of sequences, each of which has a few
    yield "threads", start.threads, end.threads, 0
    yield "files", start.files, end.files, 0
