"""The same work by standard operators in the same ONNX Runtime, as well as they allow.

ScatterND writes the current rows in place, as its output is bound to the memory of its input; Gather reads all rows;
Expand repeats the heads; DequantizeLinear and elementary arithmetic quantise as the specification says.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnxruntime import IOBinding

from cases import HEAD_DIM, NUM_HEADS, Case
from graph import IR_VERSION, OPSET
from kvcache import NUMPY_TYPES, bind
from measure import Contender
from memory import Operands
from rows import Rows, rows_of
from runtime import bind_output, caller, session_of, timed

STANDARD = "standard ONNX operators"


@dataclass
class Nodes:
    """The nodes and constants of a graph in the making; every method adds a node and gives its output."""

    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)

    def add(self, op_type: str, *inputs: str, output: str | None = None, **attributes) -> str:
        """A node of one output."""
        output = output or f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], **attributes))
        return output

    def constant(self, value: np.ndarray) -> str:
        """A constant."""
        self.constants.append(numpy_helper.from_array(value, f"constant_{len(self.constants)}"))
        return self.constants[-1].name

    def reshape(self, x: str, *shape: int) -> str:
        """`x` in another shape; 0 keeps an axis."""
        return self.add("Reshape", x, self.constant(np.array(shape, np.int64)))


def quantised(nodes: Nodes, x: str, case: Case) -> tuple[str, str]:
    """Codes and scales of current tokens, by the specification's arithmetic in T1."""
    form, t1 = case.format, NUMPY_TYPES[case.format.t1]
    groups = HEAD_DIM // form.quant_group

    def number(value: float) -> str:
        return nodes.constant(np.array(value, t1))

    x = nodes.reshape(x, 0, NUM_HEADS, groups, form.quant_group)
    axes = nodes.constant(np.array([-1], np.int64))
    amax = nodes.add("ReduceMax", nodes.add("Abs", x), axes, keepdims=1)
    s = nodes.add("Max", nodes.add("Div", amax, number(127)), number(1e-5))
    q = nodes.add("Round", nodes.add("Div", x, s))
    q = nodes.add("Cast", nodes.add("Clip", q, number(-127), number(127)), to=TensorProto.INT8)
    scale = nodes.add("Cast", s, to=form.t3) if form.t3 != form.t1 else s
    return nodes.reshape(q, 0, NUM_HEADS, HEAD_DIM), nodes.reshape(scale, 0, NUM_HEADS, groups)


def model_of(case: Case) -> bytes:
    """The graph; each of its inputs comes once for keys and once for values."""
    form, nodes = case.format, Nodes()
    inputs, outputs = [], []

    def declare(values: list, name: str, element_type: int) -> str:
        values.append(helper.make_tensor_value_info(name, element_type, None))
        return name

    for kv in ("key", "value"):
        current = declare(inputs, f"current_{kv}", form.t1)
        write, read = (declare(inputs, f"{rows}_{kv}", TensorProto.INT64) for rows in ("write", "read"))
        new, types = {"cache": current}, {"cache": form.t2, "scale": form.t3}
        if form.t3 is not None:
            new["cache"], new["scale"] = quantised(nodes, current, case)
        elif form.t1 != form.t2:
            new["cache"] = nodes.add("Cast", current, to=form.t2)
        gathered = {}
        for name, update in new.items():
            held = declare(inputs, f"{name}_{kv}", types[name])
            stored = declare(outputs, f"{name}_{kv}_stored", types[name])
            nodes.add("ScatterND", held, write, update, output=stored)
            gathered[name] = nodes.add("Gather", stored, read, axis=0)
        x, element_type = gathered["cache"], form.t2
        if form.t3 is not None:
            element_type = form.t3
            x = nodes.add("DequantizeLinear", x, gathered["scale"], axis=2, block_size=form.quant_group)
        if element_type != form.t1:
            x = nodes.add("Cast", x, to=form.t1)
        if case.num_repeat > 1:
            x = nodes.add("Unsqueeze", x, nodes.constant(np.array([2], np.int64)))
            x = nodes.add("Expand", x, nodes.constant(np.array([1, 1, case.num_repeat, 1], np.int64)))
            x = nodes.reshape(x, 0, NUM_HEADS * case.num_repeat, HEAD_DIM)
        nodes.nodes[-1].output[0] = declare(outputs, kv, form.t1)
    graph = helper.make_graph(nodes.nodes, "standard", inputs, outputs, nodes.constants)
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets).SerializeToString()


def standard(operands: Operands, threads: int) -> Contender:
    """The graph on the case's memory, one session and a binding for each layer."""
    session = session_of(model_of(operands.case), threads)
    runs = []
    for layer_idx in operands.layers:
        rows, binding = rows_of(operands, layer_idx), session.io_binding()
        for kv, name in enumerate(("key", "value")):
            bind(binding, f"current_{name}", operands.inputs[f"current_{name}"])
            bind_rows(binding, rows, kv, name)
            bind_output(binding, name, getattr(operands, name))
        run = caller(session, binding)
        runs.append(lambda run=run, rows=rows: run())  # the rows live as long as their binding
    return Contender(STANDARD, "op", threads, timed(runs), runs[0], cold=operands.case.cold)


def bind_rows(binding: IOBinding, rows: Rows, kv: int, name: str) -> None:
    """Binds cache and scale, as input and as output, and the rows to write and to read."""
    bind(binding, f"write_{name}", rows.write[kv][..., None])
    bind(binding, f"read_{name}", rows.read[kv])
    for held, array in (("cache", rows.cache), ("scale", rows.scale)):
        if array is not None:
            bind(binding, f"{held}_{name}", array)
            bind_output(binding, f"{held}_{name}_stored", array)
