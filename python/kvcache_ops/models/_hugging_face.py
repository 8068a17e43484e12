"""Hugging Face folders: config.json, *.safetensors, tokenizer.json."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from kvcache_ops._errors import KvCacheError
from kvcache_ops.models._checkpoint import Checkpoint
from kvcache_ops.models._config import Config, canonical, hugging_face_name, rotary, unknown_family
from kvcache_ops.models._folder_tokenizer import of_chats, tokenizer_of
from kvcache_ops.models._source_files import json_of, probably
from kvcache_ops.models._weights import FLOATS, Dense, Weight, checked

_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gemma3_text")
# What config.json need not say, as transformers has it.
_GEMMA = {
    "num_hidden_layers": 26, "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 256,
    "sliding_window": 4096, "tie_word_embeddings": True,
}  # fmt: skip
_GEMMAS: dict[Any, dict[str, Any]] = {
    "gemma2": _GEMMA
    | {"max_position_embeddings": 8192, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3": _GEMMA | {"max_position_embeddings": 131072, "rope_theta": 1e6},
}
_OF_IMAGES = re.compile(r"(^|\.)(vision_tower|multi_modal_projector)\.")
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack")  # named where there are no others
_COMPARED = 1 << 22  # elements that are compared at once
_SHARD = re.compile(r"model-\d{5}-of-(\d{5})\.safetensors")


def read_folder(folder: Path) -> Checkpoint:
    """The checkpoint in a folder, whose tensors stay in their files until they are read.

    Raises KvCacheError: "source_missing" for a missing file, "source_damaged", "family_unknown",
    "config_unsupported", "tensor_type" and what `Config` raises.
    """
    if not (folder / "config.json").is_file() and (found := sorted(folder.glob("*.gguf"))):
        message = f"there is no config.json in {folder} but {', '.join(path.name for path in found)}: name the file"
        raise KvCacheError(message, "source_missing")
    given = json_of(folder / "config.json")
    family = str(given.get("model_type")).removesuffix("_text")
    gemma = family in _GEMMAS
    text = given.get("text_config") if gemma else None  # beside which are images
    described = _GEMMAS.get(family, {}) | (text if isinstance(text, dict) else given) | {"model_type": family}
    files = _files(folder)
    spelled: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    places: dict[str, Path] = {}
    for file in files:
        try:
            with safe_open(file, framework="numpy") as tensors:
                for name in tensors.keys():
                    part = tensors.get_slice(name)
                    plain = name.removeprefix("language_model.").replace("model.language_model.", "model.")
                    ours = canonical(plain, gemma) or name
                    # Older checkpoints have angles, as config.json says them; images are nothing of a text.
                    if name.endswith("rotary_emb.inv_freq") or (gemma and _OF_IMAGES.search(name)):
                        continue
                    if ours in places:
                        message = f"{name} is in {places[ours].name} and in {file.name}, expected it once"
                        raise KvCacheError(message, "source_damaged")
                    spelled[ours], places[ours], shapes[ours] = name, file, tuple(part.get_shape())
                    if part.get_dtype() not in FLOATS:
                        message = f"{name} has the type {part.get_dtype()}, expected one of {', '.join(FLOATS)}"
                        raise KvCacheError(message, "tensor_type")
        except (SafetensorError, OSError) as error:
            message = f"{file} is no whole safetensors file: {error}{probably(file)}"
            raise KvCacheError(message, "source_damaged") from error
    if given.get("model_type") not in _FAMILIES:
        raise unknown_family("model_type", given.get("model_type"), shapes, _FAMILIES)
    config = _config(described, shapes)
    if config.tied and "output.weight" in shapes:
        message = "config.json says tie_word_embeddings, and lm_head.weight is another matrix than the embedding"
        if _equal(*((places[name], spelled[name]) for name in ("token_embd.weight", "output.weight"))):
            del shapes["output.weight"]
        else:
            warnings.warn(f"{message}: the file's head counts", stacklevel=4)
            config = replace(config, tied=False)
    for message in _contradictions(folder, described, config):
        warnings.warn(message, stacklevel=4)
    config.check(shapes, lambda name: spelled.get(name) or hugging_face_name(name, gemma), folder)

    def read(name: str) -> Weight:
        with safe_open(places[name], framework="numpy") as tensors:
            values = tensors.get_tensor(spelled[name])
        if gemma and name.endswith("norm.weight"):
            values = values.astype(np.float32) + 1
        return checked(spelled[name], Dense(values))

    tokenizer = tokenizer_of(folder, config.vocab_size)
    bos, stops, template = of_chats(folder, given.get("eos_token_id"), tokenizer, given.get("bos_token_id"))
    return Checkpoint(config, read, tokenizer, bos, stops, template, folder.resolve().name)


def _equal(one: tuple[Path, str], other: tuple[Path, str]) -> bool:
    """Whether two matrices, each a tensor of a file, have the same bytes; some rows are read at once."""
    with safe_open(one[0], framework="numpy") as first, safe_open(other[0], framework="numpy") as second:
        slices = first.get_slice(one[1]), second.get_slice(other[1])
        (shape, dtype), of_other = ((part.get_shape(), part.get_dtype()) for part in slices)
        if (shape, dtype) != of_other or len(shape) != 2:
            return False
        rows = max(1, _COMPARED // max(shape[1], 1))
        pairs = ([part[i : min(i + rows, shape[0])] for part in slices] for i in range(0, shape[0], rows))
        return all(a.tobytes() == b.tobytes() for a, b in pairs)


def _contradictions(folder: Path, given: dict[str, Any], config: Config) -> Iterator[str]:
    """What a folder says and the weights do not, and what it has beside them that is not used."""
    if given.get("vocab_size") not in (None, config.vocab_size):
        said = f"config.json says vocab_size {given['vocab_size']}"
        yield f"{said}, the embedding has {config.vocab_size} rows, which count"
    if adapters := [path.name for path in sorted(folder.glob("adapter_model.*"))]:
        yield f"{', '.join(adapters)} in {folder} is not used: merge the adapter into the weights"


def _files(folder: Path) -> list[Path]:
    """The files of the weights: what an index names, else all shards, else files that have no other use."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return _files_without_index(folder)
    names = json_of(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise KvCacheError(f"weight_map of {index} is {names!r:.80}, expected file names", "source_damaged")
    for name in (files := sorted({folder / Path(name).name for name in names.values()})):
        if not name.is_file():
            raise KvCacheError(f"there is no {name.name} in {folder}, which {index.name} names", "source_missing")
    return files


def _files_without_index(folder: Path) -> list[Path]:
    """All shards; or else model.safetensors; or else all but adapters and Mistral's own file of the same weights."""
    found = sorted(folder.glob("*.safetensors"))
    if counts := [int(match[1]) for file in found if (match := _SHARD.fullmatch(file.name))]:
        shards = [folder / f"model-{i + 1:05}-of-{counts[0]:05}.safetensors" for i in range(counts[0])]
        if missing := [shard.name for shard in shards if not shard.is_file()]:
            raise KvCacheError(f"there is no {missing[0]} in {folder}, of {counts[0]} shards", "source_missing")
        return shards
    if (whole := folder / "model.safetensors").is_file():
        return [whole]
    if files := [file for file in found if not file.name.startswith(("consolidated", "adapter_"))]:
        return files
    found += sorted(path for pattern in _OTHER_WEIGHTS for path in folder.glob(pattern))
    others = f" but {', '.join(file.name for file in found)}" if found else ""
    raise KvCacheError(f"there is no *.safetensors in {folder}{others}", "source_missing")


def _config(given: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> Config:
    family = given["model_type"]

    def number(key: str, default: Any = None, kind: Any = int) -> Any:
        value = given.get(key)
        value = default if value is None else value
        if not isinstance(value, kind) or isinstance(value, bool):
            expected = "a whole number" if kind is int else "a number"
            wrong = "config_missing" if value is None else "config_type"
            raise KvCacheError(f"{key} is {value!r} in config.json, expected {expected}", wrong)
        return value

    plain: dict[str, Any] = {"mlp_bias": False, "partial_rotary_factor": 1.0, "quantization_config": None}
    if family in _GEMMAS:
        plain |= {"hidden_activation": "gelu_pytorch_tanh", "use_bidirectional_attention": False}
    else:
        plain |= {"hidden_act": "silu"}
    if family != "qwen2":
        plain["attention_bias"] = False
    for key, expected in plain.items():
        if given.get(key) not in (None, expected):
            message = f"{key} is {given[key]!r} in config.json, expected {expected!r}"
            raise KvCacheError(message, "config_unsupported")
    tied = bool(given.get("tie_word_embeddings", False))
    if not tied and shapes and "output.weight" not in shapes:
        warnings.warn("there is no lm_head.weight: the embedding is taken for it", stacklevel=2)
        tied = True
    layers, heads, hidden = number("num_hidden_layers"), number("num_attention_heads"), number("hidden_size")
    rope = given.get("rope_parameters") or given.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise KvCacheError(f"rope_scaling is {rope!r} in config.json, expected an object", "config_type")
    local: dict[str, Any] = {}
    if isinstance(rope.get("full_attention"), dict):
        local, rope = rope.get("sliding_attention") or {}, rope["full_attention"]
    head_dim, context = number("head_dim", hidden // max(heads, 1)), number("max_position_embeddings")
    base = rope.get("rope_theta", number("rope_theta", 10000.0, int | float))
    inv_freq, rope_scale = rotary(head_dim, base, rope, context)
    if rope.get("rope_type", rope.get("type")) == "yarn":  # Qwen's max_position_embeddings may be the original ones
        original = float(rope.get("original_max_position_embeddings") or context)
        context = max(context, int(float(rope["factor"]) * original))
    return Config(
        family=family,
        num_layers=layers,
        hidden=hidden,
        ffn=number("intermediate_size"),
        num_heads=heads,
        num_kv_heads=number("num_key_value_heads", heads),
        head_dim=head_dim,
        vocab_size=(shapes.get("token_embd.weight") or (0,))[0],
        context_length=context,
        norm_eps=number("rms_norm_eps", kind=int | float),
        inv_freq=inv_freq,
        rope_scale=rope_scale,
        window=None if family in _GEMMAS else _window(given, layers, number),
        biases=family == "qwen2",
        head_norms=family in ("qwen3", "gemma3"),
        tied=tied,
        **(_of_gemma(given, layers, head_dim, local, number) if family in _GEMMAS else {}),
    )


def _of_gemma(
    given: dict[str, Any], layers: int, head_dim: int, local: dict[str, Any], number: Callable[..., Any]
) -> dict[str, Any]:
    """What Gemma's Config has besides the common fields; `local` is the RoPE of layers with a window."""
    family, window = given["model_type"], number("sliding_window", 0)
    period = given.get("sliding_window_pattern") or given.get("_sliding_window_pattern")
    period = period or {"gemma2": 2, "gemma3": 6}[family]
    types = given.get("layer_types")
    if types is None:
        types = ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(layers)]
    if not isinstance(types, list) or not {"sliding_attention", "full_attention"}.issuperset(types):
        message = f"layer_types is {types!r} in config.json, expected sliding_attention and full_attention"
        raise KvCacheError(message, "config_type")
    numbers: Any = int | float
    base, scalar = number("rope_local_base_freq", 10000.0, numbers), number("query_pre_attn_scalar", head_dim, numbers)
    return {
        "windows": tuple(window if type_ == "sliding_attention" else 0 for type_ in types),
        "local_inv_freq": rotary(head_dim, local.get("rope_theta", base), None, 0)[0] if family == "gemma3" else (),
        "scale": 0.0 if scalar == head_dim else scalar**-0.5,
        "softcap": number("attn_logit_softcapping", 0.0, numbers),
        "logit_softcap": number("final_logit_softcapping", 0.0, numbers),
    }


def _window(given: dict[str, Any], layers: int, number: Callable[[str], int]) -> int | None:
    """The window of all layers; one of some layers only is refused."""
    if given.get("sliding_window") is None:
        return None
    if given.get("use_sliding_window", given["model_type"] == "mistral") is False:
        return None
    window, types = number("sliding_window"), given.get("layer_types") or ["sliding_attention"] * layers
    if not isinstance(types, list):
        raise KvCacheError(f"layer_types is {types!r} in config.json, expected a list", "config_type")
    whole = types.count("full_attention")
    first = given.get("max_window_layers", 0) if given["model_type"] != "mistral" else 0
    if whole or first:
        message = f"sliding_window is {window} for some of the layers, expected it for all or for none"
        raise KvCacheError(message, "config_unsupported")
    return window
