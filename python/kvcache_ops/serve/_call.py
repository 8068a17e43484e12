"""A client's call, parsed from the body of its request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvcache_ops._errors import KvCacheError
from kvcache_ops.serve._refusal import Refusal, unsupported, wrong
from kvcache_ops.text._sampling import Sampling

# These values ask for the default behavior; others would change the answer.
_WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    **dict.fromkeys((
        "echo", "early_stopping", "use_beam_search", "ignore_eos", "ban_eos_token", "include_stop_str_in_output",
        "no_stop_trim", "dynamic_temperature", "separate_reasoning", "return_token_ids", "return_tokens_as_token_ids",
        "return_hidden_states", "return_progress", "return_tokens", "timings_per_token", "post_sampling_probs", "raw",
        "watermark", "details", "return_full_text", "decoder_input_details", "safe_prompt", "auto_max_new_tokens",
    ), (False,)),
    **dict.fromkeys(("parse_tool_calls", "do_sample", "include_reasoning", "detokenize"), (True,)),
    **dict.fromkeys((
        "min_tokens", "repetition_penalty_range", "no_repeat_ngram_size", "top_a", "nsigma", "epsilon_cutoff",
        "eta_cutoff", "penalty_alpha", "mirostat", "mirostat_mode", "dynatemp_range", "smoothing_factor",
        "xtc_probability", "dry_multiplier", "n_probs", "min_keep", "priority", "max_tokens_second",
    ), (0,)),
    **dict.fromkeys((
        "length_penalty", "num_beams", "repeat_penalty", "encoder_repetition_penalty", "typical_p", "typical", "tfs",
        "tfs_z", "guidance_scale", "rep_pen",
    ), (1,)),
    **dict.fromkeys(("id_slot", "slot_id"), (-1,)),
    **dict.fromkeys((
        "suffix", "negative_prompt", "grammar", "grammar_string", "ebnf", "regex", "format", "custom_token_bans",
    ), ("",)),
    **dict.fromkeys((
        "functions", "tools", "stop_token_ids", "bad_words", "logits_processors", "documents", "lora", "transforms",
        "plugins", "data_sources", "images",
    ), ([],)),
    **dict.fromkeys(("structured_outputs", "mm_processor_kwargs", "vllm_xargs", "options", "extra_body"), ({},)),
    **dict.fromkeys(("function_call", "tool_choice"), ("none", "auto")),
    "parallel_tool_calls": (True, False), "modalities": (["text"],), "verbosity": ("medium",),
    "reasoning_format": ("none",), "stop_regex": ("", []), "top_n_sigma": (0, -1),
}  # fmt: skip
# What changes no answer, whatever the value: it is about the client, or about speed, or belongs to one of the above.
_ABOUT_THE_CLIENT = {
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "request_id", "keep_alive", "cache_prompt", "prediction", "spaces_between_special_tokens", "mirostat_tau",
    "mirostat_eta", "dynatemp_exponent", "dynatemp_low", "dynatemp_high", "smoothing_curve", "xtc_threshold",
    "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_range", "dry_sequence_breakers",
    "rid", "ttl", "provider", "route",
}  # fmt: skip
# The same, unless there are penalties.
_ABOUT_PENALTIES = {"repeat_last_n": (-1,), "penalize_nl": (True,), "rep_pen_range": (0,), "rep_pen_slope": (0,)}
_OF_A_MESSAGE = {"annotations", "cache_control", "id", "provider_specific_fields", "reasoning_details"}  # the same
_KINDS: dict[type, str] = {
    str: "a text", int: "a whole number", bool: "true or false", dict: "an object", list: "a list",
}  # fmt: skip
_SAMPLING = (
    "temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip
_PENALTIES = (("presence_penalty", 0), ("frequency_penalty", 0), ("repetition_penalty", 1))  # neutral values
_DEFAULT_TOKENS = 16  # of a completion, as OpenAI has it
LARGEST_SEED = 2**64
_LARGEST_N = 128  # as OpenAI has it


@dataclass(frozen=True)
class Call:
    """One request: prompts, of which each is a text or tokens, or the messages of a chat; and how to answer."""

    model: str
    prompts: list[str | list[int]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    sampling: dict[str, Any] = field(default_factory=dict)
    n: int = 1  # answers to each prompt
    stream: bool = False
    echo: bool = False  # answers begin with their prompts
    usage: bool = False  # in a last piece of the stream
    add_special_tokens: bool = True  # to the prompts
    special_tokens: bool = False  # have their text in the answers
    rendering: dict[str, Any] = field(default_factory=dict)  # of the messages: arguments of ChatTemplate.text
    tools: list[Any] = field(default_factory=list)
    tool_choice: Any = "none"
    parallel_tool_calls: bool | None = None
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
    options = _without_null(_take(taken, "stream_options", dict, {}))
    usage = _take(options, "include_usage", bool, False)
    _take(options, "include_obfuscation", bool, False)  # a padding of pieces that the client can do without
    if options.get("continuous_usage_stats") is False:
        del options["continuous_usage_stats"]
    if options:
        raise unsupported(f"stream_options.{next(iter(options))}")
    n = _number(taken, "n", 1, 1, _LARGEST_N)
    if (best := _take(taken, "best_of", int, n)) != n:
        raise wrong("best_of", best, f"n, {n}: all answers are given")
    echo = not chat and _take(taken, "echo", bool, False)
    found = Call(
        model,
        prompts=[] if chat else _prompts(taken.pop("prompt", None)),
        messages=_messages(taken.pop("messages", None)) if chat else [],
        sampling=_sampling(taken, chat, echo, context_length),
        n=n,
        stream=stream,
        echo=echo,
        usage=usage,
        add_special_tokens=_take(taken, "add_special_tokens", bool, not chat),
        special_tokens=not _take(taken, "skip_special_tokens", bool, True),
        rendering=_rendering(taken) if chat else {},
        schema=_schema(_without_null(_take(taken, "response_format", dict, {"type": "text"}))),
        **(_tools(taken) if chat else {}),
    )
    for name, value in taken.items():
        if name not in _ABOUT_THE_CLIENT and not _is_neutral(name, value, found.sampling):
            raise unsupported(name)
    return found


def _without_null(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _is_neutral(name: str, value: object, sampling: dict[str, Any]) -> bool:
    if name == "logit_bias":
        pairs = value.items() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        return all(isinstance(pair, list | tuple) and len(pair) == 2 and _same(pair[1], 0) for pair in pairs)
    if name in _ABOUT_PENALTIES and not any(sampling.get(penalty, none) != none for penalty, none in _PENALTIES):
        return True
    return any(_same(value, other) for other in (_WITHOUT_EFFECT | _ABOUT_PENALTIES).get(name, ()))


def _same(value: object, other: object) -> bool:
    """Equal, but true is not 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _take(taken: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    value = taken.pop(name, default)
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)  # as JSON has it
    if value is not default and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
        raise wrong(name, value, _KINDS[kind])
    return value


