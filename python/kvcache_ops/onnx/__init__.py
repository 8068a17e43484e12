"""The operators for the tools around ONNX.

    import kvcache_ops.onnx

registers their schemas in all their domains: `onnx.checker` then names a misspelled attribute or a missing input,
`onnx.shape_inference` knows key, value and attn_output, and onnxscript finds the operators. For its numpy evaluator:

    onnx.reference.ReferenceEvaluator(model, new_ops=kvcache_ops.onnx.reference_ops())

Needs the package `onnx`, which the extra `onnx` brings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache_ops._optional import load, require

require("onnx")

# Before the schemas: onnx.reference cannot be imported once one operator is registered in two domains.
import onnx.reference  # noqa: E402, F401

from kvcache_ops.onnx._definitions import register  # noqa: E402
from kvcache_ops.onnx._reference import reference_ops  # noqa: E402

if TYPE_CHECKING:
    from onnxscript.values import Opset

__all__ = ["opset", "reference_ops"]

register()


def opset(domain: str = "opmx.dynamic_batching") -> Opset:
    """The operators of a domain for onnxscript: `opset().KeyValueCache(...)` in an `@onnxscript.script` function.

    Needs the package `onnxscript`. Raises KvCacheError "package_missing" without it.
    """
    values = load("onnxscript.values", "opset()")
    opset: Opset = values.Opset(domain, 1)
    return opset
