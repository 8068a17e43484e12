"""Many clients at once: they come and go, one that fails or is too many harms no other, and a server shuts down."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from kvcache_ops.manager import tier
from openai import OpenAI

from compare import refused
from engines import NAN_TOKEN, soon
from served import GREEDY, MESSAGES, TEXTS, Serving, blocked, expected, path, serving, shared

__all__ = ["expected", "path", "shared"]  # fixtures


def test_twenty_clients(shared: Serving, expected: list[str]) -> None:
    """At once, more than run at once: each gets its own answer."""

    def ask(i: int) -> str:
        client = shared.client.with_options()
        if i % 2:
            return client.completions.create(prompt=TEXTS[i % 4], **GREEDY).choices[0].text
        stream = client.completions.create(prompt=TEXTS[i % 4], stream=True, **GREEDY)
        return "".join(chunk.choices[0].text for chunk in stream)

    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(ask, range(20))) == [expected[i % 4] for i in range(20)]
    soon(lambda: shared.metric('kvcache_cache_slots{state="used"}') == 0)


def test_disconnects(shared: Serving, expected: list[str]) -> None:
    """A client that goes frees its place, in a stream and while it waits for the whole."""
    cancelled = 'kvcache_requests_total{finish="cancelled"}'
    before = shared.metric(cancelled)
    stream = shared.client.chat.completions.create(messages=MESSAGES, stream=True, **GREEDY)
    for _, chunk in zip(range(3), stream):
        assert chunk.choices
    assert shared.metric('kvcache_requests_now{state="running"}') == 1
    stream.close()
    soon(lambda: shared.metric(cancelled) == before + 1)
    with pytest.raises(openai.APITimeoutError):
        shared.client.with_options(timeout=0.3).chat.completions.create(messages=MESSAGES, **GREEDY)
    soon(lambda: shared.metric(cancelled) == before + 2)
    for nothing in ('kvcache_cache_slots{state="used"}', 'kvcache_requests_now{state="waiting"}'):
        assert shared.metric(nothing) == 0
    assert shared.client.completions.create(prompt=TEXTS[0], **GREEDY).choices[0].text == expected[0]


def test_what_fails_fails_alone(shared: Serving, expected: list[str]) -> None:
    """NaN logits end one request alone, and the next ones are served."""
    ask = shared.client.completions.create
    with pytest.raises(openai.InternalServerError) as caught:
        ask(prompt=[[3, NAN_TOKEN], [5]], **GREEDY)
    assert caught.value.code == "logits_not_finite"
    with pytest.raises(openai.APIError, match="logits have nan"):
        list(ask(prompt=[3, NAN_TOKEN], stream=True, **GREEDY))
    assert ask(prompt=TEXTS[0], **GREEDY).choices[0].text == expected[0]
    assert shared.metric('kvcache_cache_slots{state="used"}') == 0


def test_overload(path: Path) -> None:
    """What is beyond the limit gets 503, and its place when there is one."""
    with serving(path, app={"max_requests": 2}, max_batch=1, token_budget=64) as full:
        ask = full.client.chat.completions.create
        streams = [ask(messages=MESSAGES, stream=True, **GREEDY) for _ in range(2)]
        assert full.metric('kvcache_requests_now{state="waiting"}') == 1
        with pytest.raises(openai.InternalServerError) as caught:
            ask(messages=MESSAGES, **GREEDY)
        assert (caught.value.status_code, caught.value.code) == (503, "overloaded")
        assert caught.value.response.headers["retry-after"] == "1"
        streams[1].close()  # it waits
        soon(lambda: full.metric('kvcache_requests_total{finish="cancelled"}') == 1)
        assert next(streams[0]).choices
        streams[0].close()
        assert ask(messages=MESSAGES, max_tokens=3, **GREEDY).usage.completion_tokens == 3


def test_a_prompt_is_tokenized_in_its_place(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is beyond the limit is refused before it costs anything; a place is free again after a refusal."""
    with serving(path, app={"max_requests": 1}) as full, ThreadPoolExecutor(1) as pool:
        ask = full.client.completions.create
        with blocked(monkeypatch, full.engine, "encode") as (begun, go_on):
            first = pool.submit(ask, prompt="", **GREEDY)
            soon(lambda: len(begun) == 1)
            with pytest.raises(openai.InternalServerError, match="expected at most 1"):
                ask(prompt="a", **GREEDY)
            go_on.set()
            with pytest.raises(openai.BadRequestError, match="no tokens"):
                first.result()
        assert ask(prompt="a", **GREEDY).choices


def test_shutdown_in_the_middle(path: Path) -> None:
    """Streams and whole answers end with an error, and nothing hangs; what arrives meanwhile is refused."""
    with serving(path, grace=0.5) as ending, ThreadPoolExecutor(2) as pool:
        ask = ending.client.chat.completions.create
        stream = ask(messages=MESSAGES, stream=True, **GREEDY)
        whole = pool.submit(ask, messages=MESSAGES, **GREEDY)
        soon(lambda: ending.metric('kvcache_requests_now{state="running"}') == 2)
        begin = time.perf_counter()
        ending.server.should_exit = True
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
        with pytest.raises(openai.InternalServerError, match="shutting down"):
            whole.result()
        ending.stop()
        assert time.perf_counter() - begin < 20
    with pytest.raises(openai.APIConnectionError):
        ask(messages=MESSAGES, **GREEDY)


def test_a_shutdown_lets_answers_end(path: Path, expected: list[str]) -> None:
    """In the time that it gives."""
    with serving(path, grace=60) as ending:
        stream = ending.client.completions.create(prompt=TEXTS[0], stream=True, **GREEDY)
        first = next(stream)
        ending.server.should_exit = True
        assert "".join(chunk.choices[0].text for chunk in [first, *stream]) == expected[0]


def test_tiers(path: Path, tmp_path: Path) -> None:
    """What a server has computed the next one finds, with the same bits; metrics say so."""
    answers = []
    for found in (0, 48):
        with serving(path, tiers=[tier(f"file:{tmp_path},1G")]) as server:
            answer = server.client.completions.create(prompt="the theme" * 10, **GREEDY)
            answers.append(answer.choices[0].text)
            assert answer.usage.prompt_tokens_details.cached_tokens == found
            assert server.metric('kvcache_tier_hits_total{tier="1-file"}') == found / 8
    assert answers[0] == answers[1]
    for address in ("host:", "file:20G", "4G", "host:4X", "file:,4G"):
        with refused("tier_address"):
            tier(address)


def test_the_command(path: Path) -> None:
    """Until Ctrl-C, which lets an answer go on, and another, which ends it; the model's id is in the log."""
    command = [sys.executable, "-m", "kvcache_ops", "serve", str(path), "--port", "0"]
    with subprocess.Popen([*command, "--threads", "1"], stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stderr
        log = [next(process.stderr)]
        while not (found := re.search(rb"127\.0\.0\.1:(\d+)", log[-1])):
            log.append(next(process.stderr))
        port = found[1].decode()
        assert b"Serving the model tiny\n" in b"".join(log)
        client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=60)
        stream = client.chat.completions.create(messages=MESSAGES, stream=True, **GREEDY)
        assert next(stream).choices
        process.send_signal(signal.SIGINT)
        assert b"Shutting down" in next(process.stderr) and next(stream).choices
        process.send_signal(signal.SIGINT)
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
        assert b"Traceback" not in process.communicate(timeout=30)[1]
    assert process.returncode == 0
