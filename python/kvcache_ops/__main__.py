"""`python -m kvcache_ops COMMAND`; `--help` lists the commands."""

from __future__ import annotations

import sys

from kvcache_ops._command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
