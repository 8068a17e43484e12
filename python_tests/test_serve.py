"""The OpenAI HTTP interface: models, clients that come and go, requests that are refused, shutdown."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from threading import Event

import openai
import pytest
from kvcache_ops.engine import Engine
from kvcache_ops.manager import tier
from kvcache_ops.models import ChatTemplate
from kvcache_ops.serve import serve
from openai import OpenAI

from compare import refused
from served import GREEDY, MESSAGES, NAN_TOKEN, TEXTS, Serving, expected, path, serving, shared
from tiny_models import TOKENS

__all__ = ["expected", "path", "shared"]  # fixtures


def test_models(shared: Serving) -> None:
    """The one that there is."""
    assert [model.id for model in shared.client.models.list()] == ["tiny"]
    assert shared.client.models.retrieve("tiny").owned_by == "kvcache_ops"
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt', expected 'tiny'"):
        shared.client.models.retrieve("gpt")
    assert shared.ask("GET", "/health") == (200, b'{"status":"ok"}')


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
    shared.wait(lambda: shared.metric('kvcache_cache_slots{state="used"}') == 0)


def test_disconnects(shared: Serving, expected: list[str]) -> None:
    """A client that goes frees its place, in a stream and while it waits for the whole."""
    cancelled = 'kvcache_requests_total{finish="cancelled"}'
    before = shared.metric(cancelled)
    stream = shared.client.chat.completions.create(messages=MESSAGES, stream=True, **GREEDY)
    for _, chunk in zip(range(3), stream):
        assert chunk.choices
    assert shared.metric('kvcache_requests_now{state="running"}') == 1
    stream.close()
    shared.wait(lambda: shared.metric(cancelled) == before + 1)
    with pytest.raises(openai.APITimeoutError):
        shared.client.with_options(timeout=0.3).chat.completions.create(messages=MESSAGES, **GREEDY)
    shared.wait(lambda: shared.metric(cancelled) == before + 2)
    assert (
        shared.metric('kvcache_cache_slots{state="used"}')
        == 0
        == shared.metric('kvcache_requests_now{state="waiting"}')
    )
    assert shared.client.completions.create(prompt=TEXTS[0], **GREEDY).choices[0].text == expected[0]


TEXT, CHAT, CONTENT = "/v1/completions", "/v1/chat/completions", "messages[0].content"
BAD: list[tuple[str, object, str, str | None]] = [
    (TEXT, b"", "json_invalid", None),
    (TEXT, b"{", "json_invalid", None),
    (TEXT, b"\xff\xfe", "json_invalid", None),
    (TEXT, b"[" * 100_000, "json_invalid", None),
    (TEXT, b"[]", "json_invalid", None),
    (TEXT, b'{"prompt": "a"}', "parameter_missing", "model"),
    (TEXT, {"model": 5}, "parameter_invalid", "model"),
    (TEXT, {"prompt": None}, "parameter_invalid", "prompt"),
    (TEXT, {"prompt": {}}, "parameter_invalid", "prompt"),
    (TEXT, {"prompt": [1, "a"]}, "parameter_invalid", "prompt"),
    (TEXT, {"prompt": [1.5]}, "parameter_invalid", "prompt"),
    (TEXT, {"prompt": ""}, "prompt_empty", "prompt"),
    (TEXT, {"prompt": []}, "prompt_empty", "prompt"),
    (TEXT, {"prompt": ["a", ""]}, "prompt_empty", "prompt"),
    (TEXT, {"prompt": "\ud800"}, "prompt_type", "prompt"),
    (TEXT, {"prompt": [len(TOKENS)]}, "token_range", "prompt"),
    (TEXT, {"prompt": [10**30]}, "token_range", "prompt"),
    (TEXT, {"prompt": "a" * 5000}, "context_length_exceeded", "prompt"),
    (TEXT, {"max_tokens": 0}, "parameter_invalid", "max_tokens"),
    (TEXT, {"max_tokens": "5"}, "parameter_invalid", "max_tokens"),
    (TEXT, {"max_tokens": True}, "parameter_invalid", "max_tokens"),
    (TEXT, {"temperature": -1}, "parameter_invalid", "temperature"),
    (TEXT, b'{"model": "tiny", "prompt": "a", "temperature": NaN}', "parameter_invalid", "temperature"),
    (TEXT, {"temperature": "hot"}, "parameter_invalid", "temperature"),
    (TEXT, {"top_p": 2}, "parameter_invalid", "top_p"),
    (TEXT, {"top_k": 1.5}, "parameter_invalid", "top_k"),
    (TEXT, {"seed": 1.5}, "parameter_invalid", "seed"),
    (TEXT, {"stop": 5}, "parameter_invalid", "stop"),
    (TEXT, {"stop": [5]}, "parameter_invalid", "stop"),
    (TEXT, {"stream": "yes"}, "parameter_invalid", "stream"),
    (TEXT, {"stream_options": {"other": 1}}, "unsupported_parameter", "stream_options.other"),
    (TEXT, {"n": 0}, "parameter_invalid", "n"),
    (TEXT, {"n": 65}, "parameter_invalid", "n"),
    (TEXT, {"prompt": ["a"] * 65}, "parameter_invalid", "prompt"),
    (TEXT, {"n": 2, "best_of": 3}, "parameter_invalid", "best_of"),
    (TEXT, {"logprobs": 6}, "parameter_invalid", "logprobs"),
    (CHAT, {"messages": MESSAGES, "logprobs": 1}, "parameter_invalid", "logprobs"),
    (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 21}, "parameter_invalid", "top_logprobs"),
    (CHAT, {"messages": MESSAGES, "top_logprobs": 1}, "parameter_invalid", "top_logprobs"),
    (TEXT, {"\ud800": 1}, "unsupported_parameter", None),
    (CHAT, {}, "parameter_invalid", "messages"),
    (CHAT, {"messages": []}, "parameter_invalid", "messages"),
    (CHAT, {"messages": ["a"]}, "parameter_invalid", "messages[0]"),
    (CHAT, {"messages": [{"content": "a"}]}, "parameter_invalid", "messages[0].role"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, "parameter_invalid", CONTENT),
    (CHAT, {"messages": [{"role": "user"}]}, "parameter_invalid", CONTENT),
    (CHAT, {"messages": [{"role": "user", "content": None}]}, "parameter_invalid", CONTENT),
    (CHAT, {"messages": [{"role": "user", "content": "a" * 10_000_000}]}, "context_length_exceeded", "messages"),
    (TEXT, {"prompt": "a" * 10_000_000}, "context_length_exceeded", "prompt"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "parameter_invalid", CONTENT),
    (CHAT, {"messages": [{"role": "user", "tool_calls": [1]}]}, "unsupported_parameter", "messages[0].tool_calls"),
    (CHAT, {"messages": [{"role": "user", "content": "\ud800"}]}, "prompt_type", "messages"),
    (CHAT, {"messages": [{"role": "user", "content": "a" * 5000}]}, "context_length_exceeded", "messages"),
    (CHAT, {"messages": MESSAGES, "tools": [{"type": "function"}]}, "unsupported_parameter", "tools"),
]  # fmt: skip


def test_bad_requests(shared: Serving, expected: list[str]) -> None:
    """Each is 400 with a code and the parameter, and touches no other; a stream is refused before it begins."""
    with ThreadPoolExecutor(1) as pool:
        good = pool.submit(shared.client.completions.create, prompt=TEXTS, **GREEDY)
        for path, given, code, param in BAD:
            defaults = {"model": "tiny"} | ({"prompt": "a"} if path == TEXT else {})
            for more in ({}, {"stream": True}):
                body = given if isinstance(given, bytes) else json.dumps(defaults | more | given).encode()
                status, content = shared.ask("POST", path, body)
                error = json.loads(content)["error"]
                assert (status, error["code"], error["param"]) == (400, code, param), (given, error)
                assert error["type"] == "invalid_request_error" and error["message"]
        assert [choice.text for choice in good.result().choices] == expected
    with pytest.raises(openai.BadRequestError) as caught:
        shared.client.completions.create(prompt="a" * 5000, **GREEDY)
    assert caught.value.code == "context_length_exceeded"
    assert "the prompt has 5000 tokens, expected at most 4096" in str(caught.value)
    for method, path, status, code in (
        ("GET", "/v2", 404, "not_found"),
        ("GET", TEXT, 405, "method_not_allowed"),
        ("POST", TEXT, 413, "body_too_large"),
    ):
        found, content = shared.ask(method, path, b" " * ((16 << 20) + 1) if status == 413 else None)
        assert (found, json.loads(content)["error"]["code"]) == (status, code)
    assert shared.metric('kvcache_cache_slots{state="used"}') == 0


def test_what_fails_fails_alone(shared: Serving, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN logits end one request; a step that fails ends every request in it, and the next ones are served."""
    ask = shared.client.completions.create
    with pytest.raises(openai.InternalServerError) as caught:
        ask(prompt=[[3, NAN_TOKEN], [5]], **GREEDY)
    assert caught.value.code == "logits_not_finite"
    with pytest.raises(openai.APIError, match="logits have nan"):
        list(ask(prompt=[3, NAN_TOKEN], stream=True, **GREEDY))

    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(shared.engine._scheduler, "_run", fail)
        with pytest.raises(openai.InternalServerError, match="a step failed: no memory"):
            ask(prompt="a", **GREEDY)
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
        full.wait(lambda: full.metric('kvcache_requests_total{finish="cancelled"}') == 1)
        assert next(streams[0]).choices
        streams[0].close()
        assert ask(messages=MESSAGES, max_tokens=3, **GREEDY).usage.completion_tokens == 3


