"""What the HTTP interface refuses: bodies and values, methods and paths, keys and origins, options of a server."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from kvcache_ops.serve import serve

from compare import refused
from served import CHAT, GREEDY, MESSAGES, TEXT, TEXTS, Serving, expected, path, serving, shared
from tiny_models import TOKENS

__all__ = ["expected", "path", "shared"]  # fixtures


CONTENT = "messages[0].content"
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
    (TEXT, {"seed": 1.5}, "parameter_invalid", "seed"),
    (TEXT, {"stop": 5}, "parameter_invalid", "stop"),
    (TEXT, {"stream": "yes"}, "parameter_invalid", "stream"),
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


def test_methods(shared: Serving) -> None:
    """What a path allows is said, to OPTIONS and with a refusal."""
    for method, where, status, allowed in (
        ("HEAD", "/v1/models", 200, None),
        ("OPTIONS", "/v1/models", 204, {"GET", "HEAD"}),
        ("OPTIONS", CHAT, 204, {"POST"}),
        ("GET", CHAT, 405, {"POST"}),
        ("OPTIONS", "/v2", 404, None),
    ):
        response, _ = shared.response(method, where)
        allow = response.getheader("allow")
        assert (response.status, allow and set(allow.split(", "))) == (status, allowed)


def test_keys_and_origins(path: Path) -> None:
    """Without its key nothing below /v1 is told; a page of an origin that is allowed may ask."""
    with serving(path, app={"api_key": "secret", "allow_origin": ["http://page"]}) as server:
        assert [server.ask("GET", path)[0] for path in ("/v1/models", "/llm/v1/models", "/health")] == [401, 401, 200]
        with pytest.raises(openai.AuthenticationError, match="missing or wrong"):
            server.client.models.list()
        assert server.client.with_options(api_key="secret").models.list().data[0].id == "tiny"
        for value, status in (("bearer secret", 200), ("Basic secret", 401), ("Bearer secret2", 401), ("secret", 401)):
            assert server.response("GET", "/v1/models", Authorization=value)[0].status == status
        for origin, status, allowed in (("http://page", 200, "http://page"), ("http://other", 400, None)):
            headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            response, _ = server.response("OPTIONS", TEXT, **headers)
            assert (response.status, response.getheader("access-control-allow-origin")) == (status, allowed)


@pytest.mark.parametrize("options", [{"port": 99999}, {"port": -1}, {"grace": -1}, {"max_requests": 0}])
def test_the_command_refuses(shared: Serving, options: dict[str, int]) -> None:
    """Before it listens."""
    with refused("serve_range"):
        serve(shared.engine, **{"port": 0} | options)
