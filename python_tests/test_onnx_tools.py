"""kvcache_ops.onnx: checker, shape inference, printer, onnxscript and the reference evaluator know the operators."""

from __future__ import annotations

import runpy
import subprocess
import sys
from itertools import cycle
from pathlib import Path
from typing import Any

import kvcache_ops.onnx
import numpy as np
import pytest
from kvcache_ops._cache import type_name
from kvcache_ops.conformance import Int4Array
from kvcache_ops.conformance._models import node_model, operator
from kvcache_ops.conformance._run import run_suites
from onnx import ModelProto, TensorProto, checker, defs, helper, shape_inference
from onnx.reference import ReferenceEvaluator

from compare import Arrays
from kvcache import IR_VERSION, OPSET
from one_node import DOMAINS, FLOAT, HALF, INT4, OPERATORS, PACKED_INPUTS, node_types

ROOT = Path(__file__).resolve().parents[1]
infers_shapes = pytest.mark.skipif(
    not hasattr(defs.OpSchema, "set_type_and_shape_inference_function"),
    reason="this onnx takes no inference functions from Python",
)


def cache_model(domain: str = DOMAINS[0], *, types: dict[str, int] | None = None, **attributes: object) -> ModelProto:
    """A KeyValueCache of 2 heads of 4 elements, with int4 caches and scales unless `types` says something else."""
    types = types or node_types(HALF, INT4, HALF)
    rows, memory = ["tokens", 2, 4], ["max_t", 1, 2, 2, 4]
    shapes = {"current_key": rows, "current_value": rows, "cache": memory, "scale": memory}
    node = helper.make_node("KeyValueCache", list(types), ["key", "value"], "cached", domain=domain, **attributes)
    inputs = [helper.make_tensor_value_info(name, types[name], shapes.get(name, ["b"])) for name in types if name]
    outputs = [helper.make_tensor_value_info(name, HALF, [None] * 3) for name in ("key", "value")]
    return model_of(helper.make_graph([node], "graph", inputs, outputs), domain)


def model_of(graph: object, domain: str) -> ModelProto:
    """The model of one graph."""
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets)


def dims(value: object) -> list[int | str | None]:
    """A shape as a list; None where a dimension is open."""
    kinds = {"dim_value": lambda dim: dim.dim_value, "dim_param": lambda dim: dim.dim_param, None: lambda _: None}
    return [kinds[dim.WhichOneof("value")](dim) for dim in value.type.tensor_type.shape.dim]


def test_the_schemas_are_those_of_the_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's data is what the repository's schemas give."""
    monkeypatch.setattr(sys, "argv", ["schemas.py", "--check"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "python/schemas.py"), run_name="__main__")
    assert end.value.code == 0


@pytest.mark.parametrize("first", ["import onnx.reference", "import kvcache_ops.onnx"])
def test_the_order_of_imports_does_not_matter(first: str) -> None:
    """onnx.reference can be imported before and after, although two domains have one operator."""
    code = f"{first}; import kvcache_ops.onnx, onnx.reference, importlib; importlib.reload(kvcache_ops.onnx)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_the_package_onnx() -> None:
    """What to install is said."""
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


@infers_shapes
def test_shapes() -> None:
    """Heads are repeated and the rows stay open; in static batching too; attention's output is like the query."""
    for domain in DOMAINS:
        for value in shape_inference.infer_shapes(cache_model(domain, num_repeat=3), strict_mode=True).graph.output:
            assert dims(value)[1:] == [6, 4] and not isinstance(dims(value)[0], int)
            assert value.type.tensor_type.elem_type == HALF
    declared = dict(current_key=["batch", 3, 2, 4], current_value=["batch", 3, 2, 4], start_pos=None, cache=None)
    for value in inferred("opmx", "KeyValueCache", declared, ["key", "value"], num_repeat=2):
        batch, length, *heads = dims(value)
        assert batch == "batch" and not isinstance(length, int) and heads == [4, 4]
    declared |= dict(current_key=["batch", 3, "heads", 4], current_value=None)
    for times in (1, 2):
        (key,) = inferred("opmx", "KeyValueCache", declared, ["key"], num_repeat=times)
        assert (dims(key)[2] == "heads") == (times == 1)
    for op_type in ("MultiHeadAttention", "MultiHeadCacheAttention"):
        declared = dict.fromkeys(OPERATORS[op_type][0]) | dict(query=["tokens", 8, 4])
        (value,) = inferred(DOMAINS[0], op_type, declared, ["attn_output"], num_heads=8, head_dim=4)
        assert dims(value) == ["tokens", 8, 4]


def inferred(domain: str, op_type: str, inputs: dict, results: list[str], **attributes: object) -> list:
    """The outputs of a float32 node's model after shape inference; only inputs with a shape are declared."""
    node = helper.make_node(op_type, list(inputs), results, domain=domain, **attributes)
    declared = [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items() if shape]
    outputs = [helper.make_tensor_value_info(name, FLOAT, None) for name in results]
    model = model_of(helper.make_graph([node], "graph", declared, outputs), domain)
    return list(shape_inference.infer_shapes(model).graph.output)


@infers_shapes
def test_shape_functions_never_raise() -> None:
    """Nodes with inputs of any rank, too few of them, and attributes of wrong types."""
    random = np.random.default_rng(3)
    values, lengths = [2**62, -(2**62), 0, 2.5, "three", [1, 2]], [None, "n", 0, 2**40, 3]
    for op_type, (names, results) in [*OPERATORS.items()] * 30:
        given = names[: random.integers(0, 14)]
        attributes = {name: values[random.integers(6)] for name in ("num_repeat", "num_heads", "head_dim")}
        shapes = {name: [lengths[random.integers(5)] for _ in range(random.integers(0, 5))] for name in given}
        inferred(DOMAINS[0], op_type, shapes, list(results), **attributes)


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
    assert {a.name: a.i for a in node.attribute} == {"num_heads": 8, "head_dim": 4}


def test_the_evaluator_conforms() -> None:
    """It stores in place, by elements of int4 in a byte, and refuses; in either domain."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="this onnx has no int4 arrays")
    domains = cycle(DOMAINS)

    def evaluate(
        op_type: str, attributes: dict[str, int], inputs: Arrays, cache: Any, scale: Any, outputs: Any = None
    ) -> tuple[Any, ...]:
        of, domain = operator(op_type, inputs), next(domains)
        state = {name: array for name, array in (("cache", cache), ("scale", scale)) if array is not None}
        is_int4 = isinstance(cache, Int4Array)
        types = {name: type_name(array.dtype) for name, array in (inputs | state).items()}
        model = node_model(
            of, attributes, types | ({"cache": "int4"} if is_int4 else {}), domain=domain, outputs=outputs
        )
        fed = inputs | state | ({"cache": cache.astype(ml_dtypes.int4)} if is_int4 else {})
        results = ReferenceEvaluator(model, new_ops=kvcache_ops.onnx.reference_ops()).run(None, fed)
        if is_int4:
            cache[...] = fed["cache"].astype(np.int8)
        return (*results, cache, scale)

    report = run_suites(evaluate, ["key-value-cache", "attention"], int4="unpacked", filter="f16")
    report.raise_for_failures()
    assert report.passed > 200
