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


LONG = "a" * 10_000_000


def user(content: object) -> dict[str, object]:
    """A conversation of one message."""
    return {"messages": [{"role": "user", "content": content}]}


# By path, code and parameter.
BAD: dict[tuple[str, str, str | None], list[object]] = {
    (TEXT, "json_invalid", None): [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[]"],
    (TEXT, "parameter_missing", "model"): [b'{"prompt": "a"}'],
    (TEXT, "parameter_invalid", "model"): [{"model": 5}],
    (TEXT, "parameter_invalid", "prompt"): [{"prompt": wrong} for wrong in (None, {}, [1, "a"], [1.5], ["a"] * 65)],
    (TEXT, "prompt_empty", "prompt"): [{"prompt": empty} for empty in ("", [], ["a", ""])],
    (TEXT, "prompt_type", "prompt"): [{"prompt": "\ud800"}],
    (TEXT, "token_range", "prompt"): [{"prompt": [len(TOKENS)]}, {"prompt": [10**30]}],
    (TEXT, "context_length_exceeded", "prompt"): [{"prompt": "a" * 5000}, {"prompt": LONG}],
    (TEXT, "parameter_invalid", "max_tokens"): [{"max_tokens": wrong} for wrong in (0, "5", True)],
    (TEXT, "parameter_invalid", "temperature"): [
        {"temperature": -1}, {"temperature": "hot"}, b'{"model": "tiny", "prompt": "a", "temperature": NaN}'
    ],
    (TEXT, "parameter_invalid", "n"): [{"n": 65}],
    (TEXT, "parameter_invalid", "logprobs"): [{"logprobs": 6}],
    (TEXT, "unsupported_parameter", None): [{"\ud800": 1}],
    (CHAT, "parameter_invalid", "logprobs"): [{"messages": MESSAGES, "logprobs": 1}],
    (CHAT, "parameter_invalid", "top_logprobs"): [
        {"messages": MESSAGES, "logprobs": True, "top_logprobs": 21}, {"messages": MESSAGES, "top_logprobs": 1}
    ],
    (CHAT, "parameter_invalid", "messages"): [{}, {"messages": []}],
    (CHAT, "parameter_invalid", "messages[0]"): [{"messages": ["a"]}],
    (CHAT, "parameter_invalid", "messages[0].role"): [{"messages": [{"content": "a"}]}],
    (CHAT, "parameter_invalid", "messages[0].content"): [
        user(5), user(None), user([{"type": "image_url"}]), {"messages": [{"role": "user"}]}
    ],
    (CHAT, "unsupported_parameter", "messages[0].tool_calls"): [{"messages": [{"role": "user", "tool_calls": [1]}]}],
    (CHAT, "prompt_type", "messages"): [user("\ud800")],
    (CHAT, "context_length_exceeded", "messages"): [user("a" * 5000), user(LONG)],
    (CHAT, "unsupported_parameter", "tools"): [{"messages": MESSAGES, "tools": [{"type": "function"}]}],
}  # fmt: skip


def test_bad_requests(shared: Serving, expected: list[str]) -> None:
    """Each is 400 with a code and the parameter, and touches no other; a stream is refused before it begins."""
    with ThreadPoolExecutor(1) as pool:
        good = pool.submit(shared.client.completions.create, prompt=TEXTS, **GREEDY)
        for path, code, param, given in ((*wanted, given) for wanted, several in BAD.items() for given in several):
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
    status, content = shared.ask("POST", TEXT, b" " * ((16 << 20) + 1))
    assert (status, json.loads(content)["error"]["code"]) == (413, "body_too_large")
    assert shared.metric('kvcache_cache_slots{state="used"}') == 0


def test_methods(shared: Serving) -> None:
    """What a path allows is said, to OPTIONS and with a refusal."""
    for method, where, status, allowed in (
        ("HEAD", "/v1/models", 200, None),
        ("OPTIONS", "/v1/models", 204, {"GET", "HEAD"}),
        ("OPTIONS", CHAT, 204, {"POST"}),
        ("GET", CHAT, 405, {"POST"}),
        ("GET", "/v2", 404, None),
    ):
        response, content = shared.response(method, where)
        allow = response.getheader("allow")
        assert (response.status, allow and set(allow.split(", "))) == (status, allowed)
        codes = {404: "not_found", 405: "method_not_allowed"}
        assert status < 400 or json.loads(content)["error"]["code"] == codes[status]


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
