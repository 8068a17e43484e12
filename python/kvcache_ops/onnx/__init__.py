"""The operators for the tools around ONNX.

    import kvcache_ops.onnx

registers their schemas in all their domains: `onnx.checker` then names a misspelled attribute or a missing input, and
onnxscript finds the operators.

Needs the package `onnx`, which the extra `onnx` brings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcache_ops._optional import load, require
from kvcache_ops.ops._nodes import DOMAIN
from kvcache_ops.ops._schemas import BY_DOMAIN_AND_NAME

require("onnx")

# Before the schemas: onnx.reference cannot be imported once one operator is registered in two domains.
import onnx.reference  # noqa: E402, F401

from kvcache_ops.onnx._definitions import register, scripted  # noqa: E402

if TYPE_CHECKING:
    from onnxscript.values import Opset

__all__ = ["opset"]

_OPSETS: dict[str, Any] = {}

register()


def opset(domain: str = DOMAIN) -> Opset:
    """The operators of a domain for onnxscript: `opset().KeyValueCache(...)` in an `@onnxscript.script` function.

    The attribute `scale` of MultiHeadCacheAttention, whose name an input has, cannot be given there.
    Needs the package `onnxscript`. Raises KvCacheError "package_missing" without it.
    """
    if domain not in _OPSETS:
        _OPSETS[domain] = _opset(domain)
    operators: Opset = _OPSETS[domain]
    return operators


def _opset(domain: str) -> Any:
    values = load("onnxscript.values", "opset()")

    def operator(of: Any, name: str) -> Any:
        found = BY_DOMAIN_AND_NAME.get((domain, name))
        if found is None:
            raise AttributeError(name)
        return values.Op(of, name, scripted(found, domain))

    def get(of: Any, name: str) -> Any:
        return getattr(of, name, None)

    return type("Operators", (values.Opset,), {"__getattr__": operator, "__getitem__": get})(domain, 1)
