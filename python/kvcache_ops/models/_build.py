"""Building a model: from a checkpoint to a folder with a graph, its weights and its tokenizer."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from dataclasses import asdict, replace
from math import gcd
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, helper

from kvcache_ops._atomic_file import replace as replace_file
from kvcache_ops._errors import KvCacheError
from kvcache_ops._model_cache import locked, part_in
from kvcache_ops.models._centering import set_means
from kvcache_ops.models._checkpoint import Checkpoint
from kvcache_ops.models._decoder import Decoder
from kvcache_ops.models._gguf import read_gguf
from kvcache_ops.models._graph_writer import ACTIVATIONS, Graph
from kvcache_ops.models._hugging_face import read_folder
from kvcache_ops.models._layer_groups import LayerGroups
from kvcache_ops.models._onnx_export import Export
from kvcache_ops.models._onnx_files import GENAI, is_export
from kvcache_ops.models._weights import Weight, convert
from kvcache_ops.ops._cache_spec import T2, CacheSpec

MODEL, DATA, TOKENIZER = "model.onnx", "model.onnx.data", "tokenizer.json"
METADATA = "kvcache_ops.model"
FORMAT, FORMAT_OF_GROUPS = 6, 7  # 4 and 5 had MatMulNBits; 2 and 3 another int4, and keys rotated over whole heads
STAMP = 16  # bytes at the data's end, which the model's metadata repeats

_CACHES: dict[T2, int] = {"float32": 0, "float16": 0, "int8": 8, "int4": 4}
_WEIGHTS = ("auto", "float32", "float16", "int8", "int4")
_ATTENTIONS = ("fused", "packed")
_ROPES = ("auto", "long", "short")
_PRODUCTS = ("panels", "MatMulNBits")


def build(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    weights: str = "auto",
    activations: str = "auto",
    products: str = "panels",
    cache: T2 = "int8",
    quant_group: int | None = None,
    rotation: bool | None = None,
    balance: bool | None = None,
    center: bool | None = None,
    cache_layout: int = 3,
    cache_mode: int = 1,
    page_size: int = 32,
    layer_groups: bool = True,
    attention: str = "fused",
    context: int | None = None,
    rope: str = "auto",
    chat: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Makes an ONNX model with a KV cache of our operators from a GGUF file, a Hugging Face folder, or an ONNX export.

        build("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2")

    out: a folder, made if it is not there, for model.onnx, model.onnx.data and tokenizer.json.
    weights: "auto" keeps them as they are in `source`, quantized ones with their codes and scales. Floats may become
    "float32", "float16", or "int8" and "int4" in blocks of 32 inputs with a scale each.
    activations: "int8" or "int16" rounds the inputs of quantized matrices to that many bits in blocks; "auto" takes
    int16 for codes of 8 bits, int8 for codes of 4.
    products: of quantized matrices, "panels" is QuantizedMatMul, of this package, on CPUs. "MatMulNBits" is ONNX
    Runtime's operator, for a session of your own on CUDA; its activations are not rounded.
    cache: "float32", "float16", "int8" or "int4", the latter two with a float16 scale for `quant_group` elements,
    by default 32, or the greatest power of two below it that divides a head.
    rotation: whether keys are rotated before they are quantized, which helps int4 in large groups; None rotates int4
    alone.
    balance: whether the weights of norms of queries and keys are changed, with the same scores, so that each channel
    of a quantized key is as large as its queries; None does so for int4. Where keys have no such norms True is refused.
    center: whether the mean key of each layer and head is subtracted from keys before they are quantized, which changes
    all scores of a query alike; None does so for int4. It is taken from a run of 256 random tokens, at positions up to
    2048. Refused where scores have a soft cap. Keys of such a cache are not shifted to other positions (K-shift), but
    computed again.
    Of an export, whose graph stays as it is, neither is possible.
    cache_layout, cache_mode, page_size: as CacheSpec has them.
    layer_groups: whether layers that see a window of tokens get a cache of their own, in pages, where an engine keeps
    the window alone. Without, all layers have one cache.
    attention: "fused" is MultiHeadCacheAttention, "packed" KeyValueCache and MultiHeadAttention.
    context: the most tokens of a sequence; None is what the model has.
    rope: of an export whose rotary factors depend on a sequence's length, "long" or "short"; "auto" are those for
    `context`.
    chat: whether the model is for chats: one without a usable chat template is then refused before it is built.
    progress: called with how many tensors are written, and of how many.

    An export is a folder of onnxruntime-genai's model builder, or a graph of its kind in the folder of its checkpoint's
    config.json or in onnx/ there; of several graphs, `source` is one. Its attention and its products with quantized
    matrices are replaced by ours. Its other weights stay in its own file, to which the new folder has a hard link, or
    else a copy. An export that its own configuration contradicts is built with a warning.

    Returns the path of model.onnx. Raises KvCacheError, in whose `kind` "source_", "config_", "tensor_", "tokenizer_",
    "family_" or "graph_" says what is wrong with `source`; "option_unknown", "context_range", "out_empty",
    "out_is_source" and what CacheSpec raises are about the arguments. What was written until then is removed. Of
    several builds into one folder the last one stays, whole. With `chat`, "chat_template".
    """
    options = {"weights": (weights, _WEIGHTS), "cache": (cache, _CACHES), "attention": (attention, _ATTENTIONS)}
    options |= {"activations": (activations, ("auto", *ACTIVATIONS)), "products": (products, _PRODUCTS)}
    options |= {"rope": (rope, _ROPES)}
    for name, (got, expected) in options.items():
        if got not in expected:
            raise KvCacheError(f"{name} is {got!r}, expected one of {', '.join(expected)}", "option_unknown")
    if products != "panels" and activations != "auto":
        message = f"activations is {activations!r}, expected auto: {products} rounds none"
        raise KvCacheError(message, "option_unknown")
    rounded = activations if products == "panels" else None
    if not os.fspath(out):
        raise KvCacheError("out is an empty path, expected a folder to write", "out_empty")
    checkpoint = open_source(Path(source), rope, context)
    config = checkpoint.config
    if chat:
        from kvcache_ops.models._chat_template import ChatTemplate  # which loads models

        ChatTemplate(checkpoint)  # type: ignore[arg-type]  # it has all that is read here
    if isinstance(checkpoint, Export) and weights != "auto":
        raise KvCacheError(f"weights is {weights!r}, expected auto: an export's stay as they are", "option_unknown")
    can_balance = can_center = False
    if isinstance(checkpoint, Checkpoint):
        can_balance, can_center = checkpoint.config.head_norms, not checkpoint.config.softcap
    for name, asked, possible in (("balance", balance, can_balance), ("center", center, can_center)):
        if asked and not possible:
            message = f"{name} is True, expected False: it is not possible for {checkpoint.name}"
            raise KvCacheError(message, "option_unknown")
    balance = can_balance and cache == "int4" if balance is None else balance
    center = can_center and cache == "int4" if center is None else center
    if (Path(out) / GENAI).is_file() or (isinstance(checkpoint, Export) and checkpoint.lies_in(Path(out))):
        raise KvCacheError(f"{out} has an export, expected a folder that is no export", "out_is_source")
    if Path(out).is_dir() and Path(out).resolve() == Path(source).resolve():
        raise KvCacheError(f"{out} is the source, expected another folder", "out_is_source")
    spec = CacheSpec(
        max_tokens=1,  # the graph leaves it open
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=checkpoint.dtype if isinstance(checkpoint, Export) else "float32",
        num_layers=config.num_layers,
        cache_layout=cache_layout,
        quant_bit=_CACHES[cache],
        quant_group=gcd(32, config.head_dim) if quant_group is None else quant_group,
        cache_dtype=cache,
        scale_dtype="float16" if _CACHES[cache] else None,
        cache_mode=cache_mode,
        page_size=page_size,
        quant_rotation=int(cache == "int4" if rotation is None else rotation),
    )
    groups = LayerGroups.one(config.num_layers)
    if layer_groups and cache_mode == 1 and config.window is None and config.windows:
        groups = LayerGroups.by_window(config.windows, config.context_length)
    if isinstance(checkpoint, Export):
        # Refuses before anything is written.
        checkpoint.graph.rewrite(spec, groups, attention, rounded, config.vocab_size)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    with part_in(folder, ".kvcache-") as part:
        if isinstance(checkpoint, Export):
            model, facts = checkpoint.graph.model, checkpoint.link(part / DATA, progress)
        else:
            model, facts = _write(
                checkpoint, spec, groups, part / DATA, weights, rounded, attention, balance, center, progress
            )
            if center:
                facts["fingerprint"] += set_means(model, part, spec, groups, config.vocab_size)
        about = {
            "format": FORMAT if len(groups.windows) == 1 else FORMAT_OF_GROUPS,
            "name": checkpoint.name,
            "config": asdict(config),
            "weights": weights,
            "cache": {key: value for key, value in asdict(spec).items() if key != "max_tokens"},
            "centered": center,
            "layer_groups": None if groups.windows == (None,) else asdict(groups),
            "bos": checkpoint.bos,
            "stops": checkpoint.stops,
            "chat_template": checkpoint.chat_template,
        }
        helper.set_model_props(model, {METADATA: json.dumps(about | facts)})
        (part / TOKENIZER).write_text(checkpoint.tokenizer.to_str(), encoding="utf-8")
        data = sorted(part.glob(f"{DATA}*"))
        onnx.save(model, part / MODEL)
        with locked(folder):
            for path in (*data, part / TOKENIZER, part / MODEL):  # the model last: what can be opened is whole
                replace_file(path, folder / path.name)
    return folder / MODEL


