"""Operators inside ONNX Runtime, and what a call costs there."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from time import perf_counter_ns, process_time_ns

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from figures import Contender, Measured
from graph import IR_VERSION, OPSET
from kvcache import DOMAIN, ELEMENT_TYPES, find_library
from native import library_path
from tensors import Tensors

EMPTY_DOMAIN = "kvcache.bench"
# The inputs of both operators, in the specification's order.
INPUTS = (
    "query current_key current_value seqstarts kvstarts cachestarts start_pos decoding_batches max_seqlen max_kvlen"
)
INPUTS = (*INPUTS.split(), "cache", "scale")

Run = Callable[[], object]


def session_of(model: bytes, threads: int, library: str | None = None) -> onnxruntime.InferenceSession:
    """A session with so many threads, none of which spins: after a call it would take the next contender's core."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    if library:
        options.register_custom_ops_library(library)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def element_of(array: np.ndarray) -> int:
    """ONNX's number of an array's type; to the peers packed int4 is bytes."""
    more = {
        np.dtype(np.uint8): TensorProto.UINT8,
        np.dtype(np.int32): TensorProto.INT32,
        np.dtype(bool): TensorProto.BOOL,
    }
    return (ELEMENT_TYPES | more)[array.dtype]


def bound(
    session: onnxruntime.InferenceSession,
    inputs: dict[str, np.ndarray],
    outputs: dict[str, np.ndarray],
    **described: tuple[int, tuple[int, ...], int],
) -> Run:
    """A run of the session on the arrays' own memory, which it keeps alive.

    Some inputs may be described by an element type, a shape and an address.
    """
    binding = session.io_binding()
    for bind, arrays in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
        for name, array in arrays.items():
            bind(name, "cpu", 0, *described.get(name, (element_of(array), array.shape, array.ctypes.data)))
    return lambda held=(inputs, outputs): session.run_with_iobinding(binding)


def timed(runs: list[Run], busy_threads: int = 0) -> Callable[[int, int], Measured]:
    """A contender's samples of calls from Python, one for each layer.

    Where a call is known to keep so many threads busy, the process's time says what part of it they held a processor.
    """

    def sample(turn: int, iterations: int) -> Measured:
        run = runs[turn % len(runs)]
        begin, cpu_begin = perf_counter_ns(), process_time_ns()
        for _ in range(iterations):
            run()
        wall, cpu = perf_counter_ns() - begin, process_time_ns() - cpu_begin
        return Measured(wall / iterations, cpu / (busy_threads * wall) if busy_threads else nan)

    return sample


def node_model(
    op_type: str, inputs: dict[str, int], outputs: dict[str, int], domain: str = "", **attributes: int | str
) -> bytes:
    """A graph of one node, whose inputs and outputs have these types; an input of type 0 is left out."""
    names = [name if element else "" for name, element in inputs.items()]
    node = helper.make_node(op_type, names, list(outputs), domain=domain, **attributes)
    values = [
        [helper.make_tensor_value_info(*item, None) for item in each.items() if item[1]] for each in (inputs, outputs)
    ]
    graph = helper.make_graph([node], op_type, *values)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets[: 1 + bool(domain)]).SerializeToString()


def called(tensors: Tensors, threads: int, op_type: str, domain: str, library: str, **attributes: int) -> Run:
    """A call of a custom operator with the tensors of a case, in a session of its own."""
    inputs = {name: tensors.inputs[name] for name in INPUTS if name in tensors.inputs}
    types = [{name: tensors.described(name)[0] for name in names} for names in (inputs, tensors.outputs)]
    session = session_of(node_model(op_type, *types, domain, **attributes), threads, library)
    return bound(session, inputs, tensors.outputs, cache=tensors.described("cache"))


def operator(tensors: Tensors, threads: int, check: Callable[[str, Run], None]) -> Contender:
    """The operator of the built library, a session for each layer, whose answer is checked."""
    runs = [
        called(tensors, threads, tensors.op_type, DOMAIN, str(find_library()), **tensors.attributes | {"layer_idx": i})
        for i in tensors.layers
    ]
    check(f"in ONNX Runtime on {threads} threads", runs[0])
    sample = timed(runs, busy_threads=threads if tensors.case.cold else 0)
    return Contender(f"{tensors.case.format.name}, in ONNX Runtime", threads, sample, cold=tensors.case.cold)


def empty(tensors: Tensors, threads: int) -> Contender:
    """An operator with the same inputs and outputs that does nothing, made with the same crate."""
    run = called(tensors, threads, f"Empty{tensors.op_type}", EMPTY_DOMAIN, str(library_path()))
    return Contender("empty operator in ONNX Runtime", threads, timed([run]), cold=False)
