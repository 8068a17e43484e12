"""The suites on a callable."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from kvcache_ops import _native
from kvcache_ops._errors import KvCacheError
from kvcache_ops.conformance._call import Caller, check_signature
from kvcache_ops.conformance._library import Library
from kvcache_ops.conformance._program import Program
from kvcache_ops.conformance._report import Report

SUITES: tuple[str, ...] = ("key-value-cache", "static", "attention")
"""The suites: KeyValueCache, KeyValueCache of static batching, and the attention operators."""

Only = Mapping[str, Iterable[str | float]]
"""Conditions on cases: the values that a property of theirs may have, by its name."""


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
        """Returns (key, value), having written cache and scale in place, or (key, value, cache, scale)."""


class AttentionImplementation(Protocol):
    """An implementation of the attention operators: what `run` calls for every call of a case."""

    def __call__(
        self,
        op_type: str,
        attributes: dict[str, Any],
        inputs: dict[str, NDArray[Any]],
        cache: NDArray[Any] | None,
        scale: NDArray[Any] | None,
        /,
    ) -> Any:
        """Returns attn_output, having written cache and scale in place, or (attn_output, cache, scale).

        An implementation that takes a keyword `outputs`, a list of names, returns all of these in place of attn_output.
        """


def run(
    implementation: Implementation | AttentionImplementation,
    *,
    suite: str = "key-value-cache",
    only: Only | None = None,
    filter: str = "",
    messages: bool = False,
    random: int = 0,
    seed: int = 0,
    int4: Literal["packed", "unpacked"] = "packed",
    cases: str | os.PathLike[str] | None = None,
    name: str | None = None,
) -> Report:
    """Runs every case of a suite on an implementation of the operator, and reports what became of each.

    implementation: called for every call of a case, as the package's documentation says. suite: one of SUITES.
    only: values that properties of cases may have, by name: types, attributes, sizes; the other cases are not run.
    filter: only cases whose name contains this. messages: whether a refusal's must mention the inputs and numbers that
    are wrong. random: that many cases more, made from `seed`; there are none of the attention. int4: the form of a
    cache of int4, uint8 with two elements in a byte ("packed"), or an Int4Array with one ("unpacked"). cases: a folder
    of cases of the suite, instead of the package's. name: what the report calls the implementation.

    What the implementation raises counts as a refusal, with the exception's `kind` if it has one; NotImplementedError
    says that it does not do what the case needs; an exception of BUGS fails the case. Others than Exception, such as
    KeyboardInterrupt, end the run.

    Raises TypeError for an implementation that cannot be called so; KvCacheError "suite_unknown", "int4_form",
    "no_case" if no case is to be run, "cases" if one cannot be read, "only" for a condition that no case can have,
    "random", "seed" or "no_random" if there are no such cases.
    """
    if suite not in SUITES:
        raise KvCacheError(f"there is no suite {suite!r}, expected one of {', '.join(SUITES)}", "suite_unknown")
    check_signature(implementation, suite == "attention")
    options: dict[str, Any] = dict(only=only, filter=filter, messages=messages, random=random, seed=seed)
    return run_suites(implementation, [suite], int4=int4, cases=cases, name=name, **options)


def run_suites(
    implementation: Callable[..., Any],
    suites: Sequence[str],
    *,
    only: Only | None = None,
    filter: str = "",
    messages: bool = False,
    random: int = 0,
    seed: int = 0,
    int4: Literal["packed", "unpacked"] = "packed",
    cases: str | os.PathLike[str] | None = None,
    name: str | None = None,
    jobs: int = 1,
) -> Report:
    """What `run` does, for several suites: an implementation of all is called as one of attention, a program is given
    whole cases, `jobs` of them at once."""
    if int4 not in ("packed", "unpacked"):
        raise KvCacheError(f"int4 is {int4!r}, expected 'packed' or 'unpacked'", "int4_form")
    named = len(suites) > 1 or "attention" in suites or isinstance(implementation, Library)
    runs = implementation if isinstance(implementation, Program) else Caller(implementation, int4, named)
    if name is None:
        name = getattr(implementation, "__qualname__", None) or type(implementation).__qualname__
    folder = None if cases is None else os.fspath(cases)
    check_numbers(random, seed)
    conditions = [(key, [str(value) for value in values]) for key, values in (only or {}).items()]
    on_demand = (random, seed)
    return Report(
        *_native.run_suites(runs, str(name), list(suites), conditions, folder, filter, messages, on_demand, jobs)
    )


def check_numbers(random: int, seed: int) -> None:
    """Raises KvCacheError if there are no such random cases."""
    for number, value, most in (("random", random, 10**6), ("seed", seed, 2**63 - 1)):
        if not 0 <= value <= most:
            raise KvCacheError(f"{number} is {value}, expected 0 to {most}", number)
