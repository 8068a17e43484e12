"""A client's call, parsed from the body of its request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvcache_ops._errors import KvCacheError
from kvcache_ops._sampling import Sampling
from kvcache_ops.serve._refusal import Refusal

# What these values mean is what is done anyway; others would change the answer.
_WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "suffix": ("",),
    "length_penalty": (1, 1.0),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "skip_special_tokens": (True,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
}
# What is about the client, and not about the answer.
_ABOUT_THE_CLIENT = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
_KINDS: dict[type, str] = {str: "a text", int: "a whole number", bool: "true or false", dict: "an object"}
_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip
_DEFAULT_TOKENS = 16  # of a completion, as OpenAI has it
LARGEST_SEED = 2**64
_LARGEST_N = 128  # as OpenAI has it


@dataclass(frozen=True)
class Call:
    """One request: prompts, of which each is a text or tokens, or the messages of a chat; and how to answer."""

    model: str
    prompts: list[str | list[int]] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)
    sampling: dict[str, Any] = field(default_factory=dict)
    n: int = 1  # answers to each prompt
    stream: bool = False
    echo: bool = False  # answers begin with their prompts
    usage: bool = False  # in a last piece of the stream
    variables: dict[str, Any] = field(default_factory=dict)  # of the chat template
    schema: dict[str, Any] | None = None  # of the answers


def read_call(body: bytes, chat: bool, context_length: int) -> Call:
    """The call in a body; a Refusal names the parameter that is wrong."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is no JSON: {error}", "json_invalid") from error
    if not isinstance(given, dict):
        raise Refusal(400, f"the body is a {type(given).__name__}, expected an object", "json_invalid")
    taken = {name: value for name, value in given.items() if value is not None}
    model = _take(taken, "model", str, None)
    if model is None:
        raise Refusal(400, "there is no model", "parameter_missing", "model")
    stream = _take(taken, "stream", bool, False)
    options = _take(taken, "stream_options", dict, {})
    usage = _take(options, "include_usage", bool, False)
    _take(options, "include_obfuscation", bool, False)  # a padding of pieces that the client can do without
    if options:
        raise _unsupported(f"stream_options.{next(iter(options))}")
    prompts = [] if chat else _prompts(taken.pop("prompt", None))
    messages = _messages(taken.pop("messages", None)) if chat else []
    variables = _take(taken, "chat_template_kwargs", dict, {}) if chat else {}
    n = _number(taken, "n", 1, 1, _LARGEST_N)
    if (best := _take(taken, "best_of", int, n)) != n:
        raise _wrong("best_of", best, f"n, {n}: all answers are given")
    echo = not chat and _take(taken, "echo", bool, False)
    schema = _schema(_take(taken, "response_format", dict, {"type": "text"}))
    sampling = _sampling(taken, chat, echo, context_length)
    for name, value in taken.items():
        neutral = any(value == other and type(value) is type(other) for other in _WITHOUT_EFFECT.get(name, ()))
        if not neutral and name not in _ABOUT_THE_CLIENT:
            raise _unsupported(name)
    return Call(model, prompts, messages, sampling, n, stream, echo, usage, variables, schema)


def _unsupported(name: str) -> Refusal:
    return Refusal(400, f"{name!r} is not supported here, or not with this value", "unsupported_parameter", name)


