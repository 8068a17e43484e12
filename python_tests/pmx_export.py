"""Small models in the form in which the public PMX exporter writes them, as ONNX text: operators, inputs, attributes.

Every attribute is written, flags as integers; what is not given is an empty tensor. Between the PMX operators stand
the few standard ones of opset 11 that tracing leaves. The exporter's types of MoeSelect's outputs are wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from kvcache_ops import CACHE_LAYOUTS
from onnx import ModelProto, TensorProto, numpy_helper, parser

HIDDEN, FFN, VOCABULARY, HEADS, HEAD_DIM, GROUP, PAGE, CHOSEN = 32, 48, 64, 4, 8, 8, 4, 2
DYNAMIC = "opmx.dynamic_batching"


@dataclass(frozen=True)
class Params:
    """What is exported: a model of the LLaMA family, or with `experts` one of the Mixtral family."""

    element: str = "float16"
    layers: int = 2
    kv_heads: int = 2
    fused: bool = True  # KeyValueCache and attention in one operator
    apart: bool = False  # each matrix by itself, not query, key and value in one, nor both of the feed-forward part
    friendly_gqa: bool = False  # KeyValueCache repeats the heads
    auto_causal: bool = True
    biases: bool = False
    experts: int = 0
    quant_bit: int = 0
    cache_layout: int = 0
    cache_mode: int = 0
    alibi_mask: bool = False
    domain: str = "opmx"

    @property
    def cache_shape(self) -> list[str | int]:
        """The axes of the cache but for the last; `max_tokens` is open."""
        sizes = {"MaxT": "max_tokens", "L": self.layers, "2": 2, "H": self.kv_heads}
        return [sizes[axis] for axis in CACHE_LAYOUTS[self.cache_layout][:4]]


class Exporter:
    """The text of the nodes, and the weights that they name."""

    def __init__(self, params: Params, seed: int = 7) -> None:
        self.params, self.random, self.lines = params, np.random.default_rng(seed), []
        self.weights: dict[str, np.ndarray] = {}

    def weight(self, name: str, *shape: int, mean: float = 0) -> str:
        """A random weight: of a norm around 1, of a matrix so that its product has the size of its input."""
        size = 0.1 if mean else 1.2 / shape[-1] ** 0.5 if len(shape) > 1 else 0.3
        self.weights[name] = (mean + size * self.random.standard_normal(shape)).astype(self.params.element)
        return name

    def node(self, outputs: str, op: str, *inputs: str, **attributes: object) -> str:
        """A node; its first output."""
        written = f"<{', '.join(f'{name} = {value}' for name, value in attributes.items())}>" if attributes else ""
        self.lines.append(f"{outputs} = {op} {written} ({', '.join(inputs)})")
        return outputs.split(",")[0]

    def linear(self, name: str, kind: str, x: str, out: int, inside: int, bias: bool, offset: str = "") -> str:
        """A linear layer, that of each expert with `offset`."""
        leading = (self.params.experts,) if offset else ()
        given = [x, *([offset] if offset else []), self.weight(f"{name}_weight", *leading, out, inside)]
        given += [self.weight(f"{name}_bias", *leading, out)] if bias else []
        experts = dict(num_experts=self.params.experts) if offset else {}
        gathers = {"Column": dict(gather_output=int(name == "output")), "Row": dict(input_is_parallel=1), "": {}}[kind]
        op = f"{'Moe' if offset else ''}{kind}{'Parallel' if kind else ''}Linear"
        sizes = dict(in_features=inside, out_features=out, bias_term=int(bias))
        return self.node(name, f"opmx.{op}", *given, **experts, **sizes, **gathers)

    def norm(self, name: str, *inputs: str) -> tuple[str, str]:
        """The norm, and the sum of x and skip: inputs are x and, but in the first layer, skip."""
        x, *skip = inputs
        given = [x, self.weight(f"{name}_weight", HIDDEN, mean=1), *skip]
        return self.node(f"{name}, {name}_sum", "opmx.RMSNorm", *given, axis=-1, eps=1e-5, skip_term=1), f"{name}_sum"

    def reshape(self, name: str, x: str, *shape: int) -> str:
        """A Reshape of PMX, where 0 keeps a dimension."""
        self.lines.append(f"{name}_shape = Constant <value = int64[{len(shape)}] {{{', '.join(map(str, shape))}}}> ()")
        return self.node(name, "opmx.Reshape", x, f"{name}_shape")

    def attention(self, i: int, x: str) -> str:
        """Query, key and value, their rotation, and attention over the cache of layer `i`."""
        p, kv = self.params, self.params.kv_heads
        rows = [f"query{i}", f"key{i}", f"value{i}"]
        if p.apart:
            for name, heads in zip(rows, (HEADS, kv, kv)):
                self.reshape(
                    name, self.linear(f"w_{name}", "Column", x, heads * HEAD_DIM, HIDDEN, p.biases), 0, -1, HEAD_DIM
                )
        else:
            x = self.linear(f"wqkv{i}", "Column", x, (HEADS + 2 * kv) * HEAD_DIM, HIDDEN, p.biases)
            x = self.reshape(f"heads{i}", x, 0, -1, HEAD_DIM)
            self.node(", ".join(rows), "Split", x, axis=-2, split=f"[{HEADS}, {kv}, {kv}]")
        turned = [f"rotated_query{i}", f"rotated_key{i}"]
        rope = dict(rotary_dim=0, theta=1e4, bypass_key=0, max_position_embeddings=64)
        scaling = dict(scaling_type='""', scaling_factor=1.0)
        indices = ("seqstarts", "start_pos", "max_seqlen")
        op = f"{DYNAMIC}.RotaryPositionEmbedding"
        self.node(", ".join(turned), op, *rows[:2], *indices, **rope, **scaling)
        heads = dict(num_heads=HEADS, head_dim=HEAD_DIM, is_causal=int(p.auto_causal), is_alibi=0)
        cache = dict(num_layer=p.layers, layer_idx=i, quant_bit=p.quant_bit, quant_group=GROUP if p.quant_bit else 0)
        cache |= dict(cache_mode=p.cache_mode, cache_layout=p.cache_layout, page_size=PAGE)
        starts, bounds = ["seqstarts", "kvstarts"], ["max_seqlen", "max_kvlen"]
        memory, mask = ["kv_cache", "kv_scale"], "alibi_mask" if p.alibi_mask else "attn_mask"
        slots = [*starts, "cachestarts", "start_pos"]
        if p.fused:
            given = [*turned, rows[2], *slots, "decoding_batches", *bounds, *memory, mask]
            self.node(f"attn{i}", f"{DYNAMIC}.MultiHeadCacheAttention", *given, **heads, num_kv_heads=kv, **cache)
        else:
            repeat = dict(num_repeat=HEADS // kv if p.friendly_gqa else 1)
            stored, given = f"all_key{i}, all_value{i}", [turned[1], rows[2], *slots, *bounds, *memory]
            self.node(stored, f"{DYNAMIC}.KeyValueCache", *given, **repeat, **cache)
            given = [turned[0], *stored.split(", "), *starts, "decoding_batches", *bounds, mask]
            kv_heads = dict(num_kv_heads=0 if p.friendly_gqa else kv)
            self.node(f"attn{i}", f"{DYNAMIC}.MultiHeadAttention", *given, **heads, **kv_heads)
        return self.linear(f"wo{i}", "Row", self.reshape(f"rows{i}", f"attn{i}", 0, -1), HIDDEN, HIDDEN, p.biases)

    def feed_forward(self, i: int, x: str) -> str:
        """A gated layer, by each token's experts where there are some."""
        p, offset = self.params, f"offset{i}" if self.params.experts else ""
        chosen = dict(num_experts_per_token=CHOSEN)
        if offset:
            scores, outputs = (
                self.linear(f"gate{i}", "", x, p.experts, HIDDEN, False),
                f"chosen{i}, weights{i}, back{i}",
            )
            op = "opmx.MoeSelect"
            x = self.node(f"{outputs}, {offset}", op, x, scores, num_experts=p.experts, **chosen)
        if p.apart:
            both = [self.linear(f"w{n}_{i}", "Column", x, FFN, HIDDEN, p.biases, offset) for n in (1, 3)]
            x = self.node(f"gated{i}", "opmx.SiLU", *both)
        else:
            wide = self.linear(f"wu{i}", "Column", x, 2 * FFN, HIDDEN, p.biases, offset)
            x = self.node(f"gated{i}", "opmx.SwiGLU", wide, beta=1.0)
        x = self.linear(f"w2_{i}", "Row", x, HIDDEN, FFN, p.biases, offset)
        return self.node(f"reduced{i}", "opmx.MoeReduce", x, f"weights{i}", f"back{i}", **chosen) if offset else x

    def model(self) -> ModelProto:
        """The finished export."""
        p, element = self.params, {"float32": "float", "float16": "float16"}[self.params.element]
        embedding = dict(num_embeddings=VOCABULARY, embedding_dims=HIDDEN, padding_idx=-1, max_norm=0.0, norm_type=2.0)
        h, skip = self.weight("tok_embeddings", VOCABULARY, HIDDEN), []
        h = self.node("h", "opmx.ParallelEmbedding", "token_ids", h, **embedding)
        if p.alibi_mask:
            given, data_type = ["seqstarts", "kvstarts", "attn_mask"], getattr(TensorProto, element.upper())
            self.node("alibi_mask", f"{DYNAMIC}.ALiBiMask", *given, num_heads=HEADS, data_type=data_type)
        for i in range(p.layers):
            norm, total = self.norm(f"attention_norm{i}", h, *skip)
            norm, h = self.norm(f"ffn_norm{i}", total, self.attention(i, norm))
            skip = [self.feed_forward(i, norm)]
        norm, _ = self.norm("norm", h, *skip)
        for name, value in ("zero", 0), ("one", 1), ("end", 2**63 - 1):
            self.lines.append(f"{name} = Constant <value = int64[1] {{{value}}}> ()")
        self.node("ends", "Slice", "seqstarts", "one", "end", "zero", "one")
        self.node("last_row", "Gather", norm, self.node("last", "Sub", "ends", "one"), axis=0)
        output = self.linear("output", "Column", "last_row", VOCABULARY, HIDDEN, False)
        self.node("logits", "Cast", output, to=1)
        shape = ", ".join(map(str, p.cache_shape))
        scale = f"{shape}, {HEAD_DIM // GROUP}" if p.quant_bit else "0"
        wrong = ", ".join(f"{element} chosen{i}, int64 weights{i}" for i in range(p.layers if p.experts else 0))
        text = f"""<ir_version: 6, opset_import: ["": 11, "opmx": 1, "{DYNAMIC}": 1], producer_name: "pytorch">
            main_graph (int64[total_seqlen] token_ids, {element}[0] attn_mask, int64[starts] seqstarts,
                int64[starts] kvstarts, int64[batch{", max_pages" if p.cache_mode else ""}] cachestarts,
                int64[1] decoding_batches, int64[batch] start_pos, int64[1] max_seqlen, int64[1] max_kvlen,
                {"int8" if p.quant_bit else element}[{shape}, {HEAD_DIM}] kv_cache, {element}[{scale}] kv_scale
            ) => (float[batch, vocab_size] logits) {f"<{wrong}>" if wrong else ""} {{ {chr(10).join(self.lines)} }}"""
        model = parser.parse_model(text.replace("opmx", p.domain))
        model.graph.initializer.extend(numpy_helper.from_array(x, name) for name, x in self.weights.items())
        for i, node in enumerate(model.graph.node):
            node.name = f"/{node.op_type}_{i}"
        return model


def export(params: Params) -> ModelProto:
    """The export of a model with random weights."""
    return Exporter(params).model()
