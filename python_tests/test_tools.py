"""Calls of tools over HTTP, as each family of models writes them; whatever comes is a call, or stays content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from kvcache_ops import models
from kvcache_ops.engine import Engine, _request
from kvcache_ops.models import ChatTemplate, Model
from kvcache_ops.serve import _application as application_module
from kvcache_ops.serve import _tools as tools_module
from kvcache_ops.serve._tools import CallReader, ToolCall, Tools, family_of
from tokenizers import Tokenizer

from compare import refused
from served import MESSAGES, Serving, path, serving

__all__ = ["path"]  # a fixture

# The parts of the models' own templates that are about tools.
HERMES = r"""
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] + '\n\n' }}{%- endif %}
    {{- "# Tools\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\n</tools>\n\nFor each function call, return a json object within <tool_call></tool_call> XML tags:\n" }}
    {{- "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\n<tool_call>\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}{{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
LLAMA = r"""
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" + system_message + "<|eot_id|>" }}
{%- if not tools is none %}
    {%- set first_user_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
    {{- '<|start_header_id|>user<|end_header_id|>\n\nPlease respond with a JSON for a function call. ' -}}
    {{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.' }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\n\n" }}{%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}{{- message.content }}{{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}
"""
MISTRAL = r"""
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and loop.first %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}{{- tool | tojson }}{{- "" if loop.last else ", " }}{%- endfor %}
            {{- "][/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " + message["content"] + "[/INST]" }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}{{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}{{- "]" + eos_token if loop.last else ", " }}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content|string + ", " }}
        {%- if not message.tool_call_id is defined or message.tool_call_id|length != 9 %}
            {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
        {%- endif %}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
"""
NAMES = MISTRAL.replace("[TOOL_CALLS] [", "[TOOL_CALLS]{{ name }}[ARGS]")
TEMPLATES = {"hermes": HERMES, "llama": LLAMA, "mistral": MISTRAL, "names": NAMES}
# How a call is written, and what is before, between and after calls.
WRITTEN = {
    "hermes": ('<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>', "", "\n", ""),
    "llama": ('{"name": "%s", "parameters": %s}', "", "; ", ""),
    "mistral": ('{"name": "%s", "arguments": %s}', "[TOOL_CALLS] [", ", ", "]"),
    "names": ("[TOOL_CALLS]%s[ARGS]%s", "", "", ""),
}
SPECIAL = {"[TOOL_CALLS]": True, "[ARGS]": True, "<|python_tag|>": True, "<tool_call>": False, "</tool_call>": False}

PLACE = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
         "additionalProperties": False}  # fmt: skip
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": PLACE}},
    {"type": "function", "function": {"name": "now", "strict": True}},
]
PARIS, EXACT = {"city": "P\u00e2ris \U0001f600"}, '{"city": "P\u00e2ris \U0001f600"}'
OPTIONS: dict[str, Any] = dict(model="tiny", messages=MESSAGES, tools=TOOLS, temperature=0)


def written(family: str, *calls: tuple[str, str]) -> str:
    """Calls with these names and arguments."""
    form, before, between, after = WRITTEN[family]
    return before + between.join(form % call for call in calls) + after


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    """A model that has the families' tokens, in the places of control characters."""
    found = models.load(path)
    about = json.loads(found.tokenizer.to_str())
    vocabulary = about["model"]["vocab"]
    for text, special in SPECIAL.items():
        token = vocabulary.pop(next(c for c in sorted(vocabulary, reverse=True) if 0x100 < ord(c[0]) < 0x109))
        vocabulary[text] = token
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        about["added_tokens"].append({"id": token, "content": text, "special": special, **flags})
    return replace(found, tokenizer=Tokenizer.from_str(json.dumps(about)))


@pytest.fixture(scope="module", params=list(TEMPLATES))
def family(request: pytest.FixtureRequest) -> str:
    """One after the other."""
    return request.param


@pytest.fixture(scope="module")
def server(model: Model, family: str) -> Iterator[Serving]:
    """Of a model of the family."""
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


def test_what_is_no_call_stays_content(server: Serving, family: str) -> None:
    """Streamed or not."""
    for call in (("weather", '{"city": }'), ("nothing", "{}")):
        with saying(server, text := f"I look. {written(family, call)} So."):
            assert both(server) == (text, [], "stop"), text


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
    """By name, what is none of OpenAI's."""
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


def read(name: str, *pieces: str, thinks: bool = False) -> tuple[str, list[tuple[str, str]]]:
    """The content and the calls in the pieces of an answer."""
    family = family_of(TEMPLATES[name])
    assert family is not None
    reader = CallReader(family, ["weather", "now"], False, thinks)
    said = [part for i, piece in enumerate(pieces) for part in reader.read(piece, i == len(pieces) - 1)]
    calls = [(part.name, part.arguments) for part in said if isinstance(part, ToolCall)]
    return "".join(part for part in said if isinstance(part, str)), calls


NO_ARGUMENTS = ('{"city": }', '{"city": "a"', '"Paris"', "[1]", "null", '{"city": NaN}', '{"city": 1e999}', "{'a': 1}",
                '{"city": ' + "1" * 5000 + "}", "[" * 100_000)  # fmt: skip


