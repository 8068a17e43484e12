"""Models in the form in which the public PMX exporter writes them: operators, inputs, attributes, names, opset.

Every attribute is written, flags as integers; what is not given is an empty tensor. Between the PMX operators stand
the few standard ones of opset 11 that tracing leaves: Split, Gather, Slice, Sub, Add, Cast and constants.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from pmx_params import Params

ELEMENTS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
STEPS = ["seqstarts", "kvstarts", "cachestarts", "start_pos", "decoding_batches", "max_seqlen", "max_kvlen"]


class Exporter:
    """One export. Every method adds a node, named after where it is in the model, and returns its results' names."""

    def __init__(self, params: Params, weights: dict[str, np.ndarray]) -> None:
        self.params = params
        self.weights = weights
        self.nodes: list[NodeProto] = []
        self.names: dict[str, int] = {}
        self.mask = "attn_mask"
        self.scale = "kv_scale" if params.cache_quant_bit else "kv_scale.1"

    def model(self) -> ModelProto:
        """The finished export."""
        getattr(self, f"_{self.params.family}")()
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "vocab_size"])
        initializers = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        graph = helper.make_graph(
            self.nodes, "main_graph", self._inputs(), [logits], initializers, value_info=self._value_info()
        )
        opsets = [helper.make_opsetid("", 11)]
        opsets += [helper.make_opsetid(domain, 1) for domain in sorted({node.domain for node in self.nodes} - {""})]
        return helper.make_model(graph, ir_version=6, opset_imports=opsets, producer_name="pytorch")

    def _inputs(self) -> list[ValueInfoProto]:
        params, element, int64 = self.params, ELEMENTS[self.params.element], TensorProto.INT64
        declare = helper.make_tensor_value_info
        quantized = params.cache_quant_bit != 0
        scale = [*params.cache_shape, params.head_dim // params.cache_quant_group] if quantized else [0]
        return [
            declare("token_ids", int64, ["total_seqlen"]),
            declare("attn_mask", element, [0]),
            declare("seqstarts", int64, ["batch + 1"]),
            declare("kvstarts", int64, ["batch + 1"]),
            declare("cachestarts", int64, ["batch", "max_pages"] if params.cache_mode else ["batch"]),
            declare("decoding_batches", int64, [1]),
            declare("start_pos", int64, ["batch"]),
            declare("max_seqlen", int64, [1]),
            declare("max_kvlen", int64, [1]),
            declare("kv_cache", TensorProto.INT8 if quantized else element, [*params.cache_shape, params.head_dim]),
            declare(self.scale, element, scale),
        ]

    def _value_info(self) -> list[ValueInfoProto]:
        """The exporter's types of MoeSelect's outputs are in another order than the outputs, so they are wrong."""
        element, int64 = ELEMENTS[self.params.element], TensorProto.INT64
        return [
            helper.make_tensor_value_info(name, element_type, None)
            for node in self.nodes
            if node.op_type == "MoeSelect"
            for name, element_type in zip(node.output, [element, int64, int64, element])
        ]

    def _node(self, place: str, op: str, *inputs: str, outputs: int = 1, **attributes: object) -> list[str]:
        domain, _, op_type = op.rpartition("::")
        count = self.names[place, op_type] = self.names.get((place, op_type), -1) + 1
        name = f"{place}/{op_type}" + (f"_{count}" if count else "")
        results = [f"{name}_output_{i}" for i in range(outputs)]
        domain = domain.replace("opmx", self.params.domain)
        self.nodes.append(helper.make_node(op_type, list(inputs), results, name, domain=domain, **attributes))
        return results

    def _one(self, place: str, op: str, *inputs: str, **attributes: object) -> str:
        return self._node(place, op, *inputs, **attributes)[0]

    def _constant(self, place: str, value: list[int] | int) -> str:
        return self._one(place, "Constant", value=numpy_helper.from_array(np.array(value, np.int64)))

    def _weight(self, name: str) -> list[str]:
        return [f"{name}.{part}" for part in ("weight", "bias") if f"{name}.{part}" in self.weights]

    def _place(self, name: str) -> str:
        parts = name.split(".")
        return "/" + "/".join([f"layers.{parts[1]}", *parts[2:]] if parts[0] == "layers" else parts)

    def _linear(self, name: str, x: str, kind: str, **attributes: object) -> str:
        weight = self._weight(name)
        out, inside = self.weights[weight[0]].shape
        sizes = dict(in_features=inside, out_features=out, bias_term=len(weight) - 1)
        return self._one(self._place(name), f"opmx::{kind}", x, *weight, **sizes, **attributes)

    def _column(self, name: str, x: str, gather_output: int = 0) -> str:
        return self._linear(name, x, "ColumnParallelLinear", gather_output=gather_output)

    def _row(self, name: str, x: str) -> str:
        return self._linear(name, x, "RowParallelLinear", input_is_parallel=1)

    def _embedding(self, name: str, ids: str) -> str:
        rows, size = self.weights[f"{name}.weight"].shape
        sizes = dict(num_embeddings=rows, embedding_dims=size)
        rest = dict(padding_idx=-1, max_norm=0.0, norm_type=2.0)
        return self._one(self._place(name), "opmx::ParallelEmbedding", ids, f"{name}.weight", **sizes, **rest)

    def _norm(self, name: str, kind: str, *inputs: str, skip: bool = True) -> list[str]:
        """The norm and, with a skip term, the sum of x and skip: inputs are x and, but in the first layer, skip."""
        x, *more = inputs
        affine = {"elementwise_affine": 1} if kind == "LayerNorm" else {}
        attributes = dict(axis=-1, eps=self.params.norm_eps, skip_term=int(skip))
        names = [x, *self._weight(name), *more]
        return self._node(self._place(name), f"opmx::{kind}", *names, outputs=1 + skip, **affine, **attributes)

    def _reshape(self, place: str, x: str, *shape: int) -> str:
        return self._one(place, "opmx::Reshape", x, self._constant(place, list(shape)))

    def _attention(self, layer: int, x: str) -> str:
        params, name = self.params, f"layers.{layer}.attention"
        place = self._place(name)
        sizes = [params.num_heads, params.num_kv_heads, params.num_kv_heads]
        if params.fused_qkv:
            x = self._reshape(place, self._column(f"{name}.wqkv", x), 0, -1, params.head_dim)
            query, key, value = self._node(place, "Split", x, outputs=3, axis=-2, split=sizes)
        else:
            linears = [self._column(f"{name}.{part}", x) for part in ("wq", "wk", "wv")]
            query, key, value = (self._reshape(place, part, 0, -1, params.head_dim) for part in linears)
        if params.with_rope:
            query, key = self._node(
                place,
                "opmx.dynamic_batching::RotaryPositionEmbedding",
                *[query, key, "seqstarts", "start_pos", "max_seqlen"],
                outputs=2,
                rotary_dim=params.rotary_dim,
                theta=params.rope_theta,
                bypass_key=0,
                max_position_embeddings=params.max_position_embeddings,
                scaling_type=params.rope_scaling_type,
                scaling_factor=params.rope_scaling_factor,
            )
        attend = self._fused_attention if params.fused_kvcache else self._unfused_attention
        attended = self._reshape(place, attend(layer, place, query, key, value), 0, -1)
        return self._row(f"{name}.wo", attended)

    def _cache_attributes(self, layer: int) -> dict[str, int]:
        params = self.params
        return dict(
            num_layer=params.num_layers,
            layer_idx=layer,
            quant_bit=params.cache_quant_bit,
            quant_group=params.cache_quant_group if params.cache_quant_bit else 0,
            cache_mode=params.cache_mode,
            cache_layout=params.cache_layout,
            page_size=params.page_size,
        )

    def _attention_attributes(self, num_kv_heads: int) -> dict[str, int]:
        params = self.params
        return dict(
            num_heads=params.num_heads,
            head_dim=params.head_dim,
            is_causal=int(params.auto_causal),
            is_alibi=int(params.alibi == "fused"),
            num_kv_heads=num_kv_heads,
        )

    def _fused_attention(self, layer: int, place: str, query: str, key: str, value: str) -> str:
        return self._one(
            place,
            "opmx.dynamic_batching::MultiHeadCacheAttention",
            *[query, key, value, *STEPS, "kv_cache", self.scale, self.mask],
            **self._attention_attributes(self.params.num_kv_heads),
            **self._cache_attributes(layer),
        )

    def _unfused_attention(self, layer: int, place: str, query: str, key: str, value: str) -> str:
        params = self.params
        repeat = params.num_heads // params.num_kv_heads if params.friendly_gqa else 1
        steps = [name for name in STEPS if name != "decoding_batches"]
        key, value = self._node(
            place,
            "opmx.dynamic_batching::KeyValueCache",
            *[key, value, *steps, "kv_cache", self.scale],
            outputs=2,
            num_repeat=repeat,
            **self._cache_attributes(layer),
        )
        steps = ["seqstarts", "kvstarts", "decoding_batches", "max_seqlen", "max_kvlen"]
        return self._one(
            place,
            "opmx.dynamic_batching::MultiHeadAttention",
            *[query, key, value, *steps, self.mask],
            **self._attention_attributes(0 if params.friendly_gqa else params.num_kv_heads),
        )

    def _feed_forward(self, layer: int, x: str) -> str:
        name = f"layers.{layer}.feed_forward"
        place = self._place(name)
        if self.params.fused_ffn_glu:
            x = self._one(place, "opmx::SwiGLU", self._column(f"{name}.wu", x), beta=1.0)
        else:
            x = self._one(place, "opmx::SiLU", self._column(f"{name}.w1", x), self._column(f"{name}.w3", x))
        return self._row(f"{name}.w2", x)

    def _gelu_feed_forward(self, layer: int, x: str) -> str:
        name = f"layers.{layer}.feed_forward"
        x = self._one(self._place(name), "opmx::GELU", self._column(f"{name}.w1", x), approximate=1)
        return self._row(f"{name}.w2", x)

    def _expert(self, name: str, kind: str, x: str, offset: str, **attributes: int) -> str:
        weight = self._weight(name)
        experts, out, inside = self.weights[weight[0]].shape
        sizes = dict(num_experts=experts, in_features=inside, out_features=out, bias_term=len(weight) - 1)
        return self._one(self._place(name), f"opmx::{kind}", x, offset, *weight, **sizes, **attributes)

    def _experts(self, layer: int, x: str) -> str:
        params, name = self.params, f"layers.{layer}.feed_forward"
        place = self._place(name)
        scores = self._linear(f"{name}.gate", x, "Linear")
        x, weights, back, offset = self._node(
            place,
            "opmx::MoeSelect",
            *[x, scores],
            outputs=4,
            num_experts=params.num_experts,
            num_experts_per_token=params.num_experts_per_token,
        )
        column = dict(kind="MoeColumnParallelLinear", offset=offset, gather_output=0)
        if params.fused_ffn_glu:
            x = self._one(place, "opmx::SwiGLU", self._expert(f"{name}.wu", x=x, **column), beta=1.0)
        else:
            gates = [self._expert(f"{name}.{part}", x=x, **column) for part in ("w1", "w3")]
            x = self._one(place, "opmx::SiLU", *gates)
        x = self._expert(f"{name}.w2", "MoeRowParallelLinear", x, offset, input_is_parallel=1)
        chosen = params.num_experts_per_token
        return self._one(place, "opmx::MoeReduce", x, weights, back, num_experts_per_token=chosen)

    def _logits(self, h: str) -> None:
        one, zero, end = (self._constant("", [value]) for value in (1, 0, 2**63 - 1))
        last = self._one("", "Slice", "seqstarts", one, end, zero, self._constant("", [1]))
        last = self._one("", "Sub", last, self._constant("", 1))
        h = self._column("output", self._one("", "Gather", h, last, axis=0), gather_output=1)
        self.nodes.append(helper.make_node("Cast", [h], ["logits"], "/Cast", to=TensorProto.FLOAT))

    def _alibi_mask(self) -> None:
        if self.params.alibi == "mask":
            self.mask = self._one(
                "",
                "opmx.dynamic_batching::ALiBiMask",
                *["seqstarts", "kvstarts", "attn_mask"],
                num_heads=self.params.num_heads,
                data_type=ELEMENTS[self.params.element],
            )

    def _llama(self) -> None:
        h, skip = self._embedding("tok_embeddings", "token_ids"), []
        self._alibi_mask()
        for layer in range(self.params.num_layers):
            norm, x = self._norm(f"layers.{layer}.attention_norm", "RMSNorm", h, *skip)
            norm, h = self._norm(f"layers.{layer}.ffn_norm", "RMSNorm", x, self._attention(layer, norm))
            skip = [self._feed_forward(layer, norm)]
        self._logits(self._norm("norm", "RMSNorm", h, *skip)[0])

    def _mixtral(self) -> None:
        h, skip = self._embedding("tok_embeddings", "token_ids"), []
        for layer in range(self.params.num_layers):
            norm, x = self._norm(f"layers.{layer}.attention_norm", "RMSNorm", h, *skip)
            norm, x = self._norm(f"layers.{layer}.ffn_norm", "RMSNorm", self._attention(layer, norm), x)
            h, skip = self._experts(layer, norm), [x]
        self._logits(self._norm("norm", "RMSNorm", h, *skip)[0])

    def _bigcode(self) -> None:
        position = self._one(
            "", "opmx.dynamic_batching::PositionIndex", *["token_ids", "seqstarts", "start_pos", "max_seqlen"]
        )
        rows = self._embedding("tok_embeddings", "token_ids"), self._embedding("pos_embeddings", position)
        h, skip = self._one("", "Add", *rows), []
        for layer in range(self.params.num_layers):
            norm, x = self._norm(f"layers.{layer}.attention_norm", "LayerNorm", h, *skip)
            norm, x = self._norm(f"layers.{layer}.ffn_norm", "LayerNorm", self._attention(layer, norm), x)
            h, skip = self._gelu_feed_forward(layer, norm), [x]
        self._logits(self._norm("norm", "LayerNorm", h, *skip)[0])

    def _falcon(self) -> None:
        h = self._embedding("tok_embeddings", "token_ids")
        for layer in range(self.params.num_layers):
            place = f"/layers.{layer}"
            (norm,) = self._norm(f"layers.{layer}.attention_norm", "LayerNorm", h, skip=False)
            attended = self._one(place, "Add", h, self._attention(layer, norm))
            h = self._one(place, "Add", attended, self._gelu_feed_forward(layer, norm))
        self._logits(self._norm("norm", "LayerNorm", h, skip=False)[0])


def export(params: Params, weights: dict[str, np.ndarray]) -> ModelProto:
    """The export of a model with these weights."""
    return Exporter(params, weights).model()
