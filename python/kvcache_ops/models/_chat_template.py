"""A conversation as a model reads it: its chat template in Jinja, and the tokens it gives."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, TypeVar

from kvcache_ops._errors import KvCacheError
from kvcache_ops._optional import load as load_package
from kvcache_ops.models._model import Model

_GIVEN = {
    "messages", "tools", "documents", "bos_token", "eos_token", "add_generation_prompt", "continue_final_message",
    "chat_template", "tokenize",
}  # fmt: skip
"""What is no variable of a template to choose, of what transformers' apply_chat_template takes."""
_MARK = "<end of the message to continue>"

_Message = TypeVar("_Message", bound=Mapping[str, Any])


class ChatTemplate:
    """The template of a model, rendered as transformers renders it, in Jinja's sandbox.

        request = engine.submit(ChatTemplate(model).tokens([{"role": "user", "content": "Hello"}]))

    Raises KvCacheError "chat_template": the model has none, it is no template, or it refuses the messages.
    """

    def __init__(self, model: Model) -> None:
        if model.chat_template is None:
            raise KvCacheError(f"{model.name} has no chat template, expected a model for chats", "chat_template")
        ext, meta, nodes, sandbox = (
            load_package(f"jinja2.{name}", "ChatTemplate", "models") for name in ("ext", "meta", "nodes", "sandbox")
        )

        def parse(_: Any, parser: Any) -> Any:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(["name:endgeneration"], drop_needle=True), lineno=line)

        # What marks answers for training, by {% generation %}.
        generation = type("Generation", (ext.Extension,), {"tags": {"generation"}, "parse": parse})
        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[ext.LoopControlExtension, generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
        try:
            self._template = environment.from_string(model.chat_template)
            self._reads = meta.find_undeclared_variables(environment.parse(model.chat_template))
        except Exception as error:  # of Jinja, or of Python for one that is nested too deeply
            raise KvCacheError(f"the chat template of {model.name} is none: {error}", "chat_template") from error
        self._model, self.source = model, model.chat_template
        self._knows_developers = "developer" in self.source
        eos = [model.tokenizer.id_to_token(stop) for stop in model.stops[:1]]
        self._tokens = {"bos_token": model.bos or "", "eos_token": eos[0] if eos else ""}

    def reads(self, name: str) -> bool:
        """Whether the template reads a variable."""
        return name in self._reads

    def text(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] = {},
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
    ) -> str:
        """The prompt for these messages, of "role" and "content" each, and perhaps the beginning of an answer.

        variables: others that the template reads, such as `enable_thinking`. tools: as transformers has them; so are
        `tool_calls` in messages, whose arguments are objects. continue_final_message: the text ends with the last
        message's content, which the answer continues; add_generation_prompt is then False. The role "developer" is
        "system" to a template that does not know it.
        """
        if continue_final_message and add_generation_prompt:
            message = "continue_final_message and add_generation_prompt are both true, expected one of them at most"
            raise KvCacheError(message, "chat_template")
        if wrong := variables.keys() & _GIVEN:
            raise KvCacheError(f"{min(wrong)} is given to the template anyway, expected other names", "chat_template")
        if not self._knows_developers:
            renamed = {"role": "system"}
            messages = [{**m, **renamed} if m.get("role") == "developer" else m for m in messages]
        given = {"add_generation_prompt": add_generation_prompt, "tools": tools or None, **variables}
        if continue_final_message:
            return self._to_be_continued(messages, given)
        return self._rendered(messages, given)

    def _to_be_continued(self, messages: Sequence[Mapping[str, Any]], given: dict[str, Any]) -> str:
        """Removes what the template writes after the last message's content, whose spaces it may strip."""
        content = messages[-1].get("content") if messages else None
        if not isinstance(content, str):
            raise KvCacheError("the last message has no text, expected one to continue", "chat_template")

        def until_mark(content: str) -> tuple[str, str]:
            before, mark, after = self._rendered(
                [*messages[:-1], {**messages[-1], "content": f"{content}{_MARK} "}], given
            ).rpartition(_MARK)
            if not mark:
                raise KvCacheError("the chat template leaves the last message out, which is continued", "chat_template")
            return before, after

        before, after = until_mark(content)
        return before if after.startswith(" ") else until_mark(content.rstrip())[0]

    def _rendered(self, messages: Sequence[Mapping[str, Any]], given: dict[str, Any]) -> str:
        def render(messages: Sequence[Mapping[str, Any]]) -> str:
            return str(self._template.render(messages=messages, documents=None, **self._tokens, **given))

        try:
            return render(messages)
        except Exception as error:  # a template may do anything
            for other in (_with_text_of_arguments, _with_one_call_each):  # which some templates want
                if (changed := other(messages)) != list(messages):
                    try:
                        return render(changed)
                    except Exception:  # which was not the reason
                        pass
            raise KvCacheError(f"the chat template refuses the messages: {error}", "chat_template") from error

    def tokens(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        most: int | None = None,
        variables: Mapping[str, Any] = {},
        *,
        add_special_tokens: bool = False,
        **options: Any,
    ) -> list[int]:
        """The tokens of `text`, which has its special ones already; options: further arguments of it.

        Raises what `Model.encode` raises.
        """
        text = self.text(messages, add_generation_prompt, variables, **options)
        return self._model.encode(text, most, add_special_tokens)

    def shortened(
        self, messages: Sequence[_Message], most: int, length: int, **options: Any
    ) -> tuple[list[_Message], list[int]]:
        """Messages and their `tokens`; where these are more than `most`, without the oldest ones, at most `length`.

        Whole messages after the system's go, an answer together with its question; the last question stays with what
        follows it. options: further arguments of `tokens`.
        """
        kept, last = self._system(messages), len(messages) - 1
        last = next((i for i in range(last, kept, -1) if messages[i].get("role") == "user"), last)

        def whole(first: int, most: int) -> list[int] | None:
            """The tokens without messages before `first`; None if there are more than `most`."""
            try:
                tokens = self.tokens([*messages[:kept], *messages[first:]], most=most, **options)
            except KvCacheError as error:
                if error.kind == "prompt_too_long" and first < last:
                    return None
                raise
            return tokens if len(tokens) <= most or first >= last else None

        tokens, first = whole(kept, most), kept
        if tokens is None:
            rounds = [i for i in range(kept + 1, last + 1) if messages[i].get("role") == "user" or i == last]
            first = rounds[bisect_left(rounds, True, key=lambda first: whole(first, length) is not None)]
            tokens = whole(first, length)
        assert tokens is not None  # the last message is always taken
        return [*messages[:kept], *messages[first:]], tokens

    def beginning(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> int:
        """How many first tokens the system's messages have, or what the template says in their place.

        options: further arguments of `tokens`.
        """
        system, options = list(messages[: self._system(messages)]), options | {"continue_final_message": False}
        one, other = (self.tokens([*system, {"role": "user", "content": c}], **options) for c in "01")
        return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), 0)

    @staticmethod
    def _system(messages: Sequence[Mapping[str, Any]]) -> int:
        roles = [message.get("role") for message in messages]
        return next((i for i, role in enumerate(roles) if role not in ("system", "developer")), len(roles))


def _with_text_of_arguments(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages whose calls have the JSON text of their arguments."""

    def of(call: Mapping[str, Any]) -> dict[str, Any]:
        return {**call, "function": {**call["function"], "arguments": _to_json(call["function"]["arguments"])}}

    return [{**m, "tool_calls": list(map(of, m["tool_calls"]))} if m.get("tool_calls") else m for m in messages]


def _with_one_call_each(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages that have one call at most, each with its results after it."""
    found: list[Mapping[str, Any]] = []
    left = list(messages)
    while left:
        message = left.pop(0)
        if len(calls := message.get("tool_calls") or ()) < 2:
            found.append(message)
            continue
        results: dict[Any, list[Mapping[str, Any]]] = {}
        while left and left[0].get("role") == "tool":
            result = left.pop(0)
            results.setdefault(result.get("tool_call_id"), []).append(result)
        for i, call in enumerate(calls):
            found.append({**message, "content": "" if i else message.get("content"), "tool_calls": [call]})
            found += results.pop(call.get("id"), ())
        found += [result for of_call in results.values() for result in of_call]
    return found


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: Jinja's own escapes characters of HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
