"""Whole PMX exports in ONNX Runtime, with the operators of kvcache_ops.

model = kvcache_pmx.lower(onnx.load("export/model_slice_0/model.onnx"))
onnx.save(model, "model.onnx")
"""

from kvcache_pmx._lower import lower

__all__ = ["lower"]
