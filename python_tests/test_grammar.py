"""Answers that are JSON of a schema, whatever a random model would say; beside others, which do not notice."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from time import thread_time

import numpy as np
import openai
import pytest
from kvcache_ops.engine import Engine
from kvcache_ops.models import Model
from kvcache_ops.text import _grammar
from kvcache_ops.text._grammar import Grammars

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
    "x-guidance": {"whitespace_pattern": r"[ \n]{0,2}"},  # at most 300 tokens, whatever is drawn
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


def strings(count: int) -> dict[str, object]:
    """An object of that many texts that may be left out."""
    return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(count)}}


def nested(levels: int) -> dict[str, object]:
    """Objects in objects, two levels each."""
    schema: dict[str, object] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def chain(count: int) -> dict[str, object]:
    """References to references."""
    defs = {f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(count)}
    return {"$defs": defs | {f"d{count}": {}}, "$ref": "#/$defs/d0"}


REFUSED = [
    (strings(501), "the schema has 501 properties in an object that may be left out, expected at most 500"),
    (nested(48), "the schema has 97 levels, expected at most 96"),
    (nested(100_000), "the schema has 97 levels"),
    ({"const": "a" * 10_001}, "10001 characters in a text, expected at most 10000"),
    ({"properties": {"a" * 10_001: {}}}, "10001 characters in a name"),
    ({"anyOf": [strings(500)] * 18}, "bytes, expected at most 131072"),
    ({"pattern": "a" * 10_001}, "10001 characters in a text, expected at most 10000"),
    ({"patternProperties": {f"{i}{'a' * 9000}": {} for i in range(20)}}, "180030 characters in names and texts"),
    ({"anyOf": [{"pattern": "a" * 9999}] * 1000}, "characters in names and texts, expected at most 131072"),
    ({"enum": list(range(200_000))}, "values, expected at most 131072"),
    ({"pattern": "^(a{1000}){1000}$"}, "1000000 characters in a pattern, with its repetitions of groups written out"),
    ({"patternProperties": {"((a{100}b){100}[c]){3}": {}}}, "30303 characters in a pattern"),
    ({"x-guidance": {"whitespace_pattern": "(ab){20000}"}}, "40000 characters in a pattern"),
    ({"patternProperties": 5}, "the schema is refused"),
    ({"const": "\ud800"}, "the schema is refused"),
    ({"$ref": "#"}, "the schema is refused"),
    (chain(1000), "llguidance crashes"),
]


@pytest.fixture(scope="module")
def grammars(path: Path) -> Grammars:
    """Of a small model."""
    return Grammars(Engine(path, max_tokens=64, threads=1).model)


def test_what_a_schema_may_have(grammars: Grammars) -> None:
    """What costs too much is refused before it does; what is a little less is not."""
    for schema, message in REFUSED:
        with refused("grammar_schema", message):
            grammars.of_json(schema)
    required = strings(2000)
    required["required"] = list(required["properties"])
    for schema in (strings(500), required, nested(47), chain(100), {"enum": [f"v{i}" for i in range(1000)]}):
        grammars.of_json(schema)
    for pattern in (r"^\p{L}{1,50}$", "^([a-z]{1,64}[.]){1,127}[a-z]{2,63}$", "^.{0,100000}$"):
        grammars.of_json({"type": "string", "pattern": pattern, "description": "a" * 20_000})


def test_the_size_of_a_pattern_is_soon_known() -> None:
    """In a time that grows with its length, whatever it is."""

    for unit in ("[", "[a", "[^", "(", "{1", "\\p{", "[\\]", "a{"):
        begin = thread_time()
        _grammar._pattern_size((unit * 20_000)[:20_000] + "\\")
        assert thread_time() - begin < 1, unit  # linear 0.01, quadratic 7


def test_a_grammar_is_tried_in_a_process_of_its_own(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and ended where it takes too long; what cannot be tried is not made."""
    grammars = Grammars(Engine(path, max_tokens=64, threads=1).model)
    tried, trials = list[str](), grammars._trials
    refused_by = trials.refused
    monkeypatch.setattr(trials, "refused", lambda grammar: (tried.append(grammar), refused_by(grammar))[1])
    assert grammars.of_json(SCHEMA) is grammars.of_json(SCHEMA)
    assert len(tried) == 1 and len(trials._idle) == 1
    begin, command_of_ours = "print(flush=True); import time;", trials._command
    for command, kind, message in (
        ([sys.executable, "-c", f"{begin} time.sleep(60)"], "grammar_schema", "it takes more than 0.2 seconds"),
        ([sys.executable, "-c", begin], "grammar_schema", "llguidance crashes"),
        ([sys.executable, "-c", "raise SystemExit(3)"], "grammar_process", "has ended with 3"),
        (["/none"], "grammar_process", "cannot be started"),
    ):
        _grammar._end(trials._idle)
        trials._idle.clear()
        monkeypatch.setattr(trials, "_command", command)
        monkeypatch.setattr(_grammar, "_SECONDS", 0.2 if "0.2" in message else 60)
        for _ in range(2):
            with refused(kind, message):
                grammars.of_json({"const": message})
    assert len(tried) == 1 + 2 + 2 * 2  # what a schema is refused for is known, too
    monkeypatch.setattr(_grammar, "_REFUSED", -1)
    monkeypatch.setattr(trials, "_command", command_of_ours)
    grammars.of_json({"const": "llguidance crashes"})  # but not for long: a busy machine may have been the reason


def test_a_grammar_that_costs_too_much_in_a_step(
    path: Path, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends its request alone, as what a package raises does."""
    engine = Engine(path, threads=1, max_tokens=512, threaded=False)
    grammar = engine.json_grammar(SCHEMA)
    monkeypatch.setattr(_grammar, "_STEP_SECONDS", 0)
    costly = engine.submit("a", grammar=grammar, **HOT)
    assert engine.generate(TEXTS[:1], max_new_tokens=16)[0].text == expected[0]
    assert costly.error.kind == "grammar_failed" and "a step took" in str(costly.error)
    monkeypatch.undo()
    costly_pattern = {"type": "string", "pattern": "^(a?){2000}a{2000}$"}
    [broken] = engine.generate([TEXTS[0]], grammar=engine.json_grammar(costly_pattern), **HOT)
    assert broken.error.kind == "grammar_failed"
    raising = engine.submit("a", grammar=grammar, **HOT)
    raising._state._position._matcher = None
    assert engine.generate(TEXTS[:1], max_new_tokens=16)[0].text == expected[0]
    assert raising.error.kind == "answer_failed"


def test_over_http(shared: Serving) -> None:
    """Whole and streamed, several to a prompt; json_object; completions, too."""
    chat, complete = shared.client.chat.completions.create, shared.client.completions.create
    options = dict(model="tiny", messages=MESSAGES, response_format=FORMAT, temperature=1.5, max_tokens=300)
    found = chat(n=3, seed=4, **options)
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