def test_a_prompt_is_tokenized_in_its_place(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is beyond the limit is refused before it costs anything; a place is free again after a refusal."""
    with serving(path, app={"max_requests": 1}) as full, ThreadPoolExecutor(1) as pool:
        begun, go_on, encode = Event(), Event(), full.engine.encode

        def wait(prompt: str) -> list[int]:
            begun.set()
            assert go_on.wait(60)
            return encode(prompt)

        monkeypatch.setattr(full.engine, "encode", wait)
        ask = full.client.completions.create
        first = pool.submit(ask, prompt="", **GREEDY)
        assert begun.wait(60)
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
        ending.wait(lambda: ending.metric('kvcache_requests_now{state="running"}') == 2)
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


def test_a_shutdown_lets_answers_end(path: Path, expected: list[str]) -> None:
    """In the time that it gives."""
    with serving(path, grace=60) as ending:
        stream = ending.client.completions.create(prompt=TEXTS[0], stream=True, **GREEDY)
        first = next(stream)
        ending.server.should_exit = True
        assert "".join(chunk.choices[0].text for chunk in [first, *stream]) == expected[0]


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


@pytest.mark.parametrize("options", [{"port": 99999}, {"port": -1}, {"grace": -1}, {"max_requests": 0}])
def test_the_command_refuses(shared: Serving, options: dict[str, int]) -> None:
    """Before it listens."""
    with refused("serve_range"):
        serve(shared.engine, **{"port": 0} | options)


def test_completions(shared: Serving, expected: list[str]) -> None:
    """Of a text, of tokens, of several; with usage."""
    found = shared.client.completions.create(prompt=TEXTS[0], **GREEDY)
    tokens = shared.engine.encode(TEXTS[0])
    assert (found.choices[0].text, found.choices[0].finish_reason) == (expected[0], "length")
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (5, 16, 21)
    assert shared.client.completions.create(prompt=tokens, **GREEDY).choices[0].text == expected[0]
    several = shared.client.completions.create(prompt=TEXTS, **GREEDY)
    assert [choice.text for choice in several.choices] == expected and several.usage.completion_tokens == 64
    streamed = [""] * 4
    for chunk in shared.client.completions.create(prompt=TEXTS, stream=True, **GREEDY):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == expected


def test_sampling(shared: Serving) -> None:
    """A seed, also a negative one, fixes the answer; a stop ends it; what is beyond OpenAI's is taken, too."""
    ask = shared.client.completions.create
    options = dict(model="tiny", prompt="a", seed=-3, temperature=1.5, top_p=0.9)
    first = ask(**options).choices[0].text
    assert ask(**options).choices[0].text == first != ask(**options | {"seed": 4}).choices[0].text
    # -1 is any; of one token, since one behind "~" would fail.
    drawn = options | {"seed": -1, "temperature": 2, "top_p": 1, "max_tokens": 1}
    assert len({ask(**drawn).choices[0].text for _ in range(16)}) > 1
    assert ask(**options, extra_body={"top_k": 1}).choices[0].text == ask(prompt="a", **GREEDY).choices[0].text
    stop = first[2:4]
    for given in (stop, ["not there", stop]):
        choice = ask(**options, stop=given).choices[0]
        assert (choice.text, choice.finish_reason) == (first[: first.index(stop)], "stop")


def test_several_answers(shared: Serving) -> None:
    """To each prompt, as with seeds of their own; a prompt counts once, whose full pages are computed once."""
    ask, options = shared.client.completions.create, dict(model="tiny", temperature=1.5, max_tokens=9)
    single = [ask(prompt=TEXTS[i], seed=7 + j, **options).choices[0].text for i in (0, 2) for j in range(3)]
    found = ask(prompt=[TEXTS[0], TEXTS[2]], seed=7, n=3, best_of=3, **options)
    assert [choice.text for choice in found.choices] == single and len(set(single)) == 6
    tokens = sum(len(shared.engine.encode(TEXTS[i])) for i in (0, 2))
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (tokens, 54)
    streamed = {0: "", 1: ""}
    chat = shared.client.chat.completions.create
    whole = chat(messages=MESSAGES, n=2, seed=1, **options)
    for chunk in chat(messages=MESSAGES, n=2, seed=1, stream=True, **options):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == {choice.index: choice.message.content for choice in whole.choices}


def test_logprobs(shared: Serving, path: Path) -> None:
    """Those of the engine, of the tokens whose text is given; whole and streamed; in both of OpenAI's forms."""
    engine, stop = Engine(path, max_tokens=512, threads=1), []
    for cut in (False, True):
        options = dict(temperature=1.5, seed=5, stop=stop, logprobs=2)
        [request] = engine.generate([TEXTS[0]], max_new_tokens=16, **options)
        tokens = [token for token in request.logprobs if not cut or token.offset < len(request.text)]
        found = shared.client.completions.create(model="tiny", prompt=TEXTS[0], **options).choices[0].logprobs
        assert found.token_logprobs == [token.logprob for token in tokens]
        assert found.text_offset == [token.offset for token in tokens]
        assert [len(top) - (token.token not in dict(token.top)) for token, top in zip(tokens, found.top_logprobs)] == [
            2
        ] * len(tokens)
        assert all(name in top for name, top in zip(found.tokens, found.top_logprobs))
        assert (len(tokens) < len(request.answer)) == cut
        stop = [request.text[3:5]]
    chat, options = (
        shared.client.chat.completions.create,
        dict(messages=MESSAGES, logprobs=True, max_tokens=16, **GREEDY),
    )
    whole = chat(top_logprobs=3, **options).choices[0]
    entries = whole.logprobs.content
    assert bytes(byte for entry in entries for byte in entry.bytes).decode(errors="replace") == whole.message.content
    for entry in entries:
        assert entry.top_logprobs[0].token == entry.token and len(entry.top_logprobs) == 3
        logprobs = [top.logprob for top in entry.top_logprobs]
        assert logprobs == sorted(logprobs, reverse=True) and logprobs[0] == entry.logprob < 0
    assert any(entry.token.startswith("bytes:\\x") for entry in entries)
    streamed = [entry for chunk in chat(top_logprobs=3, stream=True, **options) for choice in chunk.choices
                for entry in choice.logprobs.content]  # fmt: skip
    assert streamed == entries
    assert chat(**options).choices[0].logprobs.content[0].top_logprobs == []


def test_echo(shared: Serving, path: Path) -> None:
    """An answer begins with its prompt, whose tokens have logprobs: what lm-evaluation-harness scores by."""
    complete, text = shared.client.completions.create, TEXTS[2]
    tokens = shared.engine.encode(text)
    [scored] = Engine(path, max_tokens=512, threads=1).generate(
        [tokens], max_new_tokens=2, prompt_logprobs=1, logprobs=1
    )
    expected = [token.logprob for token in [*scored.prompt_logprobs, *scored.logprobs]]
    for prompt in (text, tokens):
        whole = complete(prompt=prompt, echo=True, logprobs=1, max_tokens=2, **GREEDY).choices[0]
        assert (whole.text, whole.logprobs.token_logprobs) == (text + scored.text, expected)
        assert whole.logprobs.token_logprobs[0] is whole.logprobs.top_logprobs[0] is None
        offsets = whole.logprobs.text_offset
        assert offsets[0] == 0 and offsets[len(tokens)] == len(text) and sorted(offsets) == offsets
    [none] = complete(prompt=tokens, echo=True, logprobs=1, max_tokens=0, **GREEDY).choices
    assert (none.text, none.finish_reason, none.logprobs.token_logprobs) == (text, "length", expected[: len(tokens)])
    chunks = complete(prompt=[text, tokens], echo=True, stream=True, max_tokens=2, **GREEDY)
    pieces = [choice for chunk in chunks for choice in chunk.choices]
    assert ["".join(choice.text for choice in pieces if choice.index == i) for i in (0, 1)] == [text + scored.text] * 2
    assert complete(prompt=text, echo=True, max_tokens=0, **GREEDY).usage.completion_tokens == 0


def test_chat(shared: Serving, path: Path) -> None:
    """Whole and streamed; what of the prompt is in the cache is said."""
    engine = Engine(path, max_tokens=512, threads=1)
    [request] = engine.generate([ChatTemplate(engine.model).tokens(MESSAGES)], max_new_tokens=9)
    ask = shared.client.chat.completions.create
    found = ask(messages=MESSAGES, max_tokens=9, **GREEDY)
    assert (found.choices[0].message.role, found.choices[0].message.content) == ("assistant", request.text)
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "theme"}]
    messages = [MESSAGES[0], {"role": "user", "content": parts}]
    options = dict(stream=True, stream_options={"include_usage": True}, max_completion_tokens=9)
    chunks = list(ask(messages=messages, **options, **GREEDY))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == request.text
    assert chunks[-2].choices[0].finish_reason == "length" and not chunks[-1].choices
    usage = chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(request.prompt), 9)
    assert usage.prompt_tokens_details.cached_tokens == len(request.prompt) // 8 * 8


