"""What clients of other servers send, and where other applications put this one."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import run
from typing import Any

import httpx2 as httpx
import openai
import pytest
from kvcache_ops import models
from kvcache_ops.engine import Engine, Sampling
from kvcache_ops.models import ChatTemplate
from kvcache_ops.serve import application
from kvcache_ops.serve._call import Call, read_call
from kvcache_ops.serve._refusal import Refusal
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import Mount

from compare import refused
from served import GREEDY, MESSAGES, TEXTS, Serving, expected, path, serving, shared
from tiny_models import TOKENS

__all__ = ["expected", "path", "shared"]  # fixtures

CONTEXT = 4096


def parsed(chat: bool, **given: Any) -> Call:
    """A request, read."""
    basic = {"model": "tiny"} | ({"messages": MESSAGES} if chat else {"prompt": "a"})
    return read_call(json.dumps(basic | given).encode(), chat, CONTEXT)


# Values that change no answer, of chats and of completions.
NEUTRAL: list[dict[str, Any]] = [
    {name: None}
    for name in (
        "max_tokens max_completion_tokens temperature top_p top_k min_p n stop stream stream_options seed logprobs "
        "top_logprobs logit_bias presence_penalty frequency_penalty repetition_penalty user metadata store tools "
        "tool_choice parallel_tool_calls functions function_call response_format service_tier reasoning_effort "
        "modalities audio prediction echo best_of suffix min_tokens ignore_eos stop_token_ids guided_json "
        "add_generation_prompt continue_final_message add_special_tokens chat_template_kwargs documents never_heard_of"
    ).split()
] + [
    {"n": 1}, {"n": 1.0}, {"best_of": 1}, {"best_of": 1.0}, {"stop": ""}, {"stop": []}, {"stop": [""]}, {"echo": False},
    {"stream": False}, {"stream_options": {}}, {"stream_options": {"include_usage": None}},
    {"stream_options": {"include_usage": False, "continuous_usage_stats": False}}, {"seed": -1}, {"seed": -1.0},
    {"logprobs": False}, {"logprobs": False, "top_logprobs": 0}, {"top_logprobs": 0}, {"top_logprobs": None},
    {"logit_bias": {}}, {"logit_bias": {"5": 0, "6": 0.0}}, {"logit_bias": []}, {"logit_bias": [[5, 0]]},
    {"top_k": -1}, {"top_k": 0}, {"top_k": 0.0}, {"top_k": -1.0}, {"top_p": 1}, {"min_p": 0}, {"temperature": 1},
    {"presence_penalty": 0}, {"frequency_penalty": 0.0}, {"repetition_penalty": 1}, {"repeat_penalty": 1.0},
    {"repeat_last_n": 64}, {"length_penalty": 1}, {"typical_p": 1}, {"typical_p": 1.0}, {"tfs_z": 1}, {"top_a": 0},
    {"top_n_sigma": -1}, {"mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1}, {"mirostat_mode": 0},
    {"dynatemp_range": 0, "dynatemp_exponent": 1}, {"smoothing_factor": 0},
    {"xtc_probability": 0, "xtc_threshold": 0.1}, {"dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2},
    {"epsilon_cutoff": 0}, {"eta_cutoff": 0}, {"no_repeat_ngram_size": 0}, {"guidance_scale": 1}, {"penalty_alpha": 0},
    {"use_beam_search": False}, {"early_stopping": False}, {"do_sample": True}, {"min_tokens": 0}, {"min_tokens": 0.0},
    {"ignore_eos": False}, {"skip_special_tokens": True}, {"spaces_between_special_tokens": False},
    {"include_stop_str_in_output": False}, {"stop_token_ids": []}, {"bad_words": []}, {"suffix": ""}, {"grammar": ""},
    {"response_format": {"type": "text"}}, {"response_format": {"type": "text", "json_schema": None}},
    {"tools": []}, {"tools": [], "tool_choice": "none"}, {"tool_choice": "auto"}, {"tool_choice": "none"},
    {"parallel_tool_calls": True}, {"parallel_tool_calls": False}, {"functions": []}, {"function_call": "none"},
    {"function_call": "auto"}, {"modalities": ["text"]}, {"verbosity": "medium"}, {"user": "a"}, {"user": 5},
    {"metadata": {"a": "b"}}, {"store": False}, {"store": True}, {"service_tier": "auto"}, {"prompt_cache_key": "a"},
    {"safety_identifier": "a"}, {"prediction": {"type": "content", "content": "a"}}, {"cache_prompt": True},
    {"id_slot": -1}, {"n_probs": 0}, {"timings_per_token": False}, {"return_token_ids": False}, {"priority": 0},
    {"request_id": "a"}, {"keep_alive": "5m"}, {"structured_outputs": {}}, {"documents": []}, {"extra_body": {}},
    {"include_reasoning": True}, {"reasoning_format": "none"},
]  # fmt: skip
OF_CHATS: list[dict[str, Any]] = [
    {"max_tokens": -1}, {"max_completion_tokens": -1}, {"n_predict": -1}, {"max_tokens": CONTEXT},
    {"add_generation_prompt": True},
    {"continue_final_message": False}, {"add_special_tokens": False}, {"chat_template_kwargs": {}},
    {"chat_template_kwargs": {"add_generation_prompt": True, "continue_final_message": None}},
]  # fmt: skip
OF_COMPLETIONS: list[dict[str, Any]] = [{"add_special_tokens": True}, {"max_tokens": 16.0}, {"prompt": ["a"]}]
# Values that would change the answer, with the parameter that is named.
REFUSED: list[dict[str, Any]] = [
    {"logit_bias": {"5": 1}}, {"logit_bias": [[5, True]]}, {"logit_bias": 0}, {"min_tokens": 1}, {"min_tokens": False},
    {"ignore_eos": True}, {"suffix": "b"}, {"length_penalty": 2}, {"typical_p": 0.9}, {"tfs_z": 0.5}, {"top_a": 0.1},
    {"top_n_sigma": 1}, {"mirostat": 2}, {"mirostat": False}, {"mirostat_mode": 1}, {"dynatemp_range": 0.5},
    {"smoothing_factor": 1}, {"xtc_probability": 0.5}, {"dry_multiplier": 0.8}, {"repeat_penalty": 1.1},
    {"no_repeat_ngram_size": 3}, {"guidance_scale": 2}, {"use_beam_search": True}, {"stop_token_ids": [5]},
    {"bad_words": ["a"]}, {"include_stop_str_in_output": True}, {"grammar": "root ::= a"}, {"guided_json": {}},
    {"guided_regex": "a"}, {"structured_outputs": {"regex": "a"}}, {"prompt_logprobs": 1}, {"allowed_token_ids": [5]},
    {"function_call": {"name": "a"}}, {"functions": [{"name": "a"}]}, {"verbosity": "low"},
    {"modalities": ["text", "audio"]}, {"audio": {"voice": "a"}}, {"web_search_options": {}}, {"documents": [{"a": 1}]},
    {"chat_template": "a"}, {"truncate_prompt_tokens": 5}, {"n_predict": -2}, {"never_heard_of": 1}, {"echo": "yes"},
    {"return_token_ids": True}, {"best_of": 2}, {"n": 0}, {"n": 1.5}, {"max_tokens": -2}, {"max_tokens": 1.5},
    {"top_k": -2}, {"top_k": 1.5}, {"top_p": 1.1}, {"min_p": -1}, {"temperature": True}, {"seed": 1.5}, {"stop": [5]},
    {"stream": 0}, {"response_format": {}}, {"stream_options": {"a": 1}}, {"repeat_last_n": 64, "presence_penalty": 1},
    {"penalize_nl": False, "repetition_penalty": 1.1}, {"rep_pen_range": 9, "frequency_penalty": 1},
]  # fmt: skip


def test_neutral_values() -> None:
    """They are accepted and change nothing, in either endpoint."""

    def meant(call: Call) -> Call:
        sampling = vars(Sampling(**call.sampling))
        return replace(call, sampling=sampling, parallel_tool_calls=None, tool_choice="auto")  # there are no tools

    for chat, more in ((True, OF_CHATS), (False, OF_COMPLETIONS)):
        plain = meant(parsed(chat))
        for given in [*NEUTRAL, *more]:
            assert meant(parsed(chat, **given)) == plain, given
    assert parsed(False, max_tokens=-1).sampling["max_new_tokens"] == CONTEXT
    assert parsed(False, prompt=[[1.0, 2], [3]]).prompts == [[1, 2], [3]]
    assert parsed(True, seed=5.0, top_k=5.0, n=2.0, max_tokens=7.0) == parsed(True, seed=5, top_k=5, n=2, max_tokens=7)
    penalties = {"presence_penalty": -1.0, "frequency_penalty": 2.0, "repetition_penalty": 1.5}
    assert penalties.items() <= parsed(True, **penalties).sampling.items()
    assert parsed(False, n_predict=5.0) == parsed(False, max_completion_tokens=5) == parsed(False, max_tokens=5)
    assert len(NEUTRAL) + len(OF_CHATS) > 100


def test_what_would_change_the_answer() -> None:
    """It is refused by name, in either endpoint."""
    for chat in (True, False):
        for given in REFUSED:
            with pytest.raises(Refusal) as caught:
                parsed(chat, **given)
            assert caught.value.status == 400 and (caught.value.param or "").split(".")[0] in given, given
    for given in ({"echo": True}, {"add_generation_prompt": True, "continue_final_message": True},
                  {"chat_template_kwargs": {"continue_final_message": True}, "add_generation_prompt": True},
                  {"continue_final_message": "yes"}, {"prompt": "a"}):  # fmt: skip
        with pytest.raises(Refusal):
            parsed(True, **given)
    for given in ({"tools": [{"type": "function"}]}, {"tool_choice": "required"}, {"messages": MESSAGES},
                  {"top_logprobs": 2}, {"add_generation_prompt": False}):  # fmt: skip
        with pytest.raises(Refusal):
            parsed(False, **given)


def test_messages() -> None:
    """Thoughts by both names; nulls and what is about the client; what would be lost is refused by name."""
    said = {"role": "assistant", "content": "a", "refusal": None, "annotations": [], "audio": None, "tool_calls": [],
            "function_call": None, "id": "b", "provider_specific_fields": {"c": 1}}  # fmt: skip
    [found] = parsed(True, messages=[said]).messages
    assert found == {"role": "assistant", "content": "a"}
    thought = {"reasoning": "hm", "reasoning_content": "hm"}
    for given in ({"reasoning": "hm"}, {"reasoning_content": "hm"}, thought, {"reasoning": None, **thought}):
        assert parsed(True, messages=[said | given]).messages == [found | thought]
    assert parsed(True, messages=[{"role": "user", "content": "a", "name": "b"}]).messages[0]["name"] == "b"
    for given in ({"refusal": "no"}, {"audio": {"id": "a"}}, {"prefix": True}, {"function_call": {"name": "a"}}):
        with pytest.raises(Refusal) as caught:
            parsed(True, messages=[said | given])
        assert caught.value.param == f"messages[0].{next(iter(given))}"


def test_one_bos(path: Path) -> None:
    """Of a prompt that begins with it, too; `add_special_tokens` leaves it out, or gives it to a chat."""
    model = models.load(path)
    about = json.loads(model.tokenizer.to_str())
    bos = len(TOKENS) - 2
    assert model.bos == TOKENS[bos]
    plain = Engine(model, max_tokens=64, threads=1)
    assert plain.encode(f"{model.bos}a") == [bos, *plain.encode("a")] and plain.encode(model.bos * 2) == [bos, bos]
    about["post_processor"] = {
        "type": "TemplateProcessing", "pair": [], "special_tokens": {model.bos: {"id": model.bos, "ids": [bos],
        "tokens": [model.bos]}}, "single": [{"SpecialToken": {"id": model.bos, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}}],
    }  # fmt: skip
    adding = replace(model, tokenizer=type(model.tokenizer).from_str(json.dumps(about)))
    [a] = adding.encode("a", add_special_tokens=False)
    for text, tokens in (("a", [bos, a]), (f"{model.bos}a", [bos, a]), (model.bos * 2, [bos, bos]), ("", [bos])):
        assert adding.encode(text) == tokens
    assert adding.encode(f"{model.bos}a", add_special_tokens=False) == [bos, a]
    with serving(adding, max_tokens=256) as server:
        complete, chat = server.client.completions.create, server.client.chat.completions.create
        for prompt, count in (("a", 2), (f"{model.bos}a", 2), ([bos, bos, a], 3)):
            assert complete(prompt=prompt, max_tokens=1, **GREEDY).usage.prompt_tokens == count
        without = {"add_special_tokens": False}
        assert complete(prompt="a", max_tokens=1, extra_body=without, **GREEDY).usage.prompt_tokens == 1
        counts = {
            chat(messages=MESSAGES, max_tokens=1, extra_body={"add_special_tokens": add}, **GREEDY).usage.prompt_tokens
            for add in (True, False)
        }
        assert len(counts) == 1  # the template writes it
    with serving(replace(adding, chat_template="{{ messages[0].content }}"), max_tokens=256) as server:
        chat = server.client.chat.completions.create
        message = [{"role": "user", "content": "a"}]
        for add, count in ((True, 2), (False, 1)):
            found = chat(messages=message, max_tokens=1, extra_body={"add_special_tokens": add}, **GREEDY)
            assert found.usage.prompt_tokens == count


TRIMS = "{% for m in messages %}[{{ m.role }}]\n{{ m.content | trim }}</s>\n{% endfor %}" + (
    "{% if add_generation_prompt %}[assistant]\n{% endif %}"
)


def test_a_message_is_continued(path: Path, shared: Serving) -> None:
    """The prompt ends where its content ends, also of templates that trim it, and of content that is elsewhere, too."""
    model = models.load(path)

    def text(template: str, content: str, **options: bool) -> str:
        messages = [{"role": "user", "content": "Yes"}, {"role": "assistant", "content": content}]
        return ChatTemplate(replace(model, chat_template=template)).text(messages, False, **options)

    begin = "[user]\nYes</s>\n[assistant]\n"
    plain = TRIMS.replace(" | trim", "")
    for content in ("Yes", " Yes ", "", "\n", "a</s>\n", "[assistant]\n"):
        assert text(plain, content, continue_final_message=True) == begin + content
        assert text(TRIMS, content, continue_final_message=True) == begin + content.strip()
        assert text(plain, content) == f"{begin}{content}</s>\n"
    for template in ("{{ messages[0].content }}", "{{ raise_exception('no') }}"):
        with refused("chat_template"):
            text(template, "a", continue_final_message=True)
    with refused("chat_template", "both true"):
        ChatTemplate(model).text(MESSAGES, True, continue_final_message=True)
    for name in ("continue_final_message", "chat_template", "tokenize", "tools"):
        with refused("chat_template", name):
            ChatTemplate(model).text(MESSAGES, variables={name: True})

    ask = shared.client.chat.completions.create
    messages = [*MESSAGES, {"role": "assistant", "content": "the the"}]
    prompt = ChatTemplate(model).text(messages[:-1]) + "the the"
    # A completion adds no bos to it: the tiny model's tokenizer has none.
    wanted = shared.client.completions.create(prompt=prompt, max_tokens=5, **GREEDY).choices[0].text
    top = {"add_generation_prompt": False, "continue_final_message": True}
    for given in (top, {"continue_final_message": True}, {"chat_template_kwargs": top}):
        found = ask(messages=messages, max_tokens=5, extra_body=given, **GREEDY)
        assert found.choices[0].message.content == wanted, given
    closed = ask(messages=messages, max_tokens=1, extra_body={"add_generation_prompt": False}, **GREEDY)
    assert closed.usage.prompt_tokens == len(model.encode(ChatTemplate(model).text(messages, False)))
    with pytest.raises(openai.BadRequestError) as caught:
        ask(messages=messages, extra_body={**top, "add_generation_prompt": True}, **GREEDY)
    assert caught.value.param == "add_generation_prompt"


def test_reasoning_effort(path: Path, shared: Serving) -> None:
    """It goes to a template that reads it; "none" also to one that can only leave thoughts out."""
    ask = shared.client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as caught:
        ask(messages=MESSAGES, reasoning_effort="low", **GREEDY)
    assert caught.value.param == "reasoning_effort"
    assert ask(messages=MESSAGES, reasoning_effort="none", max_tokens=1, **GREEDY).choices
    template = "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}{{ messages[0].content }}"
    with serving(replace(models.load(path), chat_template=template), max_tokens=256) as server:
        ask = server.client.chat.completions.create
        for more, count in (({}, 1), ({"reasoning_effort": "none"}, 1 + len("False"))):
            found = ask(messages=[{"role": "user", "content": "a"}], max_tokens=1, **more, **GREEDY)
            assert found.usage.prompt_tokens == count
    with serving(replace(models.load(path), chat_template="{{ reasoning_effort }}"), max_tokens=256) as server:
        found = server.client.chat.completions.create(messages=MESSAGES, reasoning_effort="low", max_tokens=1, **GREEDY)
        assert found.usage.prompt_tokens == len("low")


async def ask(app: Any, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
    """A response of an application, in the loop that runs."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://host", timeout=60) as client:
        return await (client.get(path) if body is None else client.post(path, json=body))


