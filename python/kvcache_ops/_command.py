"""The commands `doctor`, `size` and `conformance`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from kvcache_ops._doctor import doctor
from kvcache_ops._errors import KvCacheError
from kvcache_ops._size import GROUPS, table
from kvcache_ops.conformance import SUITES, run


def main(arguments: Sequence[str]) -> int:
    """Runs the command of these arguments; gives the exit status: 0, 1 if something does not work, 2 for a refusal."""
    parser = ArgumentParser(prog="python -m kvcache_ops", description="The KV cache operators of PMX graphs.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="versions, what this machine has, and a self-test of a second")
    size = commands.add_parser("size", help="bytes per token and tokens per GiB of every format of cache")
    size.add_argument("--layers", type=int, required=True, help="attention layers")
    size.add_argument("--heads", type=int, required=True, help="key and value heads of a layer (cache heads)")
    size.add_argument("--head-dim", type=int, required=True, help="elements of a head")
    size.add_argument(
        "--quant-group",
        type=int,
        action="append",
        help=f"neighbors that share a scale; may be given several times; those of {GROUPS} that divide a head if not",
    )
    _add_conformance(commands.add_parser("conformance", help="the conformance suite on an implementation in Python"))
    given = parser.parse_args(arguments)
    if given.command == "doctor":
        return doctor()
    try:
        if given.command == "conformance":
            return _conformance(given)
        for line in table(given.layers, given.heads, given.head_dim, given.quant_group):
            print(line)
    except KvCacheError as error:
        print(f"{error.kind}: {error}", file=sys.stderr)
        return 2
    return 0


def _add_conformance(parser: ArgumentParser) -> None:
    parser.description = "Runs every case on an implementation; kvcache_ops.conformance says how it is called."
    parser.add_argument("implementation", metavar="MODULE:CALLABLE", help="as Python imports it from here")
    parser.add_argument("--suite", choices=SUITES, default=SUITES[0], help="%(default)s if not given")
    parser.add_argument("--profile", metavar="FILE", help="what it does, as YAML; it must refuse the rest")
    parser.add_argument("--filter", metavar="TEXT", default="", help="only cases whose name contains this")
    parser.add_argument("--random", metavar="N", type=int, default=0, help="so many cases more, made on demand")
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="which ones")
    parser.add_argument("--messages", action="store_true", help="error messages must mention what is wrong")
    parser.add_argument("--int4", choices=["packed", "unpacked"], default="packed", help="the form of a cache of int4")
    parser.add_argument("--cases", metavar="DIR", help="a folder of cases instead of those in the package")
    parser.add_argument("--report", choices=["text", "json", "junit"], default="text", help="the form of the report")
    parser.add_argument("--output", metavar="FILE", help="where to write the report; then its last line is shown")


def _conformance(given: Namespace) -> int:
    """Runs the suite; 0 if the implementation conforms."""
    try:
        implementation = _imported(given.implementation)
        report = run(
            implementation,
            suite=given.suite,
            profile=given.profile,
            filter=given.filter,
            messages=given.messages,
            random=given.random,
            seed=given.seed,
            int4=given.int4,
            cases=given.cases,
            name=given.implementation,
        )
    except (ImportError, TypeError) as error:
        print(error, file=sys.stderr)
        return 2
    texts = {
        "text": lambda: f"{given.implementation}\n{report.text(rules=True)}",
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
