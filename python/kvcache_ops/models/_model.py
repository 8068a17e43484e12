"""A model that `build` has made, opened again."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
from tokenizers import Tokenizer

from kvcache_ops._cache import CacheSpec
from kvcache_ops._errors import KvCacheError
from kvcache_ops._optional import load as load_package
from kvcache_ops._registration import register
from kvcache_ops.manager import Manager, Rope
from kvcache_ops.models._build import DATA, FORMAT, METADATA, MODEL, TOKENIZER
from kvcache_ops.models._config import Config


@dataclass(frozen=True)
class Model:
    """What a program needs to run a model of `build`: see `load`.

    `cache` describes the cache of a single token; `stops` end an answer; `bos` is the text of the token that begins a
    conversation, for `chat_template`, one of Jinja's; `fingerprint` is the SHA-256 of the weights.
    """

    path: Path
    name: str
    config: Config
    cache: CacheSpec
    tokenizer: Tokenizer
    bos: str | None
    stops: tuple[int, ...]
    chat_template: str | None
    fingerprint: str

    def cache_spec(self, max_tokens: int) -> CacheSpec:
        """The model's cache with that many slots."""
        return replace(self.cache, max_tokens=max_tokens)

    def manager(self, spec: CacheSpec, **management: Any) -> Manager:
        """A manager of that cache, with the model's RoPE, window and fingerprint. management: as `Manager` has it."""
        rope = Rope(self.config.head_dim, inv_freq=self.config.inv_freq)
        facts = {"rope": rope, "window": self.config.window, "fingerprint": self.fingerprint}
        return Manager(spec, **(facts | management))

    def session(self, options: Any = None) -> Any:
        """An `onnxruntime.InferenceSession` on the CPU; it registers the operators in `options`."""
        onnxruntime = load_package("onnxruntime", "session()")
        options = onnxruntime.SessionOptions() if options is None else options
        register(options)
        return onnxruntime.InferenceSession(str(self.path), options, providers=["CPUExecutionProvider"])


def load(path: str | os.PathLike[str]) -> Model:
    """The model in a folder that `build` has written, or whose model.onnx this is.

    Raises KvCacheError: "model_missing" for a file that is not there, "model_damaged", "model_format" for a model that
    `build` has not made, or that of another version, and "tokenizer_mismatch" for the tokenizer of a larger vocabulary.
    """
    given = Path(path)
    file = given / MODEL if given.is_dir() else given
    for needed in (file, file.parent / DATA, file.parent / TOKENIZER):
        if not needed.is_file():
            raise KvCacheError(f"there is no {needed}", "model_missing")
    try:
        proto = onnx.load(file, load_external_data=False)
    except Exception as error:  # protobuf's own
        raise KvCacheError(f"{file} is no ONNX model: {error}", "model_damaged") from error
    properties = {entry.key: entry.value for entry in proto.metadata_props}
    about = json.loads(properties.get(METADATA, "{}"))
    if about.get("format") != FORMAT:
        message = f"{file} has the format {about.get('format')} of kvcache_ops.models, expected {FORMAT}"
        raise KvCacheError(message, "model_format")
    size = (file.parent / DATA).stat().st_size
    if size != about["data_bytes"]:
        raise KvCacheError(f"{file.parent / DATA} has {size} bytes, expected {about['data_bytes']}", "model_damaged")
    config = Config(**about["config"] | {"inv_freq": tuple(about["config"]["inv_freq"])})
    return Model(
        file,
        about["name"],
        config,
        CacheSpec(max_tokens=1, **about["cache"]),
        _tokenizer(file.parent / TOKENIZER, config.vocab_size),
        about["bos"],
        tuple(about["stops"]),
        about["chat_template"],
        about["fingerprint"],
    )


def _tokenizer(path: Path, vocab_size: int) -> Tokenizer:
    """The tokenizer in a file, none of whose tokens is one that the model has not."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises no narrower one
        raise KvCacheError(f"{path} is no tokenizer: {error}", "model_damaged") from error
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= vocab_size:
        message = f"{path} has the token {largest}, expected less than vocab_size {vocab_size}"
        raise KvCacheError(message, "tokenizer_mismatch")
    return tokenizer
