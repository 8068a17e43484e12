"""`python -m kvcache_ops doctor`: what works here. `python -m kvcache_ops size ...`: what caches of a model take.

`python -m kvcache_ops conformance MODULE:CALLABLE`: the conformance suite on an implementation in Python.
"""

from __future__ import annotations

import sys

from kvcache_ops._command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
