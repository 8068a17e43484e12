"""Tiny checkpoints with random weights, written by the packages gguf and safetensors, and a run of a built model."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from kvcache_ops import models
from kvcache_ops.manager import Append
from kvcache_ops.models._grouped_manager import StepInputs
from tokenizers.pre_tokenizers import ByteLevel

SIZES = dict(hidden=256, ffn=512, heads=4, kv_heads=2, head_dim=64, layers=2)
# For tests of engines and servers: steps of a library without optimization are most of their time.
SMALL = dict(hidden=64, ffn=64, heads=4, kv_heads=2, head_dim=32, layers=2)
SPECIAL = ["<|start|>", "<|end|>"]
TOKENS = [*sorted(ByteLevel.alphabet()), "Ġt", "he", "Ġthe", *SPECIAL]
MERGES = ["Ġ t", "h e", "Ġt he"]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


PROMPT = [5, 200, 17, 90, 33, 33, 1, 250, 64]
TEXT = [*PROMPT, 7, 120, 121]
EXACT = dict(activations="int16", cache="float32")


def shapes(family: str, tied: bool, sizes: dict[str, int] = SIZES) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors by GGUF's names; spelled out, independent of the package."""
    hidden, ffn, head_dim = sizes["hidden"], sizes["ffn"], sizes["head_dim"]
    query, key = sizes["heads"] * head_dim, sizes["kv_heads"] * head_dim
    found = {"token_embd.weight": (len(TOKENS), hidden), "output_norm.weight": (hidden,)}
    if not tied:
        found["output.weight"] = (len(TOKENS), hidden)
    for i in range(sizes["layers"]):
        for name, outputs in (("q", query), ("k", key), ("v", key)):
            found[f"blk.{i}.attn_{name}.weight"] = (outputs, hidden)
            if family == "qwen2":
                found[f"blk.{i}.attn_{name}.bias"] = (outputs,)
            if family in ("qwen3", "gemma3") and name != "v":
                found[f"blk.{i}.attn_{name}_norm.weight"] = (head_dim,)
        found[f"blk.{i}.attn_output.weight"] = (hidden, query)
        if family.startswith("gemma"):
            found[f"blk.{i}.post_attention_norm.weight"] = found[f"blk.{i}.post_ffw_norm.weight"] = (hidden,)
        found[f"blk.{i}.ffn_gate.weight"] = found[f"blk.{i}.ffn_up.weight"] = (ffn, hidden)
        found[f"blk.{i}.ffn_down.weight"] = (hidden, ffn)
        found[f"blk.{i}.attn_norm.weight"] = found[f"blk.{i}.ffn_norm.weight"] = (hidden,)
    return found


def random_tensors(family: str = "llama", tied: bool = True, sizes: dict[str, int] = SIZES) -> dict[str, np.ndarray]:
    """Float32 values of about unit gain."""
    random = np.random.default_rng(7)
    return {
        name: (random.standard_normal(shape) / np.sqrt(shape[-1]) if len(shape) == 2 else random.random(shape) + 0.5)
        .astype(np.float32)
        for name, shape in shapes(family, tied, sizes).items()
    }  # fmt: skip


# Where a block of what the package does not quantize has its float16 scale and minimum, and their largest values.
BLOCK_FLOATS = {
    "Q2_K": [(80, 4e-3), (82, 6e-3)],
    "Q3_K": [(108, 8e-4)],
    "Q4_K": [(0, 4e-4), (2, 3e-3)],
    "Q5_K": [(0, 2e-4), (2, 3e-3)],
    "Q6_K": [(208, 3e-5)],
    "IQ4_NL": [(0, 1e-3)],
    "IQ4_XS": [(0, 3e-5)],
}


