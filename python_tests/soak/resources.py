"""What the process has: resident memory, memory in use, threads, files."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from array import array
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields

PAGE = os.sysconf("SC_PAGE_SIZE")


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
    """The process after so many steps."""

    steps: int
    resident: int  # bytes of memory that are resident
    heap: int  # bytes that malloc has given and not got back, those of all libraries
    objects: int  # blocks that Python's own allocator has given
    threads: int
    files: int


def sample(steps: int) -> Sample:
    """The process as it is now."""
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * PAGE
    info = _LIBC.mallinfo2()
    return Sample(
        steps,
        resident,
        info.uordblks + info.hblkhd,
        sys.getallocatedblocks(),
        len(os.listdir("/proc/self/task")),
        len(os.listdir("/proc/self/fd")),
    )


def quiet_sample(steps: int) -> Sample:
    """The process while nothing runs: without garbage, and with free memory given back to the system."""
    gc.collect()
    _LIBC.malloc_trim(0)
    return sample(steps)


def slope(samples: list[Sample]) -> float:
    """Bytes of resident memory for each step, by least squares."""
    mean_x = sum(one.steps for one in samples) / len(samples)
    mean_y = sum(one.resident for one in samples) / len(samples)
    spread = sum((one.steps - mean_x) ** 2 for one in samples)
    return sum((one.steps - mean_x) * (one.resident - mean_y) for one in samples) / spread if spread else 0.0


class Sampler(threading.Thread):
    """Takes a sample every now and then, until it is stopped."""

    def __init__(self, taken: Callable[[], int], seconds: float = 0.5):
        """`taken` tells how many steps there have been."""
        super().__init__(daemon=True)
        self._numbers = array("q")  # of all samples: a list of them would be more and more objects itself
        self._taken, self._seconds, self._ended = taken, seconds, threading.Event()

    def run(self) -> None:
        """A sample, a pause."""
        while not self._ended.wait(self._seconds):
            self._numbers.extend(astuple(sample(self._taken())))

    def stop(self) -> None:
        """No more."""
        self._ended.set()
        self.join()

    def samples(self) -> list[Sample]:
        """All of them."""
        width = len(fields(Sample))
        return [Sample(*self._numbers[at : at + width]) for at in range(0, len(self._numbers), width)]