def body(i: int) -> dict[str, Any]:
    """A completion of TEXTS[i]."""
    return {"model": "tiny", "prompt": TEXTS[i], "max_tokens": 16, "temperature": 0}


async def answer(app: Any, prefix: str = "", i: int = 0, **more: Any) -> str:
    """Its text."""
    response = await ask(app, f"{prefix}/v1/completions", body(i) | more)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def test_a_mounted_application(path: Path, expected: list[str]) -> None:
    """It begins with its first request, below a path, behind another's middleware, and for one loop after the other."""
    app = application(Engine(path, max_tokens=512, threads=1), name="tiny", api_key="secret")
    parent = Starlette(routes=[Mount("/llm", app=app)])

    async def middleware(request: Any, call_next: Any) -> Any:
        request.scope["headers"].append((b"authorization", b"Bearer secret"))
        return await call_next(request)

    guarded = Starlette(routes=[Mount("/llm", app=app)])
    parent.add_middleware(BaseHTTPMiddleware, dispatch=middleware)
    assert asyncio.run(ask(guarded, "/llm/health")).json()["status"] == "ok"
    assert asyncio.run(ask(guarded, "/llm/v1/models")).status_code == 401

    async def several() -> list[str]:
        return list(await asyncio.gather(*(answer(parent, "/llm", i) for i in range(4))))

    for _ in range(2):
        assert asyncio.run(several()) == expected
    streamed = asyncio.run(ask(parent, "/llm/v1/completions", body(0) | {"stream": True})).text
    pieces = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == expected[0]
    assert asyncio.run(ask(parent, "/llm/metrics")).status_code == 200


