"""`python -m kvcache_ops generate`: continues prompts."""

from __future__ import annotations

import sys
import time
from typing import Any

from kvcache_ops._interrupt import interruptible
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
    with interruptible() as interrupted:
        for i, request in enumerate(requests):
            if len(requests) > 1:
                print(f"{'' if i == 0 else chr(10)}[{i + 1}] {prompts[i]}")
            said = 0
            while said < len(request.text) or request.finish is None:
                if interrupted.is_set():
                    request.cancel()
                if request.finish is None:
                    engine.step(request)
                print(request.text[said:], end="", flush=True)
                said = len(request.text)
            print()
            if request.error is not None:
                print(f"{request.error.kind}: {request.error}", file=sys.stderr)
                status = 1
    count, seconds = sum(len(request.answer) for request in requests), time.perf_counter() - begin
    computed = sum(len(request.prompt) - request.cached for request in requests)
    rate = f"{count / seconds:.1f} tokens/s"
    print(f"{count} tokens after {computed} computed ones in {seconds:.2f} s, {rate}", file=sys.stderr)
    return 130 if interrupted.is_set() else status
