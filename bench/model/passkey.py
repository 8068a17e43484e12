"""Pass keys in texts of up to many times the length that a model was trained for, read with InfLlm and without.

    passkey.py SmolLM2-135M-Instruct.Q4_1.gguf     writes passkey.md and passkey.json in target/bench

A pass key of five digits stands somewhere in a text that says always the same, and is asked for behind it. "all rows"
is attention over the whole text; "window" sees the first and the last tokens alone (StreamingLLM); Quest and InfLLM
see blocks of what is between, too. The text is read in chunks, the question token by token, for a selection lags one
step behind. Of the fused operator, which gives no attention mass, representatives need it computed in numpy: their
time is not the operator's.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from kvcache_ops import register
from kvcache_ops.manager import HostMemory, InfLlm, Rope
from kvcache_ops.models import build, load

from figures import ROOT, markdown, provenance

FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
SAID = "The pass key is {key}. Remember it: {key} is the pass key. "
ASKED = "\nWhat is the pass key? The pass key is "
FUSED = "MultiHeadCacheAttention"


@dataclass(frozen=True)
class Read:
    """What came of a text."""

    way: str
    tokens: int
    right: list[bool]
    slots: int
    loads: float
    prefill: float
    decode: float

    def cells(self) -> list[str]:
        """A row of the table."""
        right = f"{sum(self.right)} of {len(self.right)}"
        numbers = (self.slots, self.loads, self.prefill, self.decode)
        return [self.way, str(self.tokens), right, *(f"{number:.1f}".removesuffix(".0") for number in numbers)]


class Reader:
    """The model with a cache that an InfLlm manages, whose queries come out of the graph, too."""

    def __init__(self, folder: Path, max_tokens: int, threads: int, **config: Any):
        self.model = load(folder)
        spec = self.model.cache_spec(max_tokens)
        self.cache = spec.allocate()
        self.memory = HostMemory(spec, *self.cache)
        facts = self.model.config
        self.repeat = facts.num_heads // facts.num_kv_heads
        rope = Rope(facts.head_dim, inv_freq=facts.inv_freq)
        self.infllm = InfLlm(spec, num_repeat=self.repeat, rope=rope, per_layer=True, **config)
        self.observed = config.get("score") == "representatives"
        self.layers = range(facts.num_layers)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        register(options)
        path = folder / "selecting.onnx"
        self.queries = self._graph(path)
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.names = {value.name for value in self.session.get_inputs()}
        self.binding = self.session.io_binding()
        self.cache.bind(self.binding)
        self.loads: list[int] = []

    def _graph(self, path: Path) -> list[str]:
        """Writes the model's graph with a table of pages for each layer; the names of the layers' queries."""
        proto = onnx.load(self.model.path, load_external_data=False)
        queries = []
        for layer, node in enumerate(node for node in proto.graph.node if node.op_type == FUSED):
            for i, name in enumerate(node.input):
                if name == "cachestarts":
                    node.input[i] = f"cachestarts.{layer}"
            table = onnx.helper.make_tensor_value_info(f"cachestarts.{layer}", onnx.TensorProto.INT64, ["B", "MaxP"])
            proto.graph.input.append(table)
            queries.append(node.input[0])
            proto.graph.output.append(onnx.helper.make_tensor_value_info(queries[-1], onnx.TensorProto.FLOAT, None))
        kept = [value for value in proto.graph.input if value.name != "cachestarts"]
        del proto.graph.input[:]
        proto.graph.input.extend(kept)
        onnx.save(proto, path)
        return queries

    def step(self, s: int, tokens: list[int]) -> np.ndarray:
        """Appends tokens, and selects by their queries; the logits of the last one."""
        with self.infllm.begin_step({s: len(tokens)}, self.memory) as step:
            feeds = {f"cachestarts.{layer}": step.cachestarts(layer) for layer in self.layers}
            feeds |= {name: np.atleast_1d(getattr(step, name)) for name in self.names if hasattr(step, name)}
            feeds |= {"token_ids": np.array(tokens, np.int64), "logit_rows": np.array([len(tokens) - 1], np.int64)}
            for name, array in feeds.items():
                if name in self.names:
                    self.binding.bind_cpu_input(name, array)
            for name in ("logits", *self.queries):
                self.binding.bind_output(name, "cpu")
            self.session.run_with_iobinding(self.binding)
            logits, *queries = self.binding.copy_outputs_to_cpu()
            if self.observed:
                for layer, query in enumerate(queries):
                    self.infllm.observe(layer, self._mass(query, step, layer))
        self.loads.append(step.loads)
        for layer, query in enumerate(queries):
            self.infllm.select(layer, query)
        return logits[0]

    def _mass(self, query: np.ndarray, step: Any, layer: int) -> np.ndarray:
        """What attention each key got, (heads of queries, keys)."""
        rows, n = int(step.kvstarts[-1]), len(query)
        pages = np.arange(self.cache.spec.page_size)
        slots = (step.cachestarts(layer)[0][:, None] + pages).reshape(-1)[:rows]
        keys = self.cache.cache[layer, 0][:, slots].astype(np.float32)  # (H, rows, Dh)
        mass = np.empty((query.shape[1], rows), np.float32)
        hidden = np.triu(np.full((n, n), -np.inf, np.float32), 1)
        for head in range(query.shape[1]):
            scores = query[:, head] @ keys[head // self.repeat].T / np.float32(np.sqrt(query.shape[2]))
            scores[:, rows - n :] += hidden
            np.exp(scores - scores.max(1, keepdims=True), out=scores)
            mass[head] = (scores / scores.sum(1, keepdims=True)).sum(0)
        return mass


def passkey(reader: Reader, way: str, length: int, chunk: int, prompts: int) -> Read:
    """Reads texts of about this many tokens, each with a key, and asks for it."""
    encode, random, right = reader.model.tokenizer.encode, np.random.default_rng(7), []
    filler, asked = encode(FILLER).ids, encode(ASKED).ids
    slots, prefill, decode, loads = 0, 0.0, 0.0, []
    for i in range(prompts):
        key = "".join(str(digit) for digit in random.integers(0, 10, 5))
        said = encode(SAID.format(key=key)).ids
        times = (length - len(said) - len(asked) - len(key)) // len(filler)
        before = int(times * (i + random.random()) / prompts)
        text = filler * before + said + filler * (times - before)
        s, begin = reader.infllm.create(), time.perf_counter()
        for first in range(0, len(text), chunk):
            reader.step(s, text[first : first + chunk])
            slots = max(slots, reader.infllm.num_pages(s) * reader.cache.spec.page_size)
        middle, answer = time.perf_counter(), []
        reader.loads = []
        for token in asked:
            logits = reader.step(s, [token])
        for _ in key:
            answer.append(int(logits.argmax()))
            logits = reader.step(s, answer[-1:])
        end = time.perf_counter()
        right.append(reader.model.tokenizer.decode(answer).strip() == key)
        prefill, decode = prefill + len(text) / (middle - begin), decode + len(reader.loads) / (end - middle)
        loads.append(np.mean(reader.loads))
        reader.infllm.free(s)
    return Read(way, length, right, slots, float(np.mean(loads)), prefill / prompts, decode / prompts)


def main() -> int:
    """Reads all texts in all ways, and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a GGUF file")
    parser.add_argument("--trained", type=int, default=8192, help="the tokens that the model was trained for")
    parser.add_argument("--times", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="lengths, times --trained")
    parser.add_argument("--ways", nargs="+", default=["all rows", "window", "Quest", "InfLLM"])
    parser.add_argument("--most", type=int, default=2, help="the longest text for all rows, times --trained")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--local", type=int, default=1024)
    parser.add_argument("--n-ctx", type=int, default=4096, help="positions that are used, not above --trained")
    parser.add_argument("--init", type=int, default=32)
    parser.add_argument("--block", type=int, default=16, help="tokens of a block and of a page")
    parser.add_argument("--topk", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, default=ROOT / "target/bench/passkey", help="where the model is built")
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench", help="folder of the report")
    given, begin = parser.parse_args(), time.monotonic()
    if not (given.folder / "model.onnx").exists():
        build(given.source, given.folder, cache="float16", page_size=given.block)
    block = given.block
    sizes = {"init": given.init, "local": given.local, "block": block}
    far = {"positions": "far_fixed", "n_ctx": given.n_ctx}
    blocks = {"topk": given.topk, "max_cached": 2 * given.topk} | far
    ways = {
        "window": sizes | {"score": "none", "topk": 0} | far,
        "Quest": sizes | {"score": "page_bounds"} | blocks,
        "InfLLM": sizes | {"score": "representatives"} | blocks,
    }
    given.out.mkdir(parents=True, exist_ok=True)
    found: list[Read] = []
    for times in given.times:
        length = times * given.trained
        for way in given.ways:
            config = ways.get(way)
            if config is None:
                if times > given.most:
                    continue
                rows = -(-length // block) * block
                config = {"init": 0, "local": rows, "block": block, "score": "none", "topk": 0}
                slots = rows + 2 * block
            else:
                slots = given.init + given.local + block * (3 + 2 * given.topk) + given.chunk
            reader = Reader(given.folder, slots, given.threads, **config)
            found.append(passkey(reader, way, length, given.chunk, given.prompts))
            print(" | ".join(found[-1].cells()), flush=True)
            report = {"origin": provenance(time.monotonic() - begin), "reads": [asdict(read) for read in found]}
            (given.out / "passkey.json").write_text(json.dumps(report, indent=1) + "\n")
    header = ["attention", "tokens", "pass keys", "slots", "loads a step", "tokens/s of the text", "of the answer"]
    origin = [f"- {name}: {value}" for name, value in provenance(time.monotonic() - begin).items()]
    table = markdown(header, [read.cells() for read in found])
    (given.out / "passkey.md").write_text("\n".join(["# pass keys", "", *origin, "", table]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
