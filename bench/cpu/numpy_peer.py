"""The same work in numpy, written into given outputs."""

from __future__ import annotations

import numpy as np

from cases import HEAD_DIM, INT4, NUM_HEADS
from measure import Contender
from rows import rows_of
from runtime import Run, timed
from tensors import Tensors

NUMPY = "numpy"


class NumpyCall:
    """One layer of a case."""

    def __init__(self, tensors: Tensors, layer_idx: int) -> None:
        self.tensors = tensors
        self.rows = rows_of(tensors, layer_idx)

    def __call__(self) -> None:
        """The call: stores, then loads."""
        names = ("key", "value")
        for kv, name in enumerate(names):
            self.store(kv, self.tensors.inputs[f"current_{name}"])
        for kv, name in enumerate(names):
            self.load(kv, self.tensors.outputs[name])

    def store(self, kv: int, current: np.ndarray) -> None:
        """Writes the current rows."""
        form, write = self.tensors.case.format, self.rows.write[kv]
        if form.t3 is None:
            self.rows.cache[write] = current
            return
        t1 = current.dtype.type
        x = current.reshape(len(current), NUM_HEADS, -1, form.quant_group)
        s = np.maximum(np.abs(x).max(-1, keepdims=True) / t1(form.qmax), t1(1e-5))
        codes = np.rint(x / s).clip(-form.qmax, form.qmax).astype(np.int8).reshape(current.shape)
        self.rows.cache[write] = packed(codes) if form.t2 == INT4 else codes
        self.rows.scale[write] = s[..., 0]

    def load(self, kv: int, output: np.ndarray) -> None:
        """Gathers all rows, dequantizes and repeats them."""
        form, read, num_repeat = self.tensors.case.format, self.rows.read[kv], self.tensors.case.num_repeat
        whole = form.t1 == form.t2 and num_repeat == 1
        # Any mode but the default writes to `out` directly; the rows are all in range.
        x = np.take(self.rows.cache, read, axis=0, out=output if whole else None, mode="clip")
        if form.t3 is not None:
            scale = np.take(self.rows.scale, read, axis=0, mode="clip")
            x = unpacked(x) if form.t2 == INT4 else x
            x = x.reshape(*scale.shape, form.quant_group).astype(scale.dtype) * scale[..., None]
        if not whole:
            repeated = output.reshape(len(output), NUM_HEADS, num_repeat, HEAD_DIM)
            repeated[...] = x.reshape(len(output), NUM_HEADS, 1, HEAD_DIM)


def packed(codes: np.ndarray) -> np.ndarray:
    """Bytes of two int4 codes, the first in the low nibble."""
    codes = codes.view(np.uint8)
    return codes[..., 0::2] & 0xF | codes[..., 1::2] << 4


def unpacked(x: np.ndarray) -> np.ndarray:
    """The codes of packed int4."""
    codes = np.empty((*x.shape[:-1], 2 * x.shape[-1]), np.int8)
    np.right_shift((x << 4).view(np.int8), 4, out=codes[..., 0::2])
    np.right_shift(x.view(np.int8), 4, out=codes[..., 1::2])
    return codes


def numpy_peer(tensors: Tensors) -> tuple[Contender, Run]:
    """numpy, which uses one thread; and a run of the first layer."""
    runs = [NumpyCall(tensors, layer_idx) for layer_idx in tensors.layers]
    return Contender(NUMPY, 1, timed(runs), cold=tensors.case.cold), runs[0]
