"""Models after the programs that convert, simplify and optimize ONNX models: each stores, or is refused with an error.

A program that does not know the operators may put a node before `cache`. What is stored would then be lost: ONNX
Runtime gives the operator the node's result, and no error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxconverter_common.float16
import onnxoptimizer
import onnxruntime
import onnxscript.optimizer
import onnxsim
import onnxslim
import pytest
from kvcache_ops import CacheSpec, check_model, make_node
from kvcache_ops.cli._command import main
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, helper
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.transformers.float16 import convert_float_to_float16
from onnxruntime.transformers.optimizer import optimize_model

from compare import refused
from sessions import create_session, quiet_options

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
SPEC = CacheSpec(max_tokens=8, num_kv_heads=2, head_dim=4, dtype="float32", num_layers=1)
INDICES = {
    "seqstarts": [0, 3],
    "kvstarts": [0, 3],
    "cachestarts": [0],
    "start_pos": [0],
    "max_seqlen": 3,
    "max_kvlen": 3,
}
VALUES = ["current_key", "current_value", *INDICES, "cache", "scale"]


def model() -> ModelProto:
    """A layer's projections, and a KeyValueCache."""
    names = ["current_key", "current_value", *INDICES, "cache"]
    node = make_node("KeyValueCache", names, ["key", "value"], SPEC, name="store")
    inputs = [helper.make_tensor_value_info("x", FLOAT, ["tokens", 2, 4])]
    inputs += [
        helper.make_tensor_value_info(n, INT64, [len(v)] if isinstance(v, list) else []) for n, v in INDICES.items()
    ]
    inputs.append(helper.make_tensor_value_info("cache", FLOAT, list(SPEC.cache_shape)))
    outputs = [helper.make_tensor_value_info(name, FLOAT, ["keys", 2, 4]) for name in ("key", "value")]
    weight = helper.make_tensor("w", FLOAT, [4, 4], np.eye(4, dtype=np.float32).ravel())
    nodes = [helper.make_node("MatMul", ["x", "w"], [name], name) for name in names[:2]]
    graph = helper.make_graph([*nodes, node], "layer", inputs, outputs, [weight])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(node.domain, 1)]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets)


def stores(path: Path) -> bool:
    """Whether a run leaves the keys and values of three tokens in the cache that is given to it."""
    session = create_session(path)
    types = {value.name: np.float16 if "float16" in value.type else np.float32 for value in session.get_inputs()}
    cache = np.zeros(SPEC.cache_shape, types["cache"])
    session.run(
        None, {"x": np.ones((3, 2, 4), types["x"]), "cache": cache} | {n: np.array(v) for n, v in INDICES.items()}
    )
    return bool((cache[:3] == 1).all() and (cache[3:] == 0).all())


def quantized(path: Path) -> ModelProto:
    """With weights of 8 bits."""
    quantize_dynamic(path, path.with_suffix(".quantized"))
    return onnx.load(path.with_suffix(".quantized"))


def optimized(path: Path, level: str) -> ModelProto:
    """The model as ONNX Runtime optimizes and saves it."""
    made = quiet_options()
    made.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    made.optimized_model_filepath = str(path.with_suffix(".optimized"))
    create_session(path, made)
    return onnx.load(made.optimized_model_filepath)


def scripted(path: Path) -> ModelProto:
    """The model as onnxscript optimizes it."""
    found = onnx.load(path)
    return onnxscript.optimizer.optimize(found) or found


def of_onnxruntime(**arguments: Any) -> Callable[[Path], ModelProto]:
    """The model after onnxruntime's conversion to float16."""
    return lambda path: convert_float_to_float16(onnx.load(path), **arguments)


def of_common(**arguments: Any) -> Callable[[Path], ModelProto]:
    """The model after onnxconverter-common's conversion to float16."""
    return lambda path: onnxconverter_common.float16.convert_float_to_float16(onnx.load(path), **arguments)


