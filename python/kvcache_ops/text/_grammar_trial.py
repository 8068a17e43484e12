"""Compiles grammars in a process of its own, which a grammar may crash or occupy: `_grammar` starts and ends it.

Arguments: the folder that has llguidance, its limits as JSON. Input: a grammar a line, as JSON. Output: an empty line,
and for each grammar one with what llguidance says against it, as JSON.
"""

from __future__ import annotations

import json
import signal
import sys
from threading import Thread, stack_size

_STACK = 4 << 20  # half of the stack of the thread that compiles the grammar afterwards
_MEMORY = 8 << 30


def _bound() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, for the process that started this one
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY if most == resource.RLIM_INFINITY else min(_MEMORY, most), most))


def _try() -> None:
    sys.path.append(sys.argv[1])
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(**json.loads(sys.argv[2]))
    print(flush=True)
    for line in sys.stdin:
        try:
            refused = LLMatcher.validate_grammar(json.loads(line), None, limits=limits)
        except BaseException as error:
            refused = f"{type(error).__name__}: {error}"
        print(json.dumps(refused), flush=True)


def _main() -> None:
    _bound()
    stack_size(_STACK)
    thread = Thread(target=_try)
    thread.start()
    thread.join()


if __name__ == "__main__":
    _main()
