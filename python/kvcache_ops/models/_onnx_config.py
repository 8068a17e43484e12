"""What is written beside an ONNX export's graph, and where it contradicts the graph, which counts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvcache_ops._errors import KvCacheError
from kvcache_ops.models._config import rotary
from kvcache_ops.models._onnx_files import CONFIG, GENAI
from kvcache_ops.models._source_files import json_of


@dataclass(frozen=True)
class GraphConfig:
    """What a graph and its configuration say about a model; a `Config` says more, which a graph has in its nodes.

    `inv_freq`: as in Config, of as many pairs as are rotated; none where layers differ. `interleaved`: pairs are
    neighbors. `windows`: how many tokens a query of each layer sees, its own included; None for all. `window` is None:
    the nodes hide keys outside of it.
    """

    family: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    inv_freq: tuple[float, ...]
    interleaved: bool
    windows: tuple[int | None, ...]
    window: None = None


def description(folder: Path) -> tuple[str, dict[str, Any]]:
    """The file that describes a model, and what is in it, in the form of genai_config.json."""
    if (folder / GENAI).is_file():
        return GENAI, json_of(folder / GENAI)
    if not (folder / CONFIG).is_file():
        return "", {}
    given = _config_of_text(folder)
    names = {"head_size": "head_dim"} | {
        name: name for name in ("hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers")
    }
    decoder = {ours: given[name] for ours, name in names.items() if given.get(name) is not None}
    of_chatglm = "seq_length" in given and "max_position_embeddings" not in given
    about = {name: given.get(name) for name in ("vocab_size", "eos_token_id")}
    about["context_length"] = whole(given, "seq_length" if of_chatglm else "max_position_embeddings", CONFIG)
    return CONFIG, {"model": about | {"type": given.get("model_type", ""), "decoder": decoder}}


def section(given: dict[str, Any], name: str) -> dict[str, Any]:
    """An object in genai_config.json, empty where there is none."""
    section = given.get(name, {})
    if not isinstance(section, dict):
        raise KvCacheError(f"{name} is {section!r:.80} in {GENAI}, expected an object", "config_type")
    return section


def whole(section: dict[str, Any], name: str, said: str) -> int:
    """A positive number in an object of the file that is `said`."""
    number = section.get(name)
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        wrong = "config_missing" if number is None else "config_type"
        raise KvCacheError(f"{name} is {number!r} in {said}, expected a whole number from 1", wrong)
    return number


def contradictions(config: GraphConfig, decoder: dict[str, Any], said: str, folder: Path) -> list[str]:
    """Where the files of a folder contradict its graph; `decoder` is from the file that is `said`."""
    graph = {"num_attention_heads": config.num_heads, "num_key_value_heads": config.num_kv_heads}
    graph |= {"num_hidden_layers": config.num_layers, "head_size": config.head_dim}
    found = [
        f"{said} says {name} {decoder[name]}, the graph has {number}, which counts"
        for name, number in graph.items()
        if decoder.get(name, number) != number
    ]
    sources = [(GENAI, _windows_of_genai(decoder, config.num_layers))]
    if (folder / CONFIG).is_file():
        given = _config_of_text(folder)
        sources.append((CONFIG, _windows_of_config(given, config.num_layers)))
        if (rope := _other_rotation(given, config)) is not None:
            found.append(f"{CONFIG} says {rope}, the graph rotates by other angles, which count")
    context = config.context_length
    for source, windows in sources:
        pairs = enumerate(zip(windows, config.windows))
        differ = [i for i, (one, has) in pairs if min(one or context, context) != min(has or context, context)]
        if differ:
            i = differ[0]
            message = f"{source} says sliding_window {windows[i]} of layer {i}, the graph has local_window_size "
            message += f"{config.windows[i] or -1}, which counts; so in {len(differ)} layers: beyond a window, "
            found.append(f"{message}answers are not the checkpoint's")
    return found


def _config_of_text(folder: Path) -> dict[str, Any]:
    """config.json, of a model of images and texts the part of texts."""
    given = json_of(folder / CONFIG)
    return given | (text if isinstance(text := given.get("text_config"), dict) else {})


def _other_rotation(given: dict[str, Any], config: GraphConfig) -> str | None:
    """The rotary embedding in config.json, if the graph has another one in all layers."""
    rope = given.get("rope_parameters") or given.get("rope_scaling") or {}
    base = rope.get("rope_theta", given.get("rope_theta")) if isinstance(rope, dict) else None
    if base is None or not config.inv_freq:
        return None
    try:
        said, _ = rotary(2 * len(config.inv_freq), base, rope, config.context_length)
    except KvCacheError:  # a kind that depends on a sequence's length, or that is not known
        return None
    apart = np.abs(np.subtract(said, config.inv_freq)) - np.divide(said, 100)
    return f"rope_theta {base} and rope_scaling {rope}" if apart.max() * config.context_length > 0.05 else None


def _windows_of_genai(decoder: dict[str, Any], layers: int) -> list[int | None]:
    """The windows of layers by genai_config.json, if it says any."""
    given = decoder.get("sliding_window")
    if not isinstance(given, dict) or not isinstance(window := given.get("window_size"), int):
        return []
    local = given.get("layers")
    if not isinstance(local, list) or not local:  # the builder did not find out which
        return [window] * layers
    return [window if i in local else None for i in range(layers)]


def _windows_of_config(given: dict[str, Any], layers: int) -> list[int | None]:
    """The windows of layers by config.json, as transformers reads it."""

    def number(name: str, default: int) -> int:
        value = given.get(name)
        return value if isinstance(value, int) and value > 0 else default

    window, kind = given.get("sliding_window"), str(given.get("model_type", ""))
    used = given.get("use_sliding_window", not kind.startswith("qwen"))
    if not isinstance(window, int) or not used:
        return [None] * layers
    types = given.get("layer_types")
    if isinstance(types, list) and len(types) == layers:
        local = [kind == "sliding_attention" for kind in types]
    elif kind.startswith(("gemma2", "gemma3")):
        pattern = number("sliding_window_pattern", 2 if kind == "gemma2" else 6)
        local = [(i + 1) % pattern != 0 for i in range(layers)]
    else:
        local = [i >= number("max_window_layers", 0) for i in range(layers)]
    return [window if here else None for here in local]
