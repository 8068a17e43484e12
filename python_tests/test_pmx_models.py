"""Lowered exports of whole models against numpy: three ragged steps on one cache, which is written in place.

What single operators compute, test_pmx_operators.py tells.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from kvcache_pmx import lower
from onnx import ModelProto

from pmx_export import Params, export
from pmx_steps import Steps
from sessions import RUNTIME, quiet_options

# Where ONNX Runtime has the Attention of opset 23.
ATTENTIONS = ["native", "onnx"] if RUNTIME >= (1, 24) else ["native"]

MODELS = {
    "plain": Params(),
    "unfused": Params(fused=False),
    "int8-paged": Params(cache_mode=1, cache_layout=3, quant_bit=8),
    "int8-paged-unfused": Params(fused=False, cache_mode=1, cache_layout=1, quant_bit=8),
    "old-domain": Params(domain="pmx", fused=False),
}


def compare(whole: ModelProto, steps: Steps, *models: ModelProto, level: str = "ORT_ENABLE_ALL") -> None:
    """Lowered models give the logits of the export in numpy and store its rows, up to the rounding of its type."""
    expected = steps.expected(whole)
    quantized = steps.scale.size > 0
    # float32: 3e-6 was measured. float16 rounds by 5e-4 of a value, dozens of times on the way to a logit, in numpy
    # after every operator, in ONNX Runtime wherever it has no float16 kernel less often: 1e-2 was measured. A code
    # of int8 that falls the other way costs 4e-3 of its group's largest value.
    limit, row_limit = (3e-5, 2e-5) if steps.element == "float32" else (8e-2 if quantized else 3e-2, 3e-2)
    for model in models:
        onnx.checker.check_model(model)
        options = quiet_options()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        logits, cache, scale = steps.run(model, options)
        for got, right in zip(logits, expected, strict=True):
            assert got.dtype == np.float32 and right.std() > 0.5
            np.testing.assert_allclose(got, right, rtol=0, atol=limit)
        difference = np.abs(cache.astype(float) - steps.cache.astype(float))
        if quantized:
            np.testing.assert_allclose(scale.astype(float), steps.scale.astype(float), rtol=0, atol=row_limit / 100)
            assert difference.max() <= (3 if steps.element == "float16" else 1) and (difference > 1).mean() < 0.01
        else:
            assert difference.max() <= row_limit


def check(params: Params, steps: Steps | None = None, attentions: list[str] = ATTENTIONS[:1], **options: int) -> None:
    """The lowered export computes what the export does in numpy."""
    whole = export(params)
    compare(whole, steps or Steps(params), *(lower(whole, attention=attention, **options) for attention in attentions))


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    """Fused and not, with each kind of cache; attention by either operator."""
    check(replace(MODELS[name], element="float32"), attentions=ATTENTIONS)


LEVELS = [("unfused", level) for level in ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL")]


@pytest.mark.parametrize(("name", "level"), [*LEVELS, ("int8-paged", "ENABLE_ALL")])
def test_no_optimization_costs_the_cache(name: str, level: str) -> None:
    """A float16 model among operators without float16 kernels stores into the caller's memory at every level."""
    whole = export(MODELS[name])
    compare(whole, Steps(MODELS[name]), lower(whole), level=f"ORT_{level}")


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
def test_masks(fused: bool, rank: int) -> None:
    """A mask with values of its own, for all heads or for each, with padded columns; without elements it is none."""
    params = Params(element="float32", fused=fused)
    check(params, Steps(params).with_masks(rank), ATTENTIONS, mask_rank=rank)
    steps = Steps(params)
    for step in steps.inputs:
        step["attn_mask"] = np.zeros((0,) * rank, np.float32)
    check(params, steps, mask_rank=rank)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
def test_a_mask_that_the_caller_owes(fused: bool) -> None:
    """An export with auto_causal=False takes its pipeline's mask without mask_rank."""
    params = Params(element="float32", fused=fused, auto_causal=False)
    whole = export(params)
    model = lower(whole)
    (mask,) = (value for value in model.graph.input if value.name == "attn_mask")
    assert [dim.dim_param for dim in mask.type.tensor_type.shape.dim] == ["total_seqlen", "mask_columns"]
    compare(whole, Steps(params).with_masks(causal=True), model)
