"""`kvcache_ops.conformance`: right implementations pass, wrong ones fail where they are wrong, and nothing crashes."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import kvcache_ops
import numpy as np
import pytest
from kvcache_ops import KvCacheError, conformance
from kvcache_ops.conformance import ConformanceError, Int4Array, Report

from compare import Arrays, refused
from oracle import key_value_cache
from oracle.call import Attributes, Inputs, Types

# A case of three calls on a cache of float16.
PLAIN = "chunked-prefill-mode0-f16-f16"


def ours(attributes: dict[str, int], inputs: Arrays, cache: np.ndarray, scale: np.ndarray | None) -> Any:
    """The package's own operator, in place; `check` refuses what it refuses, and gives the shape of what it gives."""
    shape = kvcache_ops.check(attributes, **inputs, cache=cache, scale=scale)
    key, value = kvcache_ops.run(attributes, **inputs, cache=cache, scale=scale)
    assert key.shape == value.shape == shape
    return key, value


def our_attention(
    op_type: str, attributes: dict[str, int], inputs: Arrays, cache: Any, scale: Any, outputs: Any = None
) -> Any:
    """The package's own attention, in place; `check` as above."""
    call, check = kvcache_ops.multi_head_attention, kvcache_ops.check_multi_head_attention
    if op_type == "MultiHeadCacheAttention":
        call, check = kvcache_ops.multi_head_cache_attention, kvcache_ops.check_multi_head_cache_attention
        inputs = inputs | {"cache": cache, "scale": scale}
    shape = check(attributes, **inputs)
    mass = np.empty((attributes["num_heads"], inputs["kvstarts"][-1]), np.float32) if outputs else None
    attended = call(attributes, **inputs, attention_mass=mass)
    assert attended.shape == shape
    return attended if mass is None else (attended, mass)


@pytest.mark.parametrize(("suite", "implementation"), [("key-value-cache", ours), ("attention", our_attention)])
def test_right_implementations_pass(suite: str, implementation: Callable[..., Any]) -> None:
    """Every case; they also say what they must in their messages."""
    report = conformance.run(implementation, suite=suite, int4="packed", messages=True)
    report.raise_for_failures()
    assert report.passed == len(report.cases) > 200 and not (report.failed or report.unsupported or report.not_run)
    assert report.implementation == implementation.__name__ and report.conforms
    assert all(case.verdict == "passed" and case.suite == suite and case.about for case in report.cases)


def run(implementation: Callable[..., Any], word: str, **options: Any) -> Report:
    """The report of the cases whose names contain the word."""
    return conformance.run(implementation, cases=some_cases("cases", word).name, **options)


def only(implementation: Callable[..., Any], word: str = PLAIN, **options: Any) -> conformance.CaseResult:
    """The result of the one case whose name contains the word."""
    (case,) = run(implementation, word, **options).cases
    assert (case.verdict == "failed") == (case.difference is not None)
    return case


def test_int4_in_both_forms() -> None:
    """Packed and unpacked caches are the same cache; a number that no int4 is fails."""

    def repacked(attributes: dict[str, int], inputs: Arrays, cache: np.ndarray, scale: Any) -> Any:
        if not isinstance(cache, Int4Array):
            return ours(attributes, inputs, cache, scale)
        packed = kvcache_ops.pack_int4(cache)
        key, value = ours(attributes, inputs, packed, scale)
        cache[...] = kvcache_ops.unpack_int4(packed)
        return key, value

    run(repacked, "int4", int4="unpacked").raise_for_failures()

    def out_of_range(attributes: dict[str, int], inputs: Arrays, cache: np.ndarray, scale: Any) -> Any:
        key, value = repacked(attributes, inputs, cache, scale)
        cache[...] = 9
        return key, value

    difference = only(out_of_range, "chunked-prefill-mode0-f32-int4-f32", int4="unpacked").difference
    assert difference.kind == "could-not-run" and "values from 9 to 9" in difference.text


def test_refusals_are_compared() -> None:
    """A refusal is compared by the exception's kind, if it has one, and with messages=True by its text."""

    def mute(*call: Any) -> Any:
        try:
            return ours(*call)
        except KvCacheError:
            raise ValueError from None

    assert {case.difference.kind for case in run(mute, "kvlen", messages=True).failures} == {"not-mentioned"}
    assert run(mute, "kvlen").conforms


@pytest.mark.parametrize("bug", [AttributeError, RecursionError])
def test_a_bug_is_no_refusal(bug: type[Exception]) -> None:
    """Cases of legal and of illegal calls fail alike."""

    def broken(attributes: dict[str, int], inputs: Arrays, cache: np.ndarray, scale: Any) -> Any:
        raise bug("of the implementation")

    report = run(broken, "kvlen")
    assert report.failed == len(report.cases) > 3
    for case in report.cases:
        assert case.difference.kind == "could-not-run"
        assert f"{bug.__name__}: of the implementation (" in case.difference.text


def test_what_is_not_implemented_is_unsupported() -> None:
    """With the reason, and it is no failure; but what passes no case does not conform."""

    def float16_only(attributes: dict[str, int], inputs: Arrays, cache: np.ndarray, scale: Any) -> Any:
        if inputs["current_key"].dtype != np.float16:
            raise NotImplementedError("only float16")
        return ours(attributes, inputs, cache, scale)

    report = run(float16_only, "layout0")
    assert report.passed > 10 and report.unsupported > 10 and not report.failed and report.conforms
    assert {case.reason for case in report.cases if case.verdict == "unsupported"} == {"only float16"}
    assert "unsupported: only float16" in report.text()
    none = run(float16_only, "chunked-prefill-mode0-f32-int4-f32")
    assert not none.conforms and not none.failures
    with pytest.raises(ConformanceError):
        none.raise_for_failures()


