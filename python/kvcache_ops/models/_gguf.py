"""GGUF files, through the package gguf."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from kvcache_ops._errors import KvCacheError
from kvcache_ops.models import _tokenizer
from kvcache_ops.models._checkpoint import Checkpoint
from kvcache_ops.models._config import Config, rotary, unknown_family
from kvcache_ops.models._source_files import probably
from kvcache_ops.models._weights import FLOATS, GGUF_TYPES, Weight, checked, from_gguf

_FAMILIES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3")
_PART = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf")


class _Reader(gguf.GGUFReader):
    """The package's reader, which takes the rest of a truncated array for all of it."""

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> NDArray[Any]:
        data: Any = np.asarray(self.data)  # mapped as before, and a slice of it takes a third of the time
        self.data = data
        if len(data) < offset + np.dtype(dtype).itemsize * int(count):
            raise ValueError(f"the file ends at byte {len(data)}, before {count} values at byte {offset}")
        return super()._get(offset, dtype, count, override_order)


class _Fields:
    """The metadata of a file, by key."""

    def __init__(self, reader: gguf.GGUFReader) -> None:
        self._reader, self._asked = reader, set[str]()

    def get(self, key: str, kind: Any, default: Any = None) -> Any:
        """The value of a key, a `kind`, or else `default`; a `default` that is `kind` itself stands for none."""
        self._asked.add(key)
        field = self._reader.get_field(key)
        if field is None:
            if default is kind:
                raise KvCacheError(f"there is no {key}", "config_missing")
            return default
        try:
            value = field.contents()
        except (ValueError, IndexError) as error:  # UnicodeDecodeError among them
            raise KvCacheError(f"{key} is damaged: {error}", "source_damaged") from error
        kinds: Any = (int, float) if kind is float else kind
        if isinstance(value, bool) is not (kind is bool) or not isinstance(value, kinds):
            message = f"{key} is of the type {type(value).__name__}, expected {getattr(kind, '__name__', kind)}"
            raise KvCacheError(message, "config_type")
        return value

    def unused(self, prefix: str, neutral: dict[str, Any]) -> list[str]:
        """The keys that begin so and were not read, with their values, unless the value is a neutral one."""
        found = []
        for key, field in self._reader.fields.items():
            if key.startswith(prefix) and key not in self._asked:
                value, name = field.contents(), key.removeprefix(prefix)
                if name not in neutral or neutral[name] not in (value, ...):
                    found.append(f"{key} {value!r:.40}")
        return found


# What changes nothing, whatever its value or with this one.
_NEUTRAL: dict[str, Any] = {
    "vocab_size": ..., "attention.causal": True, "attention.layer_norm_epsilon": ..., "expert_count": 0,
    "expert_used_count": 0, "tensor_data_layout": ..., "use_parallel_residual": False, "rope.scaling.finetuned": ...,
    "pooling_type": 0, "logit_scale": 1.0, "residual_scale": 1.0, "embedding_scale": 1.0, "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0, "leading_dense_block_count": 0,
}  # fmt: skip

_HEAD_SIZES = (
    "attention.value_length", "attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa",
)  # fmt: skip


def parts(path: Path) -> list[Path]:
    """All files of the split model that this one's name belongs to; else this one."""
    if not (named := _PART.fullmatch(path.name)):
        return [path]
    return [path.with_name(f"{named[1]}-{i + 1:05}-of-{named[2]}.gguf") for i in range(int(named[2]))]


