"""Tiny exports as onnxruntime-genai's model builder writes them, and what ONNX Runtime computes with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import onnx
import onnxruntime
import pytest
from kvcache_ops import KvCacheError
from kvcache_ops.models import build
from onnx import NodeProto, TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tiny_models import MERGES, TOKENS

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, CONTEXT = 32, 4, 2, 32, 2, 64
VOCABULARY = len(TOKENS)


class Graph:
    """The graph of an export: `attention` adds attributes to its attention nodes, `quantized` to MatMulNBits."""

    def __init__(
        self,
        *,
        paged: bool = False,
        packed: bool = True,
        norms: str = "",
        rotary: str = "inside",
        rotated: int = HEAD_DIM,
        sink: bool = False,
        head: str = "",
        element: int = TensorProto.FLOAT,
        attention: tuple[dict[str, Any], ...] = ({}, {}),
        quantized: dict[str, int] | None = None,
    ) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self.quantized = quantized
        self.paged, self.element, self.dtype = paged, element, helper.tensor_dtype_to_np_dtype(element)
        row = ["tokens"] if paged else ["batch", "sequence"]
        cache = ["blocks", "block_size", KV_HEADS, HEAD_DIM] if paged else ["batch", KV_HEADS, "past", HEAD_DIM]
        inputs = {"input_ids": (TensorProto.INT64, row)}
        if paged:
            inputs |= {"cumulative": (TensorProto.INT32, ["b1"]), "past": (TensorProto.INT32, ["b"])}
            inputs |= {"block_table": (TensorProto.INT32, ["b", "n"]), "logits_indices": (TensorProto.INT64, ["r"])}
            lengths = ["cumulative", "past", "block_table"]
        else:
            inputs["attention_mask"] = (TensorProto.INT64, ["batch", "total"])
            lengths = self._lengths()
        if rotary in ("nodes", "positions"):
            inputs["position_ids"] = (TensorProto.INT64, row)
        pasts = [f"past_key_values.{i}.{kind}" for i in range(LAYERS) for kind in ("key", "value")]
        presents = [name.replace("past_key_values", "present") for name in pasts]
        inputs |= {name: (element, cache) for name in pasts}
        tables = self._tables(rotary, rotated)
        x = self.node("Gather", "embedding", self.weight("embedding.w", VOCABULARY, HIDDEN), "input_ids")
        for i in range(LAYERS):
            given = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "do_rotary": int(rotary != "nodes")} | attention[i]
            normal = self.norm(f"{i}.norm", x, HIDDEN)
            sizes = [HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM]
            qkv = [self.product(f"{i}.qkv", normal, sum(sizes)), "", ""]
            if not packed:
                split = [qkv[0], self.constant(f"{i}.sizes", sizes)]
                self.nodes.append(helper.make_node("Split", split, qkv := [f"{i}.{n}" for n in "qkv"], axis=-1))
            if norms == "nodes":
                qkv[:2] = [self.head_norm(f"{i}.{n}_norm", part, size) for n, part, size in zip("qk", qkv, sizes)]
            if rotary == "nodes":
                for n, part in enumerate(qkv[:2]):
                    inside = dict(domain="com.microsoft", num_heads=(HEADS, KV_HEADS)[n], rotary_embedding_dim=rotated)
                    qkv[n] = self.node("RotaryEmbedding", f"{i}.{n}.r", part, "position_ids", *tables, **inside)
            taken = [*qkv, *pasts[2 * i : 2 * i + 2], *lengths, *(tables if given["do_rotary"] else ["", ""])]
            taken += [""] if paged else ["position_ids" if rotary == "positions" else "", ""]
            taken.append(self.weight(f"{i}.sink", HEADS) if sink else "")
            if norms == "inputs":
                taken += [] if paged else ["", ""]
                taken += [self.weight(f"{i}.{n}_norm.w", HEAD_DIM) for n in "qk"]
            outputs = [f"{i}.attention", *presents[2 * i : 2 * i + 2]]
            kind = "PagedAttention" if paged else "GroupQueryAttention"
            self.nodes.append(helper.make_node(kind, taken, outputs, outputs[0], domain="com.microsoft", **given))
            x = self.node("Add", f"{i}.sum", x, self.product(f"{i}.out", outputs[0], HIDDEN))
        if head == "kept":
            inputs["num_logits_to_keep"] = (TensorProto.INT64, [])
        self._head(self.norm("norm", x, HIDDEN), head)
        values = [helper.make_tensor_value_info(name, *value) for name, value in inputs.items()]
        given_back = [helper.make_tensor_value_info(name, element, None) for name in presents]
        logits = helper.make_tensor_value_info("logits", element, [*row, VOCABULARY])
        graph = helper.make_graph(self.nodes, "export", values, [logits, *given_back], self.weights)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        self.model = helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def node(self, kind: str, name: str, *inputs: str, **attributes: Any) -> str:
        """A node of one output."""
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def constant(self, name: str, array: Any) -> str:
        """An initializer."""
        self.weights.append(numpy_helper.from_array(np.array(array), name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        """Random numbers that the name decides, of about unit gain."""
        values = np.random.default_rng(crc32(name.encode())).standard_normal(shape)
        return self.constant(name, (1 + values / 4 if len(shape) == 1 else values / shape[0] ** 0.5).astype(self.dtype))

    def product(self, name: str, x: str, outputs: int) -> str:
        """A matrix product with a bias."""
        inputs = HEADS * HEAD_DIM if name.endswith("out") else HIDDEN
        if self.quantized is not None:
            given = [x, *self.codes(name, inputs, outputs), "", self.weight(f"{name}.bias", outputs)]
            sizes = dict(domain="com.microsoft", K=inputs, N=outputs) | self.quantized
            return self.node("MatMulNBits", name, *given, **sizes)
        product = self.node("MatMul", f"{name}.product", x, self.weight(f"{name}.w", inputs, outputs))
        return self.node("Add", name, product, self.weight(f"{name}.bias", outputs))

    def codes(self, name: str, inputs: int, outputs: int) -> list[str]:
        """Random codes of a quantized matrix, scales, and zero points, two of 4 bits in a byte."""
        bits, block = self.quantized["bits"], self.quantized["block_size"]
        blocks, random = -(-inputs // block), np.random.default_rng(crc32(name.encode()))
        codes = random.integers(0, 256, (outputs, blocks, block * bits // 8), np.uint8)
        scales = (random.random((outputs, blocks)) / inputs**0.5 / 2 ** (bits - 1)).astype(self.dtype)
        zeros = random.integers(0, 256, (outputs, -(-blocks * bits // 8)), np.uint8)
        parts = {"codes": codes, "scales": scales, "zeros": zeros}
        return [self.constant(f"{name}.{part}", values) for part, values in parts.items()]

    def norm(self, name: str, x: str, size: int) -> str:
        """A root mean square norm."""
        return self.node("SimplifiedLayerNormalization", name, x, self.weight(f"{name}.w", size), axis=-1, epsilon=1e-6)

    def head_norm(self, name: str, x: str, size: int) -> str:
        """A norm of each head."""
        heads = self.node("Reshape", f"{name}.heads", x, self.constant(f"{name}.by_heads", [0, -1, HEAD_DIM]))
        normal = self.norm(name, heads, HEAD_DIM)
        return self.node("Reshape", f"{name}.flat", normal, self.constant(f"{name}.in_a_row", [0, -1, size]))

    def _lengths(self) -> list[str]:
        one = self.constant("one", [1])
        summed = self.node("ReduceSum", "mask.sum", "attention_mask", one, keepdims=0)
        less = self.node("Sub", "mask.less", summed, one)
        shape = self.node("Shape", "mask.shape", "attention_mask")
        total = self.node("Gather", "mask.total", shape, self.constant("axis", 1), axis=0)
        return [self.node("Cast", f"{name}.int32", name, to=TensorProto.INT32) for name in (less, total)]

    def _tables(self, rotary: str, rotated: int) -> list[str]:
        """Cosines and sines; with `rotary` "by length", others for more than 20 tokens."""
        angles = np.outer(np.arange(2 * CONTEXT), 100.0 ** (-np.arange(0, rotated, 2) / rotated))
        arrays = {"cos": np.cos(angles).astype(self.dtype), "sin": np.sin(angles).astype(self.dtype)}
        if rotary != "by length":
            return [self.constant(name, array[:CONTEXT]) for name, array in arrays.items()]
        branches = []
        for kind, rows in (("long", slice(0, None, 2)), ("short", slice(20))):
            tables = [(f"{name}.{kind}", numpy_helper.from_array(array[rows])) for name, array in arrays.items()]
            constants = [helper.make_node("Constant", [], [name], value=table) for name, table in tables]
            outputs = [helper.make_tensor_value_info(node.output[0], self.element, None) for node in constants]
            branches.append(helper.make_graph(constants, kind, [], outputs))
        longer = self.node("Greater", "longer", "mask.total", self.constant("limit", 20))
        choice = helper.make_node("If", [longer], ["cos", "sin"], then_branch=branches[0], else_branch=branches[1])
        self.nodes.append(choice)
        return ["cos", "sin"]

    def _head(self, x: str, kind: str) -> None:
        """The logits: of a matrix of 4 bits, scaled and capped; of the last token; of last tokens; of chosen rows."""
        if self.paged:
            x = self.node("Gather", "rows", x, "logits_indices", axis=0)
        if kind == "kept":
            self.constant("none", [0])
            first = self.node("Unsqueeze", "kept.first", self.node("Neg", "kept", "num_logits_to_keep"), "none")
            x = self.node("Slice", "last", x, first, self.constant("end", [2**62]), "one")
        if kind == "sliced":
            x = self.node("Slice", "last", x, self.constant("minus_one", [-1]), self.constant("end", [2**62]), "one")
        if kind == "branches":  # alike, of nodes in no order
            graphs = {}
            for name in ("then_branch", "else_branch"):
                pairs = [(f"{name}.held", f"{name}.held.out"), (x, f"{name}.held")]
                nodes = [helper.make_node("Identity", [read], [made]) for read, made in pairs]
                output = helper.make_tensor_value_info(pairs[0][1], self.element, None)
                graphs[name] = helper.make_graph(nodes, name, [], [output])
            x = self.node("If", "chosen", self.constant("true", True), **graphs)
        if kind == "last":
            last = self.node("Gather", "last", x, self.constant("minus_one", -1), axis=1)
            x = self.node("Unsqueeze", "last.row", last, "one")
        if kind != "capped":
            self.node("MatMul", "logits", x, self.weight("head", HIDDEN, VOCABULARY))
            return
        random = np.random.default_rng(1)
        codes = self.constant("codes", random.integers(0, 256, (VOCABULARY, 1, 16), np.uint8))
        scales = self.constant("scales", random.random(VOCABULARY).astype(np.float32) / 16)
        sizes = dict(domain="com.microsoft", bits=4, block_size=32, K=HIDDEN, N=VOCABULARY)
        x = self.node("MatMulNBits", "product", x, codes, scales, **sizes)
        x = self.node("Mul", "scaled", x, self.constant("half", np.float32(0.5)))
        x = self.node("Tanh", "capped", self.node("Div", "divided", x, self.constant("cap", np.float32(3))))
        self.node("Mul", "logits", x, "cap")

    def logits(self, tokens: list[int]) -> np.ndarray:
        """(tokens, vocabulary), as ONNX Runtime computes the export, its pasts empty."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(self.model.SerializeToString(), options, ["CPUExecutionProvider"])
        row = np.array([tokens])
        feeds = {"input_ids": row, "attention_mask": np.ones_like(row), "position_ids": np.arange(row.size)[None]}
        feeds["num_logits_to_keep"] = np.array(0)
        empty = np.zeros((1, KV_HEADS, 0, HEAD_DIM), self.dtype)
        return session.run(["logits"], {i.name: feeds.get(i.name, empty) for i in session.get_inputs()})[0][0]


