"""A case of an attention operator as the two files of its folder."""

from __future__ import annotations

import numpy as np
import yaml
from safetensors.numpy import save

from oracle.attention import Result

from ..folder import Dumper, Short, stored
from .case import AttentionCase, Success


def files(case: AttentionCase) -> dict[str, bytes]:
    """The content of each file of the case's folder, by file name."""
    return {"case.yaml": case_yaml(case).encode(), "tensors.safetensors": save(tensors(case))}


def tensors(case: AttentionCase) -> dict[str, np.ndarray]:
    """The tensors by name: the first state, then each step's inputs and, if it succeeds, its output and the state."""
    named = state("", case, case.cached and case.cached.first_cache, case.cached and case.cached.first_scale)
    for i, step in enumerate(case.steps):
        inputs = {name: getattr(step.inputs, name) for name in case.input_names}
        named |= {f"{i}.{name}": array for name, array in inputs.items() if array is not None}
        if isinstance(step, Success):
            named |= {f"{i}.{name}": array for name, array in rounded(step.result).items()}
            named |= state(f"{i}.", case, step.cache, step.scale)
    return {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in named.items()}


def state(
    prefix: str, case: AttentionCase, cache: np.ndarray | None, scale: np.ndarray | None
) -> dict[str, np.ndarray]:
    """cache and scale as the file holds them, as far as there are."""
    named = {} if cache is None else {f"{prefix}cache": stored(case, cache)}
    return named if scale is None else named | {f"{prefix}scale": scale}


def rounded(result: Result) -> dict[str, np.ndarray]:
    """The output and its tolerance as float32, the tolerance wider by what that may move the output."""
    with np.errstate(over="ignore"):
        output = result.attn_output.astype(np.float32)
    finite = np.where(np.isfinite(output), output, np.float32(0))
    moved = np.where(np.isfinite(output), np.abs(finite - np.where(np.isfinite(output), result.attn_output, 0)), 0)
    allowed = (result.tolerance + moved).astype(np.float32)
    widened = np.where(allowed > 0, np.nextafter(allowed, np.float32(np.inf)), np.float32(0))
    return {"attn_output": output, "tolerance": widened}


def case_yaml(case: AttentionCase) -> str:
    """The text of case.yaml."""
    types = {"T1": case.types.T1}
    if case.cached is not None:
        types |= {"T2": case.types.T2, "T3": case.types.T3}
    document: dict[str, object] = {
        "about": case.about,
        "rules": case.rules,
        "operator": case.operator,
        "types": Short((name, element) for name, element in types.items() if element is not None),
        "attributes": Short(case.attributes),
    }
    if case.cached is not None and case.types.T2 == "int4":
        document["int4"] = Short(cache=list(case.cached.cache.shape))
    document["steps"] = [
        Short() if isinstance(step, Success) else {"error": step.error, "mentions": step.mentions}
        for step in case.steps
    ]
    return yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)