def _number(taken: dict[str, Any], name: str, default: int, low: int, high: int) -> int:
    value: int = _take(taken, name, int, default)
    if not low <= value <= high:
        raise wrong(name, value, f"{low} to {high}")
    return value


def _logprobs(taken: dict[str, Any], chat: bool) -> int | None:
    """How many of the likeliest tokens beside each one that was drawn; None for no logprobs."""
    if not chat:
        if _number(taken, "top_logprobs", 0, 0, 20):
            raise unsupported("top_logprobs")
        if taken.get("logprobs") is False:
            del taken["logprobs"]
        return _number(taken, "logprobs", 0, 0, 5) if "logprobs" in taken else None
    wanted = _take(taken, "logprobs", bool, False)
    likely = _number(taken, "top_logprobs", 0, 0, 20)
    if likely and not wanted:
        raise wrong("top_logprobs", likely, "logprobs to be true")
    return likely if wanted else None


def _sampling(taken: dict[str, Any], chat: bool, echo: bool, context_length: int) -> dict[str, Any]:
    """The arguments of Sampling, with OpenAI's defaults."""
    limits = {name: _take(taken, name, int, None) for name in ("max_completion_tokens", "max_tokens", "n_predict")}
    name, limit = next(((name, got) for name, got in limits.items() if got is not None), ("", None))
    limit = context_length if limit == -1 else limit  # as llama.cpp has it
    least = 0 if echo else 1
    if limit is not None and limit < least:
        raise wrong(name, limit, f"at least {least}")
    default = context_length if chat else _DEFAULT_TOKENS
    sampling: dict[str, Any] = {"max_new_tokens": default if limit is None else limit, "temperature": 1.0}
    sampling |= {name: taken.pop(name) for name in _SAMPLING if name in taken}
    top_k = _take(taken, "top_k", int, 0)
    sampling["top_k"] = 0 if top_k == -1 else top_k  # as vLLM has it
    sampling["logprobs"] = likely = _logprobs(taken, chat)
    if echo and (likely is not None or limit == 0):
        sampling["prompt_logprobs"] = likely or 0
    seed, stop = _take(taken, "seed", int, None), taken.pop("stop", ())
    sampling["seed"] = None if seed in (None, -1) else seed % LARGEST_SEED
    if not isinstance(stop, str | list | tuple):
        raise wrong("stop", stop, "a text or a list of texts")
    sampling["stop"] = tuple(text for text in ([stop] if isinstance(stop, str) else stop) if text != "")
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
        raise wrong("response_format", format, expected)
    named = _without_null(named)
    schema = named.get("schema")
    if not isinstance(schema, dict) or not named.keys() <= {"name", "description", "schema", "strict"}:
        raise wrong("response_format.json_schema", named, "name, schema, which is an object, description and strict")
    return schema


