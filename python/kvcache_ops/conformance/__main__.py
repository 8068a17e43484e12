"""`python -m kvcache_ops.conformance`: the command `conformance` of the package."""

from __future__ import annotations

import sys
from argparse import ArgumentParser

from kvcache_ops.conformance._command import add_arguments, run_command

if __name__ == "__main__":
    parser = ArgumentParser(prog="python -m kvcache_ops.conformance")
    add_arguments(parser)
    sys.exit(run_command(parser.parse_args()))
