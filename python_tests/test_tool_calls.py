"""Calls of tools in the text of answers, however it comes in pieces; and templates that render them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kvcache_ops.engine import Engine
from kvcache_ops.models import ChatTemplate, Model
from kvcache_ops.serve import _tools as tools_module
from kvcache_ops.serve._tools import CallReader, ToolCall, Tools, family_of

from compare import refused
from served import MESSAGES, path
from tool_templates import HERMES, PARIS, TEMPLATES, TOOLS, model, written

__all__ = ["model", "path"]  # fixtures


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
    """A family is known by how its template writes calls; other forms between the same tags are not taken for it."""
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
    """Templates that want arguments as text get text; a template that raises on calls is quoted."""
    text = "{% for m in messages %}{% for c in m.tool_calls %}{{ 'a' + c.function.arguments }}{% endfor %}{% endfor %}"
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]
    messages = [{"role": "assistant", "content": "", "tool_calls": calls}]
    assert ChatTemplate(replace(model, chat_template=text)).text(messages) == 'a{"a": 1}'
    with refused("chat_template", "no calls"):
        ChatTemplate(replace(model, chat_template="{{ raise_exception('no calls') }}")).text(messages)


def test_what_a_context_keeps(model: Model) -> None:
    """A conversation that is too long keeps the last question, the calls and results after it, and the tools."""
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
    """The limit of a schema holds for all tools together; schemas beyond it are not compiled."""
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