def read_gguf(path: Path) -> Checkpoint:
    """The checkpoint in a GGUF file, or in all parts of a split one, whose tensors stay mapped.

    Raises KvCacheError: "source_damaged" for anything but a whole GGUF file, "source_missing" for a missing part,
    "family_unknown", "tensor_type" and what `Config` raises.
    """
    readers = _readers(path)
    fields, tensors = _Fields(readers[0]), {tensor.name: tensor for reader in readers for tensor in reader.tensors}
    family = fields.get("general.architecture", str, str)
    if family not in _FAMILIES:
        raise unknown_family("general.architecture", family, tensors, _FAMILIES)
    for tensor in tensors.values():
        types = GGUF_TYPES if len(tensor.shape) > 1 else FLOATS
        if tensor.tensor_type.name not in types:
            message = f"{tensor.name} has the type {tensor.tensor_type.name}, expected one of {', '.join(types)}"
            raise KvCacheError(message, "tensor_type")
    factors = tensors.pop("rope_freqs.weight", None)
    shapes = {name: tuple(int(n) for n in reversed(tensor.shape)) for name, tensor in tensors.items()}
    config = _config(family, fields, shapes, None if factors is None else factors.data)
    config.check(shapes, str, path)
    if unused := fields.unused(f"{family}.", _NEUTRAL | dict.fromkeys(_HEAD_SIZES, config.head_dim)):
        message = f"{path.name} says what is not used: {', '.join(unused)}; answers may differ from the model's"
        warnings.warn(message, stacklevel=3)

    def read(name: str) -> Weight:
        weight = checked(name, from_gguf(tensors[name].tensor_type.name, tensors[name].data))
        heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}.get(name.split(".")[-2])
        if family == "llama" and heads is not None:
            weight = weight.rows(_halves_apart(heads, config.head_dim))
        return weight

    tokenizer, bos, stops = _tokenizer.from_gguf(fields.get)
    if fields.get("tokenizer.ggml.add_eos_token", bool, False):
        message = f"{path.name} says add_eos_token: prompts that are continued do not end with eos"
        warnings.warn(message, stacklevel=3)
    template, name = fields.get("tokenizer.chat_template", str), fields.get("general.name", str, path.stem)
    if template and bos and tokenizer.encode("").ids and "bos_token" not in template and bos not in template:
        template = "{{ bos_token }}" + template  # llama.cpp begins every prompt with it
    return Checkpoint(config, read, tokenizer, bos, stops, template, name)


def _readers(path: Path) -> list[gguf.GGUFReader]:
    """Readers of a file, or of all parts of a split file in their order."""
    reader = _reader(path)
    count = _Fields(reader).get("split.count", int, 0)
    if count < 2:
        return [reader]
    if len(paths := parts(path)) != count:
        message = f"{path.name} is one of {count} parts, expected a name that ends with -00001-of-{count:05}.gguf"
        raise KvCacheError(message, "source_missing")
    readers: list[gguf.GGUFReader] = []
    names: set[str] = set()
    for i, part in enumerate(paths):
        if not part.is_file():
            raise KvCacheError(f"there is no {part.name} in {part.parent}, of {count} parts", "source_missing")
        readers.append(_reader(part))
        if (number := _Fields(readers[i]).get("split.no", int, int)) != i:
            raise KvCacheError(f"{part.name} has split.no {number}, expected {i}", "source_damaged")
        if again := names & {tensor.name for tensor in readers[i].tensors}:
            raise KvCacheError(f"{min(again)} is in {part.name} and in a part before it", "source_damaged")
        names |= {tensor.name for tensor in readers[i].tensors}
    if len(names) != (expected := _Fields(readers[0]).get("split.tensors.count", int, len(names))):
        raise KvCacheError(
            f"{path.name} and its parts have {len(names)} tensors, expected {expected}", "source_damaged"
        )
    return readers


def _reader(path: Path) -> gguf.GGUFReader:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise KvCacheError(f"{path} is no whole GGUF file: it begins with {magic!r}{probably(path)}", "source_damaged")
    try:
        reader = _Reader(path)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise KvCacheError(f"{path} is no whole GGUF file: {error}", "source_damaged") from error
    if reader.byte_order == "S":  # swapped; the package gives blocks' bytes as they are
        message = f"{path} is big-endian, expected little-endian: `gguf-convert-endian {path.name} little` converts it"
        raise KvCacheError(message, "byte_order")
    return reader


