"""A model that `build` has written, loaded."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import onnx
from tokenizers import Tokenizer

from kvcache_ops import _native
from kvcache_ops._errors import KvCacheError
from kvcache_ops._optional import load as load_package
from kvcache_ops.manager import Manager, Rope
from kvcache_ops.models._build import DATA, FORMAT, FORMAT_OF_GROUPS, METADATA, MODEL, TOKENIZER
from kvcache_ops.models._config import Config
from kvcache_ops.models._grouped_manager import Caches
from kvcache_ops.models._layer_groups import LayerGroups
from kvcache_ops.models._onnx_config import GraphConfig
from kvcache_ops.models._onnx_files import LinkedFile
from kvcache_ops.ops._cache_spec import CacheSpec
from kvcache_ops.ops._nodes import check_nodes
from kvcache_ops.ops._registration import register

_MOST_THREADS = 1024  # ONNX Runtime starts them all


@dataclass(frozen=True)
class Model:
    """A loaded model: see `load`.

    `cache` describes the cache of a single token; `stops` end an answer; `bos` is the text of the token that begins a
    conversation, for `chat_template`, one of Jinja's; `fingerprint` is the SHA-256 of the weights, of
    large exports of samples; `notes` are what `build` has decided about an export; `layer_groups` says which layers
    have a cache of their own; `weights` is what `build` was asked for, None where an earlier version has built the
    model; `centered`: keys are stored without their mean, so the managers have no RoPE to shift them by.
    """

    path: Path
    name: str
    config: Config | GraphConfig
    cache: CacheSpec
    tokenizer: Tokenizer
    bos: str | None
    stops: tuple[int, ...]
    chat_template: str | None
    fingerprint: str
    layer_groups: LayerGroups
    notes: tuple[str, ...] = ()
    weights: str | None = None
    centered: bool = False

    @cached_property
    def _longest(self) -> int:
        return max((len(token) for token in self.tokenizer.get_vocab()), default=1)

    @cached_property
    def _begins_with_bos(self) -> bool:
        """Whether the tokenizer puts bos before every text."""
        first: list[int] = self.tokenizer.encode("").ids[:1]
        return self.bos is not None and first == [self.tokenizer.token_to_id(self.bos)]

    @cached_property
    def special_tokens(self) -> dict[int, str]:
        """The texts of tokens that are in no answer's text."""
        return {i: token.content for i, token in self.tokenizer.get_added_tokens_decoder().items() if token.special}

    def encode(self, text: str, most: int | None = None, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text.

        add_special_tokens: those that every text gets, bos only where the text does not begin with it. Raises
        KvCacheError: "prompt_type" for half of a surrogate pair, "prompt_too_long" for a text that is not even
        tokenized, because it has more characters than `most` of the longest tokens.
        """
        if most is not None and len(text) > most * self._longest:
            message = f"the prompt has {len(text)} characters, expected at most {most * self._longest}"
            raise KvCacheError(f"{message}, {most} tokens of {self._longest}", "prompt_too_long")
        try:
            # Of a batch, because that releases the GIL.
            ids: list[int] = self.tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids
        except TypeError as error:
            raise KvCacheError(f"the text is not in Unicode: {error}", "prompt_type") from error
        if add_special_tokens and self._begins_with_bos and ids[:1] == ids[1:2]:
            del ids[0]
        return ids

    def cache_spec(self, max_tokens: int) -> CacheSpec:
        """The model's cache with that many slots, of all layers together."""
        return replace(self.cache, max_tokens=max_tokens)

    def caches(
        self,
        max_tokens: int,
        *,
        batch: int | None = None,
        step_tokens: int = 0,
        window_tokens: int | None = None,
        **management: Any,
    ) -> Caches:
        """New caches and their manager, one for each group of layers, of which the first has that many slots.

        batch: sequences that are computed at once; None keeps all tokens in all layers. With a number, layers with a
        window keep that, in `window_tokens` slots; by default they have room for a step of `step_tokens` new tokens and
        for the windows of `batch` sequences, of 4 where the first group has fewer than 80 windows' slots, of more where
        it has more. management: as `Manager` has it.
        """
        groups, context = self.layer_groups, self.config.context_length
        numbers = max_tokens, batch, step_tokens, window_tokens
        return Caches(groups, self.cache, context, self._group_manager, *numbers, **management)

    def manager(self, spec: CacheSpec, **management: Any) -> Manager:
        """A manager of that cache, with the model's RoPE, window and fingerprint. management: as `Manager` has it.

        Prefixes in tiers are found where the instruction set and the versions that compute them are the same, so that
        they have the bits of computed ones; with `computed_by=""` other machines' are found, too.

        Raises KvCacheError "layer_groups" where layers have caches of their own, and what `Manager` raises.
        """
        if (count := len(self.layer_groups.windows)) > 1:
            message = f"layers have {count} caches, expected one: use `caches`, or build with layer_groups=False"
            raise KvCacheError(message, "layer_groups")
        return self._group_manager(spec, 0, **management)

    def _group_manager(self, spec: CacheSpec, group: int, **management: Any) -> Manager:
        # Without RoPE what is shifted is computed again: where layers differ in it, and where means were subtracted.
        rope, pairs = None, len(self.config.inv_freq)
        if pairs and not getattr(self.config, "local_inv_freq", ()) and not self.centered:
            interleaved = isinstance(self.config, GraphConfig) and self.config.interleaved
            rope = Rope(2 * pairs, inv_freq=self.config.inv_freq, style="gptj" if interleaved else "neox")
        runtime = load_package("onnxruntime", "manager()").__version__
        computed_by = f"{_native.cuda()[0]}, kvcache_ops {_native.__version__}, onnxruntime {runtime}"
        facts: dict[str, Any] = {
            "rope": rope,
            "window": self.config.window,
            "fingerprint": self.fingerprint,
            "computed_by": computed_by,
        }
        facts |= management
        if group:
            facts["fingerprint"] += f", layers of window {self.layer_groups.windows[group]}"
        return Manager(spec, **facts)

    def session(self, options: Any = None) -> Any:
        """An `onnxruntime.InferenceSession` on the CPU; it registers the operators in `options`."""
        options = session_options() if options is None else options
        register(options)
        inference_session = load_package("onnxruntime", "session()").InferenceSession
        session = inference_session(str(self.path), options, providers=["CPUExecutionProvider"])
        about = json.loads(session.get_modelmeta().custom_metadata_map.get(METADATA, "{}"))
        if about.get("fingerprint") != self.fingerprint:
            raise KvCacheError(f"{self.path} was built again after it was loaded: load it again", "model_damaged")
        return session


def session_options(threads: int = 0) -> Any:
    """`onnxruntime.SessionOptions` with that many threads, 0 for all processors.

    Raises KvCacheError: "engine_range", and "package_missing" without ONNX Runtime.
    """
    if not isinstance(threads, Integral) or not 0 <= threads <= _MOST_THREADS:
        raise KvCacheError(f"threads is {threads!r}, expected 0 to {_MOST_THREADS}", "engine_range")
    options = load_package("onnxruntime", "a session").SessionOptions()
    options.intra_op_num_threads = threads
    return options


def load(path: str | os.PathLike[str]) -> Model:
    """The model in a folder that `build` has written, or whose model.onnx this is.

    Raises KvCacheError: "model_missing" for a missing file, "model_damaged", "model_format" for a model that
    `build` has not made, or in another version, "tokenizer_mismatch" for the tokenizer of a larger vocabulary, and
    what `check_model` raises where another program has changed the graph.
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
    if about.get("format") not in (FORMAT, FORMAT_OF_GROUPS):
        message = f"{file} has the format {about.get('format')} of kvcache_ops.models, expected {FORMAT_OF_GROUPS}"
        message += ": build it again from its source"
        raise KvCacheError(message, "model_format")
    check_nodes(proto, file)
    facts: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in about["config"].items()
    }
    config: Config | GraphConfig
    if "linked" in about:
        config = GraphConfig(**facts)
        for linked in about["linked"]:
            LinkedFile(**linked).check(file.parent)
    else:
        config = Config(**facts)
        _check_data(file.parent / DATA, about["data_bytes"], bytes.fromhex(about["stamp"]))
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
        LayerGroups.of_metadata(about.get("layer_groups"), config.num_layers),
        tuple(about.get("notes", ())),
        about.get("weights"),
        about.get("centered", False),
    )


def _check_data(path: Path, expected: int, stamp: bytes) -> None:
    """Refuses weights that another build has written, or that are cut."""
    try:
        with path.open("rb") as data:
            size = data.seek(0, os.SEEK_END)
            data.seek(max(size - len(stamp), 0))
            found = data.read()
    except OSError as error:
        raise KvCacheError(f"{path} cannot be read: {error}", "model_damaged") from error
    if size != expected:
        raise KvCacheError(f"{path} has {size} bytes, expected {expected}", "model_damaged")
    if found != stamp:
        raise KvCacheError(f"{path} is of another build than {MODEL} beside it: build again", "model_damaged")


def _tokenizer(path: Path, vocab_size: int) -> Tokenizer:
    """The tokenizer in a file; the model must have all of its tokens."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises no narrower one
        raise KvCacheError(f"{path} is no tokenizer: {error}", "model_damaged") from error
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= vocab_size:
        message = f"{path} has the token {largest}, expected less than vocab_size {vocab_size}"
        raise KvCacheError(message, "tokenizer_mismatch")
    return tokenizer