def _prompts(prompt: object) -> list[str | list[int]]:
    """One text, or tokens, or several of either."""
    several: list[Any] = prompt if isinstance(prompt, list) and prompt and not _is_tokens(prompt) else [prompt]
    if not all(isinstance(one, str) or _is_tokens(one) for one in several):
        raise wrong("prompt", prompt, "a text, tokens, or a list of either")
    return [one if isinstance(one, str) else [int(token) for token in one] for one in several]


def _is_tokens(value: object) -> bool:
    return isinstance(value, list) and all(
        (isinstance(token, int) and not isinstance(token, bool)) or (isinstance(token, float) and token.is_integer())
        for token in value
    )


def _rendering(taken: dict[str, Any]) -> dict[str, Any]:
    """How the messages become a prompt; as vLLM has it, also the template's variables say it."""
    variables = dict(_take(taken, "chat_template_kwargs", dict, {}))
    given = {}
    for name in ("add_generation_prompt", "continue_final_message"):
        outside, inside = (_take(where, name, bool, None) for where in (taken, variables))
        given[name] = outside if inside is None else inside
    begins, continues = given.values()
    if begins and continues:
        raise wrong("add_generation_prompt", True, "false, because continue_final_message is true")
    if (effort := _take(taken, "reasoning_effort", str, None)) is not None:
        variables["reasoning_effort"] = effort
    begins = not continues if begins is None else begins
    return {"variables": variables, "add_generation_prompt": begins, "continue_final_message": bool(continues)}


def _tools(taken: dict[str, Any]) -> dict[str, Any]:
    """Tools that the answers may call, or must."""
    tools = _take(taken, "tools", list, [])
    choice = taken.pop("tool_choice", "auto")
    parallel = _take(taken, "parallel_tool_calls", bool, None)
    if not tools and choice not in ("none", "auto"):
        raise wrong("tool_choice", choice, "none or auto, because there are no tools")
    return {"tools": [] if choice == "none" else tools, "tool_choice": choice, "parallel_tool_calls": parallel}


def _messages(messages: object) -> list[dict[str, Any]]:
    """Each with role and content, which is a text or parts of texts, and with what belongs to calls of tools."""
    if not isinstance(messages, list) or not messages:
        raise wrong("messages", messages, "a list of messages")
    return [_message(f"messages[{i}]", message) for i, message in enumerate(messages)]


def _message(where: str, message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise wrong(where, message, "an object with role and content")
    content = message.get("content")
    taken = {name: value for name, value in message.items() if value not in (None, [], False) and name != "content"}
    role = taken.pop("role", None)
    if not isinstance(role, str):
        raise wrong(f"{where}.role", role, "a text")
    found: dict[str, Any] = {"role": role}
    if isinstance(name := taken.pop("name", None), str):
        found["name"] = name
    if role == "assistant":
        thoughts = [taken.pop(name, None) for name in ("reasoning_content", "reasoning")]  # of an earlier answer
        if thought := next((text for text in thoughts if isinstance(text, str)), None):
            found["reasoning_content"] = found["reasoning"] = thought
        if calls := taken.pop("tool_calls", None):
            found["tool_calls"] = _calls(f"{where}.tool_calls", calls)
            content = "" if content is None else content
    if role == "tool" and (call := taken.pop("tool_call_id", None)) is not None:
        if not isinstance(call, str):
            raise wrong(f"{where}.tool_call_id", call, "a text")
        found["tool_call_id"] = call
    if others := taken.keys() - _OF_A_MESSAGE:
        raise unsupported(f"{where}.{min(others)}")
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
        texts = [text for part in parts if isinstance(text := part.get("text"), str)]
        content = "".join(texts) if len(texts) == len(content) else content
    if not isinstance(content, str):
        raise wrong(f"{where}.content", content, "a text, or parts of the type text")
    return found | {"content": content}


def _calls(where: str, calls: object) -> list[dict[str, Any]]:
    """Calls of an earlier answer, their arguments objects, as templates have them."""
    if not isinstance(calls, list):
        raise wrong(where, calls, "a list")
    found = []
    for i, call in enumerate(calls):
        kind = call.get("type", "function") if isinstance(call, dict) else None
        function = call.get("function") if kind == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise wrong(f"{where}[{i}]", call, "an object of the type function, whose function has name and arguments")
        given = arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                pass
        if not isinstance(arguments, dict):
            raise wrong(f"{where}[{i}].function.arguments", given, "the JSON text of an object")
        said = {"id": str(call.get("id") or ""), "type": "function"}
        found.append(said | {"function": {"name": function["name"], "arguments": arguments}})
    return found
