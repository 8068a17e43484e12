"""Running the application until a signal ends it."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite
from socket import socket
from types import FrameType
from typing import Any

import uvicorn

from kvcache_ops._errors import KvCacheError
from kvcache_ops.engine import Engine
from kvcache_ops.serve._application import application


class Server(uvicorn.Server):
    """A server whose answers get some time when it shuts down, and then end with an error."""

    def __init__(self, config: uvicorn.Config, grace: float) -> None:
        super().__init__(config)
        self._grace = grace

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins the shutdown; the second ends the answers that are given time, a third everything."""
        if self.should_exit and self._grace:
            self._grace = 0.0
            self.config.app.state.engine_thread.close(0)  # type: ignore[union-attr]
        else:
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Also closes the engine's thread; uvicorn then waits for the responses that it ends."""
        self.config.app.state.engine_thread.close(self._grace)  # type: ignore[union-attr]
        await super().shutdown(sockets)


def serve(
    engine: Engine,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    name: str | None = None,
    max_requests: int = 256,
    grace: float = 5,
    context_shift: bool = False,
    api_key: str | None = None,
    allow_origin: Sequence[str] = (),
) -> None:
    """Serves until SIGINT or SIGTERM. port: 0 for any free one, which the log says.

    grace: seconds that running requests get at the end, fewer than supervisors give. The others are `application`'s.

    Raises KvCacheError "serve_range" for an impossible port, a negative `grace` and what `application` refuses.
    """
    for what, got, most in (("port", port, 65535), ("grace", grace, float("inf"))):
        if not 0 <= got <= most:
            raise KvCacheError(f"{what} is {got}, expected 0 to {most}", "serve_range")
    limits: dict[str, Any] = {"max_requests": max_requests, "context_shift": context_shift}
    app = application(engine, name=name, api_key=api_key, allow_origin=allow_origin, **limits)
    try:
        # Also of clients that do not send, or do not read.
        timeout = ceil(grace) + 2 if isfinite(grace) else None
        config = uvicorn.Config(app, host=host, port=port, lifespan="on", timeout_graceful_shutdown=timeout)
        Server(config, grace).run()
    except KeyboardInterrupt:  # which has ended it
        pass