def test_context_shift(path: Path, expected: list[str]) -> None:
    """A chat longer than the context loses its oldest messages, an answer goes on past it; a prompt is refused."""
    turns = [{"role": role, "content": "the"} for _ in range(9) for role in ("user", "assistant")]
    with serving(path, app={"context_shift": True}, max_tokens=128) as server:
        ask = server.client.chat.completions.create
        found = ask(messages=[MESSAGES[0], *turns, MESSAGES[1]], max_tokens=5, **GREEDY)
        same = ask(messages=[MESSAGES[0], *turns[-2:], MESSAGES[1]], max_tokens=5, **GREEDY)
        assert found.usage.prompt_tokens == same.usage.prompt_tokens <= 64
        assert found.choices[0].message.content == same.choices[0].message.content
        assert ask(messages=MESSAGES, max_tokens=300, **GREEDY).usage.completion_tokens == 300
        complete = server.client.completions.create
        assert complete(prompt="a", max_tokens=300, **GREEDY).usage.completion_tokens == 300
        with pytest.raises(openai.BadRequestError, match="129 tokens"):
            complete(prompt="a" * 129, **GREEDY)


def test_what_clients_send(shared: Serving) -> None:
    """Roles, thoughts that are given back, variables of the template, values that change nothing."""
    ask = shared.client.chat.completions.create
    said = [{**MESSAGES[0], "role": "developer"}, MESSAGES[1]]
    expected = ask(messages=MESSAGES, max_tokens=5, **GREEDY)
    neutral = {"repetition_penalty": 1.0, "top_k": -1, "presence_penalty": 0, "logit_bias": {}, "tools": [],
               "response_format": {"type": "text"}, "min_tokens": 0, "chat_template_kwargs": {"most": 1}}  # fmt: skip
    about = {"user": "a", "store": False, "metadata": {}, "service_tier": "auto"}
    found = ask(messages=said, max_tokens=5, extra_body=neutral | about, **GREEDY)
    assert found.choices[0].message.content == expected.choices[0].message.content
    thoughts = [*MESSAGES, {"role": "assistant", "content": "a", "reasoning_content": "b"}, MESSAGES[1]]
    assert ask(messages=thoughts, max_tokens=1, **GREEDY).choices
    repeated = ask(messages=MESSAGES, max_tokens=40, **GREEDY).choices[0].message.content
    others = ask(
        messages=MESSAGES, max_tokens=40, frequency_penalty=2, extra_body={"repetition_penalty": 1.5}, **GREEDY
    )
    assert others.choices[0].message.content != repeated
    for more in (
        {"repetition_penalty": 0},
        {"min_tokens": 1},
        {"chat_template_kwargs": {"messages": []}},
        {"chat_template_kwargs": 1},
    ):
        with pytest.raises(openai.BadRequestError):
            ask(messages=MESSAGES, extra_body=more, **GREEDY)