OURS = ["KeyValueCache"]
KEEP = {
    "onnxruntime float16": of_onnxruntime(),
    "onnxconverter-common float16": of_common(),
    "onnxconverter-common float16 but inputs and this node": of_common(keep_io_types=True, op_block_list=OURS),
    "onnxruntime quantize_dynamic": quantized,
    "onnxruntime transformers": lambda path: optimize_model(str(path), opt_level=0).model,
    "onnxruntime basic": lambda path: optimized(path, "ORT_ENABLE_BASIC"),
    "onnxruntime all": lambda path: optimized(path, "ORT_ENABLE_ALL"),
    "onnxscript": scripted,
    "onnxsim": lambda path: onnxsim.simplify(onnx.load(path), check_n=0)[0],
    "onnxslim": lambda path: onnxslim.slim(onnx.load(path)),
    "onnxoptimizer": lambda path: onnxoptimizer.optimize(onnx.load(path)),
    "onnx version_converter": lambda path: onnx.version_converter.convert_version(onnx.load(path), 22),
    "onnx compose": lambda path: onnx.compose.add_prefix(onnx.load(path), "", rename_nodes=False),
}
LOSE = {
    "onnxruntime float16 but inputs": of_onnxruntime(keep_io_types=True),
    "onnxruntime float16 but this node": of_onnxruntime(op_block_list=OURS),
    "onnxconverter-common float16 but this node": of_common(op_block_list=OURS),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The model in a file."""
    onnx.save(model(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("convert", KEEP.values(), ids=KEEP)
def test_what_keeps_the_input(convert: Callable[[Path], ModelProto], path: Path) -> None:
    """The converted model stores where it is told to."""
    onnx.save(convert(path), path)
    check_model(path)
    assert stores(path)


@pytest.mark.parametrize("convert", LOSE.values(), ids=LOSE)
def test_what_puts_a_cast_before_it(convert: Callable[[Path], ModelProto], path: Path) -> None:
    """check_model names the Cast, and no session is made."""
    onnx.save(convert(path), path)
    with refused("state_computed", "the output of Cast node"):
        check_model(path)
    with pytest.raises(Exception, match="expected a graph input: what the operator stores would be lost"):
        stores(path)


@pytest.mark.parametrize(
    ("op_type", "more"), [("Identity", []), ("Mul", ["one"]), ("Add", ["zero"]), ("Reshape", ["shape"]), ("Cast", [])]
)
def test_other_nodes_before_it(op_type: str, more: list[str], path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A node of any kind is refused, although ONNX Runtime may optimize it away; the doctor names it and fails."""
    found = model()
    attributes = {"to": FLOAT} if op_type == "Cast" else {}
    before = helper.make_node(op_type, ["cache", *more], ["copied"], "before", **attributes)
    found.graph.node[2].input[8] = "copied"
    found.graph.node.insert(2, before)
    constants = {"one": np.float32(1), "zero": np.float32(0), "shape": np.array(SPEC.cache_shape)}
    found.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(constants[name]), name) for name in more)
    onnx.save(found, path)
    inputs = ", ".join(["cache", *more])
    text = f"KeyValueCache node 'store' gets cache from copied, the output of {op_type} node 'before', whose inputs are"
    with refused("state_computed", f"{text} {inputs}"):
        check_model(path)
    if op_type == "Identity":  # the doctor asks check_model
        assert main(["doctor", str(path)]) == 1 and text in capsys.readouterr().out


def test_scales_branches_functions_and_initializers(path: Path) -> None:
    """A scale that is only read may be computed; a branch has its graph's inputs, a function its caller's values."""

    def node(cache: str = "cache", scale: str = "scale", **more: int) -> NodeProto:
        names = {name: name for name in ("current_key", "current_value", *INDICES)} | {"cache": cache, "scale": scale}
        return make_node("KeyValueCache", names, ["key", "value"], {"quant_bit": 8, "quant_group": 4} | more)

    def check(*nodes: NodeProto, held: str = "", functions: Sequence[FunctionProto] = ()) -> None:
        inputs = [*VALUES, "condition"]
        tensors = [onnx.numpy_helper.from_array(np.zeros(1, np.int8), held)] if held else []
        values = [helper.make_empty_tensor_value_info(name) for name in inputs]
        graph = helper.make_graph(nodes, "g", values, [helper.make_empty_tensor_value_info("key")], tensors)
        path.write_bytes(helper.make_model(graph, functions=functions, opset_imports=opsets).SerializeToString())
        check_model(path)

    def branch(*nodes: NodeProto) -> NodeProto:
        then = helper.make_graph(nodes, "then", [], [helper.make_empty_tensor_value_info("key")])
        return helper.make_node("If", ["condition"], ["chosen"], "choose", then_branch=then, else_branch=then)

    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(node().domain, 1), helper.make_opsetid("own", 1)]
    copy = helper.make_node("Identity", ["cache"], ["copied"], "copy")
    double = helper.make_node("Add", ["scale", "scale"], ["doubled"])
    function = helper.make_function("own", "Store", VALUES, ["key"], [node()], opsets[:2])
    check(node())
    check(double, node(scale="doubled", quant_type=2))
    check(branch(node()))
    check(helper.make_node("Store", VALUES, ["key"], domain="own"), functions=[function])
    call = helper.make_node("Store", [*VALUES[:-2], "copied", "scale"], ["key"], domain="own")
    for wrong, text in [
        (lambda: check(double, node(scale="doubled")), "gets scale from doubled, the output of Add node of doubled"),
        (lambda: check(node("missing")), "gets cache from missing, a value that nothing gives"),
        (lambda: check(node("held"), held="held"), "gets cache from held, an initializer"),
        (lambda: check(node(), held="cache"), "gets cache from cache, an initializer"),
        (lambda: check(copy, branch(node("copied"))), "gets cache from copied, the output of Identity node 'copy'"),
        (lambda: check(branch(copy, node("copied"))), "gets cache from copied, the output of Identity node 'copy'"),
        (lambda: check(copy, call, functions=[function]), "gets cache from copied, the output of Identity node 'copy'"),
    ]:
        with refused("state_computed", text):
            wrong()