def _wrong(name: str, got: object, expected: str) -> Refusal:
    return Refusal(400, f"{name} is {_short(got)}, expected {expected}", "parameter_invalid", name)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _take(taken: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    value = taken.pop(name, default)
    if value is not default and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
        raise _wrong(name, value, _KINDS[kind])
    return value


def _number(taken: dict[str, Any], name: str, default: int, low: int, high: int) -> int:
    value: int = _take(taken, name, int, default)
    if not low <= value <= high:
        raise _wrong(name, value, f"{low} to {high}")
    return value


def _logprobs(taken: dict[str, Any], chat: bool) -> int | None:
    """How many of the likeliest tokens beside each one that was drawn; None for no logprobs."""
    if not chat:
        return _number(taken, "logprobs", 0, 0, 5) if "logprobs" in taken else None
    wanted = _take(taken, "logprobs", bool, False)
    likely = _number(taken, "top_logprobs", 0, 0, 20)
    if likely and not wanted:
        raise _wrong("top_logprobs", likely, "logprobs to be true")
    return likely if wanted else None


def _sampling(taken: dict[str, Any], chat: bool, echo: bool, context_length: int) -> dict[str, Any]:
    """The arguments of Sampling, with OpenAI's defaults."""
    limit = _take(taken, "max_tokens", int, None)
    newer = _take(taken, "max_completion_tokens", int, None) if chat else None
    limit = newer if newer is not None else limit
    least = 0 if echo else 1
    if limit is not None and limit < least:
        raise _wrong("max_tokens" if newer is None else "max_completion_tokens", limit, f"at least {least}")
    default = context_length if chat else _DEFAULT_TOKENS
    sampling: dict[str, Any] = {"max_new_tokens": default if limit is None else limit, "temperature": 1.0}
    sampling |= {name: taken.pop(name) for name in _SAMPLING if name in taken}
    if sampling.get("top_k") == -1:  # as vLLM has it
        sampling["top_k"] = 0
    sampling["logprobs"] = likely = _logprobs(taken, chat)
    if echo and (likely is not None or limit == 0):
        sampling["prompt_logprobs"] = likely or 0
    seed, stop = _take(taken, "seed", int, None), taken.pop("stop", ())
    sampling["seed"] = None if seed in (None, -1) else seed % LARGEST_SEED
    if not isinstance(stop, str | list | tuple):
        raise _wrong("stop", stop, "a text or a list of texts")
    sampling["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    try:
        Sampling(**sampling)
    except KvCacheError as error:
        raise Refusal(400, str(error), "parameter_invalid", str(error).split()[0]) from error
    return sampling


def _schema(format: dict[str, Any]) -> dict[str, Any] | None:
    """The JSON schema of a response format, if it has one."""
    if format == {"type": "text"}:
        return None
    if format == {"type": "json_object"}:
        return {"type": "object"}
    named = format.get("json_schema")
    if not isinstance(named, dict) or format.keys() != {"type", "json_schema"} or format["type"] != "json_schema":
        expected = "the type text, json_object, or json_schema with an object json_schema"
        raise _wrong("response_format", format, expected)
    schema = named.get("schema")
    if not isinstance(schema, dict) or not named.keys() <= {"name", "description", "schema", "strict"}:
        raise _wrong("response_format.json_schema", named, "name, schema, which is an object, description and strict")
    return schema


def _prompts(prompt: object) -> list[str | list[int]]:
    """One text, or tokens, or several of either."""
    several: list[Any] = prompt if isinstance(prompt, list) and prompt and not _tokens(prompt) else [prompt]
    for one in several:
        if not isinstance(one, str) and not _tokens(one):
            raise _wrong("prompt", prompt, "a text, tokens, or a list of either")
    return several


def _tokens(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(t, int) and not isinstance(t, bool) for t in value)


def _messages(messages: object) -> list[dict[str, str]]:
    """Each with role and content, which is a text or parts of texts."""
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages", messages, "a list of messages")
    return [_message(f"messages[{i}]", message) for i, message in enumerate(messages)]


def _message(where: str, message: object) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise _wrong(where, message, "an object with role and content")
    taken = {name: value for name, value in message.items() if name == "content" or value not in (None, [])}
    role, content = taken.pop("role", None), taken.pop("content", None)
    if not isinstance(role, str):
        raise _wrong(f"{where}.role", role, "a text")
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
        texts = [text for part in parts if isinstance(text := part.get("text"), str)]
        content = "".join(texts) if len(texts) == len(content) else content
    taken.pop("name", None)
    thoughts = {}
    if role == "assistant" and isinstance(reasoning := taken.pop("reasoning_content", None), str):
        thoughts["reasoning_content"] = reasoning  # of an answer that a client sends back
    if taken:
        raise _unsupported(f"{where}.{next(iter(taken))}")
    if not isinstance(content, str):
        raise _wrong(f"{where}.content", content, "a text, or parts of the type text")
    return {"role": role, "content": content, **thoughts}
