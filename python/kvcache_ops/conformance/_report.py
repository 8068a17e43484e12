"""The results of the cases, read from the report that the native module writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


class ConformanceError(AssertionError):
    """Cases failed. The message is the report's text; `report` is the report."""

    report: Report

    def __init__(self, report: Report) -> None:
        super().__init__(report.text())
        self.report = report

    def __reduce__(self) -> tuple[type[ConformanceError], tuple[Report]]:
        return ConformanceError, (self.report,)


@dataclass(frozen=True)
class Difference:
    """The first thing that is wrong in a case."""

    text: str
    """It as one line: tensor, element, what it stands for, got, expected."""
    kind: str
    """"elements" where numbers differ; "form" for a wrong type or shape, or a tensor that is missing; "refused",
    "not-refused", "refused-as", "not-mentioned"; "could-not-run" where there are no results."""
    call: int | None
    """The call of the case, counted from 0; None if it is not one call that is wrong."""
    details: Mapping[str, Any]
    """All fields of the JSON: with "elements" `tensor`, `index`, `coordinates`, `location` (slot, sequence, head and so
    on), `got`, `expected`, `ulps`."""

    @property
    def tensor(self) -> str | None:
        """The name of the tensor that is wrong, if one is."""
        tensor = self.details.get("tensor")
        return tensor if isinstance(tensor, str) else None

    @property
    def location(self) -> Mapping[str, Any] | None:
        """What the first element that differs stands for, where that is known."""
        location = self.details.get("location")
        return location if isinstance(location, dict) else None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class CaseResult:
    """The result of one case."""

    suite: str
    operator: str
    name: str
    about: str
    rules: tuple[str, ...]
    """The ids of the rules that the case proves, on the page of `operator`."""
    verdict: Literal["passed", "failed", "unsupported", "not-run"]
    seconds: float
    reason: str | None
    """Why it is unsupported or was not run."""
    difference: Difference | None


@dataclass(frozen=True)
class Flaw:
    """Something that is wrong in some cases."""

    flaw: str
    """What is wrong, in words."""
    cases: int
    """In how many cases."""
    only_where: tuple[str, ...]
    """Properties that all these cases have, and none that passed has: "T2 is int4". Where one of legal calls
    failed, those that passed with illegal calls, or with empty outputs, do not count."""


@dataclass(frozen=True)
class RuleResult:
    """The results of the cases that prove a rule."""

    operator: str
    rule: str
    title: str
    link: str
    """The page and the anchor of the rule, below the project's docs."""
    passed: int
    failed: int
    unsupported: int
    not_run: int


class Report:
    """The result of every case; `str` of it is `text()`.

    report = conformance.run(implementation)
    print(report)
    report.raise_for_failures()
    """

    def __init__(self, json_text: str, text: str, rule_table: str, junit: str) -> None:
        document = json.loads(json_text)
        self._forms = (json_text, text, rule_table, junit)
        self.implementation: str = document["implementation"]
        """The name of what was tested."""
        self.conforms: bool = document["conforms"]
        """No case failed, and at least one passed."""
        self.passed: int = document["summary"]["passed"]
        """How many cases passed."""
        self.failed: int = document["summary"]["failed"]
        """How many failed."""
        self.unsupported: int = document["summary"]["unsupported"]
        """How many need what the implementation says that it does not do (NotImplementedError)."""
        self.not_run: int = document["summary"]["not_run"]
        """How many were left out."""
        self.cases: tuple[CaseResult, ...] = tuple(map(_case, document["cases"]))
        """Every case."""
        self.rules: tuple[RuleResult, ...] = tuple(RuleResult(**row) for row in document["rules"])
        """Every rule of the operators of these cases."""
        self.flaws: tuple[Flaw, ...] = tuple(
            Flaw(row["flaw"], row["cases"], tuple(row["only_where"])) for row in document["flaws"]
        )
        """What is wrong in the cases that failed."""

    @property
    def failures(self) -> tuple[CaseResult, ...]:
        """The cases that failed."""
        return tuple(case for case in self.cases if case.verdict == "failed")

    def text(self, *, rules: bool = False) -> str:
        """For a terminal: a paragraph for each failure, then the numbers; with `rules` the table by rule first."""
        _, text, table, _ = self._forms
        return f"{table}\n{text}" if rules else text

    def json(self) -> str:
        """All of it as one JSON document."""
        return self._forms[0]

    def junit(self) -> str:
        """The cases as JUnit's XML, which continuous integration reads."""
        return self._forms[3]

    def raise_for_failures(self) -> None:
        """Raises ConformanceError, an AssertionError with the text, unless the implementation conforms."""
        if not self.conforms:
            raise ConformanceError(self)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Report: {self.text().splitlines()[-1]}>"

    def __reduce__(self) -> tuple[type[Report], tuple[str, ...]]:
        return Report, self._forms


def _case(row: dict[str, Any]) -> CaseResult:
    fields: dict[str, Any] = {name: row.get(name) for name in CaseResult.__dataclass_fields__}
    fields |= {"name": row["case"], "rules": tuple(row["rules"])}
    if found := row.get("difference"):
        fields["difference"] = Difference(found["text"], found["kind"], found["call"], found)
    return CaseResult(**fields)
