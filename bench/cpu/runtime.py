"""The operator inside ONNX Runtime, and what a call costs there."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from time import perf_counter_ns, process_time_ns

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from graph import IR_VERSION, OPSET
from kvcache import DOMAIN, ELEMENT_TYPES, bind, find_library
from measure import Contender
from native import INPUTS, Measured, library_path
from tensors import CaseTensors

IN_RUNTIME, EMPTY = "operator in ONNX Runtime", "empty operator in ONNX Runtime"
EMPTY_DOMAIN = "kvcache.bench"


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
    return TensorProto.UINT8 if array.dtype == np.uint8 else ELEMENT_TYPES[array.dtype]


def bind_output(binding: onnxruntime.IOBinding, name: str, array: np.ndarray) -> None:
    """Makes the runtime write an output to the array's own memory."""
    binding.bind_output(name, "cpu", 0, element_of(array), array.shape, array.ctypes.data)


def caller(session: onnxruntime.InferenceSession, binding: onnxruntime.IOBinding) -> Callable[[], None]:
    """One run of the session; keeps the binding alive."""
    return lambda: session.run_with_iobinding(binding)


def timed(runs: list[Callable[[], None]], busy_threads: int = 0) -> Callable[[int, int], Measured]:
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


def node_model(tensors: CaseTensors, op_type: str, domain: str, attributes: dict[str, int]) -> bytes:
    """A graph of one node with the operator's inputs and outputs."""
    form = tensors.case.format
    names = [name for name in INPUTS if name in tensors.inputs]
    types = dict.fromkeys(INPUTS, TensorProto.INT64)
    types |= {"current_key": form.t1, "current_value": form.t1, "cache": form.t2, "scale": form.t3}
    node = helper.make_node(op_type, names, ["key", "value"], domain=domain, **attributes)
    inputs = [helper.make_tensor_value_info(name, types[name], None) for name in names]
    outputs = [helper.make_tensor_value_info(name, form.t1, None) for name in ("key", "value")]
    graph = helper.make_graph([node], op_type, inputs, outputs)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets).SerializeToString()


def bound(session: onnxruntime.InferenceSession, tensors: CaseTensors) -> Callable[[], None]:
    """A call on the tensors' own memory, outputs included."""
    binding = session.io_binding()
    for name, array in tensors.inputs.items():
        packed = name == "cache" and array.dtype == np.uint8
        bind(binding, name, array, *((TensorProto.INT4, tensors.cache_shape) if packed else ()))
    bind_output(binding, "key", tensors.key)
    bind_output(binding, "value", tensors.value)
    return caller(session, binding)


def operator(tensors: CaseTensors, threads: int) -> Contender:
    """The operator of the built library, a session for each layer."""
    runs = []
    for layer_idx in tensors.layers:
        attributes = tensors.attributes | {"layer_idx": layer_idx}
        model = node_model(tensors, "KeyValueCache", DOMAIN, attributes)
        runs.append(bound(session_of(model, threads, str(find_library())), tensors))
    sample = timed(runs, busy_threads=threads if tensors.case.cold else 0)
    return Contender(IN_RUNTIME, "op", threads, sample, runs[0], cold=tensors.case.cold)


def empty(tensors: CaseTensors, threads: int) -> Contender:
    """An operator with the same inputs and outputs that does nothing, made with the same crate."""
    model = node_model(tensors, "Empty", EMPTY_DOMAIN, {})
    run = bound(session_of(model, threads, str(library_path())), tensors)
    return Contender(EMPTY, "op", threads, timed([run]), cold=False)
