"""kvcache_ops.onnx: the checker and onnxscript know the operators."""

from __future__ import annotations

import subprocess
import sys

import kvcache_ops.onnx
import pytest
from onnx import ModelProto, TensorProto, checker, helper

from one_node import DOMAINS, HALF, INT4, PACKED_INPUTS, node_types
from sessions import IR_VERSION, OPSET, attributes_of, model_of


def cache_model(domain: str = DOMAINS[0], *, types: dict[str, int] | None = None, **attributes: object) -> ModelProto:
    """A KeyValueCache of 2 heads of 4 elements, with int4 caches and scales unless `types` says something else."""
    types = types or node_types(HALF, INT4, HALF)
    rows, memory = ["tokens", 2, 4], ["max_t", 1, 2, 2, 4]
    shapes = {"current_key": rows, "current_value": rows, "cache": memory, "scale": memory}
    shapes = {name: shapes.get(name, ["b"]) for name in types} | dict.fromkeys(("key", "value"), [None] * 3)
    node = helper.make_node("KeyValueCache", list(types), ["key", "value"], "cached", domain=domain, **attributes)
    return model_of(node, types | dict(key=HALF, value=HALF), shapes=shapes)


@pytest.mark.parametrize("first", ["import onnx.reference", "import kvcache_ops.onnx"])
def test_the_order_of_imports_does_not_matter(first: str) -> None:
    """onnx.reference can be imported before and after, although two domains have one operator."""
    code = f"{first}; import kvcache_ops.onnx, onnx.reference, importlib; importlib.reload(kvcache_ops.onnx)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_the_package_onnx() -> None:
    """The error says what to install."""
    code = "import sys; sys.modules['onnx'] = None; import kvcache_ops; import kvcache_ops.onnx"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError" in done.stderr and "pip install onnx" in done.stderr


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_checker(domain: str) -> None:
    """Right nodes pass, with a scale, without, and with the empty name; what is wrong is named."""
    checker.check_model(cache_model(domain, quant_bit=4, quant_group=4))
    checker.check_model(cache_model(domain, types=node_types(HALF, HALF)))
    checker.check_model(cache_model(domain, types=node_types(HALF, HALF) | {"": HALF}))
    with pytest.raises(checker.ValidationError, match="num_repaet"):
        checker.check_model(cache_model(domain, num_repaet=2))
    with pytest.raises(checker.ValidationError, match="num_repeat"):
        checker.check_model(cache_model(domain, num_repeat=2.0))
    few = node_types(HALF, HALF)
    del few["cache"]
    with pytest.raises(checker.ValidationError, match="input"):
        checker.check_model(cache_model(domain, types=few))
    with pytest.raises(Exception, match="cache"):
        checker.check_model(cache_model(domain, types=node_types(HALF, TensorProto.BOOL)), full_check=True)
    attention = helper.make_node("MultiHeadAttention", PACKED_INPUTS[:8], ["o"], domain=domain, head_dim=4)
    with pytest.raises(checker.ValidationError, match="num_heads"):
        checker.check_node(attention, _context(domain))


def _context(domain: str) -> object:
    """What the checker needs to know of a model to check a node."""
    context = checker.C.CheckerContext()
    context.ir_version, context.opset_imports = IR_VERSION, {"": OPSET, domain: 1}
    return context


def test_onnxscript() -> None:
    """The operators can be called in a script, with the attributes' defaults left out."""
    onnxscript = pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    opmx = kvcache_ops.onnx.opset()

    @onnxscript.script(default_opset=opmx)
    def attend(query, key, value, ss, ks, cs, sp, decoding, ms, mk, cache):
        return opmx.MultiHeadCacheAttention(
            query, key, value, ss, ks, cs, sp, decoding, ms, mk, cache, num_heads=8, head_dim=4
        )

    (node,) = attend.to_function_proto().node
    assert (node.domain, node.op_type, len(node.input)) == (DOMAINS[0], "MultiHeadCacheAttention", 11)
    assert attributes_of(node) == {"num_heads": 8, "head_dim": 4}