def _write(
    checkpoint: Checkpoint,
    spec: CacheSpec,
    groups: LayerGroups,
    path: Path,
    weights: str,
    activations: str | None,
    attention: str,
    balance: bool,
    center: bool,
    progress: Callable[[int, int], None] | None,
) -> tuple[ModelProto, dict[str, Any]]:
    """Writes the weights of a checkpoint into a file; returns the graph over them, and what `load` must know."""
    shapes = checkpoint.config.tensors()
    read: set[str] = set()

    def tensor(name: str) -> Weight:
        weight = checkpoint.tensor(name)
        read.add(name)
        if progress is not None:
            progress(len(read), len(shapes))
        return convert(name, weight, weights) if len(shapes[name]) == 2 else weight

    stamp = secrets.token_bytes(STAMP)
    with path.open("wb") as data:
        graph = Graph(data, path.name, activations)
        Decoder(graph, checkpoint.config, spec, groups, attention, balance, center, tensor).write()
        data.write(stamp)
    facts = {"data_bytes": path.stat().st_size, "stamp": stamp.hex(), "fingerprint": graph.fingerprint()}
    return graph.model(), facts


def open_source(path: Path, rope: str, context: int | None) -> Checkpoint | Export:
    """The contents of a GGUF file, a Hugging Face folder or an export."""
    if path.exists() and is_export(path):
        return Export(path, rope, context)
    if rope != "auto":
        raise KvCacheError(f"rope is {rope!r}, expected auto: {path} is no ONNX export", "option_unknown")
    checkpoint = open_checkpoint(path)
    if context is None:
        return checkpoint
    if not 1 <= context <= checkpoint.config.context_length:
        message = f"context is {context}, expected 1 to {checkpoint.config.context_length}, the model's"
        raise KvCacheError(message, "context_range")
    return replace(checkpoint, config=replace(checkpoint.config, context_length=context))


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a GGUF file, or in a Hugging Face folder."""
    if path.is_dir():
        return read_folder(path)
    if not path.is_file():
        raise KvCacheError(f"there is no file or folder {path}", "source_missing")
    return read_gguf(path)