def quantized(values: np.ndarray, kind: str) -> np.ndarray:
    """The values as rows of a GGUF type; random blocks instead of what the package does not make."""
    if kind not in BLOCK_FLOATS:
        return gguf.quants.quantize(values, GGMLQuantizationType[kind])
    count, size = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    random = np.random.default_rng(values.size)
    rows = random.integers(0, 256, (len(values), values.shape[1] // count, size), np.uint8)
    for first, value in BLOCK_FLOATS[kind]:
        scales = (random.random(rows.shape[:2]) * value).astype(np.float16)
        rows[..., first : first + 2] = scales[..., None].view(np.uint8)
    return rows.reshape(len(values), -1)


def write_gguf(
    path: Path,
    kind: str = "F32",
    family: str = "llama",
    *,
    tensors: dict[str, np.ndarray] | None = None,
    sizes: dict[str, int] = SIZES,
    fields: dict[str, object] | None = None,
    tokens: list[str] = TOKENS,
    types: list[int] | None = None,
    merges: list[str] = MERGES,
    embedding: str | None = None,
    vectors: str = "F32",
) -> Path:
    """A model file, its matrices of the type `kind`, the `embedding` of its own; `fields` are further metadata."""
    tensors = random_tensors(family, sizes=sizes) if tensors is None else tensors
    writer = gguf.GGUFWriter(path, family)
    facts = {
        f"{family}.block_count": sizes["layers"],
        f"{family}.context_length": 4096,
        f"{family}.embedding_length": sizes["hidden"],
        f"{family}.feed_forward_length": sizes["ffn"],
        f"{family}.attention.head_count": sizes["heads"],
        f"{family}.attention.head_count_kv": sizes["kv_heads"],
        f"{family}.attention.key_length": sizes["head_dim"],
        f"{family}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{family}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.bos_token_id": len(TOKENS) - 2,
        "tokenizer.ggml.eos_token_id": len(TOKENS) - 1,
        "tokenizer.chat_template": "{{ messages }}",
    } | (fields or {})
    add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
    add[bool] = writer.add_bool
    for key, value in facts.items():
        add[type(value)](key, value)
    writer.add_token_list(tokens)
    writer.add_token_types(types or [3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges(merges)
    for name, values in tensors.items():
        type_ = embedding if embedding and name == "token_embd.weight" else kind if values.ndim == 2 else vectors
        writer.add_tensor(name, quantized(values, type_), raw_dtype=GGMLQuantizationType[type_])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_sentence_piece(path: Path, words: dict[str, float], **tensors: np.ndarray) -> tuple[Path, list[str]]:
    """A model file of <unk>, <s>, </s>, bytes, and words with their scores, whose tokens are returned, too."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *words]
    fields = {"model": "llama", "scores": [0.0] * 259 + [*words.values()], "bos_token_id": 1, "eos_token_id": 2}
    embedding = {"token_embd.weight": np.ones((len(tokens), SIZES["hidden"]), np.float32)}
    return write_gguf(
        path,
        tensors=random_tensors() | embedding | tensors,
        fields={f"tokenizer.ggml.{name}": value for name, value in fields.items()},
        tokens=tokens,
        types=[2, 3, 3, *[6] * 256, *[1] * len(words)],
    ), tokens


def with_nan(path: Path, row: np.ndarray) -> Path:
    """A built model with NaN in the place of this row of its weights, which no file may have."""
    data = path.with_name("model.onnx.data")
    content = data.read_bytes()
    assert content.count(row.tobytes()) == 1
    data.write_bytes(content.replace(row.tobytes(), np.full_like(row, np.nan).tobytes()))
    return path


class Run:
    """A built model over a cache of its own: every step gives the logits of all of its tokens."""

    def __init__(self, path: Path, max_tokens: int = 512):
        self.model = models.load(path)
        self.session = self.model.session()
        self.caches = self.model.caches(max_tokens)
        self.cache, self.manager, self.memory = self.caches.caches[0], self.caches.manager, self.caches.memory
        self.inputs = StepInputs(self.session)

    def step(self, tokens: dict[int, list[int]], rows: list[int] | None = None) -> np.ndarray:
        """One step of these sequences; sequences with one token come first. `rows` are all rows if None."""
        appends = [Append(seq, tokens=new) for seq, new in tokens.items()]
        with self.manager.begin_step(appends, self.memory) as step:
            feeds = self.inputs(step, range(step.token_ids.size) if rows is None else rows)
            return self.session.run(None, feeds | self.caches.ortvalues())[0]

    def logits(self, tokens: list[int] = TEXT, prompt: int = len(PROMPT)) -> np.ndarray:
        """(tokens, vocabulary) of one sequence, TEXT: a prompt, then token by token, beside another one's tokens."""
        seq, other = self.manager.create(), self.manager.create()
        rows = [self.step({seq: tokens[:prompt]})]
        for token in tokens[prompt:]:
            rows.append(self.step({seq: [token], other: [3, 1, 2]})[:1])
        self.manager.free(seq)
        self.manager.free(other)
        return np.concatenate(rows)


def built(path: Path, folder: str = "model", max_tokens: int = 512, **options: object) -> Run:
    """The model of a file, opened."""
    return Run(models.build(path, path.parent / folder, **options), max_tokens)


def expect_near(got: np.ndarray, expected: np.ndarray, bound: float) -> None:
    """The largest difference is at most `bound` of the logits' standard deviation."""
    assert got.shape == expected.shape and np.isfinite(got).all()
    assert np.abs(got - expected).max() / expected.std() <= bound
