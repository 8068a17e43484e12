"""The command `conformance`: the suites on a callable, a program or a library of ONNX Runtime, or in files."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from kvcache_ops import _native
from kvcache_ops._atomic_file import written
from kvcache_ops._errors import KvCacheError
from kvcache_ops.conformance._export import export_onnx
from kvcache_ops.conformance._library import PROVIDERS, Library
from kvcache_ops.conformance._program import Program
from kvcache_ops.conformance._report import Report
from kvcache_ops.conformance._run import SUITES, check_numbers, run, run_suites
from kvcache_ops.ops._nodes import DOMAIN


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = "Runs every case on an implementation; help(kvcache_ops.conformance) says how."
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("implementation", metavar="MODULE:CALLABLE", nargs="?", help="as Python imports it from here")
    what.add_argument("--program", metavar="COMMAND", help="a program instead, as 'COMMAND {case} {output}'")
    what.add_argument("--ort-library", metavar="FILE", help="a library of custom operators of ONNX Runtime instead")
    what.add_argument("--export-onnx", metavar="DIR", help="runs nothing: writes the cases as ONNX's backend tests")
    what.add_argument("--list", action="store_true", help="runs nothing: prints the cases")
    parser.add_argument(
        "--suite",
        choices=SUITES,
        action="append",
        help=f"by default all, for a callable {SUITES[0]}; may be given several times, except for a callable",
    )
    parser.add_argument(
        "--only",
        metavar="NAME=VALUE,...",
        action="append",
        default=[],
        help="only cases whose type, attribute or size has one of these values; may be given several times",
    )
    parser.add_argument("--filter", metavar="TEXT", default="", help="only cases whose name contains this")
    parser.add_argument("--random", metavar="N", type=int, default=0, help="add N random cases")
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="of the random cases (0)")
    parser.add_argument("--messages", action="store_true", help="error messages must mention what is wrong")
    parser.add_argument("--int4", choices=["packed", "unpacked"], default="packed", help="the form of an int4 cache")
    parser.add_argument("--cases", metavar="DIR", help="a folder of cases, instead of those in the package")
    parser.add_argument("--report", choices=["text", "json", "junit"], default="text", help="the form of the report")
    parser.add_argument("--output", metavar="FILE", help="write the report there, and print its last line")
    limit = "the most seconds of a program for a case, or of a library for a call (%(default)g)"
    parser.add_argument("--timeout", metavar="SECONDS", type=_seconds, default=60.0, help=limit)
    program = parser.add_argument_group("of a program")
    program.add_argument("--serve", action="store_true", help="started once, reads lines of both paths, answers: done")
    program.add_argument("--jobs", metavar="N", type=_jobs, help="cases at once (the number of CPUs)")
    library = parser.add_argument_group("of a library")
    library.add_argument("--domain", default=DOMAIN, help="of its operators (%(default)s)")
    library.add_argument("--static-domain", default="opmx", help="of the operator of static batching (%(default)s)")
    library.add_argument("--provider", choices=list(PROVIDERS), default="cpu", help="what runs its nodes (%(default)s)")


def run_command(given: Namespace) -> int:
    """Runs the suites; 0 if the implementation conforms, 1 if not, 2 if the arguments or a file are at fault."""
    try:
        if given.export_onnx is not None or given.list:
            if given.only:
                raise KvCacheError("--only is about cases that are run, expected --filter", "only")
            check_numbers(given.random, given.seed)
            of_cases = {"filter": given.filter, "cases": given.cases, "random": given.random, "seed": given.seed}
            write = _list if given.list else partial(export_onnx, given.export_onnx)
            print(write(_suites(given), **of_cases))
            return 0
        report = _report(given)
        _write(report, given)
    except (ImportError, OSError, TypeError) as error:
        print(error, file=sys.stderr)
        return 2
    except KvCacheError as error:
        print(f"{error.kind}: {error}", file=sys.stderr)
        return 2
    return 0 if report.conforms else 1


def _write(report: Report, given: Namespace) -> None:
    """Shows the report, or writes it into a file and shows its last line."""
    texts = {
        "text": lambda: f"{report.implementation}\n{report.text(rules=True)}",
        "json": report.json,
        "junit": report.junit,
    }
    text = texts[given.report]()
    if given.output is None:
        print(text)
    else:
        with written(given.output) as file:
            file.write(f"{text}\n".encode())
        print(report.text().splitlines()[-1])


def _report(given: Namespace) -> Report:
    names = ("filter", "messages", "random", "seed", "cases")
    options: dict[str, Any] = {name: getattr(given, name) for name in names} | {"only": _only(given)}
    if given.program is not None:
        program = Program(given.program, serve=given.serve, limit=given.timeout)
        jobs = given.jobs or os.cpu_count() or 1
        try:
            return run_suites(program, _suites(given), int4="packed", name=given.program, jobs=jobs, **options)
        finally:
            program.close()
    if given.ort_library is None:
        implementation = _imported(given.implementation)
        suite, *more = dict.fromkeys(given.suite or SUITES[:1])
        if more:
            raise KvCacheError(f"a callable runs one suite at a time, expected --suite {suite} alone", "suites")
        return run(implementation, suite=suite, int4=given.int4, name=given.implementation, **options)
    library = Library(
        given.ort_library,
        provider=given.provider,
        domain=given.domain,
        static_domain=given.static_domain,
        limit=given.timeout,
    )
    report = run_suites(library, _suites(given), int4="unpacked", name=given.ort_library, **options)
    if library.registers is False:
        domains = f"domains {given.domain} (--domain) and {given.static_domain} (--static-domain)"
        raise KvCacheError(f"{given.ort_library} registers no operator of the cases in the {domains}", "library")
    return report


def _list(suites: list[str], *, filter: str, cases: str | None, random: int, seed: int) -> str:
    """A line for each case."""
    found = [case for suite in suites for case in _native.conformance_cases(suite, cases, filter, (random, seed))]
    if not found:
        raise KvCacheError(f"no case has a name that contains {filter!r}", "no_case")
    return "\n".join(f"{case.suite}/{case.name}: {case.about} [{', '.join(case.rules)}]" for case in found)


def _only(given: Namespace) -> dict[str, list[str]]:
    """The conditions on cases."""
    only: dict[str, list[str]] = {}
    for condition in given.only:
        name, _, values = condition.partition("=")
        only.setdefault(name, []).extend(value for value in values.split(",") if value)
    return only


def _suites(given: Namespace) -> list[str]:
    """The named suites; else all, or the ones in a folder of cases."""
    folders = dict(zip(SUITES, ("cases", "static_cases", "attention_cases")))
    if given.cases is None or given.suite:
        return list(dict.fromkeys(given.suite or SUITES))
    there = [suite for suite, folder in folders.items() if Path(given.cases, folder).is_dir()]
    if not there:
        raise KvCacheError(f"{given.cases} has no folder {', '.join(folders.values())}, expected one --suite", "cases")
    return there


def _seconds(text: str) -> float:
    """A time above 0."""
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError(text)
    return seconds


def _jobs(text: str) -> int:
    """A number above 0."""
    jobs = int(text)
    if jobs < 1:
        raise ValueError(text)
    return jobs


def _imported(name: str) -> Any:
    """What MODULE:CALLABLE names."""
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise ImportError(f"{name} names no implementation, expected MODULE:CALLABLE")
    found: Any = import_module(module_name)
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ImportError(f"{module_name} has no {path}") from None
    return found
