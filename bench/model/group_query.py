"""The same weights and products with ONNX Runtime's GroupQueryAttention, as onnxruntime-genai's builder emits it.

Keys and values are contiguous and padded, (sequences, H, length, Dh) of float32 for each layer, which is what this
operator takes on a CPU; all sequences of a step have one length.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from kvcache_ops.models._build import open_checkpoint
from kvcache_ops.models._decoder import Decoder
from kvcache_ops.models._graph import MICROSOFT, Graph
from onnx import TensorProto

from ours import Chunked


class GroupQueryDecoder(Decoder):
    """A decoder whose attention is GroupQueryAttention, which rotates, too."""

    def _declare(self) -> None:
        graph = self._graph
        graph.input("token_ids", TensorProto.INT64, ["T"])
        graph.input("logit_rows", TensorProto.INT64, ["R"])
        graph.input("batch_shape", TensorProto.INT64, [3])
        graph.input("seqlens_k", TensorProto.INT32, ["B"])
        graph.input("total_length", TensorProto.INT32, [1])
        self._past()

    def _past(self) -> None:
        graph, config = self._graph, self._config
        shape = ["B", config.num_kv_heads, "length", config.head_dim]
        for i in range(config.num_layers):
            for part in ("key", "value"):
                graph.input(f"past.{i}.{part}", TensorProto.FLOAT, shape)
                graph.output(f"present.{i}.{part}", TensorProto.FLOAT, shape)

    def _rotation(self) -> None:
        angles = np.outer(np.arange(self._config.context_length), self._config.inv_freq)
        for name, function in (("cos", np.cos), ("sin", np.sin)):
            self._graph.weight(name, function(angles).astype(np.float32))

    def _attend(self, name: str, i: int, normal: str) -> str:
        graph, config = self._graph, self._config
        weights = [self._tensor(f"blk.{i}.attn_{part}.weight") for part in "qkv"]
        qkv = graph.linear(f"{name}.qkv", normal, weights)
        packed = graph.node("Reshape", [qkv, "batch_shape"], f"{name}.packed")
        past, lengths = [f"past.{i}.key", f"past.{i}.value"], ["seqlens_k", "total_length"]
        mixed = graph.nodes(
            "GroupQueryAttention",
            [packed, "", "", *past, *lengths, "cos", "sin"],
            [f"{name}.attended", f"present.{i}.key", f"present.{i}.value"],
            domain=MICROSOFT,
            num_heads=config.num_heads,
            kv_num_heads=config.num_kv_heads,
            do_rotary=1,
        )[0]
        width = config.num_heads * config.head_dim
        return graph.node("Reshape", [mixed, graph.constant("width", [-1, width])], f"{name}.mixed")


class GroupQuery(Chunked):
    """A session of that decoder, with the tensors of `sequences` sequences and of one more."""

    def __init__(self, source: str, sequences: int, length: int, threads: int) -> None:
        checkpoint = open_checkpoint(Path(source))
        self._config = config = checkpoint.config
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        with tempfile.TemporaryDirectory() as folder:
            with Path(folder, "data").open("wb") as data:
                graph = Graph(data, "data", 4)
                GroupQueryDecoder(graph, config, None, "", checkpoint.tensor).write()
            onnx.save(graph.model(), f"{folder}/model.onnx")
            self._session = onnxruntime.InferenceSession(f"{folder}/model.onnx", options, ["CPUExecutionProvider"])
        shape = (2 * config.num_layers, sequences + 1, config.num_kv_heads, length, config.head_dim)
        self._cache = np.zeros(shape, np.float32)
        self._lengths = [0] * (sequences + 1)
        self._binding = self._session.io_binding()

    def clear(self, sequence: int) -> None:
        """Empties a sequence."""
        self._lengths[sequence] = 0

    def step(self, tokens: dict[int, list[int]]) -> np.ndarray:
        """Appends as many tokens to each of some sequences in a row; the logits of the last of each."""
        first, batch, config = min(tokens), len(tokens), self._config
        (new,) = {len(appended) for appended in tokens.values()}
        (past,) = {self._lengths[sequence] for sequence in tokens}
        width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        feeds = {
            "token_ids": np.concatenate([tokens[first + b] for b in range(batch)]).astype(np.int64),
            "logit_rows": np.arange(new - 1, batch * new, new),
            "batch_shape": np.array([batch, new, width]),
            "seqlens_k": np.full(batch, past + new - 1, np.int32),
            "total_length": np.array([past + new], np.int32),
        }
        for name, array in feeds.items():
            self._binding.bind_cpu_input(name, array)
        for i in range(config.num_layers):
            for j, part in enumerate(("key", "value")):
                rows = self._cache[2 * i + j, first : first + batch]
                self._binding.bind_cpu_input(f"past.{i}.{part}", rows)
                place = ("cpu", 0, np.float32, rows.shape, rows.ctypes.data)
                self._binding.bind_output(f"present.{i}.{part}", *place)
        self._binding.bind_output("logits", "cpu")
        self._session.run_with_iobinding(self._binding)
        for sequence in tokens:
            self._lengths[sequence] += new
        return self._binding.get_outputs()[-1].numpy()

    def place(self, sequences: int, source: int, tokens: list[int]) -> None:
        """Gives the first `sequences` copies of the source's first rows, which are those of `tokens`."""
        n = len(tokens)
        self._cache[:, :sequences, :, :n] = self._cache[:, source : source + 1, :, :n]
        self._lengths[:sequences] = [n] * sequences
