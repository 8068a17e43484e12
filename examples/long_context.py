"""A text of 16 times as many tokens as the cache has slots: a real model finds a pass key in it.

    python examples/long_context.py SmolLM2-135M-Instruct.Q4_1.gguf

Attention sees the first tokens, the last ones, and blocks between them, which queries select by the bounds of their
keys. All blocks are in host memory, selected ones also in the cache. Blocks are rotated to positions that the model was
trained for. The exit status is 1 if the answer is not the pass key.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
from kvcache_ops import register
from kvcache_ops.manager import HostMemory, InfLlm, Rope
from kvcache_ops.models import build, load

FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
SAID = "The pass key is {key}. Remember it: {key} is the pass key. "
ASKED = "\nWhat is the pass key? The pass key is "
FUSED = "MultiHeadCacheAttention"
TIMES, KEY = 16, "71432"
INIT, LOCAL, BLOCK, TOPK, CHUNK = 16, 256, 16, 16, 128
SLOTS = INIT + LOCAL + BLOCK * (3 + 2 * TOPK) + CHUNK


class Reader:
    """The model with a cache that an InfLlm manages; the graph also outputs queries and, if needed, the mass."""

    def __init__(self, folder: Path, max_tokens: int, threads: int, **config: Any):
        self.model = load(folder)
        spec = self.model.cache_spec(max_tokens)
        self.cache = spec.allocate()
        self.memory = HostMemory(spec, *self.cache)
        facts = self.model.config
        rope = Rope(facts.head_dim, inv_freq=facts.inv_freq)
        repeat = facts.num_heads // facts.num_kv_heads
        self.infllm = InfLlm(spec, num_repeat=repeat, rope=rope, per_layer=True, **config)
        self.observed = config.get("score") == "representatives"
        self.layers = range(facts.num_layers)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        register(options)
        path = folder / "selecting.onnx"
        self.selected = self._graph(path)
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.names = {value.name for value in self.session.get_inputs()}
        self.binding = self.session.io_binding()
        self.cache.bind(self.binding)
        self.loads: list[int] = []

    def _graph(self, path: Path) -> list[str]:
        """Writes the model's graph with a table of pages for each layer; the names of the queries and masses."""
        proto = onnx.load(self.model.path, load_external_data=False)
        queries, masses = [], []
        for layer, node in enumerate(node for node in proto.graph.node if node.op_type == FUSED):
            for i, name in enumerate(node.input):
                if name == "cachestarts":
                    node.input[i] = f"cachestarts.{layer}"
            table = onnx.helper.make_tensor_value_info(f"cachestarts.{layer}", onnx.TensorProto.INT64, ["B", "MaxP"])
            proto.graph.input.append(table)
            queries.append(node.input[0])
            if self.observed:
                masses.append(f"attention_mass.{layer}")
                node.output.append(masses[-1])
        outputs = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in queries + masses]
        proto.graph.output.extend(outputs)
        kept = [value for value in proto.graph.input if value.name != "cachestarts"]
        del proto.graph.input[:]
        proto.graph.input.extend(kept)
        onnx.save(proto, path)
        return queries + masses

    def step(self, s: int, tokens: list[int]) -> np.ndarray:
        """Appends tokens, and selects by their queries; the logits of the last one."""
        with self.infllm.begin_step({s: len(tokens)}, self.memory) as step:
            feeds = {f"cachestarts.{layer}": step.cachestarts(layer) for layer in self.layers}
            feeds |= {name: np.atleast_1d(getattr(step, name)) for name in self.names if hasattr(step, name)}
            feeds |= {"token_ids": np.array(tokens, np.int64), "logit_rows": np.array([len(tokens) - 1], np.int64)}
            for name, array in feeds.items():
                if name in self.names:
                    self.binding.bind_cpu_input(name, array)
            for name in ("logits", *self.selected):
                self.binding.bind_output(name, "cpu")
            self.session.run_with_iobinding(self.binding)
            logits, *selected = self.binding.copy_outputs_to_cpu()
            for layer, mass in enumerate(selected[len(self.layers) :]):
                self.infllm.observe(layer, mass)
        self.loads.append(step.loads)
        for layer, query in enumerate(selected[: len(self.layers)]):
            self.infllm.select(layer, query)
        return logits[0]

    def read(self, s: int, text: list[int], chunk: int) -> None:
        """Appends a text, chunk by chunk."""
        for first in range(0, len(text), chunk):
            self.step(s, text[first : first + chunk])

    def answer(self, s: int, question: list[int], n: int) -> str:
        """Appends a question, token by token, for a selection lags one step behind; the next `n` tokens, as text."""
        for token in question:
            logits = self.step(s, [token])
        answer: list[int] = []
        for _ in range(n):
            answer.append(int(logits.argmax()))
            logits = self.step(s, answer[-1:])
        text: str = self.model.tokenizer.decode(answer)
        return text.strip()


def main() -> int:
    """Reads the text and asks for the key; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=Path, help="a GGUF file")
    with TemporaryDirectory() as folder:
        build(parser.parse_args().source, folder, cache="float16", page_size=BLOCK)
        far = {"positions": "far_fixed", "n_ctx": 2048}
        blocks = {"block": BLOCK, "topk": TOPK, "max_cached": 2 * TOPK, "score": "page_bounds"}
        reader = Reader(Path(folder), SLOTS, 0, init=INIT, local=LOCAL, **blocks, **far)
        encode = reader.model.tokenizer.encode
        filler, said = encode(FILLER).ids, encode(SAID.format(key=KEY)).ids
        repeats = TIMES * SLOTS // len(filler) // 2
        s, begin, text = reader.infllm.create(), time.perf_counter(), filler * repeats + said + filler * (repeats + 1)
        reader.read(s, text, CHUNK)
        seconds, pages = time.perf_counter() - begin, reader.infllm.num_pages(s)
        answer = reader.answer(s, encode(ASKED).ids, len(KEY))
    times = len(text) / SLOTS
    print(f"{len(text)} tokens, {times:.1f} times the cache's {SLOTS} slots, of which {pages * BLOCK} are taken")
    print(f"{len(text) / seconds:.0f} tokens/s; the pass key in the middle is {KEY}, the answer {answer}")
    return 0 if answer == KEY and times > TIMES else 1


if __name__ == "__main__":
    sys.exit(main())