def test_a_loop_that_is_gone(path: Path, expected: list[str]) -> None:
    """Its answers end, and nobody else's."""
    engine = Engine(path, max_tokens=4096, threads=1)
    app = application(engine, name="tiny", max_requests=1)

    async def leave() -> None:
        asyncio.create_task(answer(app, max_tokens=4000))  # noqa: RUF006
        while not engine.running:
            await asyncio.sleep(0.01)

    asyncio.run(leave())
    while engine.running:
        time.sleep(0.01)
    time.sleep(0.5)
    assert app.state.dispatcher.stuck() < 0.5  # nothing waits for that loop

    async def again() -> str:
        while (await ask(app, "/v1/completions", body(0))).status_code == 503:
            await asyncio.sleep(0.05)
        return await answer(app)

    assert asyncio.run(asyncio.wait_for(again(), 60)) == expected[0]


def test_lifespans(path: Path, expected: list[str]) -> None:
    """One after the other, in loops of their own, and one within the other; between them it is down."""
    app = application(Engine(path, max_tokens=512, threads=1), name="tiny")

    async def once(inner: bool) -> None:
        async with app.router.lifespan_context(app):
            if inner:
                async with app.router.lifespan_context(app):
                    assert await answer(app) == expected[0]
            assert await answer(app) == expected[0]
        assert (await ask(app, "/health")).status_code == 503
        response = await ask(app, "/v1/completions", body(0))
        assert (response.status_code, response.json()["error"]["code"]) == (503, "shutting_down")

    for inner in (False, True, False):
        asyncio.run(once(inner))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with app.router.lifespan_context(app):
            yield

    async def failing() -> None:
        async with app.router.lifespan_context(app):
            raise ValueError("of the parent")

    with pytest.raises(ValueError, match="of the parent"):
        asyncio.run(failing())
    assert not app.state.dispatcher.alive()
    parent = Starlette(routes=[Mount("/llm", app=app)], lifespan=lifespan)

    async def delivered() -> None:
        async with parent.router.lifespan_context(parent):
            assert await answer(parent, "/llm") == expected[0]

    asyncio.run(delivered())


def test_a_program_ends(path: Path, tmp_path: Path) -> None:
    """That has mounted it and closes nothing: its prefixes are in the tiers, and it does not hang."""
    program = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from kvcache_ops.engine import Engine, Sampling
from kvcache_ops.manager import tier
from kvcache_ops.serve import application
from test_clients import answer
app = application(Engine({str(path)!r}, threads=1, tiers=[tier("file:{tmp_path},1G")]), name="tiny")
asyncio.run(answer(app, prompt="the theme" * 10))
"""
    assert run([sys.executable, "-c", program], timeout=120, check=False).returncode == 0
    assert any(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
