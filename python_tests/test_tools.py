"""Calls of tools over HTTP, as each family of models writes them; whatever comes is a call, or stays content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import openai
import pytest
from kvcache_ops.engine import _request
from kvcache_ops.models import ChatTemplate, Model
from kvcache_ops.serve import _application as application_module

from served import MESSAGES, Serving, path, serving
from tool_templates import EXACT, HERMES, PARIS, TEMPLATES, TOOLS, model, written

__all__ = ["model", "path"]  # fixtures
OPTIONS: dict[str, Any] = dict(model="tiny", messages=MESSAGES, tools=TOOLS, temperature=0)


@pytest.fixture(scope="module", params=list(TEMPLATES))
def family(request: pytest.FixtureRequest) -> str:
    """Each family of models."""
    return request.param


@pytest.fixture(scope="module")
def server(model: Model, family: str) -> Iterator[Serving]:
    """A server of a model of the family."""
    with serving(replace(model, chat_template=TEMPLATES[family]), max_tokens=4096) as found:
        yield found


@contextmanager
def saying(server: Serving, text: str) -> Iterator[None]:
    """The model's answers are this text."""
    model = server.engine.model
    tokens = [*model.encode(text, add_special_tokens=False), model.stops[0]]

    class Sampler:
        def __init__(self, *_: object) -> None:
            self._left = iter(tokens)

        def __call__(self, _: object) -> int:
            return next(self._left)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_request, "Sampler", Sampler)
        yield


def streamed(server: Serving, **options: Any) -> tuple[str, list[tuple[str, str, str]], str | None]:
    """The content, the calls and the finish of a stream, put together as clients do."""
    content, calls, finish = "", [], None
    for chunk in server.client.chat.completions.create(stream=True, **OPTIONS | options):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        for call in delta.tool_calls or ():
            if call.id is not None:
                assert call.index == len(calls) and call.type == "function" and call.function.arguments == ""
                calls.append((call.id, call.function.name, ""))
            else:
                assert call.function.name is None
                calls[call.index] = (*calls[call.index][:2], calls[call.index][2] + call.function.arguments)
        assert finish is None
        finish = chunk.choices[0].finish_reason
    return content, calls, finish


def both(server: Serving, **options: Any) -> tuple[str | None, list[tuple[str, str]], str]:
    """The content, the calls and the finish of an answer, streamed and not."""
    choice = server.client.chat.completions.create(**OPTIONS | options).choices[0]
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    content, found, finish = streamed(server, **options)
    assert (content, [call[1:] for call in found], finish) == (
        choice.message.content or "", calls, choice.finish_reason
    )  # fmt: skip
    ids = [call.id for call in choice.message.tool_calls or ()] + [call[0] for call in found]
    assert len(set(ids)) == len(ids)
    return choice.message.content, calls, choice.finish_reason


def test_calls(server: Serving, family: str) -> None:
    """One, several, and content before and after; arguments are JSON; without tools all of it is content."""
    one, two = ("weather", EXACT), ("now", "{}")
    for text, content, calls in (
        ("\n\n" + written(family, one, two), None, [one, two]),
        ("I look.\n" + written(family, two) + "\n", "I look.", [two]),
        ("I look.", "I look.", []),
        (bad := f"I look. {written(family, ('nothing', '{}'))} So.", bad, []),
        (" 1 < 2 [a] {b} \n", " 1 < 2 [a] {b} \n", []),
    ):
        with saying(server, text):
            assert both(server) == (content, calls, "tool_calls" if calls else "stop")
    with saying(server, text := written(family, one)):
        assert both(server, tool_choice="none")[1:] == ([], "stop")
        whole = server.client.chat.completions.create(**OPTIONS | {"tools": []}).choices[0].message
        assert whole.tool_calls is None and EXACT in (whole.content or "")
        assert both(server, logprobs=True)[1] == [one]
        raw = server.client.chat.completions.create(
            **OPTIONS | {"tool_choice": "none"}, extra_body={"skip_special_tokens": False}
        )
        assert raw.choices[0].message.content == text
    with saying(server, written(family, one, two)):
        assert both(server, parallel_tool_calls=False)[1] == [one]
        length = len(server.engine.model.encode(written(family, one, two)[:-30]))
        assert both(server, max_tokens=length)[2] == "length"


