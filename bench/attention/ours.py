"""The operator called directly and in ONNX Runtime, an operator that does nothing, and the loop that only reads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from math import ceil

import numpy as np
from onnx import TensorProto, helper

from attention_tensors import AttentionTensors
from cases import Traffic
from graph import IR_VERSION, OPSET
from kvcache import DOMAIN, ELEMENT_TYPES, bind, find_library
from measure import Contender
from native import LINE, Measured, Moved, Native, Sample, TensorDescription, WrongAnswer, library_path, measured, sum_of
from runtime import EMPTY_DOMAIN, bind_output, caller, session_of, timed
from tensors import ROTATION, Arena

INPUTS = (
    "query",
    "current_key",
    "current_value",
    "seqstarts",
    "kvstarts",
    "cachestarts",
    "start_pos",
    "decoding_batches",
    "max_seqlen",
    "max_kvlen",
    "cache",
    "scale",
    "attn_mask",
)
OP_TYPE = "MultiHeadCacheAttention"

# By name, the number of pages that a reading loop takes in turn.
READS = {"read in sequence": 1, "read 4 pages in turn": 4, "read 8 pages in turn": 8}


# Rows of an output and what must be there, for each sequence.
Expected = list[tuple[np.ndarray, np.ndarray]]


class AttentionDescription(ctypes.Structure):
    """`AttentionDescription` of the library."""

    _fields_ = [("attributes", ctypes.c_int64 * 12), ("tensors", TensorDescription * 14)]


class Direct:
    """The operator on a case's layers, called without ONNX Runtime."""

    def __init__(self, native: Native, tensors: AttentionTensors) -> None:
        self._native, self.tensors = native, tensors  # which keep library and memory alive
        self._calls = [self._made(layer_idx) for layer_idx in tensors.layers]

    def _made(self, layer_idx: int) -> ctypes.c_void_p:
        tensors, description = self.tensors, AttentionDescription()
        description.attributes[:] = list((tensors.attributes | {"layer_idx": layer_idx}).values())
        arrays = tensors.inputs | {"attn_output": tensors.output}
        for i, name in enumerate((*INPUTS, "attn_output")):
            if name in arrays:
                description.tensors[i] = described(tensors, name, arrays[name])
        return self._native.made("bench_attention_new", ctypes.byref(description))

    def run(self, threads: int, turn: int = 0, iterations: int = 1) -> Measured:
        """Calls the operator on the layer that is the turn's."""
        sample, call = Sample(), self._calls[turn % len(self._calls)]
        self._native.call("bench_attention_measure", call, self._native.teams[threads], iterations, sample)
        return measured(sample, iterations)

    def contender(self, threads: int, label: str = "") -> Contender:
        """The calls, on one layer after another."""

        def sample(turn: int, iterations: int) -> Measured:
            return self.run(threads, turn, iterations)

        name = f"{label or self.tensors.case.format.name}, direct"
        return Contender(name, "attention", threads, sample, cold=self.tensors.case.cold)

    def close(self) -> None:
        """Frees what the library holds."""
        for call in self._calls:
            self._native.free("bench_attention", call)


def described(tensors: AttentionTensors, name: str, array: np.ndarray) -> TensorDescription:
    """An array as the library sees it; packed int4 by its shape in elements."""
    packed = name == "cache" and array.dtype == np.uint8
    element = TensorProto.INT4 if packed else ELEMENT_TYPES[array.dtype]
    shape = tensors.cache_shape if packed else array.shape
    return TensorDescription(element, len(shape), (ctypes.c_int64 * 5)(*shape), array.ctypes.data)


def checked(direct: Direct, contender_threads: tuple[int, ...]) -> Expected:
    """The right answer on the first layer, which the operator gives on any number of threads."""
    tensors = direct.tensors
    expected = None
    for threads in contender_threads:
        tensors.output[:] = np.nan
        direct.run(threads)
        # By what the cache holds after the call: the current tokens have been stored.
        expected = expected or tensors.expect(tensors.layers[0])
        tensors.check(f"called directly on {threads} threads", expected, tensors.output)
    return expected