def test_only_some_cases() -> None:
    """Cases with one of the given values of each property are run, the others not."""
    only = {"T1": ["float16"], "cache_mode": [0, 1], "quant_bit": [8]}
    report = run(ours, "f16", only=only)
    assert report.conforms and report.not_run > 20 and report.passed + report.not_run == len(report.cases)
    assert {case.reason for case in report.cases if case.verdict == "not-run"} >= {"quant_bit is 4, only 8 is run"}
    with refused("only"):
        conformance.run(ours, only={"pagesize": [1]})


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, "returned an object of class NoneType, expected key, value or key, value, cache, scale"),
        ((1, 2, 3), "returned an object of class tuple of 3"),
        ((None, None), "key is of type object (an object of class NoneType), expected one of float32"),
        ((np.zeros(3, ">f4"), np.zeros(3)), "key is of type >f4"),
        (lambda key, value: (key, np.zeros((0, 0), "i8")), "value is int64[0, 0], expected float16["),
        (lambda key, value: (key, value, None, None), "got no cache"),
        (lambda key, value: (key[:, :, ::2], value), "key is float16["),
    ],
)
def test_garbage_fails(result: Any, text: str) -> None:
    """With what was got and what was expected; never a crash, and the other cases are run."""

    def implementation(*call: Any) -> Any:
        return result(*ours(*call)) if callable(result) else result

    report = run(implementation, "chunked-prefill-mode0-f16")
    assert report.failed == len(report.cases) > 1
    (case,) = (case for case in report.cases if case.name == PLAIN)
    assert text in case.difference.text and case.difference.text.startswith("call 0: ")


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_ends_the_run_at_once(end: type[BaseException]) -> None:
    """The interrupt leaves the run as it was raised."""
    calls = 0

    def interrupted(*call: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise end("here")
        return ours(*call)

    with pytest.raises(end, match="here"):
        run(interrupted, "decode")
    assert calls == 3


def test_arguments_are_checked_before_anything_is_run() -> None:
    """With the rule's name."""
    for options, kind in [
        ({"suite": "dynamic"}, "suite_unknown"),
        ({"int4": "nibbles"}, "int4_form"),
        ({"filter": "no such case"}, "no_case"),
        ({"cases": "/no/such/folder"}, "cases"),
        ({"random": -1}, "random"),
        ({"seed": 2**63}, "seed"),
    ]:
        with refused(kind):
            conformance.run(ours, **options)
    for implementation, text in [
        (None, "expected a callable"),
        (lambda inputs: None, "cannot be called with"),
        (our_attention, "cannot be called with"),
    ]:
        with pytest.raises(TypeError, match=text):
            conformance.run(implementation)
    with pytest.raises(TypeError, match="cannot be called with"):
        conformance.run(ours, suite="attention")


def wrong_value(*call: Any) -> Any:
    """Gives the keys as values."""
    key, _ = ours(*call)
    return key, key


def test_forms_of_a_report() -> None:
    """Text, table, JSON; where a case fails, what failures have in common; an AssertionError with the text; copies."""
    report = run(wrong_value, "chunked-prefill", name="keys only")
    difference, (flaw,) = report.failures[0].difference, report.flaws
    assert (difference.kind, difference.tensor) == ("elements", "value") and "expected" in str(difference)
    assert {"head", "sequence"} <= difference.location.keys() and difference.details["coordinates"]
    assert flaw.cases == report.failed and f"{flaw.cases} cases: {flaw.flaw}" in report.text()
    assert report.implementation == "keys only" and len(report.rules) > 20
    assert str(report) == report.text() and report.text(rules=True).endswith(report.text())
    document = json.loads(report.json())
    assert document["summary"]["failed"] == report.failed == len(report.failures) > 0
    with pytest.raises(AssertionError) as failure:
        report.raise_for_failures()
    assert str(failure.value) == report.text() and failure.value.report is report
    for copy in (pickle.loads(pickle.dumps(report)), pickle.loads(pickle.dumps(failure.value)).report):
        assert isinstance(copy, Report) and copy.json() == report.json() and copy.cases == report.cases


GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@cache
def some_cases(suite: str, word: str) -> TemporaryDirectory:
    """A folder of those cases whose names contain a word, for the conformance kit: the suites that it holds are read
    whole, which takes most of the time of a run of few cases."""
    folder = TemporaryDirectory()
    for case in (GOLDEN / suite).glob(f"*{word}*"):
        Path(folder.name, case.name).symlink_to(case, target_is_directory=True)
    return folder


def oracle(attributes: dict[str, int], inputs: Arrays, cache: np.ndarray, scale: np.ndarray | None) -> Any:
    """KeyValueCache in numpy, where the package does not refuse the call."""
    kvcache_ops.check(attributes, **inputs, cache=cache, scale=scale)
    is_int4 = cache.dtype == np.uint8
    numbers = kvcache_ops.unpack_int4(cache) if is_int4 else cache
    t2 = "int4" if is_int4 else cache.dtype.name.replace("_", "")  # float8_e4m3fn
    types = Types(inputs["current_key"].dtype.name, t2, None if scale is None else scale.dtype.name)
    outputs = key_value_cache.key_value_cache(Inputs(**inputs), numbers, scale, Attributes(**attributes), types)
    cache[...] = kvcache_ops.pack_int4(numbers) if is_int4 else numbers
    return outputs


def test_the_oracle_of_the_golden_cases_passes_random_ones() -> None:
    """What the reference kernel says of random calls is what numpy says."""
    report = run(oracle, "decode", int4="packed", random=100, seed=11, filter="random")
    report.raise_for_failures()
    assert report.passed == len({case.name for case in report.cases}) >= 100
