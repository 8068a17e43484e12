"""Work that ends with its client: nothing is computed for a client that has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from kvcache_ops.serve._dispatcher import Answers

_UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_T = TypeVar("_T")


async def while_wanted(receive: Receive, work: Awaitable[_T]) -> _T:
    """The result of some work. Raises what the work raises, and ClientDisconnect once the client has gone."""
    done = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(receive, lambda: None))
    try:
        await asyncio.wait((done, gone), return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            raise ClientDisconnect
        return done.result()
    finally:
        gone.cancel()
        done.cancel()


async def _until_gone(receive: Receive, may_be: Callable[[], None]) -> None:
    """Waits for the end of a client; `may_be` is called where only a write would say."""
    while (await receive())["type"] != "http.disconnect":
        may_be()


@asynccontextmanager
async def cancelled_with_client(receive: Receive, answers: Answers) -> AsyncIterator[None]:
    """Cancels answers when their client goes, and at the end of the block."""

    async def watch() -> None:
        await _until_gone(receive, answers.nudge)
        answers.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        answers.cancel()


class Events(StreamingResponse):
    """Server-sent events, which end with their client."""

    def __init__(self, content: AsyncIterator[bytes], answers: Answers) -> None:
        super().__init__(content, media_type="text/event-stream", headers=_UNBUFFERED)
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with cancelled_with_client(receive, self._answers):
            with suppress(OSError):  # the client is gone
                await self.stream_response(send)
