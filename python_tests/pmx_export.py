"""A small LLaMA in the form in which the public PMX exporter writes it, as ONNX text: operators, inputs, attributes.

Every attribute is written, flags as integers; what is not given is an empty tensor. Between the PMX operators stand
the few standard ones of opset 11 that tracing leaves. Other operators and forms are in test_pmx_operators.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from kvcache_ops import CACHE_LAYOUTS
from onnx import ModelProto, numpy_helper, parser

HIDDEN, FFN, VOCABULARY, HEADS, KV_HEADS, HEAD_DIM, GROUP, PAGE = 32, 48, 64, 4, 2, 8, 8, 4
DYNAMIC = "opmx.dynamic_batching"


@dataclass(frozen=True)
class Params:
    """What is exported."""

    element: str = "float16"
    layers: int = 2
    fused: bool = True  # KeyValueCache and attention in one operator
    auto_causal: bool = True
    quant_bit: int = 0
    cache_layout: int = 0
    cache_mode: int = 0
    domain: str = "opmx"

    @property
    def cache_shape(self) -> list[str | int]:
        """The axes of the cache but for the last; `max_tokens` is open."""
        sizes = {"MaxT": "max_tokens", "L": self.layers, "2": 2, "H": KV_HEADS}
        return [sizes[axis] for axis in CACHE_LAYOUTS[self.cache_layout][:4]]


class Exporter:
    """The text of the nodes, and the weights that they name."""

    def __init__(self, params: Params, seed: int = 7) -> None:
        self.params, self.random, self.lines = params, np.random.default_rng(seed), []
        self.weights: dict[str, np.ndarray] = {}

    def weight(self, name: str, *shape: int) -> str:
        """A random weight: of a norm around 1, of a matrix so that its product has the size of its input."""
        mean, size = (1.0, 0.1) if len(shape) == 1 else (0.0, 1.2 / shape[-1] ** 0.5)
        self.weights[name] = (mean + size * self.random.standard_normal(shape)).astype(self.params.element)
        return name

    def node(self, outputs: str, op: str, *inputs: str, **attributes: object) -> str:
        """A node; its first output."""
        written = f"<{', '.join(f'{name} = {value}' for name, value in attributes.items())}>" if attributes else ""
        self.lines.append(f"{outputs} = {op} {written} ({', '.join(inputs)})")
        return outputs.split(",")[0]

    def linear(self, name: str, kind: str, x: str, out: int, inside: int) -> str:
        """A linear layer."""
        flags = dict(gather_output=int(name == "output")) if kind == "Column" else dict(input_is_parallel=1)
        sizes = dict(in_features=inside, out_features=out, bias_term=0)
        return self.node(name, f"opmx.{kind}ParallelLinear", x, self.weight(f"w_{name}", out, inside), **sizes, **flags)

    def norm(self, name: str, *inputs: str) -> tuple[str, str]:
        """The norm, and the sum of x and skip: inputs are x and, but in the first layer, skip."""
        x, *skip = inputs
        given = [x, self.weight(f"w_{name}", HIDDEN), *skip]
        return self.node(f"{name}, {name}_sum", "opmx.RMSNorm", *given, axis=-1, eps=1e-5, skip_term=1), f"{name}_sum"

    def reshape(self, name: str, x: str, *shape: int) -> str:
        """A Reshape of PMX, where 0 keeps a dimension."""
        self.lines.append(f"{name}_shape = Constant <value = int64[{len(shape)}] {{{', '.join(map(str, shape))}}}> ()")
        return self.node(name, "opmx.Reshape", x, f"{name}_shape")

    def attention(self, i: int, x: str) -> str:
        """Query, key and value, their rotation, and attention over the cache of layer `i`."""
        p, rows = self.params, [f"query{i}", f"key{i}", f"value{i}"]
        x = self.linear(f"wqkv{i}", "Column", x, (HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN)
        x = self.reshape(f"heads{i}", x, 0, -1, HEAD_DIM)
        self.node(", ".join(rows), "Split", x, axis=-2, split=f"[{HEADS}, {KV_HEADS}, {KV_HEADS}]")
        rotated, indices = [f"rotated_query{i}", f"rotated_key{i}"], ("seqstarts", "start_pos", "max_seqlen")
        rope = dict(rotary_dim=0, theta=1e4, bypass_key=0, max_position_embeddings=64)
        rope |= dict(scaling_type='""', scaling_factor=1.0)
        self.node(", ".join(rotated), f"{DYNAMIC}.RotaryPositionEmbedding", *rows[:2], *indices, **rope)
        heads = dict(num_heads=HEADS, head_dim=HEAD_DIM, is_causal=int(p.auto_causal), is_alibi=0)
        heads |= dict(num_kv_heads=KV_HEADS)
        cache = dict(num_layer=p.layers, layer_idx=i, quant_bit=p.quant_bit, quant_group=GROUP if p.quant_bit else 0)
        cache |= dict(cache_mode=p.cache_mode, cache_layout=p.cache_layout, page_size=PAGE)
        starts, bounds, memory = ["seqstarts", "kvstarts"], ["max_seqlen", "max_kvlen"], ["kv_cache", "kv_scale"]
        slots = [*starts, "cachestarts", "start_pos"]
        if p.fused:
            given = [*rotated, rows[2], *slots, "decoding_batches", *bounds, *memory, "attn_mask"]
            self.node(f"attn{i}", f"{DYNAMIC}.MultiHeadCacheAttention", *given, **heads, **cache)
        else:
            stored, given = f"all_key{i}, all_value{i}", [rotated[1], rows[2], *slots, *bounds, *memory]
            self.node(stored, f"{DYNAMIC}.KeyValueCache", *given, num_repeat=1, **cache)
            given = [rotated[0], *stored.split(", "), *starts, "decoding_batches", *bounds, "attn_mask"]
            self.node(f"attn{i}", f"{DYNAMIC}.MultiHeadAttention", *given, **heads)
        return self.linear(f"wo{i}", "Row", self.reshape(f"rows{i}", f"attn{i}", 0, -1), HIDDEN, HIDDEN)

    def model(self) -> ModelProto:
        """The finished export."""
        p, element = self.params, {"float32": "float", "float16": "float16"}[self.params.element]
        embedding = dict(num_embeddings=VOCABULARY, embedding_dims=HIDDEN, padding_idx=-1, max_norm=0.0, norm_type=2.0)
        tokens = self.weight("tok_embeddings", VOCABULARY, HIDDEN)
        h, skip = self.node("h", "opmx.ParallelEmbedding", "token_ids", tokens, **embedding), []
        for i in range(p.layers):
            norm, total = self.norm(f"attention_norm{i}", h, *skip)
            norm, h = self.norm(f"ffn_norm{i}", total, self.attention(i, norm))
            gated = self.node(
                f"gated{i}", "opmx.SwiGLU", self.linear(f"wu{i}", "Column", norm, 2 * FFN, HIDDEN), beta=1.0
            )
            skip = [self.linear(f"w2_{i}", "Row", gated, HIDDEN, FFN)]
        norm, _ = self.norm("norm", h, *skip)
        for name, value in ("zero", 0), ("one", 1), ("end", 2**63 - 1):
            self.lines.append(f"{name} = Constant <value = int64[1] {{{value}}}> ()")
        self.node("ends", "Slice", "seqstarts", "one", "end", "zero", "one")
        self.node("last_row", "Gather", norm, self.node("last", "Sub", "ends", "one"), axis=0)
        self.node("logits", "Cast", self.linear("output", "Column", "last_row", VOCABULARY, HIDDEN), to=1)
        shape = ", ".join(map(str, p.cache_shape))
        scale = f"{shape}, {HEAD_DIM // GROUP}" if p.quant_bit else "0"
        text = f"""<ir_version: 6, opset_import: ["": 11, "opmx": 1, "{DYNAMIC}": 1], producer_name: "pytorch">
            main_graph (int64[total_seqlen] token_ids, {element}[0] attn_mask, int64[starts] seqstarts,
                int64[starts] kvstarts, int64[batch{", max_pages" if p.cache_mode else ""}] cachestarts,
                int64[1] decoding_batches, int64[batch] start_pos, int64[1] max_seqlen, int64[1] max_kvlen,
                {"int8" if p.quant_bit else element}[{shape}, {HEAD_DIM}] kv_cache, {element}[{scale}] kv_scale
            ) => (float[batch, vocab_size] logits) {{ {chr(10).join(self.lines)} }}"""
        model = parser.parse_model(text.replace("opmx", p.domain))
        model.graph.initializer.extend(numpy_helper.from_array(x, name) for name, x in self.weights.items())
        for i, node in enumerate(model.graph.node):
            node.name = f"/{node.op_type}_{i}"
        return model


def export(params: Params) -> ModelProto:
    """The export of a model with random weights."""
    return Exporter(params).model()