def test_families() -> None:
    """As templates write calls; not those that write them otherwise between the same tags."""
    assert [family_of(template) for template in TEMPLATES.values()].count(None) == 0
    for other in ("<function=", "<arg_key>", "<tool_calls>"):
        assert family_of(HERMES.replace('{\\"name\\"', other)) is None


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_calls(name: str) -> None:
    """All of their text is content, and what follows is read."""
    good = ("now", "{}")
    for call in (*(("weather", text) for text in NO_ARGUMENTS), ("nothing", "{}"), ("", "{}")):
        for text in (written(name, call), f"I look. {written(name, call)} So."):
            assert read(name, text) == read(name, text[:9], text[9:40], text[40:], "") == (text, [])
        if call[1] in ('{"city": }', "[1]", "{}"):
            text = f"{written(name, call)} so {written(name, good)}"
            assert read(name, text) == read(name, *text, "") == (f"{written(name, call)} so", [good])


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_cut(name: str) -> None:
    """However the text comes in pieces, it is read the same; the end of a call may be forgotten, its marks be cut."""

    one, two = ("weather", '{"city": "</tool_call> [TOOL_CALLS] \\" }] \\n"}'), ("now", "{}")
    text = f" Hm {{ <tool [T {written(name, one, two)}\n so <tool_"
    whole = read(name, text)
    assert whole == (" Hm { <tool [Tso <tool_", [one, two])
    assert read(name, *text, "") == whole
    for cut in range(len(text)):
        assert read(name, text[:cut], text[cut:]) == whole
    call = written(name, two)
    assert read(name, f"<think>{call}</think>{call}") == (f"<think>{call}</think>", [two])
    assert read(name, f"{call}</think>\n", call, thinks=True) == (f"{call}</think>", [two])
    if name == "hermes":
        assert read(name, call.removesuffix("\n</tool_call>")) == ("", [two])
        assert read(name, call.removesuffix("</tool_call>") + call) == ("", [two, two])
    if name == "llama":
        assert read(name, "<|python_tag|>" + call) == read(name, '{"type": "function", ' + call[1:]) == ("", [two])
        assert read(name, "<|python_tag|>now.call()") == ("<|python_tag|>now.call()", [])
        assert read(name, '{"name": "weather", "parameters": {"city": "a\nb"}}') == (
            "",
            [("weather", '{"city": "a\\nb"}')],
        )
    if name == "names":
        assert read(name, "[TOOL_CALLS]now[CALL_ID]123456789[ARGS]{}") == read(name, "[TOOL_CALLS]now{}") == ("", [two])


def test_templates_that_want_text(model: Model) -> None:
    """Of arguments; and one that raises for calls anyway says why."""
    text = "{% for m in messages %}{% for c in m.tool_calls %}{{ 'a' + c.function.arguments }}{% endfor %}{% endfor %}"
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]
    messages = [{"role": "assistant", "content": "", "tool_calls": calls}]
    assert ChatTemplate(replace(model, chat_template=text)).text(messages) == 'a{"a": 1}'
    with refused("chat_template", "no calls"):
        ChatTemplate(replace(model, chat_template="{{ raise_exception('no calls') }}")).text(messages)


def test_what_a_context_keeps(model: Model) -> None:
    """Of a conversation that is too long: the last question with the calls and results after it, and the tools."""
    template = ChatTemplate(replace(model, chat_template=HERMES))
    calls = [{"id": "1", "type": "function", "function": {"name": "weather", "arguments": PARIS}}]
    question = [MESSAGES[1], {"role": "assistant", "content": "", "tool_calls": calls},
                {"role": "tool", "tool_call_id": "1", "content": "warm"}]  # fmt: skip
    answer = {"role": "assistant", "content": "Warm."}
    messages = [MESSAGES[0], *question, answer, *question]
    whole = len(template.tokens([MESSAGES[0], *question], tools=TOOLS))
    for most in (whole, whole // 3):
        kept, tokens = template.shortened(messages, most, most, tools=TOOLS)
        assert kept == [MESSAGES[0], *question] and len(tokens) == whole
    begun = [*messages, answer]
    kept, tokens = template.shortened(begun, 99, 99, add_generation_prompt=False, continue_final_message=True)
    assert kept == [MESSAGES[0], *question, answer] and model.tokenizer.decode(tokens).endswith("\nWarm.")
    system = template.beginning(messages, tools=TOOLS)
    assert model.tokenizer.decode(template.tokens(messages, tools=TOOLS)[:system]).count('"weather"') == 1


def test_many_tools(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their schemas have together what one may have; those beyond are not looked into."""
    looked = list[object]()
    lark_of_json = tools_module.lark_of_json
    monkeypatch.setattr(tools_module, "lark_of_json", lambda schema: (looked.append(schema), lark_of_json(schema))[1])
    parameters = {"properties": {f"p{i}": {"pattern": "a" * 9000} for i in range(5)}}
    given = [{"type": "function", "function": {"name": f"f{i}", "parameters": parameters}} for i in range(100)]
    tools = Tools(given, "required", None, replace(model, chat_template=HERMES))
    with refused("grammar_schema", "bytes, expected at most 131072"):
        tools.grammar(None)
    assert len(looked) == 3


def test_lark(model: Model) -> None:
    """Answers follow it, and may have the text of special tokens."""
    engine = Engine(model, max_tokens=256, threads=1)
    calls = model.tokenizer.token_to_id("[TOOL_CALLS]")
    grammar = engine.lark_grammar(f'start: <[{calls}]> "[" ("the" | "a") "]"')
    for shown, begin in ((frozenset({calls}), "[TOOL_CALLS]"), (frozenset(), "")):
        [found] = engine.generate(["a"], grammar=grammar, shown_tokens=shown)
        assert found.text in (f"{begin}[the]", f"{begin}[a]") and found.finish == "stop"
    for text in ("start: other", "start (", 5):
        with refused("grammar_schema"):
            engine.lark_grammar(text)
    for shown in ([calls], "a", {"a"}, 5):
        with refused("sampling_range", "shown_tokens"):
            engine.submit("a", shown_tokens=shown)
