"""The configuration of a checkpoint: sizes, rotary frequencies, the window, and which tensors it must have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import log, pi
from typing import Any

import numpy as np

from kvcache_ops._errors import KvCacheError

_LAYER_TENSORS = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_GEMMA_TENSORS = {
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
}
_MODEL_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


@dataclass(frozen=True)
class Config:
    """A decoder of one of the supported families, by its sizes.

    `context_length` is in tokens; `inv_freq` has the angles of neighboring positions in radians, a pair of a head each,
    whose cosines and sines are times `rope_scale`; a query sees the last `window` positions, its own included, or all;
    `biases`: q, k and v have them; `head_norms`: the heads of q and k are normalized; `tied`: the embedding is the
    head, too. Of Gemma: `windows` has each layer's, 0 for none, and `local_inv_freq` the angles of layers with one, if
    they have their own; `scale` multiplies scores, 0 is 1 / sqrt(head_dim); `softcap` and `logit_softcap` bound scores
    and logits, 0 is none.
    """

    family: str
    num_layers: int
    hidden: int
    ffn: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    inv_freq: tuple[float, ...]
    window: int | None = None
    biases: bool = False
    head_norms: bool = False
    tied: bool = False
    rope_scale: float = 1.0
    windows: tuple[int, ...] = ()
    local_inv_freq: tuple[float, ...] = ()
    scale: float = 0.0
    softcap: float = 0.0
    logit_softcap: float = 0.0

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden", "ffn", "num_heads", "num_kv_heads", "head_dim", "context_length"):
            if getattr(self, name) < 1:
                raise KvCacheError(f"{name} is {getattr(self, name)}, expected at least 1", "config_range")
        if not 0 < self.norm_eps < np.inf:
            raise KvCacheError(f"norm_eps is {self.norm_eps}, expected a positive number", "config_range")
        if self.window is not None and not 1 <= self.window < 2**31:
            raise KvCacheError(f"sliding_window is {self.window}, expected 1 to less than 2^31", "config_range")
        for name in ("scale", "softcap", "logit_softcap"):
            if not 0 <= getattr(self, name) < np.inf:
                raise KvCacheError(f"{name} is {getattr(self, name)}, expected 0 or more", "config_range")
        if self.windows and (len(self.windows) != self.num_layers or not 0 <= min(self.windows) <= max(self.windows)):
            message = f"the layers' windows are {list(self.windows)}, expected {self.num_layers} of 0 or more"
            raise KvCacheError(message, "config_range")
        if self.num_heads % self.num_kv_heads:
            message = f"num_heads is {self.num_heads}, expected a multiple of num_kv_heads {self.num_kv_heads}"
            raise KvCacheError(message, "config_range")
        if self.head_dim % 2 or len(self.inv_freq) != self.head_dim // 2:
            message = f"{len(self.inv_freq)} pairs of a head are rotated, expected all: {self.head_dim / 2:g}"
            raise KvCacheError(message, "config_unsupported")

    @property
    def gemma(self) -> bool:
        """Whether it has norms after attention and feed-forward too, GELU, and a scaled embedding."""
        return self.family.startswith("gemma")

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors of the model by their names in a GGUF file; of a matrix (outputs, inputs)."""
        query, key = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        layer: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (self.hidden,),
            "attn_q.weight": (query, self.hidden),
            "attn_k.weight": (key, self.hidden),
            "attn_v.weight": (key, self.hidden),
            "attn_output.weight": (self.hidden, query),
            "ffn_norm.weight": (self.hidden,),
            "ffn_gate.weight": (self.ffn, self.hidden),
            "ffn_up.weight": (self.ffn, self.hidden),
            "ffn_down.weight": (self.hidden, self.ffn),
        }
        if self.biases:
            layer |= {"attn_q.bias": (query,), "attn_k.bias": (key,), "attn_v.bias": (key,)}
        if self.head_norms:
            layer |= {"attn_q_norm.weight": (self.head_dim,), "attn_k_norm.weight": (self.head_dim,)}
        if self.gemma:
            layer |= {"post_attention_norm.weight": (self.hidden,), "post_ffw_norm.weight": (self.hidden,)}
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (self.vocab_size, self.hidden)}
        for i in range(self.num_layers):
            shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
        shapes["output_norm.weight"] = (self.hidden,)
        if not self.tied:
            shapes["output.weight"] = (self.vocab_size, self.hidden)
        return shapes

    def check(self, found: Mapping[str, tuple[int, ...]], spelled: Callable[[str], str], source: object) -> None:
        """Refuses a checkpoint with other tensors than the model's: a missing, a further one, one of another shape.

        `found`: shapes by the names that `tensors` has; `spelled`: returns a name as the `source` has it.
        """
        expected = self.tensors()
        for name, shape in expected.items():
            if name not in found:
                raise KvCacheError(f"there is no tensor {spelled(name)} in {source}", "tensor_missing")
            if found[name] != shape:
                message = f"{spelled(name)} has the shape {list(found[name])}, expected {list(shape)}"
                raise KvCacheError(message, "tensor_shape")
        further = [spelled(name) for name in found if name not in expected]
        if further:
            message = f"{self.family} has no {_some(further)}: the model computes more than this family does"
            raise KvCacheError(message, "tensor_unexpected")


