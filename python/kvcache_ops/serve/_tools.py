"""Tools that a model may call: how its chat template writes calls, and how they are read from an answer's text."""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any, NoReturn
from uuid import uuid4

from kvcache_ops.models import Model
from kvcache_ops.serve._refusal import unsupported, wrong
from kvcache_ops.text._grammar import check_size, lark_of_json

_THOUGHT, _THOUGHT_END = "<think>", "</think>"  # between them nothing is called
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_LONGEST_WORD = 8  # of JSON that may be cut: false, \u0000
_SHORT_ID = 9  # characters of an id, as templates of Mistral demand it


@dataclass(frozen=True)
class ToolCall:
    """A call in an answer, one of several, its arguments the JSON text of an object."""

    index: int
    id: str
    name: str
    arguments: str


_Read = tuple[list[Any], int] | None


@dataclass(frozen=True)
class Family:
    """How models of a family write calls.

    marks: what calls may begin with. read: the objects of the calls at the beginning of a text that is perhaps the
    last, and where they end; None where more of the text is needed; ValueError where it is no call. between: characters
    that may separate calls. tokens: parts of calls that may be special tokens, by the names of their rules in the
    grammar. call: a call in the grammar, of its name and of the rule of its arguments; around: what is before,
    between and after calls.
    """

    marks: tuple[str, ...]
    read: Callable[[str, bool], _Read]
    tokens: Mapping[str, str]
    call: Callable[[str, str], str]
    around: tuple[str, str, str]
    between: str = string.whitespace
    short_ids: bool = False

    def new_id(self) -> str:
        """An id that no other call has."""
        if self.short_ids:
            return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(_SHORT_ID))
        return f"call_{uuid4().hex}"


def _finite(text: str) -> float:
    if not isfinite(value := float(text)):
        raise ValueError(f"{text} is too large")
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


# Models write line breaks into texts, which is not strict.
_JSON = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number, strict=False)


def _value(text: str, place: int, last: bool) -> tuple[Any, int] | None:
    """A JSON value after spaces, and where it ends; None where it is cut, and the text is not the last."""
    try:
        return _JSON.raw_decode(text, len(text) - len(text[place:].lstrip()))
    except json.JSONDecodeError as error:
        cut = error.msg.startswith("Unterminated string") or error.pos >= len(text) - _LONGEST_WORD
        if cut and not last:
            return None
        raise
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def _read_tagged(text: str, last: bool) -> _Read:
    """<tool_call>{"name": ..., "arguments": {...}}</tool_call>, whose end some models forget."""
    if (found := _value(text, len(_OPEN), last)) is None:
        return None
    value, end = found
    rest = text[end:].lstrip()
    if rest.startswith(_CLOSE):
        return [value], len(text) - len(rest) + len(_CLOSE)
    if not last and (_CLOSE.startswith(rest) or _OPEN.startswith(rest)):
        return None
    if rest and not rest.startswith(_OPEN):
        raise ValueError(f"expected {_CLOSE}")
    return [value], end


_CALLS, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_NAME = r"\s*([^\s\[\]{}]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?"
_NAMED = re.compile(_NAME + r"\s*(?=\{)")
_NAMING = re.compile(r"\s*[^\s\[\]{}]*(?:\[[A-Z_]{0,8}\]?\w*){0,2}\s*")  # what a name may still become


def _read_listed(text: str, last: bool) -> _Read:
    """[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...], or [TOOL_CALLS]name[ARGS]{...}."""
    begin = len(_CALLS)
    if named := _NAMED.match(text, begin):
        found = _value(text, named.end(), last)
        return None if found is None else ([{"name": named[1], "arguments": found[0]}], found[1])
    if text[begin:].lstrip()[:1] in ("[", "{"):
        found = _value(text, begin, last)
        return None if found is None else (found[0] if isinstance(found[0], list) else [found[0]], found[1])
    if last or not _NAMING.fullmatch(text, begin):
        raise ValueError("expected a list of calls, or a name and arguments")
    return None


_PYTHON = "<|python_tag|>"
_KEYS = tuple(f'{{"{key}":' for key in ("name", "type", "parameters", "arguments"))


def _read_plain(text: str, last: bool) -> _Read:
    """{"name": ..., "parameters": {...}}, perhaps with <|python_tag|> before it."""
    begin = len(_PYTHON) if text.startswith(_PYTHON) else 0
    head = "".join(text[begin : begin + 64].split())
    if not any(head.startswith(key) or (key.startswith(head) and not last) for key in _KEYS):
        raise ValueError("expected an object with a name")  # text that cannot become a call is not held back
    found = _value(text, begin, last)
    return None if found is None else ([found[0]], found[1])


