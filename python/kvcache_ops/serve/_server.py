"""Running the application until a signal ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import ceil, isfinite
from socket import socket
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from kvcache_ops._errors import KvCacheError
from kvcache_ops.engine import Engine
from kvcache_ops.serve._application import application

_PROBES = (1.0, 0.25, 3.0)  # seconds before each; the last again and again


class Protocol(H11Protocol):
    """HTTP/1.1 whose clients may close their sending side, and get their answers.

    One that is gone closes it, too: only what is sent to it comes back. So something is sent that clients leave out:
    before a response 100 Continue, and in a stream, which the application is asked for by a message, a comment.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Also ends connections on which nothing comes."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open: where a request is whole, and its response is not. TLS cannot do that."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body or self.scheme == "https":
            return False
        cycle.keep_alive = False
        self._probe_later(cycle, 0)
        return True

    def _probe_later(self, cycle: RequestResponseCycle, count: int) -> None:
        self.loop.call_later(_PROBES[min(count, len(_PROBES) - 1)], self._probe, cycle, count)

    def _probe(self, cycle: RequestResponseCycle, count: int) -> None:
        if cycle.response_complete or cycle.disconnected or self.transport.is_closing():
            return
        if cycle.response_started:
            cycle.message_event.set()
        elif self.conn.their_http_version != b"1.0":
            continues = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            self.transport.write(self.conn.send(continues) or b"")
        self._probe_later(cycle, count + 1)


class Server(uvicorn.Server):
    """A server whose answers get some time when it shuts down, and then end with an error."""

    def __init__(self, config: uvicorn.Config, grace: float) -> None:
        super().__init__(config)
        if config.http == "auto":
            config.http = Protocol
        self._grace = grace

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins the shutdown; the second ends the answers that are given time, a third everything."""
        if self.should_exit and self._grace:
            self._grace = 0.0
            self.config.app.state.dispatcher.close(0)  # type: ignore[union-attr]
        else:
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Also closes the dispatcher; uvicorn then waits for the responses that it ends."""
        self.config.app.state.dispatcher.close(self._grace)  # type: ignore[union-attr]
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
    stuck_after: float = 30,
    keep_alive: float = 75,
) -> None:
    """Serves until SIGINT or SIGTERM. port: 0 for any free one, which the log says.

    grace: seconds that running requests get at the end, fewer than supervisors give. keep_alive: seconds after which
    connections end on which nothing comes, more than a proxy before it has. The others are `application`'s.

    Raises KvCacheError "serve_range" for an impossible port, a negative `grace` or `keep_alive`, and what `application`
    refuses.
    """
    ranges = [("port", port, 65535), ("grace", grace, float("inf")), ("keep_alive", keep_alive, 86400)]
    for what, got, most in ranges:
        if not 0 <= got <= most:
            raise KvCacheError(f"{what} is {got}, expected 0 to {most}", "serve_range")
    limits: dict[str, Any] = {"max_requests": max_requests, "context_shift": context_shift, "stuck_after": stuck_after}
    app = application(engine, name=name, api_key=api_key, allow_origin=allow_origin, **limits)
    try:
        # Also of clients that do not send, or do not read.
        timeout = ceil(grace) + 2 if isfinite(grace) else None
        times: dict[str, Any] = {"timeout_graceful_shutdown": timeout, "timeout_keep_alive": keep_alive}
        config = uvicorn.Config(app, host=host, port=port, lifespan="on", **times)
        Server(config, grace).run()
    except KeyboardInterrupt:  # which has ended it
        pass