def _config(
    family: str, fields: _Fields, shapes: dict[str, tuple[int, ...]], factors: NDArray[np.float32] | None
) -> Config:
    def number(key: str, default: Any = int) -> Any:
        return fields.get(f"{family}.{key}", int, default)

    hidden, heads = number("embedding_length"), number("attention.head_count")
    head_dim = number("attention.key_length", hidden // max(heads, 1))
    rotated = number("rope.dimension_count", head_dim)
    if rotated != head_dim:
        message = f"{family}.rope.dimension_count is {rotated}, expected {head_dim}, the whole head"
        raise KvCacheError(message, "config_unsupported")
    context, scaling = number("context_length"), _scaling(family, fields)
    inv_freq, rope_scale = rotary(head_dim, fields.get(f"{family}.rope.freq_base", float, 10000.0), scaling, context)
    if factors is not None:
        if factors.shape != (len(inv_freq),) or not ((factors > 0) & np.isfinite(factors)).all():
            message = (
                f"rope_freqs.weight has the shape {list(factors.shape)}, expected {len(inv_freq)} positive factors"
            )
            raise KvCacheError(message, "tensor_shape")
        inv_freq = tuple((np.array(inv_freq) / factors).tolist())
    gemma = family.startswith("gemma")
    windows = _windows(family, fields, number("block_count")) if gemma else ()
    own_base = family == "gemma3" and any(windows)
    local, _ = rotary(head_dim, fields.get(f"{family}.rope.freq_base_swa", float, 10000.0), None, context)
    # The largest models have another scale than their heads' size, which no key says.
    largest = number("block_count") == {"gemma2": 46, "gemma3": 62}.get(family)
    scale = (hidden // heads) ** -0.5 if largest else 0.0
    caps = {"gemma2": (50.0, 30.0)}.get(family, (0.0, 0.0))
    return Config(
        family=family,
        num_layers=number("block_count"),
        hidden=hidden,
        ffn=number("feed_forward_length"),
        num_heads=heads,
        num_kv_heads=number("attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab_size=shapes.get("token_embd.weight", (0,))[0],
        context_length=context,
        norm_eps=fields.get(f"{family}.attention.layer_norm_rms_epsilon", float, float),
        inv_freq=inv_freq,
        rope_scale=rope_scale,
        window=None if gemma else number("attention.sliding_window", None) or None,
        biases=family == "qwen2",
        head_norms=family in ("qwen3", "gemma3"),
        tied="output.weight" not in shapes,
        windows=windows,
        local_inv_freq=local if own_base else (),
        scale=fields.get(f"{family}.attention.scale", float, scale) if gemma else 0.0,
        softcap=fields.get(f"{family}.attn_logit_softcapping", float, caps[0]) if gemma else 0.0,
        logit_softcap=fields.get(f"{family}.final_logit_softcapping", float, caps[1]) if gemma else 0.0,
    )


def _windows(family: str, fields: _Fields, layers: int) -> tuple[int, ...]:
    """Of Gemma's layers, 0 for none; what a file does not say is as llama.cpp has it."""
    window, period = {"gemma2": (4096, 2), "gemma3": (0, 6)}[family]
    window = fields.get(f"{family}.attention.sliding_window", int, window)
    pattern = fields.get(f"{family}.attention.sliding_window_pattern", (int, list), period)
    if not isinstance(pattern, list):
        pattern = [pattern == 0 or i % pattern < pattern - 1 for i in range(layers)]
    return tuple(window if local else 0 for local in pattern)


def _scaling(family: str, fields: _Fields) -> dict[str, Any] | None:
    """The RoPE scaling of a file, in the words of config.json."""
    for name in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor"):
        key = f"{family}.rope.scaling.{name}"
        if (got := fields.get(key, float, 1.0)) != 1:
            raise KvCacheError(f"{key} is {got}, expected 1", "config_unsupported")
    old = fields.get(f"{family}.rope.scale_linear", float, 0.0)
    factor = fields.get(f"{family}.rope.scaling.factor", float, old) or 1.0
    kind = fields.get(f"{family}.rope.scaling.type", str, "linear")  # as llama.cpp has it
    if kind == "none":
        return None
    return {
        "type": kind,
        "factor": factor,
        "original_max_position_embeddings": fields.get(f"{family}.rope.scaling.original_context_length", int),
        "beta_fast": fields.get(f"{family}.rope.scaling.yarn_beta_fast", float),
        "beta_slow": fields.get(f"{family}.rope.scaling.yarn_beta_slow", float),
    }


def _halves_apart(heads: int, head_dim: int) -> NDArray[np.intp]:
    """The order of rows of q or k that puts pairs half a head apart, which are neighbors in a Llama file."""
    return np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
