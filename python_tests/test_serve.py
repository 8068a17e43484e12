"""What the OpenAI HTTP interface answers: whole and streamed, in both of its forms."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest
from kvcache_ops.engine import Engine
from kvcache_ops.models import ChatTemplate

from served import GREEDY, MESSAGES, TEXTS, Serving, expected, path, serving, shared

__all__ = ["expected", "path", "shared"]  # fixtures


def test_models(shared: Serving) -> None:
    """The list has the one model."""
    assert [model.id for model in shared.client.models.list()] == ["tiny"]
    assert shared.client.models.retrieve("tiny").owned_by == "kvcache_ops"
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt', expected 'tiny'"):
        shared.client.models.retrieve("gpt")
    assert shared.ask("GET", "/health") == (200, b'{"status":"ok"}')


def test_completions(shared: Serving, expected: list[str]) -> None:
    """Of a text, of tokens, of several; with usage."""
    found = shared.client.completions.create(prompt=TEXTS[0], **GREEDY)
    tokens = shared.engine.encode(TEXTS[0])
    assert (found.choices[0].text, found.choices[0].finish_reason) == (expected[0], "length")
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (5, 16, 21)
    assert shared.client.completions.create(prompt=tokens, **GREEDY).choices[0].text == expected[0]
    several = shared.client.completions.create(prompt=TEXTS, **GREEDY)
    assert [choice.text for choice in several.choices] == expected and several.usage.completion_tokens == 64
    streamed = [""] * 4
    for chunk in shared.client.completions.create(prompt=TEXTS, stream=True, **GREEDY):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == expected


def test_sampling(shared: Serving) -> None:
    """A seed, also a negative one, fixes the answer; a stop ends it; what is beyond OpenAI's is taken, too."""
    ask = shared.client.completions.create
    options = dict(model="tiny", prompt="a", seed=-3, temperature=1.5, top_p=0.9)
    first = ask(**options).choices[0].text
    assert ask(**options).choices[0].text == first != ask(**options | {"seed": 4}).choices[0].text
    # -1 is any; of one token, since one behind NAN_TOKEN would fail.
    drawn = options | {"seed": -1, "temperature": 2, "top_p": 1, "max_tokens": 1}
    assert len({ask(**drawn).choices[0].text for _ in range(16)}) > 1
    assert ask(**options, extra_body={"top_k": 1}).choices[0].text == ask(prompt="a", **GREEDY).choices[0].text
    stop = first[2:4]
    for given in (stop, ["not there", stop]):
        choice = ask(**options, stop=given).choices[0]
        assert (choice.text, choice.finish_reason) == (first[: first.index(stop)], "stop")


def test_several_answers(shared: Serving) -> None:
    """To each prompt, as with seeds of their own; a prompt counts once, whose full pages are computed once."""
    ask, options = shared.client.completions.create, dict(model="tiny", temperature=1.5, max_tokens=9)
    single = [ask(prompt=TEXTS[i], seed=7 + j, **options).choices[0].text for i in (0, 2) for j in range(3)]
    found = ask(prompt=[TEXTS[0], TEXTS[2]], seed=7, n=3, best_of=3, **options)
    assert [choice.text for choice in found.choices] == single and len(set(single)) == 6
    tokens = sum(len(shared.engine.encode(TEXTS[i])) for i in (0, 2))
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (tokens, 54)
    streamed = {0: "", 1: ""}
    chat = shared.client.chat.completions.create
    whole = chat(messages=MESSAGES, n=2, seed=1, **options)
    for chunk in chat(messages=MESSAGES, n=2, seed=1, stream=True, **options):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == {choice.index: choice.message.content for choice in whole.choices}


def test_logprobs(shared: Serving, path: Path) -> None:
    """The engine's, for the tokens whose text is given; whole and streamed; in both of OpenAI's forms."""
    engine, stop = Engine(path, max_tokens=512, threads=1), []
    for cut in (False, True):
        options = dict(temperature=1.5, seed=5, stop=stop, logprobs=2)
        [request] = engine.generate([TEXTS[0]], max_new_tokens=16, **options)
        tokens = [token for token in request.logprobs if not cut or token.offset < len(request.text)]
        found = shared.client.completions.create(model="tiny", prompt=TEXTS[0], **options).choices[0].logprobs
        assert found.token_logprobs == [token.logprob for token in tokens]
        assert found.text_offset == [token.offset for token in tokens]
        for token, top in zip(tokens, found.top_logprobs):
            assert len(top) - (token.token not in dict(token.top)) == 2
        assert all(name in top for name, top in zip(found.tokens, found.top_logprobs))
        assert (len(tokens) < len(request.answer)) == cut
        stop = [request.text[3:5]]
    chat = shared.client.chat.completions.create
    options = dict(messages=MESSAGES, logprobs=True, max_tokens=16, **GREEDY)
    whole = chat(top_logprobs=3, **options).choices[0]
    entries = whole.logprobs.content
    assert bytes(byte for entry in entries for byte in entry.bytes).decode(errors="replace") == whole.message.content
    for entry in entries:
        assert entry.top_logprobs[0].token == entry.token and len(entry.top_logprobs) == 3
        logprobs = [top.logprob for top in entry.top_logprobs]
        assert logprobs == sorted(logprobs, reverse=True) and logprobs[0] == entry.logprob < 0
    assert any(entry.token.startswith("bytes:\\x") for entry in entries)
    streamed = [entry for chunk in chat(top_logprobs=3, stream=True, **options) for choice in chunk.choices
                for entry in choice.logprobs.content]  # fmt: skip
    assert streamed == entries
    assert chat(**options).choices[0].logprobs.content[0].top_logprobs == []