def test_a_call_that_takes_long(server: Serving, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is sent before it is whole; comments meanwhile keep the connection."""
    monkeypatch.setattr(application_module, "_QUIET", 0.001)
    with saying(server, written(family, ("weather", EXACT))):
        with server.client.chat.completions.with_streaming_response.create(**OPTIONS, stream=True) as response:
            lines = list(response.iter_lines())
    role, first, *_ = (i for i, line in enumerate(lines) if line.startswith("data: "))
    assert lines[role:first].count(":") > 1 and '"name": "weather"' in lines[first]


def test_history(server: Serving, family: str, model: Model) -> None:
    """Calls and their results are rendered, and what the server gives can be given back to it."""
    with saying(server, written(family, ("weather", EXACT), ("now", "{}"))):
        message = server.client.chat.completions.create(**OPTIONS).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": f"is {i}"} for i, call in
               enumerate(message.tool_calls)]  # fmt: skip
    for ids in (lambda given: given, lambda given: f"call_{given}"):  # as other servers write them, too
        said = message.model_dump(exclude_none=False)
        for call in said["tool_calls"]:
            call["id"] = ids(call["id"])
        told = [{**result, "tool_call_id": ids(result["tool_call_id"])} for result in results]
        with saying(server, "Fine."):
            found = server.client.chat.completions.create(**OPTIONS | {"messages": [*MESSAGES, said, *told]})
        assert found.choices[0].message.content == "Fine."
    function = {"name": "weather", "arguments": PARIS}
    calls = [{"id": "123456789", "type": "function", "function": function}, {"id": "987654321", "type": "function",
             "function": {"name": "now", "arguments": {}}}]  # fmt: skip
    messages = [MESSAGES[1], {"role": "assistant", "content": "", "tool_calls": calls},
                {"role": "tool", "tool_call_id": "123456789", "content": "warm"}]  # fmt: skip
    text = ChatTemplate(replace(model, chat_template=TEMPLATES[family])).text(messages, tools=TOOLS)
    assert EXACT in text and text.index("warm") > text.index(EXACT) and '"weather"' in text
    for arguments in ("{", "[]", 5):
        wrong = [{**calls[0], "function": {"name": "now", "arguments": arguments}}]
        with pytest.raises(openai.BadRequestError) as caught:
            server.client.chat.completions.create(
                **OPTIONS | {"messages": [*MESSAGES, {**messages[1], "tool_calls": wrong}]}
            )
        assert caught.value.param == "messages[2].tool_calls[0].function.arguments"


def test_required(server: Serving) -> None:
    """A grammar holds a model of random weights to it; it may be of one function, or beside a response format."""
    hot = {"temperature": 1.5, "max_tokens": 200}
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": [1]}}}
    for choice, names in (
        ("required", {"weather", "now"}),
        ({"type": "function", "function": {"name": "now"}}, {"now"}),
    ):
        seen = set()
        for seed in range(2):
            content, [(name, arguments)], finish = both(server, tool_choice=choice, seed=seed, **hot)
            assert (content, finish) == (None, "tool_calls")
            seen.add(name)
            given = json.loads(arguments)
            assert isinstance(given, dict) and (name == "now" or given["city"] in ("Rome", "Oslo"))
        assert seen <= names
    for seed in range(2):
        content, calls, finish = both(server, response_format=schema, seed=seed, **hot)
        assert len(calls) == 1 if content is None else (json.loads(content), finish) == ([1], "stop")
    many = server.client.chat.completions.create(
        **OPTIONS | hot, tool_choice="required", parallel_tool_calls=True, n=4, seed=1
    )
    assert any(choice.message.tool_calls for choice in many.choices)


BAD: list[tuple[str, dict[str, Any]]] = [
    ("tools", {"tools": "weather"}),
    ("tools[0]", {"tools": ["weather"]}),
    ("tools[0]", {"tools": [{"type": "web_search"}]}),
    ("tools[1].function.name", {"tools": [TOOLS[0], {"type": "function", "function": {}}]}),
    ("tools[0].function.parameters", {"tools": [{"type": "function", "function": {"name": "a", "parameters": 1}}]}),
    ("tool_choice", {"tool_choice": "any"}),
    ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "nothing"}}}),
    ("tool_choice", {"tool_choice": {"type": "function"}}),
    ("tool_choice", {"tools": [], "tool_choice": "required"}),
    ("parallel_tool_calls", {"parallel_tool_calls": "no"}),
    ("messages[0].tool_calls", {"messages": [{"role": "assistant", "tool_calls": "a"}]}),
    ("messages[0].tool_calls[0]", {"messages": [{"role": "assistant", "tool_calls": [{"type": "function"}]}]}),
    ("messages[0].tool_call_id", {"messages": [{"role": "tool", "content": "a", "tool_call_id": 5}]}),
    ("messages[0].tool_call_id", {"messages": [{"role": "user", "content": "a", "tool_call_id": "a"}]}),
]


def test_refused(server: Serving) -> None:
    """What OpenAI's API does not have is refused by name."""
    ask = server.client.chat.completions.create
    for param, given in BAD:
        with pytest.raises(openai.BadRequestError) as caught:
            ask(**OPTIONS | given)
        assert caught.value.param == param, given
    schema = {"type": "function", "function": {"name": "a", "parameters": {"type": "nothing"}}}
    with pytest.raises(openai.BadRequestError, match="Invalid type: nothing") as caught:
        ask(**OPTIONS | {"tools": [schema], "tool_choice": "required"})
    assert (caught.value.code, caught.value.param) == ("grammar_schema", "tools")


def test_other_families(model: Model) -> None:
    """Tools are refused where the template does not read them, or does not say how a call is written; else it chats."""
    plain = "{% for message in messages %}{{ message.content }}{% endfor %}"
    others = HERMES.replace("if tools", "if xml_tools").replace("in tools", "in xml_tools")
    for template in (plain, plain + "{{ tools }}", others):
        with serving(replace(model, chat_template=template), max_tokens=2048) as server:
            for more in ({}, {"tool_choice": "required"}, {"stream": True}):
                with pytest.raises(openai.BadRequestError) as caught:
                    server.client.chat.completions.create(**OPTIONS | more)
                assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "tools")
            assert server.client.chat.completions.create(**OPTIONS, tool_choice="none", max_tokens=1).choices
