"""What one client can make expensive: it is bounded, and others are served meanwhile. What lies between it and us."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest
import uvicorn
from kvcache_ops.engine import Engine
from kvcache_ops.engine._request import RequestState
from kvcache_ops.serve import _application as application_module
from kvcache_ops.serve import _server, application, serve
from kvcache_ops.serve._dispatcher import Answers, Dispatcher
from kvcache_ops.serve._metrics import Metrics
from kvcache_ops.serve._replies import event
from kvcache_ops.text._grammar import _end

from compare import refused
from engines import calls, soon
from served import CHAT, GREEDY, TEXT, TEXTS, Serving, blocked, expected, path, serving, shared

__all__ = ["expected", "path", "shared"]  # fixtures

FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "integer"}}}


def error_of(answer: tuple[int, bytes]) -> tuple[int, str, str | None]:
    """The status, the code and the parameter of an error."""
    status, content = answer
    error = json.loads(content)["error"]
    return status, error["code"], error["param"]


def body(**given: object) -> bytes:
    """Of a completion."""
    return json.dumps({"model": "tiny", "prompt": TEXTS[0], "temperature": 0} | given).encode()


def sent(server: Serving, content: bytes, length: int | None = None) -> socket.socket:
    """A connection on which a request was sent, or its beginning, and nothing was read."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    head = f"POST {TEXT} HTTP/1.1\r\nHost: a\r\nContent-Length: {length or len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


def test_grammars_do_not_keep_others_waiting(
    shared: Serving, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While they are compiled; what their clients wait for no more is not compiled; too many at once get 503."""
    before = shared.metric('kvcache_requests_now{state="waiting"}')
    with_grammar = body(response_format=FORMAT, max_tokens=3)
    with blocked(monkeypatch, shared.engine, "json_grammar") as (begun, go_on), ThreadPoolExecutor(1) as pool:
        first = pool.submit(shared.ask, "POST", TEXT, with_grammar)
        gone = [sent(shared, with_grammar) for _ in range(application_module._MOST_COMPILING - 1)]
        waiting = 'kvcache_requests_now{state="waiting"}'
        soon(lambda: shared.metric(waiting) == before + application_module._MOST_COMPILING)
        soon(lambda: len(begun) == 2)
        assert error_of(shared.ask("POST", TEXT, with_grammar))[:2] == (503, "overloaded")
        assert shared.client.completions.create(prompt=TEXTS[0], **GREEDY).choices[0].text == expected[0]
        assert shared.ask("GET", "/health")[0] == 200
        for connection in gone:
            connection.close()
        soon(lambda: shared.metric(waiting) <= before + 2)
        go_on.set()
        assert first.result()[0] == 200
    assert len(begun) <= 3  # those in the two threads, and the first if it was behind them


class _Ended(list):
    """Keeps no process: one whose grammar an earlier test asked for may come back late."""

    def append(self, process: subprocess.Popen[str]) -> None:
        _end([process])


def test_no_process_is_the_servers_fault(shared: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none can be started for a grammar, the request may come again."""
    trials = shared.engine._of_model()._trials
    _end(trials._idle)
    monkeypatch.setattr(trials, "_idle", _Ended())
    monkeypatch.setattr(trials, "_command", ["/none"])
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": "no process"}}}
    asked = body(response_format=schema, max_tokens=9)
    assert error_of(shared.ask("POST", TEXT, asked))[:2] == (500, "grammar_process")
    monkeypatch.undo()
    assert shared.ask("POST", TEXT, asked)[0] == 200


def test_bodies(shared: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many values, messages, texts to stop at, bytes together, and one that does not come."""
    commas = b'{"model": "tiny", "prompt": "' + b"," * (application_module._MOST_COMMAS + 1) + b'"}'
    assert error_of(shared.ask("POST", TEXT, commas)) == (400, "body_too_large", None)
    many = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": ""}] * 5000}).encode()
    assert error_of(shared.ask("POST", CHAT, many)) == (400, "context_length_exceeded", "messages")
    asked = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "a"}}] * 5000}
    many = json.dumps({"model": "tiny", "messages": [asked]}).encode()
    assert error_of(shared.ask("POST", CHAT, many)) == (400, "context_length_exceeded", "messages")
    assert error_of(shared.ask("POST", TEXT, body(stop=["a" * 1000] * 5))) == (400, "parameter_invalid", "stop")
    with monkeypatch.context() as patch:
        patch.setattr(application_module, "_MOST_HELD", 100)
        with sent(shared, b"{" * 80, length=200):
            soon(lambda: error_of(shared.ask("POST", TEXT, body(user="a" * 50)))[:2] == (503, "overloaded"))
    soon(lambda: shared.ask("POST", TEXT, body(max_tokens=1))[0] == 200)
    monkeypatch.setattr(application_module, "_BODY_SECONDS", 0.2)
    with sent(shared, b"{", length=200) as slow:
        response = HTTPResponse(slow)
        response.begin()
        assert error_of((response.status, response.read()))[:2] == (408, "request_timeout")


def test_health_says_what_is_stuck(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that does not end, and requests that are not parsed."""
    with serving(path, app={"stuck_after": 0.1}) as server, ThreadPoolExecutor(5) as pool:
        with blocked(monkeypatch, server.engine._scheduler, "_run") as (_, go_on):
            asked = pool.submit(server.ask, "POST", TEXT, body(max_tokens=1))
            soon(lambda: server.ask("GET", "/health")[0] == 503)
            assert json.loads(server.ask("GET", "/health")[1])["status"] == "stuck"
            assert server.metric("kvcache_stuck_seconds") > 0
            go_on.set()
            assert asked.result()[0] == 200
        soon(lambda: server.ask("GET", "/health") == (200, b'{"status":"ok"}'))
        monkeypatch.setattr(application_module, "_HEALTH_SECONDS", 0.1)
        with blocked(monkeypatch, application_module, "read_call") as (begun, go_on):
            several = [pool.submit(server.ask, "POST", TEXT, body(max_tokens=1)) for _ in range(4)]
            soon(lambda: len(begun) == 4)
            status, content = server.ask("GET", "/health")
            assert status == 503 and json.loads(content)["parsing_seconds"] > 0
            go_on.set()
            assert [one.result()[0] for one in several] == [200] * 4
        soon(lambda: server.ask("GET", "/health")[0] == 200)
    with refused("serve_range", "stuck_after is 0"):
        application(server.engine, stuck_after=0)


class Panic(BaseException):
    """As a package in Rust raises it."""


def test_a_panic_is_its_requests_alone(shared: Serving, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the tokenizer, before an answer, of the step and in the answer; the next request is served."""
    good, scheduler = shared.client.completions.create, shared.engine._scheduler

    def panics(*_: object, **__: object) -> None:
        raise Panic("unwrap on None")

    for of, name in ((shared.engine, "encode"), (shared.engine, "submit"), (scheduler, "_run"), (RequestState, "take")):
        with monkeypatch.context() as patch:
            patch.setattr(of, name, panics)
            status, content = shared.ask("POST", TEXT, body())
            assert status == 500 and b"unwrap on None" in content
        assert good(prompt=TEXTS[0], **GREEDY).choices[0].text == expected[0]


def test_events_are_one_line(shared: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for clients that end lines as Python does."""
    text = "a\u2028b\u2029c\x85d\n\r\x0b\x0c\x1c\x1d\x1ee"
    assert json.loads(event({"text": text}).removeprefix(b"data: ")) == {"text": text}
    assert len(event({"text": text}).decode().splitlines()) == 2


def test_a_quiet_stream_has_comments(shared: Serving, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its first event, which proxies wait for; and no proxy is to collect its events."""
    monkeypatch.setattr(application_module, "_QUIET", 0.05)
    with blocked(monkeypatch, shared.engine._scheduler, "_run") as (_, go_on):
        connection = HTTPConnection("127.0.0.1", shared.port, timeout=60)
        connection.request("POST", TEXT, body(stream=True))
        response = connection.getresponse()
        assert response.headers["X-Accel-Buffering"] == "no"
        assert [response.readline() for _ in range(4)] == [b":\n", b"\n"] * 2
        go_on.set()
    events = [line.removeprefix(b"data: ") for line in response.read().splitlines() if line.startswith(b"data: ")]
    assert events.pop() == b"[DONE]"
    assert "".join(json.loads(found)["choices"][0]["text"] for found in events) == expected[0]
    connection.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_has_closed_its_sending_side(shared: Serving, expected: list[str], stream: bool) -> None:
    """Gets its answer; one that is gone, which looks the same at first, frees its place."""
    with sent(shared, body(stream=stream)) as connection:
        connection.shutdown(socket.SHUT_WR)
        response = HTTPResponse(connection)
        response.begin()
        content = response.read()
        assert response.status == 200 and connection.recv(1) == b""
    assert content.endswith(b"data: [DONE]\n\n") if stream else json.loads(content)["choices"][0]["text"] == expected[0]
    cancelled = 'kvcache_requests_total{finish="cancelled"}'
    before = shared.metric(cancelled)
    with sent(shared, body(stream=stream, max_tokens=4000)):
        soon(lambda: shared.metric('kvcache_requests_now{state="running"}') == 1)
    soon(lambda: shared.metric(cancelled) == before + 1)


def test_idle_connections(shared: Serving, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """End also before their first request, after the seconds that `serve` takes: 75."""
    monkeypatch.setattr(shared.server.config, "timeout_keep_alive", 0.1)
    with socket.create_connection(("127.0.0.1", shared.port), timeout=60) as connection:
        assert connection.recv(1) == b""
    configs = list[uvicorn.Config]()
    monkeypatch.setattr(_server.Server, "run", lambda server: configs.append(server.config))
    serve(shared.engine)
    serve(shared.engine, keep_alive=3)
    assert [config.timeout_keep_alive for config in configs] == [75, 3]
    with refused("serve_range", "keep_alive is -1"):
        serve(shared.engine, keep_alive=-1)


def test_what_waits_is_not_told_at_each_step(path: Path) -> None:
    """After a step there are as many calls where one request waits and where hundreds do."""

    async def told(count: int) -> int:
        engine = Engine(path, threads=1, max_tokens=256, max_batch=1, threaded=False)
        with refused("serve_range", "threaded=False"):
            application(engine)
        dispatcher, counts = Dispatcher(engine, Metrics(), 1000), list[int]()
        answers = Answers(dispatcher, 1 + count, 1)
        [(key, on_step)] = engine._scheduler.watchers.items()
        engine._scheduler.watchers[key] = lambda *step: counts.append(calls(lambda: on_step(*step)))
        answers.submit([[5, 6]] * (1 + count), [None] * (1 + count), {"max_new_tokens": 20, "seed": None})
        for _ in range(5):
            engine.step()
        piece = await anext(answers.pieces())  # of all steps: who reads late gets larger pieces, not more of them
        assert piece.text == answers._requests[0].text and answers._news.empty()
        return min(counts)

    assert asyncio.run(told(1)) == asyncio.run(told(300))
