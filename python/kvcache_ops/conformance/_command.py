"""The command `conformance`: the suites on an implementation in Python, on a library of ONNX Runtime, or in files."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from importlib import import_module
from pathlib import Path
from typing import Any

from kvcache_ops._errors import KvCacheError
from kvcache_ops.conformance._export import export_onnx
from kvcache_ops.conformance._library import PROVIDERS, Library
from kvcache_ops.conformance._report import Report
from kvcache_ops.conformance._run import SUITES, run, run_suites


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = "Runs every case on an implementation; kvcache_ops.conformance says how it is called."
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("implementation", metavar="MODULE:CALLABLE", nargs="?", help="as Python imports it from here")
    what.add_argument("--ort-library", metavar="FILE", help="a library of custom operators of ONNX Runtime instead")
    what.add_argument("--export-onnx", metavar="DIR", help="runs nothing: writes the cases as ONNX's backend tests")
    parser.add_argument(
        "--suite",
        choices=SUITES,
        action="append",
        help=f"{SUITES[0]} if not given; of a library and of files all, and it can be given several times",
    )
    parser.add_argument("--profile", metavar="FILE", help="what it does, as YAML; it must refuse the rest")
    parser.add_argument("--filter", metavar="TEXT", default="", help="only cases whose name contains this")
    parser.add_argument("--random", metavar="N", type=int, default=0, help="so many cases more, made on demand")
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="which ones")
    parser.add_argument("--messages", action="store_true", help="error messages must mention what is wrong")
    parser.add_argument("--int4", choices=["packed", "unpacked"], default="packed", help="the form of a cache of int4")
    parser.add_argument("--cases", metavar="DIR", help="a folder of cases of the suite instead of those in the package")
    parser.add_argument("--report", choices=["text", "json", "junit"], default="text", help="the form of the report")
    parser.add_argument("--output", metavar="FILE", help="where to write the report; then its last line is shown")
    library = parser.add_argument_group("of a library")
    library.add_argument("--domain", default="opmx.dynamic_batching", help="of its operators; %(default)s if not given")
    library.add_argument("--static-domain", default="opmx", help="of that of static batching; %(default)s")
    library.add_argument("--provider", choices=list(PROVIDERS), default="cpu", help="which runs its nodes")
    library.add_argument("--timeout", metavar="SECONDS", type=float, default=60.0, help="how long a call may take")


def run_command(given: Namespace) -> int:
    """Runs the suites; 0 if the implementation conforms, 1 if not, 2 if the arguments or a file are at fault."""
    try:
        if given.export_onnx is not None:
            of_cases = {"filter": given.filter, "cases": given.cases, "random": given.random, "seed": given.seed}
            print(export_onnx(given.export_onnx, _suites(given), **of_cases))
            return 0
        report = _report(given)
    except (ImportError, TypeError) as error:
        print(error, file=sys.stderr)
        return 2
    except KvCacheError as error:
        print(f"{error.kind}: {error}", file=sys.stderr)
        return 2
    texts = {
        "text": lambda: f"{report.implementation}\n{report.text(rules=True)}",
        "json": report.json,
        "junit": report.junit,
    }
    text = texts[given.report]()
    if given.output is None:
        print(text)
    else:
        Path(given.output).write_text(f"{text}\n", encoding="utf-8")
        print(report.text().splitlines()[-1])
    return 0 if report.conforms else 1


def _report(given: Namespace) -> Report:
    options: dict[str, Any] = {
        name: getattr(given, name) for name in ("profile", "filter", "messages", "random", "seed", "cases")
    }
    if given.ort_library is None:
        implementation = _imported(given.implementation)
        suite: Any = (given.suite or SUITES[:1])[-1]
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


def _suites(given: Namespace) -> list[str]:
    """Those that are named, or all; a folder of cases is one of one suite."""
    if given.cases is not None and len(given.suite or []) != 1:
        raise KvCacheError("--cases is a folder of one suite, expected one --suite", "cases")
    return list(dict.fromkeys(given.suite or SUITES))


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