def _quoted(text: str) -> str:
    """A text in JSON, and in Lark, which has JSON's."""
    return json.dumps(text, ensure_ascii=False)


def _object(arguments: str, name: str, rule: str) -> str:
    begin = f'{{"name": {_quoted(name)}, "{arguments}": '
    return f'{_quoted(begin)} {rule} "}}"'


_HERMES = Family(
    (_OPEN,),
    _read_tagged,
    {"begin": _OPEN, "end": _CLOSE},
    lambda name, rule: rf'begin "\n" {_object("arguments", name, rule)} "\n" end',
    ("", r'"\n"', ""),
)
_MISTRAL = Family(
    (_CALLS,),
    _read_listed,
    {"begin": _CALLS},
    partial(_object, "arguments"),
    ('begin " "? "["', '", "', '"]"'),
    short_ids=True,
)
_MISTRAL_NAMES = Family(
    (_CALLS,),
    _read_listed,
    {"begin": _CALLS, "id": _ID, "args": _ARGUMENTS},
    lambda name, rule: f"begin {_quoted(name)} args {rule}",
    ("", "", ""),
    short_ids=True,
)
_LLAMA = Family(
    (_PYTHON, "{"),
    _read_plain,
    {"tag": _PYTHON},
    partial(_object, "parameters"),
    ("", '"; "', ""),
    between=string.whitespace + ";",
)


def family_of(template: str) -> Family | None:
    """The family of a chat template, by how it writes calls; None for an unknown one."""
    text = template.replace("\\", "")  # quotes within quotes
    if "tools" not in text or "<function=" in text or "<arg_key>" in text or "<tool_calls>" in text:
        return None
    if _OPEN in text:
        return _HERMES if "arguments" in text else None
    if _CALLS in text:
        return _MISTRAL_NAMES if _ARGUMENTS in text else _MISTRAL
    if _PYTHON in text or re.search(r'"name": [^\n]{0,60}"parameters": ', text):
        return _LLAMA
    return None


class CallReader:
    """Reads the text of one answer as it comes: content, and calls, each once it is whole.

    A text that is no call, or calls an unknown tool, stays content. Spaces beside calls are dropped.
    """

    def __init__(self, family: Family, names: Sequence[str], one: bool, thinks: bool) -> None:
        """one: calls after the first are left out. thinks: the prompt has begun a thought."""
        self._family, self._names, self._one, self._thinks = family, names, one, thinks
        self._held = self._space = ""
        self._after_call = False
        self.count = 0  # of calls so far

    def read(self, piece: str, last: bool) -> list[str | ToolCall]:
        """The content and calls that the next piece completes, in their order."""
        self._held += piece
        found: list[str | ToolCall] = []
        while self._held:
            place, mark = self._next_mark(last)
            self._content(self._held[:place], found)
            self._held = self._held[place:]
            if mark is None:
                break
            if mark in (_THOUGHT, _THOUGHT_END):
                self._thinks, end = mark == _THOUGHT, len(mark)
                self._content(mark, found)
            else:
                try:
                    calls = self._family.read(self._held, last)
                except ValueError:
                    calls = [], len(mark)
                if calls is None:
                    break
                end = calls[1]
                self._calls(calls[0], self._held[:end], found)
            self._held = self._held[end:]
        if last and not self._after_call:
            found += [self._space] if self._space else []
        return found

    def _next_mark(self, last: bool) -> tuple[int, str | None]:
        """The place of the first mark; or, with None, of a possible beginning of one."""
        marks = (_THOUGHT_END,) if self._thinks else (*self._family.marks, _THOUGHT)
        places = [(place, mark) for mark in marks if (place := self._held.find(mark)) >= 0]
        if places:
            return min(places)
        lengths = (n for mark in marks for n in range(1, len(mark)) if self._held.endswith(mark[:n]))
        return len(self._held) - (0 if last else max(lengths, default=0)), None

    def _content(self, text: str, found: list[str | ToolCall]) -> None:
        """Adds content, but for spaces at its end, which a call may follow."""
        if self._after_call:
            text = text.lstrip(self._family.between)
        if text:
            self._after_call, text = False, self._space + text
            content = text.rstrip()
            self._space = text[len(content) :]
            found += [content] if content else []

    def _calls(self, objects: list[Any], text: str, found: list[str | ToolCall]) -> None:
        if not objects or not all(self._is_call(value) for value in objects):
            return self._content(text, found)
        self._space, self._after_call = "", True
        for value in objects:
            if not (self._one and self.count):
                arguments = _json_text(_arguments(value))
                found.append(ToolCall(self.count, self._family.new_id(), value["name"], arguments))
                self.count += 1
        return None

    def _is_call(self, value: Any) -> bool:
        return isinstance(value, dict) and value.get("name") in self._names and isinstance(_arguments(value), dict)


