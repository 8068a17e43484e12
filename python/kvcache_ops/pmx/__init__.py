"""Whole PMX exports in ONNX Runtime.

    model = kvcache_ops.pmx.lower(onnx.load("export/model_slice_0/model.onnx"))
    onnx.save(model, "model.onnx")

Needs the package `onnx`, which the extra `onnx` brings.
"""

from __future__ import annotations

from kvcache_ops._optional import require

require("onnx")

from kvcache_ops.pmx._lower import lower  # noqa: E402

__all__ = ["lower"]
