"""`python -m kvcache_ops.conformance`: the command `conformance` of the package."""

from __future__ import annotations

import sys

from kvcache_ops.cli._command import main

if __name__ == "__main__":
    sys.exit(main(["conformance", *sys.argv[1:]]))
