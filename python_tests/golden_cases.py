"""The golden cases: the one place where the tests read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import yaml
from ml_dtypes import bfloat16, float8_e4m3fn
from safetensors import deserialize

from compare import Arrays, assert_same_bits, assert_within

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
# The folders of each suite, and the fewest cases that it has.
SUITES = {"cases": 500, "static_cases": 200, "attention_cases": 300}


@dataclass(frozen=True)
class GoldenCase:
    """Calls in turn on one cache. `steps` says which are refused, and what the message mentions."""

    name: str
    operator: str
    attributes: dict[str, int]
    steps: list[dict[str, Any]]
    int4_shape: tuple[int, ...] | None
    any_nan: bool
    tensors: Arrays

    @property
    def is_legal(self) -> bool:
        """Whether every call succeeds."""
        return not any("error" in step for step in self.steps)

    def state(self) -> Arrays:
        """`cache` and, if there is one, `scale`, as they are before the first call."""
        return {name: self.tensors[name].copy() for name in ("cache", "scale") if name in self.tensors}

    def inputs(self, step: int, names: tuple[str, ...]) -> Arrays:
        """What a call is given of these names, but for the state."""
        given = [name for name in names if name not in ("cache", "scale") and f"{step}.{name}" in self.tensors]
        return {name: self.tensors[f"{step}.{name}"].copy() for name in given}

    def check(self, step: int, got: Arrays) -> None:
        """Outputs and state are the oracle's, bit for bit; attention is within its tolerance."""
        for name, array in got.items():
            expected = np.asarray(self.tensors[f"{step}.{name}"])
            if name == "attn_output":
                assert array.dtype == self.tensors[f"{step}.query"].dtype
                unrounded = [self.tensors.get(f"{step}.unrounded.{of}") for of in (name, "tolerance")]
                pairs = [(expected, self.tensors[f"{step}.tolerance"]), *([] if unrounded[0] is None else [unrounded])]
                assert_within(f"step {step}: {name}", array, *pairs)
            else:
                assert_same_bits(f"step {step}: {name}", array.reshape(expected.shape), expected, self.any_nan)


def golden_cases(suite: str) -> Iterator[GoldenCase]:
    """Every case of a folder."""
    for path in sorted((GOLDEN / suite).glob("*/case.yaml")):
        yield read_case(path.parent)


def read_case(folder: Path) -> GoldenCase:
    """One case."""
    case = yaml.load((folder / "case.yaml").read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    assert case["steps"], "a case has steps"
    return GoldenCase(
        folder.name,
        case.get("operator", "KeyValueCache"),
        case.get("attributes", {}),
        case["steps"],
        tuple(case["int4"]["cache"]) if "int4" in case else None,
        case.get("compare", {}).get("nan") == "any",
        load_tensors(folder / "tensors.safetensors"),
    )


def load_tensors(path: Path) -> Arrays:
    """The arrays of a file, which may be of types that numpy has not got: safetensors' own reader has not got them."""
    types = {"F32": np.float32, "F16": np.float16, "I8": np.int8, "U8": np.uint8, "I64": np.int64}
    types |= {"BF16": bfloat16, "F8_E4M3": float8_e4m3fn}
    return {
        name: np.frombuffer(view["data"], types[view["dtype"]]).reshape(view["shape"])
        for name, view in deserialize(path.read_bytes())
    }


@cache
def some_cases(suite: str, word: str) -> TemporaryDirectory:
    """A folder of those cases whose names contain a word, for the conformance kit: the suites that it holds are read
    whole, which takes most of the time of a run of few cases."""
    folder = TemporaryDirectory()
    for case in (GOLDEN / suite).glob(f"*{word}*"):
        Path(folder.name, case.name).symlink_to(case, target_is_directory=True)
    return folder


def check_all(suite: str, check: Callable[[GoldenCase], None], every: int = 1) -> None:
    """Makes the check of every case, or of each so many, and names all that fail."""
    failed, count = [], 0
    for case in golden_cases(suite):
        count += 1
        if count % every:
            continue
        try:
            check(case)
        except (Exception, pytest.fail.Exception) as error:
            failed.append(f"{case.name}: {type(error).__name__}: {error}")
    assert count >= SUITES[suite], f"there are {count} cases"
    assert not failed, f"{len(failed)} of {count} cases fail:\n" + "\n".join(failed)