def test_methods(shared: Serving) -> None:
    """What a path allows is said, to OPTIONS and with a refusal."""
    connection = HTTPConnection("127.0.0.1", shared.port, timeout=60)
    for method, where, status, allowed in (
        ("HEAD", "/v1/models", 200, None),
        ("OPTIONS", "/v1/models", 204, {"GET", "HEAD"}),
        ("OPTIONS", CHAT, 204, {"POST"}),
        ("GET", CHAT, 405, {"POST"}),
        ("OPTIONS", "/v2", 404, None),
    ):
        connection.request(method, where)
        response = connection.getresponse()
        response.read()
        allow = response.getheader("allow")
        assert (response.status, allow and set(allow.split(", "))) == (status, allowed)
    connection.close()


def test_keys_and_origins(path: Path) -> None:
    """Without its key nothing below /v1 is told; a page of an origin that is allowed may ask."""
    with serving(path, app={"api_key": "secret", "allow_origin": ["http://page"]}) as server:
        assert [server.ask("GET", path)[0] for path in ("/v1/models", "/llm/v1/models", "/health")] == [401, 401, 200]
        with pytest.raises(openai.AuthenticationError, match="missing or wrong"):
            server.client.models.list()
        assert server.client.with_options(api_key="secret").models.list().data[0].id == "tiny"
        for value, status in (("bearer secret", 200), ("Basic secret", 401), ("Bearer secret2", 401), ("secret", 401)):
            connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
            connection.request("GET", "/v1/models", headers={"Authorization": value})
            assert connection.getresponse().status == status
            connection.close()
        for origin, status, allowed in (("http://page", 200, "http://page"), ("http://other", 400, None)):
            connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
            headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            connection.request("OPTIONS", "/v1/completions", headers=headers)
            response = connection.getresponse()
            assert (response.status, response.getheader("access-control-allow-origin")) == (status, allowed)
            connection.close()
