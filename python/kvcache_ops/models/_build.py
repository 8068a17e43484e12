"""Building a model: from a checkpoint to a folder with a graph, its weights and its tokenizer."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import onnx

from kvcache_ops._cache import T2, CacheSpec
from kvcache_ops._errors import KvCacheError
from kvcache_ops.models._checkpoint import Checkpoint
from kvcache_ops.models._decoder import Decoder
from kvcache_ops.models._gguf import read_gguf
from kvcache_ops.models._graph import Graph
from kvcache_ops.models._hugging_face import read_folder
from kvcache_ops.models._weights import Weight, convert

MODEL, DATA, TOKENIZER = "model.onnx", "model.onnx.data", "tokenizer.json"
METADATA = "kvcache_ops.model"
FORMAT = 2
STAMP = 16  # bytes at the data's end, which the model's metadata has, too

_CACHES: dict[T2, int] = {"float32": 0, "float16": 0, "int8": 8, "int4": 4}
_WEIGHTS = ("auto", "float32", "float16", "int8", "int4")
_ATTENTIONS = ("fused", "packed")
_ACTIVATIONS = {"int8": 4, "float32": 1}


def build(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    weights: str = "auto",
    activations: str = "int8",
    cache: T2 = "int8",
    quant_group: int = 32,
    cache_layout: int = 3,
    cache_mode: int = 1,
    page_size: int = 32,
    attention: str = "fused",
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Makes an ONNX model with a KV cache of our operators from a GGUF file or a Hugging Face folder.

        build("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2")

    out: a folder, made if it is not there, for model.onnx, model.onnx.data and tokenizer.json.
    weights: "auto" keeps them as they are in `source`, quantized ones with their codes and scales. Floats may become
    "float32", "float16", or "int8" and "int4" in blocks of 32 inputs with a scale each.
    activations: "int8" rounds the inputs of quantized matrices to 8 bits in blocks, as llama.cpp does; "float32" does
    not, and is several times as slow.
    cache: "float32", "float16", "int8" or "int4", the latter two with a float16 scale for `quant_group` elements.
    cache_layout, cache_mode, page_size: as CacheSpec has them.
    attention: "fused" is MultiHeadCacheAttention, "packed" KeyValueCache and MultiHeadAttention.
    progress: called with how many tensors are written, and of how many.

    Gives the path of model.onnx. Raises KvCacheError, in whose `kind` "source_", "config_", "tensor_", "tokenizer_" or
    "family_" says what is wrong with `source`; "option_unknown", "out_empty" and what CacheSpec raises are about the
    arguments. What was written until then is removed. Of several builds into one folder the last one stays, whole.
    """
    options = {"weights": (weights, _WEIGHTS), "cache": (cache, _CACHES), "attention": (attention, _ATTENTIONS)}
    for name, (got, expected) in (options | {"activations": (activations, _ACTIVATIONS)}).items():
        if got not in expected:
            raise KvCacheError(f"{name} is {got!r}, expected one of {', '.join(expected)}", "option_unknown")
    if not os.fspath(out):
        raise KvCacheError("out is an empty path, expected a folder to write", "out_empty")
    checkpoint = open_checkpoint(Path(source))
    config = checkpoint.config
    spec = CacheSpec(
        max_tokens=1,  # the graph leaves it open
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype="float32",
        num_layers=config.num_layers,
        cache_layout=cache_layout,
        quant_bit=_CACHES[cache],
        quant_group=quant_group,
        cache_dtype=cache,
        scale_dtype="float16" if _CACHES[cache] else None,
        cache_mode=cache_mode,
        page_size=page_size,
    )
    shapes = config.tensors()
    read: set[str] = set()

    def tensor(name: str) -> Weight:
        weight = checkpoint.tensor(name)
        read.add(name)
        if progress is not None:
            progress(len(read), len(shapes))
        return convert(name, weight, weights) if len(shapes[name]) == 2 else weight

    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    stamp = secrets.token_bytes(STAMP)
    with tempfile.TemporaryDirectory(suffix=".part", dir=folder) as part:
        written = {name: Path(part) / name for name in (DATA, TOKENIZER, MODEL)}
        with written[DATA].open("wb") as data:
            graph = Graph(data, DATA, _ACTIVATIONS[activations])
            Decoder(graph, config, spec, attention, tensor).write()
            data.write(stamp)
        about = {
            "format": FORMAT,
            "name": checkpoint.name,
            "config": asdict(config),
            "cache": {key: value for key, value in asdict(spec).items() if key != "max_tokens"},
            "bos": checkpoint.bos,
            "stops": checkpoint.stops,
            "chat_template": checkpoint.chat_template,
            "data_bytes": written[DATA].stat().st_size,
            "stamp": stamp.hex(),
            "fingerprint": graph.fingerprint(),
        }
        onnx.save(graph.model({METADATA: json.dumps(about)}), written[MODEL])
        written[TOKENIZER].write_text(checkpoint.tokenizer.to_str(), encoding="utf-8")
        with _locked(folder):
            for name, path in written.items():  # the model last: what can be opened is whole
                path.replace(folder / name)
    return folder / MODEL


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a GGUF file, or in a Hugging Face folder."""
    if path.is_dir():
        return read_folder(path)
    if not path.is_file():
        raise KvCacheError(f"there is no file or folder {path}", "source_missing")
    return read_gguf(path)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Waits for other builds that replace files of this folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # NFS does not lock folders: there `load` refuses what two builds have mixed
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
