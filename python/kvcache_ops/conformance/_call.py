"""A callable under test: the arrays of its calls, and its results. Nothing is compared here."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kvcache_ops import _native
from kvcache_ops.ops._cache_spec import ONNX_TYPES, numpy_type, type_name
from kvcache_ops.ops._int4 import pack_int4, unpack_int4

Sent = tuple[str, list[int], bytes]
"""A tensor between the native module and here: the name of its type, its shape, its bytes."""

Reply = tuple[str, str | None, str, list[Sent], Sent | None, Sent | None]
"""What became of a call: "done", "refused", "unsupported" or "failed"; kind of error; text; outputs, cache, scale."""

BUGS = (AttributeError, NameError, ImportError, SyntaxError, RecursionError, SystemError)
"""Exceptions that no implementation means as a refusal: the case fails, as one that could not be run."""

_DTYPES = tuple(name for name in ONNX_TYPES if name != "int4")


class Int4Array(np.ndarray[Any, np.dtype[np.int8]]):
    """A cache of int4 as an array of int8, an element in each, from -8 to 7.

    With `run(..., int4="unpacked")` a cache of int4 is such an array, so that it can be told from a cache of int8. It
    behaves like any other; `cache.view(numpy.ndarray)` is a plain one on the same memory.
    """


class NotRun(Exception):
    """A call could not be made: the case fails, with this message."""


class _Unusable(Exception):
    """An implementation's output cannot be compared."""


class Caller:
    """A callable as the native module runs cases on it. `named`: it is given the name of the operator."""

    def __init__(self, implementation: Callable[..., Any], int4: Literal["packed", "unpacked"], named: bool) -> None:
        self.implementation = implementation
        self.int4 = int4
        self.named = named

    def __call__(self, case: _native.ConformanceCase) -> list[Reply]:
        """Makes a case's calls, each on the state of the one before, up to one that cannot be made."""
        replies: list[Reply] = []
        cache, scale = case.cache, case.scale
        for number, (inputs, after, _) in enumerate(case.calls()):
            reply = self._call(case, inputs, cache, scale, after is not None)
            what, _, text, _, cache, scale = reply
            if what in ("done", "refused") and case.cache is not None and cache is None:
                what, text = "failed", "got no cache"
            if what == "failed":
                reply = ("failed", None, f"call {number}: {text}", [], None, None)
            replies.append(reply)
            if what not in ("done", "refused"):
                break
        return replies

    def _call(
        self,
        case: _native.ConformanceCase,
        inputs: Mapping[str, Sent],
        cache: Sent | None,
        scale: Sent | None,
        succeeds: bool,
    ) -> Reply:
        """Makes a call. `succeeds`: whether it should; then a refusal is described as the failure that it is."""
        names = case.outputs
        arrays = {name: _array(tensor) for name, tensor in inputs.items()}
        state = _State(cache, scale, self.int4)
        asked = {"outputs": names} if "attention_mass" in names else {}
        arguments = (case.op_type,) * self.named + (case.attributes, arrays, state.cache, state.scale)
        try:
            _bind(self.implementation, *arguments, **asked)
        except TypeError:
            return "unsupported", None, "it takes no `outputs`, whose names it is asked for", [], None, None
        try:
            result = self.implementation(*arguments, **asked)
        except NotRun as error:
            return "failed", None, str(error), [], None, None
        except BUGS as error:
            return "failed", None, f"raised {_told(error)}", [], None, None
        except NotImplementedError as error:
            return "unsupported", None, _said(error), [], None, None
        except Exception as error:
            message = _told(error) if succeeds else _said(error)
            return self._reply("refused", _kind(error), message, state, [])
        return self._reply("done", None, "", state, names, result)

    def _reply(
        self, what: str, kind: str | None, message: str, state: _State, names: list[str], result: Any = None
    ) -> Reply:
        try:
            outputs = _outputs(names, result, state) if names else []
            return what, kind, message, outputs, state.sent_cache(), state.sent_scale()
        except _Unusable as error:
            return "failed", None, str(error), [], None, None
        except Exception as error:  # of a class of the implementation's own
            return "failed", None, f"returned what cannot be read: {_told(error)}", [], None, None


def _outputs(names: list[str], result: Any, state: _State) -> list[Sent]:
    """The outputs of these names. Cache and scale become those that were returned, if they were."""
    parts = list(result) if isinstance(result, tuple | list) else [result]
    if len(parts) == len(names) + 2:
        *parts, state.cache, state.scale = parts
    elif len(parts) != len(names):
        expected = ", ".join(names)
        count = f" of {len(parts)}" if isinstance(result, tuple | list) else ""
        raise _Unusable(f"returned {_class(result)}{count}, expected {expected} or {expected}, cache, scale")
    return [_sent(name, part) for name, part in zip(names, parts)]


