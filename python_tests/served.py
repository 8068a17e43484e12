"""A server in a thread, over a tiny model, and OpenAI's client of it."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Event, Thread

import pytest
import uvicorn
from kvcache_ops.engine import Engine
from kvcache_ops.serve import application
from kvcache_ops.serve._server import Server
from openai import OpenAI

from engines import path

__all__ = ["path"]  # a fixture

TEXTS = ["the theme", "a", "of the others, the most", "42"]
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the theme"}]
GREEDY = dict(model="tiny", temperature=0)
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"


class Serving:
    """A server in a thread, its engine, and what it says."""

    def __init__(self, path: Path, grace: float = 0, app: dict[str, object] | None = None, **options: int) -> None:
        self.engine = Engine(path, **{"threads": 1} | options)
        app = application(self.engine, **{"name": "tiny", "max_requests": 64} | (app or {}))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.server = Server(uvicorn.Config(app, lifespan="on", log_level="warning"), grace)
        self.thread = Thread(target=self.server.run, args=([self._socket],))
        self.thread.start()
        self.client = OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0, timeout=60)

    def stop(self) -> None:
        """Shuts it down, and waits; it does not hang."""
        self.server.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive()

    def response(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[HTTPResponse, bytes]:
        """The response to any request, and its body."""
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response, response.read()

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """The status and the body of a response."""
        response, content = self.response(method, path, body)
        return response.status, content

    def metric(self, name: str) -> float:
        """A line of /metrics."""
        status, text = self.ask("GET", "/metrics")
        assert status == 200
        found = re.search(rf"^{re.escape(name)} (\S+)$", text.decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0


@contextmanager
def serving(path: Path, **options: object) -> Iterator[Serving]:
    """A server for a while."""
    found = Serving(path, **options)
    try:
        yield found
    finally:
        found.stop()


@contextmanager
def blocked(monkeypatch: pytest.MonkeyPatch, of: object, name: str) -> Iterator[tuple[list[object], Event]]:
    """Calls of a function wait for the event, at the latest until the end. The list has one entry for each."""
    go_on, begun, function = Event(), list[object](), getattr(of, name)

    def wait(*arguments: object, **named: object) -> object:
        begun.append(arguments)
        assert go_on.wait(60)
        return function(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(of, name, wait)
        try:
            yield begun, go_on
        finally:
            go_on.set()


@pytest.fixture(scope="module")
def shared(path: Path) -> Iterator[Serving]:
    """One for several tests."""
    with serving(path, max_tokens=4096) as found:
        yield found


@pytest.fixture(scope="module")
def expected(path: Path) -> list[str]:
    """The answers of the engine to TEXTS."""
    return [request.text for request in Engine(path, max_tokens=512, threads=1).generate(TEXTS, max_new_tokens=16)]
