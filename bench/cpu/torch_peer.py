"""The same work in torch: as well as it allows, and by the algorithm of the published PMX reference."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cases import HEAD_DIM, INT4, NUM_HEADS, PAGE_SIZE
from measure import Contender
from native import Measured
from rows import rows_of
from runtime import Run, timed
from tensors import Tensors

# OpenMP's threads spin so long after a call, at most.
REST_SECONDS = 0.01

INDEX_SELECT, PMX = "torch index_copy_, index_select", "PMX reference in torch"


def quantize(x: torch.Tensor, group: int, qmax: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales, by the specification's arithmetic in T1."""
    groups = x.reshape(*x.shape[:-1], -1, group)
    s = groups.abs().amax(-1, keepdim=True) / torch.tensor(float(qmax), dtype=x.dtype)
    s = torch.maximum(s, torch.tensor(1e-5, dtype=x.dtype))
    return torch.round(groups / s).clamp(-qmax, qmax).to(torch.int8).reshape_as(x), s.squeeze(-1)


def dequantize(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Values in T3."""
    groups = codes.reshape(*scale.shape, -1).to(scale.dtype)
    return (groups * scale.unsqueeze(-1)).reshape(codes.shape)


def packed(codes: torch.Tensor) -> torch.Tensor:
    """Bytes of two int4 codes, the first in the low nibble."""
    codes = codes.view(torch.uint8)
    return codes[..., 0::2] & 0xF | codes[..., 1::2] << 4


def unpacked(x: torch.Tensor) -> torch.Tensor:
    """The codes of packed int4."""
    return torch.stack([(x << 4).view(torch.int8) >> 4, x.view(torch.int8) >> 4], -1).flatten(-2)


class IndexSelect:
    """One layer by index_copy_ and index_select on rows, with given outputs."""

    def __init__(self, tensors: Tensors, layer_idx: int) -> None:
        rows = rows_of(tensors, layer_idx)
        self.form, self.num_repeat = tensors.case.format, tensors.case.num_repeat
        self.cache = torch.from_numpy(rows.cache)
        self.scale = None if rows.scale is None else torch.from_numpy(rows.scale)
        self.write = [torch.from_numpy(numbers.reshape(-1)) for numbers in rows.write]
        self.read = [torch.from_numpy(numbers.reshape(-1)) for numbers in rows.read]
        self.current = [torch.from_numpy(tensors.inputs[f"current_{name}"]) for name in ("key", "value")]
        self.outputs = [torch.from_numpy(output) for output in tensors.outputs.values()]

    def __call__(self) -> None:
        """The call: stores, then loads."""
        for current, write in zip(self.current, self.write):
            scale = None
            if self.scale is not None:
                current, scale = quantize(current, self.form.quant_group, self.form.qmax)
                current = packed(current) if self.form.t2 == INT4 else current
                self.scale.index_copy_(0, write, scale.to(self.scale.dtype).reshape(-1, *self.scale.shape[1:]))
            self.cache.index_copy_(0, write, current.to(self.cache.dtype).reshape(-1, *self.cache.shape[1:]))
        for output, read in zip(self.outputs, self.read):
            if self.num_repeat == 1 and output.dtype == self.cache.dtype:
                torch.index_select(self.cache, 0, read, out=output.view(-1, *self.cache.shape[1:]))
                continue
            x = torch.index_select(self.cache, 0, read)
            if self.scale is not None:
                x = unpacked(x) if self.form.t2 == INT4 else x
                x = dequantize(x, torch.index_select(self.scale, 0, read))
            output.view(-1, NUM_HEADS, self.num_repeat, HEAD_DIM).copy_(x.reshape(-1, NUM_HEADS, 1, HEAD_DIM))


class Pmx:
    """One layer as the PMX reference computes it: sequence by sequence, page tables walked token by token."""

    def __init__(self, tensors: Tensors, layer_idx: int) -> None:
        self.case = tensors.case
        held = {name: torch.from_numpy(array) for name, array in tensors.inputs.items()}
        self.index = [held[name] for name in ("seqstarts", "kvstarts", "cachestarts", "start_pos")]
        self.current = [held["current_key"], held["current_value"]]
        self.cache = by_token(held["cache"], self.case.cache_layout, layer_idx)
        self.scale = by_token(held["scale"], self.case.cache_layout, layer_idx) if "scale" in held else None
        self.outputs = [torch.from_numpy(output) for output in tensors.outputs.values()]

    def slots(self, b: int, first: int, last: int) -> torch.Tensor | slice:
        """The slots of tokens of a sequence."""
        cachestarts = self.index[2]
        if not self.case.paged:
            return slice(cachestarts[b] + first, cachestarts[b] + last)
        slots = torch.zeros(last - first, dtype=torch.int64)
        for i, t in enumerate(range(first, last)):
            slots[i] = cachestarts[b, t // PAGE_SIZE] + t % PAGE_SIZE
        return slots

    def __call__(self) -> list[torch.Tensor]:
        """The call; like the reference it gives new tensors."""
        seqstarts, kvstarts, _, start_pos = self.index
        group, num_repeat = self.case.format.quant_group, self.case.num_repeat
        outputs = [torch.zeros(int(kvstarts[-1]), NUM_HEADS, HEAD_DIM, dtype=x.dtype) for x in self.current]
        for b in range(len(start_pos)):
            current, all_tokens = slice(seqstarts[b], seqstarts[b + 1]), slice(kvstarts[b], kvstarts[b + 1])
            kvlen = int(kvstarts[b + 1] - kvstarts[b])
            write, read = self.slots(b, int(start_pos[b]), kvlen), self.slots(b, 0, kvlen)
            for kv, output in enumerate(outputs):
                x = self.current[kv][current]
                if self.scale is None:
                    self.cache[kv][write] = x.to(self.cache[kv].dtype)
                    output[all_tokens] = self.cache[kv][read].to(output.dtype)
                    continue
                codes, scale = quantize(x, group, self.case.format.qmax)
                self.cache[kv][write], self.scale[kv][write] = codes, scale.to(self.scale[kv].dtype)
                output[all_tokens] = dequantize(self.cache[kv][read], self.scale[kv][read]).to(output.dtype)
        if num_repeat == 1:
            return outputs
        return [x[:, :, None].expand(-1, -1, num_repeat, -1).reshape(len(x), -1, HEAD_DIM) for x in outputs]

    def answer(self) -> None:
        """The call, with its answer where the verdict looks for it."""
        for output, x in zip(self.outputs, self()):
            output.copy_(x)


def by_token(tensor: torch.Tensor, cache_layout: int, layer_idx: int) -> list[torch.Tensor]:
    """Keys and values of a layer as views (MaxT, H, ..)."""
    if cache_layout == 0:
        return [tensor[:, layer_idx, kv] for kv in range(2)]
    if cache_layout == 1:
        return [tensor[layer_idx, :, kv] for kv in range(2)]
    views = [tensor[layer_idx, kv] for kv in range(2)]
    return views if cache_layout == 2 else [view.transpose(0, 1) for view in views]


def on_threads(sample: Callable[[int, int], Measured], threads: int) -> Callable[[int, int], Measured]:
    """The samples, with so many threads in torch."""

    def with_threads(turn: int, iterations: int) -> Measured:
        torch.set_num_threads(threads)
        return sample(turn, iterations)

    return with_threads


def torch_peers(tensors: Tensors, threads: int) -> list[tuple[Contender, Run]]:
    """Both ways, each with a run of the first layer; the PMX reference has no int4."""
    select = [IndexSelect(tensors, layer_idx) for layer_idx in tensors.layers]
    ways = [(INDEX_SELECT, select, select[0])]
    if tensors.case.format.t2 != INT4:
        pmx = [Pmx(tensors, layer_idx) for layer_idx in tensors.layers]
        ways.append((PMX, pmx, pmx[0].answer))
    rest, cold = REST_SECONDS if threads > 1 else 0, tensors.case.cold
    return [
        (Contender(name, threads, on_threads(timed(runs), threads), cold, rest), answer) for name, runs, answer in ways
    ]