def _layer_tensors(gemma: bool) -> dict[str, str]:
    return _LAYER_TENSORS | (_GEMMA_TENSORS if gemma else {})


def canonical(name: str, gemma: bool) -> str | None:
    """The name in a GGUF file of a tensor of a Hugging Face folder; None if no family has it."""
    if name.startswith("model.layers."):
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        return next((f"blk.{layer}.{ours}" for ours, theirs in _layer_tensors(gemma).items() if theirs == rest), None)
    return next((ours for ours, theirs in _MODEL_TENSORS.items() if theirs == name), None)


def hugging_face_name(name: str, gemma: bool) -> str:
    """The name in a Hugging Face folder of a tensor of `Config.tensors`."""
    if name.startswith("blk."):
        _, layer, rest = name.split(".", 2)
        return f"model.layers.{layer}.{_layer_tensors(gemma)[rest]}"
    return _MODEL_TENSORS[name]


def unknown_family(key: str, got: object, names: Iterable[str], families: Iterable[str]) -> KvCacheError:
    """The refusal of a family: which families there are, and which tensors, by GGUF names, none of them has."""
    known = {*_layer_tensors(gemma=True), *_MODEL_TENSORS}
    others = [name for name in names if (name.split(".", 2)[-1] if name.startswith("blk.") else name) not in known]
    differs = f"; it has {_some(others)}, which they do not have" if others else ""
    return KvCacheError(f"{key} is {got!r}, expected one of {', '.join(families)}{differs}", "family_unknown")


@np.errstate(all="ignore")  # what is not finite is refused
def rotary(
    head_dim: int, base: float, given: Mapping[str, Any] | None, context: int
) -> tuple[tuple[float, ...], float]:
    """The angles of neighboring positions, a pair of a head each, and the factor of their cosines and sines.

    given: the scaling, in the words of config.json. context: positions of the training, if the scaling has no others.

    Raises KvCacheError "rope_unsupported" for another `rope_type` than "default", "linear", "llama3" and "yarn".
    """
    if head_dim < 2 or not isinstance(base, int | float) or not base > 0:
        raise KvCacheError(f"rope has the base {base!r} and heads of {head_dim} elements", "config_range")
    frequencies = float(base) ** (-np.arange(0, head_dim, 2) / head_dim)
    scaling, scale = {key: value for key, value in (given or {}).items() if value is not None}, 1.0
    kind = scaling.get("rope_type", scaling.get("type", None if "factor" in scaling else "default"))
    if kind not in ("default", "linear", "llama3", "yarn"):
        message = f"rope_type is {kind!r}, expected default, linear, llama3 or yarn"
        raise KvCacheError(message, "rope_unsupported")
    try:
        if kind == "linear":
            frequencies = frequencies / float(scaling["factor"])
        elif kind == "llama3":
            # The part of the original context that a pair's period takes decides: short periods stay as they are.
            turns = float(scaling["original_max_position_embeddings"]) * frequencies / (2 * pi)
            low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
            kept = np.clip((turns - low) / (high - low), 0, 1)
            frequencies = frequencies * (kept + (1 - kept) / float(scaling["factor"]))
        elif kind == "yarn":
            original = float(scaling.get("original_max_position_embeddings", context))
            turns = np.array([float(scaling.get("beta_fast", 32)), float(scaling.get("beta_slow", 1))])
            # The pairs that turn so often in the original context; between them what is kept falls from 1 to 0.
            first, last = head_dim * np.log(original / (2 * pi * turns)) / (2 * np.log(base))
            if scaling.get("truncate", True):
                first, last = np.floor(first), np.ceil(last)
            first, last = max(first, 0), min(last, head_dim - 1)
            kept = 1 - np.clip((np.arange(head_dim // 2) - first) / max(last - first, 0.001), 0, 1)
            frequencies = frequencies * (kept + (1 - kept) / float(scaling["factor"]))
            scale = _magnitude(scaling)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else f"has a wrong value: {error}"
        raise KvCacheError(f"rope scaling {scaling!r} {what}", "rope_unsupported") from error
    if not (np.isfinite(frequencies).all() and 0 < scale < np.inf):
        raise KvCacheError(f"rope scaling {scaling!r} gives no finite angles", "rope_unsupported")
    return tuple(frequencies.tolist()), scale


def _magnitude(scaling: Mapping[str, Any]) -> float:
    """YaRN's factor of cosines and sines: longer queries and keys, so that attention over more tokens is as sharp."""

    def of(name: str) -> float:
        return max(0.1 * float(scaling.get(name, 1)) * log(float(scaling["factor"])) + 1, 1.0)

    both = scaling.get("mscale") and scaling.get("mscale_all_dim")
    return float(scaling.get("attention_factor", of("mscale") / of("mscale_all_dim") if both else of("")))


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
