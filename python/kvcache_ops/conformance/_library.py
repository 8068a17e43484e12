"""A library of custom operators as an implementation: each call runs a model of one node in ONNX Runtime.

Calls run in a separate process, so that the report survives a library that crashes or hangs.
"""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import re
import signal
import tempfile
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcache_ops import _native
from kvcache_ops._errors import KvCacheError
from kvcache_ops._optional import load
from kvcache_ops.conformance._call import Int4Array, NotRun
from kvcache_ops.conformance._models import node_model, operator
from kvcache_ops.ops._cache_spec import OF_ML_DTYPES, ONNX_TYPES, numpy_type, type_name
from kvcache_ops.ops._int4 import pack_int4, unpack_int4
from kvcache_ops.ops._nodes import DOMAIN

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

Array = NDArray[Any]
Fed = tuple[str, list[int], Array]
"""An input: the name of its type, its shape, its memory."""

_NOT_REGISTERED = "is not a registered function/op"


class Refused(Exception):
    """What ONNX Runtime or the library said of a call, and the kind of error that it names, if it names one."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        kinds = "|".join(_native.error_kinds())
        named = re.search(rf"(?:^| )({kinds}): ", message)
        self.kind = named[1] if named else None


class Library:
    """The operators of a library, called as `kvcache_ops.conformance.run` calls an implementation of attention.

    Raises KvCacheError: "package_missing" without onnx and onnxruntime, "library" if ONNX Runtime does not take the
    library, "provider" for one that is missing, or that has no memory for the caches of the cases.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        provider: str = "cpu",
        domain: str = DOMAIN,
        static_domain: str = "opmx",
        limit: float = 60,
    ) -> None:
        runtime = load("onnxruntime", "--ort-library")
        load("onnx", "--ort-library")
        name = PROVIDERS[provider]
        if name not in runtime.get_available_providers():
            has = " and ".join(runtime.get_available_providers())
            raise KvCacheError(f"ONNX Runtime {runtime.__version__} has no {name}, only {has}", "provider")
        if provider != "cpu":
            raise KvCacheError(f"cases cannot be run on {name} yet: their caches would have to be there", "provider")
        self.path, self.limit, self.domains = os.path.abspath(path), limit, (domain, static_domain)
        # These crash on an input of the empty name.
        self.fill = tuple(int(part) for part in runtime.__version__.split(".")[:2]) < (1, 24)
        self.worker: _Worker | None = None
        # Whether a call has found its operator; None before the first one.
        self.registers: bool | None = None
        try:
            refused: Any = self._ask(None)[0]
        except NotRun as error:
            refused = error
        if refused is not None:
            raise KvCacheError(f"{self.path} with ONNX Runtime {runtime.__version__}: {refused}", "library")

    def __call__(
        self,
        op_type: str,
        attributes: dict[str, Any],
        inputs: dict[str, Array],
        cache: Array,
        scale: Array,
        outputs: list[str] | None = None,
    ) -> Any:
        """Makes a call on cache and scale; returns the outputs."""
        of = operator(op_type, inputs)
        given = inputs | {name: array for name, array in (("cache", cache), ("scale", scale)) if array is not None}
        fed = {name: _fed(array) for name, array in given.items()}
        domain = self.domains["seqstarts" not in inputs]
        types = {name: element for name, (element, _, _) in fed.items()}
        model = node_model(of, attributes, types, domain=domain, outputs=outputs, fill=self.fill)
        refused, results, state = self._ask((model.SerializeToString(), fed))
        for name, memory in state.items():
            array = given[name]
            array[...] = unpack_int4(memory)[: array.size].reshape(array.shape) if types[name] == "int4" else memory
        is_missing = refused is not None and _NOT_REGISTERED in refused
        self.registers = self.registers or not is_missing
        if refused is None:
            return results
        if is_missing:
            raise NotImplementedError(f"the library registers no {op_type} in {domain}")
        raise Refused(refused)

    def _ask(self, call: Any) -> tuple[str | None, list[Array], dict[str, Array]]:
        """What became of a call. A worker that has crashed or takes too long is not asked again."""
        worker = self.worker or _Worker(self.path)
        self.worker = None
        answer: tuple[str | None, list[Array], dict[str, Array]] = worker.ask(call, self.limit)
        self.worker = worker
        return answer


class _Worker:
    """A process that has opened the library, and what it has written."""

    def __init__(self, path: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.log = tempfile.NamedTemporaryFile()
        self.process = context.Process(target=_work, args=(other, path, self.log.name), daemon=True)
        self.process.start()
        other.close()

    def ask(self, call: Any, limit: float) -> Any:
        """Its answer. Raises NotRun if there is none."""
        try:
            self.connection.send(call)
            if self.connection.poll(limit):
                return self.connection.recv()
            reason = f"no answer within {limit:g} s"
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode or 0
            reason = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            reason = f"the process of the library ended with {reason}"
        self.process.kill()
        self.process.join()
        said = self.log.read()[-2000:].decode(errors="replace").strip()
        raise NotRun(f"{reason}, after it printed: {said}" if said else reason)


def _fed(array: Array) -> Fed:
    """An array as an input."""
    if not isinstance(array, Int4Array):
        return type_name(array.dtype), list(array.shape), array
    elements = np.append(array.reshape(-1), np.zeros(array.size % 2, np.int8))
    return "int4", list(array.shape), pack_int4(elements)


def _work(connection: Connection, path: str, log: str) -> None:
    """Makes calls until there are no more."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    onnxruntime = load("onnxruntime", "--ort-library")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    registered, last, session = False, None, None
    while True:
        try:
            call = connection.recv()
        except EOFError:
            return
        state: dict[str, Array] = {}
        try:
            if not registered:
                options.register_custom_ops_library(path)
                registered = True
            if call is None:
                connection.send((None, [], state))
                continue
            model, fed = call
            state = {name: memory for name, (_, _, memory) in fed.items() if name in ("cache", "scale")}
            if model != last:
                session = onnxruntime.InferenceSession(model, options, providers=[PROVIDERS["cpu"]])
                last = model
            connection.send((None, run_session(session, fed), state))
        except Exception as error:
            connection.send((str(error), [], state))


def run_session(session: Any, fed: dict[str, Fed]) -> list[Array]:
    """The outputs of a session on this memory itself."""
    binding = session.io_binding()
    for name, (element, shape, memory) in fed.items():
        binding.bind_input(name, "cpu", 0, ONNX_TYPES[element], shape, memory.ctypes.data)
    for output in session.get_outputs():
        binding.bind_output(output.name, "cpu")
    session.run_with_iobinding(binding)
    return [_array_of(value) for value in binding.get_outputs()]


def _array_of(value: Any) -> Array:
    """A copy of a tensor, also of a type that ONNX Runtime gives no array for."""
    name, shape = value.data_type().removeprefix("tensor(").removesuffix(")"), value.shape()
    if name not in OF_ML_DTYPES:
        array: Array = value.numpy()
        return array
    element = numpy_type(name)
    data = ctypes.string_at(value.data_ptr(), math.prod(shape) * np.dtype(element).itemsize)
    return np.frombuffer(data, element).reshape(shape)
