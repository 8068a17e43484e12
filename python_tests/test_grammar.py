"""Answers that are JSON of a schema, whatever a random model would say; beside others, which do not notice."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import openai
import pytest
from kvcache_ops._grammar import Grammars
from kvcache_ops.engine import Engine
from kvcache_ops.models import Model

from compare import refused
from served import GREEDY, MESSAGES, TEXTS, Serving, expected, path, serving, shared
from test_text_stream import byte_level, sentence_piece

__all__ = ["expected", "path", "shared"]  # fixtures

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 3},
        "kind": {"enum": ["\u00e9t\u00e9", "hiver"]},
        "list": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "kind", "list"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
HOT = {"temperature": 1.5, "max_new_tokens": 300}


def check(text: str) -> None:
    """It is of SCHEMA."""
    thing = json.loads(text)
    assert list(thing) == ["name", "kind", "list"] and len(thing["name"]) <= 3 and len(thing["list"]) <= 3
    assert thing["kind"] in SCHEMA["properties"]["kind"]["enum"]
    assert all(isinstance(item, int) and 0 <= item <= 99 for item in thing["list"])


@pytest.mark.parametrize("options", [{}, {"max_tokens": 160, "max_batch": 3}, {"prompt_lookup": 4}])
def test_answers_fit(path: Path, expected: list[str], options: dict[str, int]) -> None:
    """Drawn at random, preempted and computed again, or guessed; those beside them are as alone."""
    engine = Engine(path, threads=1, **{"max_tokens": 512} | options)
    grammar = engine.json_grammar(SCHEMA)
    plain = [engine.submit(text, max_new_tokens=16) for text in TEXTS]
    fitting = [engine.submit("a", grammar=grammar, seed=seed, **HOT) for seed in range(6)]
    penalized = engine.submit("a", grammar=grammar, repetition_penalty=1.3, top_k=5, logprobs=2, seed=3, **HOT)
    assert ["".join(request) for request in plain] == expected
    for request in [*fitting, penalized]:
        check("".join(request))
        assert request.finish == "stop" and request.error is None
    assert len({request.text for request in fitting}) == 6
    assert [token.token for token in penalized.logprobs] == penalized.answer
    again = Engine(path, max_tokens=512, threads=1)
    [alone] = again.generate(["a"], grammar=again.json_grammar(SCHEMA), seed=2, **HOT)
    assert alone.text == fitting[2].text


def test_ends(path: Path) -> None:
    """By max_new_tokens or a stop, in the middle; any object by default, and a number until the model ends it."""
    engine = Engine(path, max_tokens=512, threads=1)
    grammar = engine.json_grammar(SCHEMA)
    [whole] = engine.generate(["a"], grammar=grammar, seed=1, **HOT)
    [cut] = engine.generate(["a"], grammar=grammar, seed=1, **HOT | {"max_new_tokens": 9})
    [stopped] = engine.generate(["a"], grammar=grammar, seed=1, stop=['"kind'], **HOT)
    assert (cut.finish, cut.answer) == ("length", whole.answer[:9])
    assert (stopped.finish, stopped.text) == ("stop", whole.text[: whole.text.index('"kind')])
    [anything] = engine.generate(["a"], grammar=engine.json_grammar(), seed=5, **HOT)
    assert anything.text.lstrip().startswith("{")
    [number] = engine.generate(["a"], grammar=engine.json_grammar({"type": "integer"}), seed=5, **HOT)
    assert number.text.strip().lstrip("-").isdigit()


@pytest.mark.parametrize("tokenizer", [byte_level(), sentence_piece()], ids=["bytes", "byte fallback"])
def test_tokenizers(path: Path, tokenizer: object) -> None:
    """Characters of several tokens, in both kinds of tokenizers; logits that want what may not follow."""
    model = Model(**{**vars(Engine(path, max_tokens=64).model), "tokenizer": tokenizer, "stops": (3,)})
    position = Grammars(model).of_json({"const": ["\u00e9", "\U0001f600"]}).begin()
    answer: list[int] = []
    random = np.random.default_rng(1)
    while not position.is_end(answer):
        masked = position.masked(random.standard_normal(model.config.vocab_size).astype(np.float32), answer)
        answer.append(int(masked.argmax()))
        assert np.isfinite(masked[answer[-1]]) and len(answer) < 400
    assert json.loads(tokenizer.decode(answer)) == ["\u00e9", "\U0001f600"]


def test_over_http(shared: Serving, expected: list[str]) -> None:
    """Whole and streamed, several to a prompt, in company; json_object; completions, too."""
    chat, complete = shared.client.chat.completions.create, shared.client.completions.create
    options = dict(model="tiny", messages=MESSAGES, response_format=FORMAT, temperature=1.5, max_tokens=300)
    with ThreadPoolExecutor(4) as pool:
        plain = [pool.submit(complete, prompt=text, **GREEDY) for text in TEXTS]
        found = chat(n=3, seed=4, **options)
        assert [answer.result().choices[0].text for answer in plain] == expected
    for choice in found.choices:
        check(choice.message.content)
        assert choice.finish_reason == "stop"
    chunks = [choice for chunk in chat(seed=4, stream=True, **options) for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in chunks) == found.choices[0].message.content
    any_object = {"response_format": {"type": "json_object"}}
    assert chat(**options | any_object | {"max_tokens": 5}).choices[0].message.content.lstrip()[0] == "{"
    check(complete(model="tiny", prompt="a", max_tokens=300, extra_body={"response_format": FORMAT}).choices[0].text)


def test_refused(shared: Serving, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no format or no schema, by name; without llguidance all of it, and nothing else."""

    def refuses(code: str, param: str, format: object) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            shared.client.chat.completions.create(messages=MESSAGES, response_format=format, **GREEDY)
        assert (caught.value.code, caught.value.param) == (code, param)

    for format in ({"type": "xml"}, {"type": "json_schema"}, {"type": "text", "a": 1}, {"schema": {}}, "json"):
        refuses("parameter_invalid", "response_format", format)
    for named in ({"name": "a"}, {"schema": 5}, {"schema": {}, "other": 1}):
        refuses("parameter_invalid", "response_format.json_schema", {"type": "json_schema", "json_schema": named})
    for schema in ({"type": "objec"}, {"$ref": "http://there/is"}, {"type": "string", "pattern": "("}):
        refuses("grammar_schema", "response_format", {"type": "json_schema", "json_schema": {"schema": schema}})
    engine = Engine(path, max_tokens=64, threads=1)
    for schema in ({"const": {1}}, {"const": float("nan")}):
        with refused("grammar_schema"):
            engine.json_grammar(schema)
    with refused("sampling_range", "grammar is {}"):
        engine.submit("a", grammar={})
    other = replace(engine.model, fingerprint="of others")
    with refused("grammar_tokenizer", "of another model"):
        engine.submit("a", grammar=Grammars(other).of_json(SCHEMA))
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with refused("package_missing", r"a grammar needs the package llguidance"):
        Engine(path, max_tokens=64, threads=1).json_grammar(SCHEMA)
    with serving(path) as without:
        with pytest.raises(openai.BadRequestError) as caught:
            without.client.chat.completions.create(messages=MESSAGES, response_format=FORMAT, **GREEDY)
        assert (caught.value.code, caught.value.param) == ("package_missing", "response_format")
        assert without.client.completions.create(prompt="a", **GREEDY).choices