class _State:
    """cache and scale, which a call changes."""

    cache: Any
    scale: Any

    def __init__(self, cache: Sent | None, scale: Sent | None, int4: Literal["packed", "unpacked"]) -> None:
        self.before = cache
        self.int4 = int4
        self.cache = None if cache is None else self._cache_array(cache)
        self.scale = None if scale is None else _array(scale)

    def _cache_array(self, cache: Sent) -> NDArray[Any]:
        name, shape, data = cache
        if name != "int4":
            return _array(cache)
        if self.int4 == "packed":
            return np.frombuffer(bytearray(data), np.uint8).reshape(packed_shape(shape)).copy()
        elements = unpack_int4(np.frombuffer(data, np.uint8))[: int(np.prod(shape, dtype=np.int64))]
        return elements.reshape(shape).copy().view(Int4Array)

    def sent_cache(self) -> Sent | None:
        """The cache as it is now."""
        if self.cache is None or self.before is None or self.before[0] != "int4":
            return None if self.cache is None else _sent("cache", self.cache)
        array = _as_array("cache", self.cache)
        _, shape, data = self.before
        if self.int4 == "packed" and array.dtype == np.uint8:
            if array.shape == packed_shape(shape):
                return "int4", shape, array.tobytes()
            last = [2 * array.shape[-1]] if array.ndim else []
            return "int4", [*array.shape[:-1], *last], array.tobytes()
        if self.int4 == "unpacked" and array.dtype == np.int8:
            if array.size and (array.min() < -8 or array.max() > 7):
                raise _Unusable(f"cache has values from {array.min()} to {array.max()}, expected int4: -8 to 7")
            elements = array.reshape(-1)
            if elements.size % 2:
                # The half of a byte after the last element is unchanged.
                elements = np.append(elements, unpack_int4(np.frombuffer(data, np.uint8))[-1])
            return "int4", list(array.shape), pack_int4(elements).tobytes()
        return _sent("cache", array)

    def sent_scale(self) -> Sent | None:
        """The scale as it is now."""
        return None if self.scale is None else _sent("scale", self.scale)


def packed_shape(shape: list[int]) -> tuple[int, ...]:
    """The shape of the bytes of int4 elements: half of the last axis, or, if that is odd, a single axis."""
    if shape and shape[-1] % 2 == 0:
        return (*shape[:-1], shape[-1] // 2)
    return ((int(np.prod(shape, dtype=np.int64)) + 1) // 2,)


def check_signature(implementation: Callable[..., Any], attends: bool) -> None:
    """Raises TypeError if the implementation cannot be called as it will be."""
    if not callable(implementation):
        raise TypeError(f"implementation is {_class(implementation)}, expected a callable")
    arguments = ["op_type"] * attends + ["attributes", "inputs", "cache", "scale"]
    try:
        _bind(implementation, *arguments)
    except TypeError as error:
        raise TypeError(f"implementation cannot be called with ({', '.join(arguments)}): {error}") from None


def _bind(implementation: Callable[..., Any], *arguments: object, **named: object) -> None:
    """Raises TypeError if the implementation's signature, where it is known, does not allow this call."""
    try:
        signature = inspect.signature(implementation)
    except (TypeError, ValueError):
        return  # Some that are not written in Python do not.
    signature.bind(*arguments, **named)


def _array(tensor: Sent) -> NDArray[Any]:
    """An array with memory of its own, writable."""
    name, shape, data = tensor
    return np.frombuffer(data, numpy_type(name)).reshape(shape).copy()


def _as_array(name: str, given: Any) -> NDArray[Any]:
    """An array, or a view of another library's tensor on the CPU."""
    try:
        return np.asarray(given)
    except Exception as error:
        raise _Unusable(f"{name} is {_class(given)}, expected an array: {_said(error)}") from None


def _sent(name: str, given: Any) -> Sent:
    """A tensor for the native module, of the type and shape that it has."""
    array = _as_array(name, given)
    if type_name(array.dtype) not in _DTYPES or not array.dtype.isnative:
        source = "" if isinstance(given, np.ndarray) else f" ({_class(given)})"
        raise _Unusable(f"{name} is of type {array.dtype}{source}, expected one of {', '.join(_DTYPES)}")
    return type_name(array.dtype), list(array.shape), array.tobytes()


def _class(given: object) -> str:
    return f"an object of class {type(given).__name__}"


def _said(error: BaseException) -> str:
    """The message of an exception; the name of its class if it has none."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__


def _told(error: BaseException) -> str:
    """An exception that the reader has not expected: class, message, and where it was raised."""
    name, said = type(error).__name__, _said(error)
    frames = traceback.extract_tb(error.__traceback__)[1:]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{name}{where}" if said == name else f"{name}: {said}{where}"


def _kind(error: BaseException) -> str | None:
    """The kind of a refusal, if the exception has one."""
    try:
        kind = getattr(error, "kind", None)
    except Exception:
        return None
    return kind if isinstance(kind, str) and kind else None
