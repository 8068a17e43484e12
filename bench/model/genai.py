"""onnxruntime-genai over the same weights and products, in a graph with the inputs and outputs of its builder."""

from __future__ import annotations

import json
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import onnx
from kvcache_ops.models._build import open_checkpoint
from kvcache_ops.models._graph import Graph
from onnx import TensorProto, helper

from group_query import GroupQueryDecoder
from harness import add_peers

add_peers()


def title() -> str | None:
    """The package's name and version; None where it is not installed."""
    try:
        return f"onnxruntime-genai {version('onnxruntime-genai')}"
    except PackageNotFoundError:
        return None


TITLE = title()


class GenaiDecoder(GroupQueryDecoder):
    """The decoder with input_ids and attention_mask; the logits are those of each sequence's last token."""

    def _declare(self) -> None:
        graph, config = self._graph, self._config
        graph.input("input_ids", TensorProto.INT64, ["B", "S"])
        graph.input("attention_mask", TensorProto.INT64, ["B", "total"])
        self._past()
        graph.node("Reshape", ["input_ids", graph.constant("flat", [-1])], "token_ids")
        shape = graph.node("Shape", ["input_ids"], "shape")
        width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        graph.node("Concat", [shape, graph.constant("packed_width", [width])], "batch_shape", axis=0)
        one, first = graph.constant("one", [1]), graph.constant("first", 0)
        count = graph.node("Gather", [shape, graph.constant("second", 1)], "count")
        all_rows = graph.node("ReduceProd", [shape], "all_rows", keepdims=0)
        starts = graph.node("Range", [first, all_rows, count], "starts")
        last = graph.node("Sub", [count, one], "last")
        graph.node("Add", [starts, last], "logit_rows")
        seen = graph.node("ReduceSum", ["attention_mask", one], "seen", keepdims=0)
        graph.node("Cast", [graph.node("Sub", [seen, one], "before")], "seqlens_k", to=TensorProto.INT32)
        total = graph.node("Shape", ["attention_mask"], "total", start=1)
        graph.node("Cast", [total], "total_length", to=TensorProto.INT32)


class Genai:
    """One sequence in onnxruntime-genai, which computes all tokens of a prompt at once."""

    def __init__(self, source: str, length: int, threads: int) -> None:
        import onnxruntime_genai

        checkpoint = open_checkpoint(Path(source))
        config = checkpoint.config
        with tempfile.TemporaryDirectory() as folder:
            with Path(folder, "data").open("wb") as data:
                graph = Graph(data, "data", 4)
                GenaiDecoder(graph, config, None, "", checkpoint.tensor).write()
            model = graph.model()
            # (B, V) as (B, 1, V).
            [head] = [node for node in model.graph.node if node.output[0] == "logits"]
            head.output[0] = "rows"
            axes = helper.make_tensor("logits_axes", TensorProto.INT64, [1], [1])
            model.graph.initializer.append(axes)
            model.graph.node.append(helper.make_node("Unsqueeze", ["rows", "logits_axes"], ["logits"]))
            [output] = [output for output in model.graph.output if output.name == "logits"]
            output.CopyFrom(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["B", 1, config.vocab_size]))
            onnx.save(model, f"{folder}/model.onnx")
            names = {name: name for name in ("input_ids", "attention_mask")}
            parts, times = ("key", "value"), ("past", "present")
            past, present = ({f"{when}_{part}_names": f"{when}.%d.{part}" for part in parts} for when in times)
            decoder = {
                "session_options": {"intra_op_num_threads": threads, "provider_options": []},
                "filename": "model.onnx",
                "head_size": config.head_dim,
                "hidden_size": config.hidden,
                "num_attention_heads": config.num_heads,
                "num_hidden_layers": config.num_layers,
                "num_key_value_heads": config.num_kv_heads,
                "inputs": names | past,
                "outputs": {"logits": "logits"} | present,
            }
            tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0)
            sizes = {"vocab_size": config.vocab_size, "context_length": length}
            about = {
                "model": {"type": "llama", "decoder": decoder} | sizes | tokens,
                "search": {"max_length": length, "past_present_share_buffer": True},
            }
            Path(folder, "genai_config.json").write_text(json.dumps(about))
            self._model = onnxruntime_genai.Model(folder)
        parameters = onnxruntime_genai.GeneratorParams(self._model)
        parameters.set_search_options(max_length=length, batch_size=1)
        self._generator = onnxruntime_genai.Generator(self._model, parameters)

    def step(self, tokens: dict[int, list[int]]) -> np.ndarray:
        """Appends tokens to the sequence; the logits of the last."""
        [appended] = tokens.values()
        self._generator.append_tokens(np.array([appended], np.int32))
        return self._generator.get_logits().reshape(1, -1)

    def prompt(self, sequence: int, tokens: list[int]) -> np.ndarray:
        """Computes a prompt; the logits of its last token."""
        self._generator.rewind_to(0)
        return self.step({sequence: tokens})[0]

    def place(self, sequences: int, source: int, tokens: list[int]) -> None:
        """Goes back, or on, to the rows of `tokens`, with which the sequence begins."""
        held = self._generator.token_count()
        if held < len(tokens):
            self.step({source: tokens[held:]})
        else:
            self._generator.rewind_to(len(tokens))
