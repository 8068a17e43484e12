"""The commands of `python -m kvcache_ops`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import nullcontext

from kvcache_ops._errors import KvCacheError
from kvcache_ops._interrupt import terminable
from kvcache_ops.cli._doctor import doctor
from kvcache_ops.cli._model_command import add_parsers
from kvcache_ops.cli._size import GROUPS, table
from kvcache_ops.conformance._command import add_arguments, run_command


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns the exit status: 0, 1 if something does not work, 2 for a refusal."""
    parser = ArgumentParser(prog="python -m kvcache_ops", description="The KV cache operators of PMX graphs.")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor_of = commands.add_parser("doctor", help="versions, what this machine has, and a short self-test")
    doctor_of.add_argument("model", nargs="*", help="an ONNX model whose attributes to check")
    size = commands.add_parser("size", help="bytes per token and tokens per GiB of every format of cache")
    size.add_argument("--layers", type=int, default=32, help="attention layers (32)")
    size.add_argument("--heads", type=int, default=8, help="key and value heads of a layer, cache heads (8)")
    size.add_argument("--head-dim", type=int, default=128, help="elements of a head (128)")
    size.add_argument(
        "--quant-group",
        type=int,
        action="append",
        help=f"neighbors that share a scale; may be given several times ({GROUPS}, where they divide a head)",
    )
    add_arguments(commands.add_parser("conformance", help="run the conformance suites on an implementation"))
    add_parsers(commands)
    given = parser.parse_args(arguments)
    if given.command == "doctor":
        return doctor(given.model)
    if given.command == "conformance":
        return run_command(given)
    try:
        if given.command != "size":
            with nullcontext() if given.command == "serve" else terminable():  # a server ends otherwise
                status: int = given.run(given)
            return status
        if not arguments[1:]:
            print("32 layers, 8 heads, head_dim 128: --layers, --heads and --head-dim say others", file=sys.stderr)
        for line in table(given.layers, given.heads, given.head_dim, given.quant_group):
            print(line)
    except KvCacheError as error:
        print(f"{error.kind}: {error}", file=sys.stderr)
        return 2
    except (ImportError, OSError, UnicodeError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0
