"""Attention by llama.cpp and by torch, over the same keys and values in the arrangement that suits them.

llama.cpp's ggml_flash_attn_ext is called by the C interface of the libraries that node-llama-cpp ships.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import cache, partial
from pathlib import Path

import numpy as np

from cases import INT4, INT8, NUMPY_TYPES
from harness import Contender
from tensors import Tensors

LIBRARIES = Path(os.environ.get("LLAMA_CPP") or "nowhere")
F32, F16, Q4_0, Q8_0 = 0, 1, 2, 8  # enum ggml_type
NAMES = {F16: "f16", Q8_0: "q8_0", Q4_0: "q4_0"}
CPU_DEVICE = 0  # enum ggml_backend_dev_type
BLOCK = 32  # elements of q8_0 and q4_0 that share a scale of float16
# Beside its codes' rounding, which the answer has, it rounds queries to 8 bits and sums to float16.
TOLERANCE = 0.02


class InitParams(Structure):
    """struct ggml_init_params."""

    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


# What functions take; they give pointers, but for two of them.
SIGNATURES = {
    "ggml_init": [InitParams],
    "ggml_new_tensor_4d": [c_void_p, c_int, c_int64, c_int64, c_int64, c_int64],
    "ggml_flash_attn_ext": [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_float, c_float, c_float],
    "ggml_new_graph": [c_void_p],
    "ggml_build_forward_expand": [c_void_p, c_void_p],
    "ggml_backend_alloc_ctx_tensors": [c_void_p, c_void_p],
    "ggml_backend_tensor_set": [c_void_p, c_void_p, c_size_t, c_size_t],
    "ggml_backend_tensor_get": [c_void_p, c_void_p, c_size_t, c_size_t],
    "ggml_quantize_chunk": [c_int, POINTER(c_float), c_void_p, c_int64, c_int64, c_int64, c_void_p],
    "ggml_backend_graph_compute": [c_void_p, c_void_p],
    "ggml_backend_dev_backend_reg": [c_void_p],
    "ggml_backend_reg_get_proc_address": [c_void_p, c_char_p],
    "ggml_backend_dev_init": [c_void_p, c_char_p],
}


@cache
def library() -> tuple[ctypes.CDLL, c_void_p, c_void_p]:
    """The library, the fastest of its CPU devices for this machine, and that device's backend."""
    base = ctypes.CDLL(str(LIBRARIES / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
    [path] = LIBRARIES.glob("libggml.*.so")
    devices = ctypes.CDLL(str(path))
    for name, argtypes in SIGNATURES.items():
        getattr(base, name).argtypes, getattr(base, name).restype = argtypes, c_void_p
    base.ggml_backend_graph_compute.restype, base.ggml_quantize_chunk.restype = c_int, c_size_t
    devices.ggml_backend_load_all_from_path.argtypes = [c_char_p]
    devices.ggml_backend_load_all_from_path(str(LIBRARIES.resolve()).encode())
    devices.ggml_backend_dev_by_type.restype = c_void_p
    device = c_void_p(devices.ggml_backend_dev_by_type(CPU_DEVICE))
    return base, device, c_void_p(base.ggml_backend_dev_init(device, None))


def flash_attention(tensors: Tensors, threads: int) -> Contender:
    """llama.cpp decoding over contiguous caches (B, Hk, kvlen, Dh) of the format that has as many bytes as the case's;
    its answer is checked."""
    base, device, backend = library()
    case, heads = tensors.case, tensors.case.heads
    kind = {INT8: Q8_0, INT4: Q4_0}.get(case.format.t2, F16)
    batch, (kvlen,) = len(case.lengths.kvlens), set(case.lengths.kvlens)
    registry = base.ggml_backend_dev_backend_reg(device)
    set_threads = base.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_set_n_threads")
    ctypes.CFUNCTYPE(None, c_void_p, c_int)(set_threads)(backend, threads)
    context = c_void_p(base.ggml_init(InitParams(64 << 20, None, True)))

    def tensor(element: int, *lengths: int) -> c_void_p:
        return c_void_p(base.ggml_new_tensor_4d(context, element, *lengths))

    query = tensor(F32, heads.dim, 1, heads.query, batch)
    held = [[tensor(kind, heads.dim, kvlen, heads.key, batch) for _ in range(2)] for _ in tensors.layers]
    outputs, graphs = [], []
    for layer in held:
        out = base.ggml_flash_attn_ext(context, query, *layer, None, heads.dim**-0.5, 0.0, 0.0)
        outputs.append(c_void_p(out))
        graphs.append(c_void_p(base.ggml_new_graph(context)))
        base.ggml_build_forward_expand(graphs[-1], outputs[-1])
    if not base.ggml_backend_alloc_ctx_tensors(context, backend):
        raise MemoryError("ggml has no memory for the caches")

    def write(to: c_void_p, array: np.ndarray) -> None:
        base.ggml_backend_tensor_set(to, array.ctypes.data, 0, array.nbytes)

    write(query, tensors.inputs["query"].astype(np.float32))
    packed = []
    for kv in range(2):
        rows = [tensors.values(tensors.layers[0], kv, b).transpose(1, 0, 2) for b in range(batch)]
        packed.append(pack(base, kind, np.ascontiguousarray(rows, np.float32)))
        for layer in held:
            write(layer[kv], packed[kv])

    def run(graph: c_void_p) -> None:
        if base.ggml_backend_graph_compute(backend, graph):
            raise RuntimeError("ggml computes no attention")

    output = np.empty((batch, heads.query, heads.dim), np.float32)
    run(graphs[0])
    base.ggml_backend_tensor_get(outputs[0], output.ctypes.data, 0, output.nbytes)
    shape = (batch, heads.key, kvlen, heads.dim)
    stored = [unpack(kind, codes).reshape(shape).transpose(0, 2, 1, 3) for codes in packed]
    tensors.check_attention("llama.cpp", output, tensors.answers(lambda kv, b: stored[kv][b]), TOLERANCE)
    # Its threads may keep on spinning.
    runs = [partial(run, graph) for graph in graphs]
    return Contender(f"{NAMES[kind]}, ggml_flash_attn_ext", runs, threads, case.cold, rest_seconds=0.01)


def pack(base: ctypes.CDLL, kind: int, values: np.ndarray) -> np.ndarray:
    """Values, the last axis of whole blocks, as ggml stores them."""
    if kind == F16:
        return values.astype(np.float16)
    size = {Q8_0: 2 + BLOCK, Q4_0: 2 + BLOCK // 2}[kind]
    packed = np.empty((values.size // BLOCK, size), np.uint8)
    source = values.ctypes.data_as(POINTER(c_float))
    base.ggml_quantize_chunk(kind, source, packed.ctypes.data, 0, values.size // BLOCK, BLOCK, None)
    return packed


def unpack(kind: int, packed: np.ndarray) -> np.ndarray:
    """The numbers that were stored, as float64."""
    if kind == F16:
        return packed.astype(np.float64)
    scale, codes = packed[:, :2].copy().view(np.float16).astype(np.float64), packed[:, 2:]
    if kind == Q4_0:
        return scale * (np.concatenate([codes & 15, codes >> 4], -1).astype(np.float64) - 8)
    return scale * codes.view(np.int8)


def torch_attention(tensors: Tensors, threads: int) -> Contender:
    """torch's scaled_dot_product_attention on gathered keys and values, (B, Hk, kvlen, Dh), one length for all; its
    answer is checked."""
    import torch

    case, heads = tensors.case, tensors.case.heads
    (tokens,), (kvlen,), batch = set(case.lengths.seqlens), set(case.lengths.kvlens), len(case.lengths.kvlens)
    query = torch.from_numpy(tensors.inputs["query"]).view(batch, tokens, heads.query, heads.dim).transpose(1, 2)

    def gathered(layer_idx: int, kv: int) -> torch.Tensor:
        rows = np.stack([tensors.values(layer_idx, kv, b).transpose(1, 0, 2) for b in range(batch)])
        return torch.from_numpy(np.ascontiguousarray(rows, NUMPY_TYPES[case.format.t1]))

    def attend(key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        torch.set_num_threads(threads)
        attention = torch.nn.functional.scaled_dot_product_attention
        return attention(query, key, value, is_causal=tokens == kvlen, enable_gqa=True)

    runs = [partial(attend, *(gathered(layer_idx, kv) for kv in range(2))) for layer_idx in tensors.layers]
    output = runs[0]().transpose(1, 2).reshape(-1, heads.query, heads.dim).numpy()
    tensors.check_attention(f"torch on {threads} threads", output, tensors.expected)
    # OpenMP's threads keep on spinning for a while.
    return Contender(f"{case.format.name}, torch", runs, threads, case.cold, rest_seconds=0.01)
