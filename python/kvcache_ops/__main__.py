"""`python -m kvcache_ops COMMAND`; `--help` lists the commands."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    try:
        from kvcache_ops.cli._command import main

        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
