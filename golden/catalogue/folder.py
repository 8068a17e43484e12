"""A case as the two files of its folder."""

from __future__ import annotations

import numpy as np
import yaml
from safetensors.numpy import save

from .case import Case, Success


def files(case: Case) -> dict[str, bytes]:
    """The content of each file of the case's folder, by file name."""
    return {"case.yaml": case_yaml(case).encode(), "tensors.safetensors": save(tensors(case))}


def tensors(case: Case) -> dict[str, np.ndarray]:
    """The tensors by name: the first state, then each step's inputs and, if it succeeds, its outputs and the state."""
    named = state("", case, case.first_cache, case.first_scale)
    for i, step in enumerate(case.steps):
        inputs = {f"{i}.{name}": getattr(step.inputs, name) for name in case.operator.input_names}
        named |= {name: array for name, array in inputs.items() if array is not None}
        if isinstance(step, Success):
            named |= {f"{i}.{name}": array for name, array in step.outputs.items()}
            named |= state(f"{i}.", case, step.cache, step.scale)
    return {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in named.items()}


def state(prefix: str, case: Case, cache: np.ndarray | None, scale: np.ndarray | None) -> dict[str, np.ndarray]:
    """cache and scale as the file holds them, as far as there are."""
    named = {f"{prefix}cache": (pack_int4(cache) if case.types.T2 == "int4" else cache), f"{prefix}scale": scale}
    return {name: array for name, array in named.items() if array is not None}


def pack_int4(values: np.ndarray) -> np.ndarray:
    """Two's complement nibbles: element 2i in the low nibble of byte i, element 2i + 1 in the high one."""
    nibbles = values.reshape(-1).astype(np.uint8) & 0x0F
    nibbles = np.append(nibbles, np.zeros(nibbles.size % 2, np.uint8))
    return nibbles[0::2] | nibbles[1::2] << 4


class Short(dict):
    """A map that is written on one line."""


class Dumper(yaml.SafeDumper):
    """Writes Short maps and lists of scalars on one line, everything else line by line, in the order given."""


Dumper.add_representer(
    Short, lambda dumper, short: dumper.represent_mapping("tag:yaml.org,2002:map", short.items(), flow_style=True)
)
Dumper.add_representer(
    list,
    lambda dumper, items: dumper.represent_sequence(
        "tag:yaml.org,2002:seq", items, flow_style=not any(isinstance(item, dict) for item in items)
    ),
)


def case_yaml(case: Case) -> str:
    types = {"T1": case.types.T1}
    if case.cache is not None:
        types |= {"T2": case.types.T2, "T3": case.types.T3}
    document: dict[str, object] = {"about": case.about, "rules": case.rules, **case.operator.heading}
    if case.has_mass:
        document["outputs"] = ["attn_output", "attention_mass"]
    document["types"] = Short((name, element) for name, element in types.items() if element is not None)
    document["attributes"] = Short(case.attributes)
    if case.types.T2 == "int4":
        document["int4"] = Short(cache=list(case.cache.shape))
    if case.any_nan is not None:
        document["compare"] = {"nan": "any", "why": case.any_nan}
    document["steps"] = [
        Short() if isinstance(step, Success) else {"error": step.error, "mentions": step.mentions}
        for step in case.steps
    ]
    return yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)
