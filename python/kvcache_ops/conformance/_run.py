"""The suites on a callable."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal, Protocol, overload

from numpy.typing import NDArray

from kvcache_ops import _native
from kvcache_ops._errors import KvCacheError
from kvcache_ops.conformance._call import Caller, check_signature
from kvcache_ops.conformance._report import Report

SUITES: tuple[str, ...] = ("key-value-cache", "static", "attention")
"""The suites: KeyValueCache, KeyValueCache of static batching, and the attention operators."""


class Implementation(Protocol):
    """An implementation of KeyValueCache, of dynamic or static batching: what `run` calls for every call of a case."""

    def __call__(
        self,
        attributes: dict[str, int],
        inputs: dict[str, NDArray[Any]],
        cache: NDArray[Any],
        scale: NDArray[Any] | None,
        /,
    ) -> Any:
        """Gives (key, value), having written cache and scale in place, or (key, value, cache, scale)."""


class AttentionImplementation(Protocol):
    """An implementation of the attention operators: what `run` calls for every call of a case."""

    def __call__(
        self,
        op_type: str,
        attributes: dict[str, int],
        inputs: dict[str, NDArray[Any]],
        cache: NDArray[Any] | None,
        scale: NDArray[Any] | None,
        /,
    ) -> Any:
        """Gives attn_output, having written cache and scale in place, or (attn_output, cache, scale)."""


@overload
def run(
    implementation: Implementation,
    *,
    suite: Literal["key-value-cache", "static"] = ...,
    filter: str = ...,
    messages: bool = ...,
    int4: Literal["packed", "unpacked"] = ...,
    cases: str | os.PathLike[str] | None = ...,
    name: str | None = ...,
) -> Report: ...


@overload
def run(
    implementation: AttentionImplementation,
    *,
    suite: Literal["attention"],
    filter: str = ...,
    messages: bool = ...,
    int4: Literal["packed", "unpacked"] = ...,
    cases: str | os.PathLike[str] | None = ...,
    name: str | None = ...,
) -> Report: ...


def run(
    implementation: Callable[..., Any],
    *,
    suite: str = "key-value-cache",
    filter: str = "",
    messages: bool = False,
    int4: Literal["packed", "unpacked"] = "packed",
    cases: str | os.PathLike[str] | None = None,
    name: str | None = None,
) -> Report:
    """Runs every case of a suite on an implementation of the operator, and reports what became of each.

    implementation: called for every call of a case, as the package's documentation says. suite: one of SUITES.
    filter: only cases whose name contains this. messages: whether those of refusals must mention the inputs and numbers
    that are wrong. int4: the form of a cache of int4, uint8 with two elements in a byte
    ("packed"), or an Int4Array with one ("unpacked"). cases: a folder of cases instead of those in the package. name:
    what the report calls the implementation.

    What the implementation raises counts as a refusal, with the exception's `kind` if it has one; NotImplementedError
    says that it does not do what the case needs; an exception of BUGS fails the case. Others than Exception, such as
    KeyboardInterrupt, end the run.

    Raises TypeError for an implementation that cannot be called so; KvCacheError "suite_unknown", "int4_form",
    "no_case" if no case is to be run, "cases" if one cannot be read.
    """
    if suite not in SUITES:
        raise KvCacheError(f"there is no suite {suite!r}, expected one of {', '.join(SUITES)}", "suite_unknown")
    if int4 not in ("packed", "unpacked"):
        raise KvCacheError(f"int4 is {int4!r}, expected 'packed' or 'unpacked'", "int4_form")
    attends = suite == "attention"
    check_signature(implementation, attends)
    caller = Caller(implementation, int4, attends)
    if name is None:
        name = getattr(implementation, "__qualname__", None) or type(implementation).__qualname__
    folder = None if cases is None else os.fspath(cases)
    return Report(*_native.run_suite(caller, str(name), suite, folder, filter, messages))