def test_echo(shared: Serving, path: Path) -> None:
    """An answer begins with its prompt, whose tokens have logprobs: what lm-evaluation-harness scores by."""
    complete, text = shared.client.completions.create, TEXTS[2]
    tokens = shared.engine.encode(text)
    [scored] = Engine(path, max_tokens=512, threads=1).generate(
        [tokens], max_new_tokens=2, prompt_logprobs=1, logprobs=1
    )
    expected = [token.logprob for token in [*scored.prompt_logprobs, *scored.logprobs]]
    for prompt in (text, tokens):
        whole = complete(prompt=prompt, echo=True, logprobs=1, max_tokens=2, **GREEDY).choices[0]
        assert (whole.text, whole.logprobs.token_logprobs) == (text + scored.text, expected)
        assert whole.logprobs.token_logprobs[0] is whole.logprobs.top_logprobs[0] is None
        offsets = whole.logprobs.text_offset
        assert offsets[0] == 0 and offsets[len(tokens)] == len(text) and sorted(offsets) == offsets
    [none] = complete(prompt=tokens, echo=True, logprobs=1, max_tokens=0, **GREEDY).choices
    assert (none.text, none.finish_reason, none.logprobs.token_logprobs) == (text, "length", expected[: len(tokens)])
    chunks = complete(prompt=[text, tokens], echo=True, stream=True, max_tokens=2, **GREEDY)
    pieces = [choice for chunk in chunks for choice in chunk.choices]
    assert ["".join(choice.text for choice in pieces if choice.index == i) for i in (0, 1)] == [text + scored.text] * 2
    assert complete(prompt=text, echo=True, max_tokens=0, **GREEDY).usage.completion_tokens == 0


def test_chat(shared: Serving, path: Path) -> None:
    """Whole and streamed; what of the prompt is in the cache is said."""
    engine = Engine(path, max_tokens=512, threads=1)
    [request] = engine.generate([ChatTemplate(engine.model).tokens(MESSAGES)], max_new_tokens=9)
    ask = shared.client.chat.completions.create
    found = ask(messages=MESSAGES, max_tokens=9, **GREEDY)
    assert (found.choices[0].message.role, found.choices[0].message.content) == ("assistant", request.text)
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "theme"}]
    messages = [MESSAGES[0], {"role": "user", "content": parts}]
    options = dict(stream=True, stream_options={"include_usage": True}, max_completion_tokens=9)
    chunks = list(ask(messages=messages, **options, **GREEDY))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == request.text
    assert chunks[-2].choices[0].finish_reason == "length" and not chunks[-1].choices
    usage = chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(request.prompt), 9)
    assert usage.prompt_tokens_details.cached_tokens == len(request.prompt) // 8 * 8


def test_context_shift(path: Path, expected: list[str]) -> None:
    """A chat longer than the context loses its oldest messages, an answer goes on past it; a prompt is refused."""
    turns = [{"role": role, "content": "the"} for _ in range(9) for role in ("user", "assistant")]
    with serving(path, app={"context_shift": True}, max_tokens=128) as server:
        ask = server.client.chat.completions.create
        found = ask(messages=[MESSAGES[0], *turns, MESSAGES[1]], max_tokens=5, **GREEDY)
        same = ask(messages=[MESSAGES[0], *turns[-2:], MESSAGES[1]], max_tokens=5, **GREEDY)
        assert found.usage.prompt_tokens == same.usage.prompt_tokens <= 64
        assert found.choices[0].message.content == same.choices[0].message.content
        assert ask(messages=MESSAGES, max_tokens=300, **GREEDY).usage.completion_tokens == 300
        complete = server.client.completions.create
        assert complete(prompt="a", max_tokens=300, **GREEDY).usage.completion_tokens == 300
        with pytest.raises(openai.BadRequestError, match="129 tokens"):
            complete(prompt="a" * 129, **GREEDY)
