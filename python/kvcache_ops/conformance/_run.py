"""The suites on a callable."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, overload

from numpy.typing import NDArray

from kvcache_ops import _native
from kvcache_ops._errors import KvCacheError
from kvcache_ops.conformance._call import Caller, check_signature
from kvcache_ops.conformance._library import Library
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
        """Gives attn_output, having written cache and scale in place, or (attn_output, cache, scale).

        An implementation that takes a keyword `outputs`, a list of names, gives all of these in place of attn_output.
        """


@overload
def run(
    implementation: Implementation,
    *,
    suite: Literal["key-value-cache", "static"] = ...,
    profile: Mapping[str, Any] | str | os.PathLike[str] | None = ...,
    filter: str = ...,
    messages: bool = ...,
    random: int = ...,
    seed: int = ...,
    int4: Literal["packed", "unpacked"] = ...,
    cases: str | os.PathLike[str] | None = ...,
    name: str | None = ...,
) -> Report: ...


@overload
def run(
    implementation: AttentionImplementation,
    *,
    suite: Literal["attention"],
    profile: Mapping[str, Any] | str | os.PathLike[str] | None = ...,
    filter: str = ...,
    messages: bool = ...,
    random: int = ...,
    seed: int = ...,
    int4: Literal["packed", "unpacked"] = ...,
    cases: str | os.PathLike[str] | None = ...,
    name: str | None = ...,
) -> Report: ...


def run(
    implementation: Callable[..., Any],
    *,
    suite: str = "key-value-cache",
    profile: Mapping[str, Any] | str | os.PathLike[str] | None = None,
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
    profile: what the implementation does, a YAML file or its content as a mapping; it must refuse the rest. filter:
    only cases whose name contains this. messages: whether those of refusals must mention the inputs and numbers that
    are wrong. random: so many cases more, made from `seed`; there are none of the attention. int4: the form of a cache
    of int4, uint8 with two elements in a byte ("packed"), or an Int4Array with one ("unpacked"). cases: a folder of
    cases of the suite, instead of those in the package. name: what the report calls the implementation.

    What the implementation raises counts as a refusal, with the exception's `kind` if it has one; NotImplementedError
    says that it does not do what the case needs (with a profile it is a refusal, too); an exception of BUGS fails the
    case. Others than Exception, such as KeyboardInterrupt, end the run.

    Raises TypeError for an implementation that cannot be called so; KvCacheError "suite_unknown", "int4_form",
    "no_case" if no case is to be run, "cases" or "profile" if one cannot be read, "random", "seed" or "no_random" if
    there are no such cases.
    """
    if suite not in SUITES:
        raise KvCacheError(f"there is no suite {suite!r}, expected one of {', '.join(SUITES)}", "suite_unknown")
    check_signature(implementation, suite == "attention")
    return run_suites(
        implementation,
        [suite],
        profile=profile,
        filter=filter,
        messages=messages,
        random=random,
        seed=seed,
        int4=int4,
        cases=cases,
        name=name,
    )


def run_suites(
    implementation: Callable[..., Any],
    suites: Sequence[str],
    *,
    profile: Mapping[str, Any] | str | os.PathLike[str] | None,
    filter: str,
    messages: bool,
    random: int,
    seed: int,
    int4: Literal["packed", "unpacked"],
    cases: str | os.PathLike[str] | None,
    name: str | None,
) -> Report:
    """What `run` does, for several suites: an implementation of all is called as one of attention."""
    if int4 not in ("packed", "unpacked"):
        raise KvCacheError(f"int4 is {int4!r}, expected 'packed' or 'unpacked'", "int4_form")
    named = len(suites) > 1 or "attention" in suites or isinstance(implementation, Library)
    caller = Caller(implementation, int4, named, profile is not None)
    if name is None:
        name = getattr(implementation, "__qualname__", None) or type(implementation).__qualname__
    folder = None if cases is None else os.fspath(cases)
    for number, value, most in (("random", random, 10**6), ("seed", seed, 2**63 - 1)):
        if not 0 <= value <= most:
            raise KvCacheError(f"{number} is {value}, expected 0 to {most}", number)
    written = _profile_text(profile)
    forms = _native.run_suites(caller, str(name), list(suites), written, folder, filter, messages, (random, seed))
    return Report(*forms)


def _profile_text(profile: Mapping[str, Any] | str | os.PathLike[str] | None) -> str | None:
    """A profile as the native module reads it: YAML, of which JSON is a part."""
    if profile is None:
        return None
    try:
        if isinstance(profile, Mapping):
            return json.dumps(dict(profile))
        return Path(profile).read_text(encoding="utf-8")
    except (OSError, TypeError, ValueError) as error:
        raise KvCacheError(f"the profile cannot be read: {error}", "profile") from None