def node_model(tensors: AttentionTensors, op_type: str, domain: str, attributes: dict[str, int]) -> bytes:
    """A graph of one node with the operator's inputs and output."""
    form = tensors.case.format
    names = [name for name in INPUTS if name in tensors.inputs]
    types = dict.fromkeys(INPUTS, TensorProto.INT64)
    types |= dict.fromkeys(("query", "current_key", "current_value"), form.t1) | {"cache": form.t2, "scale": form.t3}
    node = helper.make_node(op_type, names, ["attn_output"], domain=domain, **attributes)
    inputs = [helper.make_tensor_value_info(name, types[name], None) for name in names]
    output = helper.make_tensor_value_info("attn_output", form.t1, None)
    graph = helper.make_graph([node], op_type, inputs, [output])
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets).SerializeToString()


def bound(tensors: AttentionTensors, model: bytes, threads: int, library: str) -> Callable[[], None]:
    """A call in ONNX Runtime on the tensors' own memory, output included."""
    session = session_of(model, threads, library)
    binding = session.io_binding()
    for name, array in tensors.inputs.items():
        packed = name == "cache" and array.dtype == np.uint8
        bind(binding, name, array, *((TensorProto.INT4, tensors.cache_shape) if packed else ()))
    bind_output(binding, "attn_output", tensors.output)
    run = caller(session, binding)
    return lambda tensors=tensors: run()  # the tensors live as long as their binding


def operator(tensors: AttentionTensors, threads: int, expected: Expected) -> Contender:
    """The operator of the built library, a session for each layer."""
    runs = []
    for layer_idx in tensors.layers:
        model = node_model(tensors, OP_TYPE, DOMAIN, tensors.attributes | {"layer_idx": layer_idx})
        runs.append(bound(tensors, model, threads, str(find_library())))
    name, cold = f"{tensors.case.format.name}, in ONNX Runtime", tensors.case.cold
    tensors.output[:] = np.nan
    runs[0]()
    tensors.check(f"in ONNX Runtime on {threads} threads", expected, tensors.output)
    return Contender(name, "attention", threads, timed(runs, busy_threads=threads if cold else 0), cold=cold)


def empty(tensors: AttentionTensors, threads: int) -> Contender:
    """An operator with the same inputs and output that does nothing, made with the same crate."""
    run = bound(tensors, node_model(tensors, "EmptyAttention", EMPTY_DOMAIN, {}), threads, str(library_path()))
    return Contender("empty operator in ONNX Runtime", "attention", threads, timed([run]), cold=False)


def reads(native: Native, label: str, traffic: Traffic, threads: int, arena: Arena) -> list[Contender]:
    """Loops that read these bytes once, in several orders; raises `WrongAnswer` unless each reads all of them."""
    lines, written = traffic.read // LINE, max(1, traffic.written // LINE)
    # Another part of the source each time, so that nothing of it is in a cache.
    parts = max(2, ceil(ROTATION / traffic.read))
    arena.bytes("read source", max(ROTATION + traffic.read, 2 * traffic.read))  # no smaller traffic needs more
    source = arena.random("read source", TensorProto.INT8, (parts * lines * LINE,)).view(np.uint8)
    target = arena.bytes("read target", written * LINE)
    size = lines * LINE
    expected = Moved(size, target.nbytes, sum_of(source[:size]))

    def contender(name: str) -> Contender:
        def sample(turn: int, iterations: int) -> Measured:
            part = source[turn % parts * size :][:size]
            return native.limit(threads, READS[name], False, part, target, iterations)[0]

        return Contender(f"{label}, {name}", "attention", threads, sample)

    for name, pages in READS.items():
        _, got = native.limit(threads, pages, False, source[:size], target, 1)
        if got != expected:
            raise WrongAnswer(f"{name} on {threads} threads: expected {expected}, got {got}")
    return [contender(name) for name in READS]