def _arguments(call: dict[str, Any]) -> Any:
    return call.get("arguments", call.get("parameters", {}))


def _json_text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    # Halves of surrogate pairs are in no UTF-8.
    return json.dumps(value) if any("\ud800" <= character <= "\udfff" for character in text) else text


class Tools:
    """The tools of one request: for the template, for the grammar, and to read calls of them."""

    def __init__(self, given: list[Any], choice: object, parallel: bool | None, model: Model) -> None:
        """given, choice, parallel: `tools`, `tool_choice` and `parallel_tool_calls` of the request.

        Raises Refusal for a form that OpenAI does not have, and for a model of an unknown family.
        """
        family = family_of(model.chat_template or "")
        if family is None:
            raise unsupported("tools")
        self._family, self._model, self._parallel = family, model, parallel
        self.for_template = [_tool(f"tools[{i}]", tool) for i, tool in enumerate(given)]
        self._parameters = {of["name"]: of["parameters"] for of in (tool["function"] for tool in self.for_template)}
        self._must = choice != "auto"
        if isinstance(choice, dict) and choice.get("type") == "function" and choice.keys() == {"type", "function"}:
            name = choice["function"].get("name") if isinstance(choice["function"], dict) else None
            self._parameters = {name: self._parameters[name]} if name in list(self._parameters) else {}
            self._parallel = False
        elif choice not in ("auto", "required"):
            self._parameters = {}
        if not self._parameters:
            raise wrong("tool_choice", choice, "none, auto, required, or a function of tools")
        found = {text: model.tokenizer.token_to_id(text) for text in family.tokens.values()}
        self._tokens = {text: token for text, token in found.items() if token is not None}
        self.shown_tokens = frozenset(self._tokens.values()) & model.special_tokens.keys()

    def reader(self, prompt: Sequence[int]) -> CallReader:
        """A reader of one answer to a prompt."""
        end: str = self._model.tokenizer.decode(prompt[-8:], skip_special_tokens=False)
        thinks = end.rstrip().endswith(_THOUGHT)
        return CallReader(self._family, list(self._parameters), self._parallel is False, thinks)

    def grammar(self, schema: Mapping[str, Any] | None) -> str | None:
        """Of answers that must call a tool, or may call one instead of being JSON of a schema; in Lark."""
        if not self._must and schema is None:
            return None
        before, between, after = self._family.around
        several = f"({between} call)*" if self._parallel else ""
        lines = [
            "start: calls" if self._must else "start: calls | answer",
            f"calls: {before} call {several} {after}",
            f"call: {' | '.join(f'call_{i}' for i in range(len(self._parameters)))}",
        ]
        if schema is not None and not self._must:
            lines.append(f"answer: {lark_of_json(schema)}")
        for name, text in self._family.tokens.items():
            token = self._tokens.get(text)  # llguidance takes <...> for special, and its text for none of the answer's
            lines.append(f"{name}: {_quoted(text) if token is None else f'<[{token}]>'}")
        size = 0
        for i, (name, parameters) in enumerate(self._parameters.items()):
            lines.append(f"call_{i}: {self._family.call(name, f'arguments_{i}')}")
            lines.append(f"arguments_{i}: {lark_of_json({'type': 'object'} | parameters)}")
            size += len(lines[-1])
            check_size(size)  # before further tools are read
        return "\n".join(lines)


def _tool(where: str, tool: object) -> dict[str, Any]:
    """A tool for the template, which always says its parameters."""
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    if not isinstance(function, dict):
        raise wrong(where, tool, "an object of the type function, with a function")
    said = {name: value for name, value in function.items() if value is not None and name != "strict"}
    if not isinstance(said.get("name"), str) or not said["name"]:
        raise wrong(f"{where}.function.name", said.get("name"), "a text")
    if not isinstance(said.setdefault("parameters", _NO_PARAMETERS), dict):
        raise wrong(f"{where}.function.parameters", said["parameters"], "a JSON schema")
    return {"type": "function", "function": said}


def with_short_ids(messages: Sequence[Mapping[str, Any]], template: str) -> list[dict[str, Any]]:
    """Messages with ids of calls as the template of a family may demand them."""
    family = family_of(template)
    if family is None or not family.short_ids:
        return [dict(message) for message in messages]

    def short(given: Mapping[str, Any], name: str) -> dict[str, Any]:
        return {**given, name: re.sub(r"[\W_]", "", given[name])[-_SHORT_ID:].rjust(_SHORT_ID, "0")}

    found = [short(message, "tool_call_id") if "tool_call_id" in message else dict(message) for message in messages]
    for message in found:
        if "tool_calls" in message:
            message["tool_calls"] = [short(call, "id") for call in message["tool_calls"]]
    return found