def write_export(folder: Path, graph: Graph, **decoder: Any) -> Path:
    """A folder of the builder's; `decoder` are further entries of genai_config.json."""
    folder.mkdir()
    data = dict(save_as_external_data=True, location="model.onnx.data", size_threshold=256)
    model = onnx.ModelProto.FromString(graph.model.SerializeToString())
    onnx.save_model(model, folder / "model.onnx", **data)
    facts = {"head_size": HEAD_DIM, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS}
    facts |= {"inputs": {"input_ids": "input_ids"}, "outputs": {"logits": "logits"}, "filename": "model.onnx"} | decoder
    about = {"context_length": CONTEXT, "decoder": facts, "eos_token_id": [VOCABULARY - 1], "type": "tiny"}
    (folder / "genai_config.json").write_text(json.dumps({"model": about | {"vocab_size": VOCABULARY}}))
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(TOKENS)}, merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": TOKENS[-2], "chat_template": "{{ 1 }}"}))
    return folder


def refused_export(folder: Path, graph: Graph, change: Callable[[onnx.ModelProto], object], message: str) -> Path:
    """An export whose graph was changed. The error says the message, and nothing is written."""
    source = write_export(folder / "export", graph)
    model = onnx.load(source / "model.onnx", load_external_data=False)
    change(model)
    onnx.save(model, source / "model.onnx")
    with pytest.raises(KvCacheError, match=message):
        build(source, folder / "model")
    assert not (folder / "model").exists()
    return source


def as_on_the_hub(export: Path) -> Path:
    """The export as others publish theirs: its graph in the folder onnx of the checkpoint's configuration."""
    about = json.loads((genai := export / "genai_config.json").read_text())["model"]
    genai.unlink()
    (export / "onnx").mkdir()
    for path in (*export.glob("model.onnx"), *export.glob("model.onnx.data")):
        path.rename(export / "onnx" / path.name)
    facts = {"model_type": "tiny", "hidden_size": HIDDEN, "max_position_embeddings": CONTEXT, "vocab_size": VOCABULARY}
    facts |= {"rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}}
    (export / "config.json").write_text(json.dumps(facts))
    (export / "generation_config.json").write_text(json.dumps({"eos_token_id": about["eos_token_id"]}))
    return export
