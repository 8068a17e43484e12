"""The same work by what people use today: ONNX Runtime's GroupQueryAttention, torch.

Every peer attends over the sequences' keys and values of a case, which it gets in the arrangement that suits it, and
must give the right answer before it is measured.
"""

from __future__ import annotations

from math import prod

import numpy as np
from onnx import TensorProto

from attention_tensors import AttentionTensors
from figures import Contender
from kvcache import NUMPY_TYPES
from runtime import bound, node_model, session_of, timed
from tensors import Arena

MICROSOFT = "com.microsoft"


def group_query_attention(tensors: AttentionTensors, threads: int, arena: Arena, bits: int = 0) -> Contender:
    """ONNX Runtime's own operator over contiguous caches, (B, Hk, MaxT, Dh), which it extends in place.

    It has one length of new tokens for all sequences. With `bits`, eight or four, the caches are codes, with a
    scale for each channel of each head that never changes.
    """
    case, heads = tensors.case, tensors.case.heads
    t1, (tokens,) = case.format.t1, set(case.lengths.seqlens)
    batch, kvlen = len(case.lengths.kvlens), max(case.lengths.kvlens)
    shape = (batch, heads.key, kvlen, heads.dim * (bits or 8) // 8)
    t_cache = {0: t1, 8: TensorProto.INT8, 4: TensorProto.UINT8}[bits]
    inputs = {
        "query": tensors.inputs["query"].reshape(batch, tokens, -1),
        "key": tensors.inputs["current_key"].reshape(batch, tokens, -1),
        "value": tensors.inputs["current_value"].reshape(batch, tokens, -1),
    }
    lengths = {
        "seqlens_k": np.array(case.lengths.kvlens, np.int32) - 1,
        "total_sequence_length": np.array(kvlen, np.int32),
    }
    caches = ("past_key", "past_value")
    names = [*inputs, *caches, *lengths]
    types = dict.fromkeys(names, t1) | dict.fromkeys(caches, t_cache) | dict.fromkeys(lengths, TensorProto.INT32)
    outputs = {"output": t1} | dict.fromkeys(("present_key", "present_value"), t_cache)
    attributes: dict[str, int | str] = dict(num_heads=heads.query, kv_num_heads=heads.key)
    scales: dict[str, np.ndarray] = {}
    if bits:
        attributes |= dict(k_quant_type="PER_CHANNEL", v_quant_type="PER_CHANNEL", kv_cache_bit_width=bits)
        # Channels that reach as far as the case's values, most of which are below 4.
        scale = np.full((1, heads.key, 1, heads.dim), 4 / 2 ** (bits - 1), np.float32)
        scales = dict.fromkeys(("k_scale", "v_scale"), scale)
        types |= dict.fromkeys(("cos_cache", "sin_cache", "position_ids", "attention_bias", "head_sink"), 0)
        types |= dict.fromkeys(scales, TensorProto.FLOAT)
    session = session_of(node_model("GroupQueryAttention", types, outputs, MICROSOFT, **attributes), threads)
    output = arena.tensor(f"{case.name} peer's output", t1, (batch, tokens, heads.query * heads.dim))
    number = {0: NUMPY_TYPES[t1], 8: np.int8, 4: np.uint8}[bits]

    def region(name: str) -> np.ndarray:
        return arena.bytes(name, prod(shape) * np.dtype(number).itemsize).view(number).reshape(shape)

    runs, layers = [], []
    for layer_idx in tensors.layers:
        held = [region(f"{case.name} past {kv} of {layer_idx}, {bits}") for kv in range(2)]
        for kv, array in enumerate(held):
            for b, m in enumerate(case.lengths.kvlens):
                values = tensors.values(layer_idx, kv, b).transpose(1, 0, 2)
                array[b, :, :m] = static_codes(values / scale[0], bits) if bits else values
        past, present = (dict(zip((f"{when}_key", f"{when}_value"), held)) for when in ("past", "present"))
        runs.append(bound(session, inputs | past | lengths | scales, {"output": output} | present))
        layers.append(held)

    def own_values(kv: int, b: int) -> np.ndarray:
        """What its codes stand for, once it has stored the current tokens."""
        codes = layers[0][kv][b].transpose(1, 0, 2)
        if bits == 4:
            codes = (np.stack([codes & 15, codes >> 4], -1).reshape(kvlen, heads.key, heads.dim)).astype(np.int8) - 8
        return codes * scale[0, :, 0].astype(np.float64)

    kind = f"int{bits} with a scale for each channel" if bits else case.format.name
    name = f"{kind}, GroupQueryAttention"
    rows = output.reshape(-1, heads.query, heads.dim)
    tensors.check(f"{name} on {threads} threads", runs[0], rows, own_values if bits else None)
    return Contender(name, threads, timed(runs, busy_threads=threads), cold=case.cold)


def static_codes(quotients: np.ndarray, bits: int) -> np.ndarray:
    """Codes of these quotients of value and scale; of four bits two are a byte, each plus 8, the first one low."""
    largest = 2 ** (bits - 1) - 1
    codes = np.clip(np.rint(quotients), -largest - 1, largest).astype(np.int8)
    if bits == 8:
        return codes
    nibbles = (codes + 8).astype(np.uint8)
    return nibbles[..., ::2] | nibbles[..., 1::2] << 4


def torch_attention(tensors: AttentionTensors, threads: int) -> Contender:
    """torch's scaled_dot_product_attention on gathered keys and values, (B, Hk, kvlen, Dh), one length for all."""
    import torch

    case, heads = tensors.case, tensors.case.heads
    (tokens,), (kvlen,) = set(case.lengths.seqlens), set(case.lengths.kvlens)
    batch = len(case.lengths.kvlens)
    query = torch.from_numpy(tensors.inputs["query"]).view(batch, tokens, heads.query, heads.dim).transpose(1, 2)
    layers = []
    for layer_idx in tensors.layers:
        gathered = [np.stack([tensors.values(layer_idx, kv, b) for b in range(batch)]) for kv in range(2)]
        by_head = [np.ascontiguousarray(x.transpose(0, 2, 1, 3), NUMPY_TYPES[case.format.t1]) for x in gathered]
        layers.append([torch.from_numpy(x) for x in by_head])

    def attend(key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        torch.set_num_threads(threads)
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=tokens == kvlen, enable_gqa=True
        )

    runs = [lambda layer=layer: attend(*layer) for layer in layers]
    output = np.empty_like(tensors.output)

    def first() -> None:
        output[:] = attend(*layers[0]).transpose(1, 2).reshape(-1, heads.query, heads.dim).numpy()

    tensors.check(f"torch on {threads} threads", first, output)
    # OpenMP's threads keep on spinning for a while.
    return Contender(f"{case.format.name}, torch", threads, timed(runs), cold=case.cold, rest_seconds=0.01)


def matrix_product(threads: int, size: int, arena: Arena) -> list[Contender]:
    """Products of square float32 matrices, by ONNX Runtime and, on all processors, by numpy's library."""
    a, b, c = (arena.random(f"factor {i}", TensorProto.FLOAT, (size, size)) for i in range(3))
    model = node_model("MatMul", dict.fromkeys("ab", TensorProto.FLOAT), {"c": TensorProto.FLOAT})
    run = bound(session_of(model, threads), {"a": a, "b": b}, {"c": c})
    # The threads of numpy's library keep on spinning for a while.
    return [
        Contender("MatMul in ONNX Runtime", threads, timed([run], busy_threads=threads)),
        Contender("matmul in numpy", threads, timed([lambda: np.matmul(a, b, out=c)]), rest_seconds=0.05),
    ]
