"""The legal golden cases are larger, on each axis, than what an implementation might have room for by mistake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from golden_cases import load_tensors

GOLDEN = Path(__file__).parents[1] / "golden"
# By the folder of the cases, what some legal call has at least.
LEAST = {
    "cases": dict(heads=600, batch=600, seqlen=600, kvlen=1100, pages=1100, num_repeat=300, num_layer=40)
    | dict(quant_group=1040, heads_by_batch=480),
    "static_cases": dict(heads=600, batch=300, seqlen=600, kvlen=1100, num_repeat=300, num_layer=40)
    | dict(quant_group=520, heads_by_batch=480),
    "attention_cases": dict(heads=32, kv_heads=12, batch=300, seqlen=260, kvlen=1500, pages=300, num_layer=40)
    | dict(quant_group=256, heads_by_batch=480),
}


@pytest.mark.parametrize("folder", LEAST)
def test_legal_cases_are_large(folder: str) -> None:
    """Each size in some case of the suite."""
    largest: dict[str, int] = {}
    for case in (GOLDEN / folder).iterdir():
        for sizes in sizes_of_calls(case):
            largest = {name: max(sizes.get(name, 0), largest.get(name, 0)) for name in LEAST[folder]}
    assert {name: largest[name] for name, least in LEAST[folder].items() if largest[name] < least} == {}


def sizes_of_calls(folder: Path) -> Iterator[dict[str, int]]:
    """The sizes of each legal call of a case."""
    case, tensors = yaml.safe_load((folder / "case.yaml").read_text()), load_tensors(folder / "tensors.safetensors")
    for i, step in enumerate(case["steps"]):
        if "error" in step:
            continue
        call = {name.removeprefix(f"{i}."): tensor for name, tensor in tensors.items() if name.startswith(f"{i}.")}
        current = call["current_key"] if "current_key" in call else call["key"]
        heads = call.get("query", current).shape[-2]
        if "seqstarts" in call:
            seqlens, kvlens = (np.diff(call[name]) for name in ("seqstarts", "kvstarts"))
        else:  # static batching
            seqlens = np.full(len(current), current.shape[1])
            kvlens = seqlens + call["start_pos"].item()
        lengths = dict(seqlen=int(seqlens.max(initial=0)), kvlen=int(kvlens.max(initial=0)))
        table = call.get("cachestarts", seqlens)
        shapes = dict(heads=heads, kv_heads=current.shape[-2], batch=len(seqlens), heads_by_batch=heads * len(seqlens))
        quantized = {} if case["attributes"].get("quant_bit") else dict(quant_group=0)
        yield case["attributes"] | quantized | lengths | shapes | dict(pages=table.shape[1] if table.ndim == 2 else 0)
