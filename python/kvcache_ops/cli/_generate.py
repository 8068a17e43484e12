"""`python -m kvcache_ops generate`: continues prompts."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Any

from kvcache_ops._errors import KvCacheError
from kvcache_ops.engine import Engine
from kvcache_ops.models import ChatTemplate


def generate(engine: Engine, prompts: list[str], chat: bool, context_shift: bool, **sampling: Any) -> int:
    """Prints the answer of one prompt as it comes, of several in their order; returns 1 if one has failed, else 0."""
    begin = time.perf_counter()
    template = ChatTemplate(engine.model) if chat else None
    keep = (template.beginning([]) if template else len(engine.encode(""))) if context_shift else None
    requests = [
        engine.submit(
            template.tokens([{"role": "user", "content": prompt}]) if template else prompt, keep=keep, **sampling
        )
        for prompt in prompts
    ]
    status = 0
    try:
        for i, request in enumerate(requests):
            if len(requests) > 1:
                print(f"{'' if i == 0 else chr(10)}[{i + 1}] {prompts[i]}")
            with suppress(KvCacheError):  # which is the request's
                for piece in request:
                    print(piece, end="", flush=True)
            print()
            if request.error is not None:
                print(f"{request.error.kind}: {request.error}", file=sys.stderr)
                status = 1
    except KeyboardInterrupt:
        print()
        status = 130
    count, seconds = sum(len(request.answer) for request in requests), time.perf_counter() - begin
    computed = sum(len(request.prompt) - request.cached for request in requests)
    rate = f"{count / seconds:.1f} tokens/s"
    print(f"{count} tokens after {computed} computed ones in {seconds:.2f} s, {rate}", file=sys.stderr)
    return status
