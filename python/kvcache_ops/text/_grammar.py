"""Grammars of answers, JSON of a schema or Lark: llguidance says which tokens may come next."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock, Timer
from time import monotonic, thread_time
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from kvcache_ops._errors import KvCacheError
from kvcache_ops._optional import load as load_package

if TYPE_CHECKING:
    from kvcache_ops.models import Model

# Small models would write space for ever where they may.
_SPACE = {"whitespace_pattern": r"[ \n]{0,32}"}
# Limits of a schema: larger ones take too long, or fail in the middle of an answer.
_MOST_BYTES = 1 << 17  # of a grammar
_MOST_LEVELS = 96
_MOST_OPTIONAL = 500  # properties of an object that may be left out: of llguidance's 2000 items, each takes 4
_MOST_TEXT = 10_000  # characters of a name, a value or a pattern
_MOST_PATTERN = 20_000  # characters and classes of a pattern, with its repetitions of groups written out
_TEXTS = ("description", "title", "$comment")  # which are not compiled
_PATTERNS = ("pattern", "whitespace_pattern", "item_separator", "key_separator")
# Limits of llguidance: a step of an answer takes 15 ms at most; its messages are short.
_LIMITS = {"initial_lexer_fuel": 200_000, "max_lexer_states": 50_000, "verbose_errors": False}
_SECONDS = 5.0  # that a grammar may take
_STEP_SECONDS = 0.5  # of a processor, in one step of an answer, which others wait for
_KEPT = 64  # grammars that are known
_REFUSED = 60  # seconds that a refusal is known: a busy machine may have been its reason


class Grammar:
    """A grammar of answers of one model: see `Engine.json_grammar`. Any number of requests may share it."""

    def __init__(self, matcher: Any, fingerprint: str) -> None:
        self._matcher, self.fingerprint = matcher, fingerprint  # of the model

    def begin(self) -> Position:
        """The position of an empty answer."""
        return Position(self._matcher.deep_copy())


class Position:
    """The position of an answer in its grammar."""

    def __init__(self, matcher: Any) -> None:
        self._matcher, self._known = matcher, 0

    def masked(
        self, logits: NDArray[np.float32], answer: Sequence[int], out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """The logits (vocabulary) of tokens that may follow an answer, and -inf of the others; in `out` if it is given.

        Raises KvCacheError "grammar_failed" where the grammar costs too much in a step.
        """
        begin = thread_time()
        self._follow(answer)
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        if (seconds := thread_time() - begin) > _STEP_SECONDS:
            message = f"the grammar failed: a step took {seconds:.1f} s, expected at most {_STEP_SECONDS} s"
            raise KvCacheError(message, "grammar_failed")
        forbidden = np.unpackbits(~mask, count=len(logits), bitorder="little").view(np.bool_)
        out = np.empty_like(logits) if out is None else out
        np.copyto(out, logits)
        np.copyto(out, np.float32(-np.inf), where=forbidden)
        return out

    def is_end(self, answer: Sequence[int]) -> bool:
        """Whether nothing may follow an answer. Raises KvCacheError as `masked` does."""
        self._follow(answer)
        return bool(self._matcher.is_stopped())

    def _follow(self, answer: Sequence[int]) -> None:
        self._matcher.consume_tokens(answer[self._known :])
        self._known = len(answer)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise KvCacheError(f"the grammar failed: {_error(self._matcher)}", "grammar_failed")


def _error(matcher: Any) -> str:
    return str(matcher.get_error()).replace("<non-verbose/>", "").strip()


class Grammars:
    """Makes grammars of one model, whose tokens it knows, and keeps the latest. Threads may share it."""

    def __init__(self, model: Model) -> None:
        """Raises KvCacheError: "package_missing", and "grammar_tokenizer" where llguidance refuses the tokenizer."""
        self._package, self._fingerprint = load_package("llguidance", "a grammar", "json"), model.fingerprint
        try:
            size, stops = model.config.vocab_size, list(model.stops) or None
            self._tokens = self._package.LLTokenizer(model.tokenizer.to_str(), n_vocab=size, eos_token=stops)
        except Exception as error:  # the package raises no narrower one
            raise KvCacheError(f"llguidance refuses the model's tokenizer: {error}", "grammar_tokenizer") from error
        self._trials = _Trials(self._package)
        self._known: OrderedDict[str, tuple[Grammar | KvCacheError, float]] = OrderedDict()
        self._lock = Lock()

    def of_json(self, schema: Mapping[str, Any]) -> Grammar:
        """JSON of a schema.

        Raises KvCacheError: "grammar_schema" for a schema that is invalid, has unknown keywords or is too large, and
        "grammar_process".
        """
        try:
            grammar = self._package.LLMatcher.grammar_from_json_schema(_json(schema), defaults=_SPACE)
        except ValueError as error:
            if isinstance(error, KvCacheError):
                raise
            raise KvCacheError(f"the schema is refused: {error}", "grammar_schema") from error
        return self._made(grammar)

    def of_lark(self, text: str) -> Grammar:
        """Of llguidance's Lark. Raises KvCacheError as `of_json` does, also for schemas in it."""
        if not isinstance(text, str):
            raise KvCacheError(f"the grammar is {type(text).__name__}, expected a text", "grammar_schema")
        return self._made(self._package.LLMatcher.grammar_from_lark(text))

    def _made(self, grammar: str) -> Grammar:
        """A grammar in llguidance's form, which was made before, or is tried first."""
        with self._lock:
            known: Grammar | KvCacheError | None
            known, made = self._known.get(grammar, (None, 0.0))
            if isinstance(known, KvCacheError) and monotonic() - made > _REFUSED:
                known = None
            if known is not None:
                self._known.move_to_end(grammar)
        if known is None:
            try:
                known = self._compiled(grammar)
            except KvCacheError as error:
                if error.kind != "grammar_schema":
                    raise
                known = error
            with self._lock:
                self._known[grammar] = known, monotonic()
                while len(self._known) > _KEPT:
                    self._known.popitem(last=False)
        if isinstance(known, KvCacheError):
            raise KvCacheError(str(known), known.kind)
        return known

    def _compiled(self, grammar: str) -> Grammar:
        check_size(len(grammar))
        refused = self._trials.refused(grammar)
        if not refused:
            limits = self._package.LLParserLimits(**_LIMITS)
            matcher = self._package.LLMatcher(self._tokens, grammar, log_level=0, limits=limits)
            first = matcher.deep_copy()
            first.compute_bitmask()
            if not first.is_error():
                return Grammar(matcher, self._fingerprint)
            refused = _error(first)
        raise KvCacheError(f"the schema is refused: {refused}", "grammar_schema")


class _Trials:
    """Processes that compile grammars first: a grammar that takes too long, or crashes llguidance, ends only one."""

    def __init__(self, package: Any) -> None:
        folder = Path(package.__file__).parents[1]
        script = Path(__file__).with_name("_grammar_trial.py")
        self._command = [sys.executable, "-I", str(script), str(folder), json.dumps(_LIMITS)]
        self._idle: list[subprocess.Popen[str]] = []
        self._owner = os.getpid()
        finalize(self, _end, self._idle)

    def refused(self, grammar: str) -> str:
        """Why a grammar is refused, or an empty text. Raises KvCacheError "grammar_process" without a process."""
        process = self._process()
        timer = Timer(_SECONDS, process.kill)
        assert process.stdin is not None and process.stdout is not None
        answer = ""
        timer.start()
        try:
            process.stdin.write(json.dumps(grammar) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:  # it has ended
            pass
        finally:
            late = not timer.is_alive()
            timer.cancel()
            if answer and not late:
                self._idle.append(process)
            else:
                _end([process])
        if answer:
            return str(json.loads(answer))
        return f"it takes more than {_SECONDS} seconds" if late else "llguidance crashes"

    def _process(self) -> subprocess.Popen[str]:
        if self._owner != os.getpid():  # after a fork, they are the parent's
            self._owner, self._idle = os.getpid(), []
        while self._idle:
            if (process := self._idle.pop()).poll() is None:
                return process
            _end([process])
        try:
            process = subprocess.Popen(
                self._command,
                encoding="utf-8",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            message = f"the process that tries a grammar first cannot be started: {error}"
            raise KvCacheError(message, "grammar_process") from error
        if process.stdout is None or not process.stdout.readline():
            _end([process])
            message = f"the process that tries a grammar first has ended with {process.returncode}"
            raise KvCacheError(f"{message}: {' '.join(self._command)}", "grammar_process")
        return process


def _end(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        with suppress(OSError), process:  # closes its pipes, one of which may still have bytes, and waits
            pass


def check_size(size: int) -> None:
    """Raises KvCacheError "grammar_schema" for a grammar of more bytes than one may have."""
    if size > _MOST_BYTES:
        raise KvCacheError(f"the schema has {size} bytes, expected at most {_MOST_BYTES}", "grammar_schema")


def lark_of_json(schema: Mapping[str, Any]) -> str:
    """JSON of a schema in a rule of Lark. Raises KvCacheError "grammar_schema" if it is no JSON, or too large."""
    return f"%json {_json({'x-guidance': _SPACE, **schema})}"


def _json(schema: Mapping[str, Any]) -> str:
    """The JSON of a schema. Raises KvCacheError "grammar_schema" if it is no JSON, or too large."""
    try:
        _check(schema)
        return json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, KvCacheError):
            raise
        raise KvCacheError(f"the schema is no JSON: {error}", "grammar_schema") from error


def _check(schema: Mapping[str, Any]) -> None:
    """Raises KvCacheError "grammar_schema" for a schema that is too large, before anything is made of it."""

    def most(got: int, limit: int, what: str) -> None:
        if got > limit:
            raise KvCacheError(f"the schema has {got} {what}, expected at most {limit}", "grammar_schema")

    def check_pattern(text: str) -> None:
        most(len(text), _MOST_TEXT, "characters in a text")
        size = _pattern_size(text)
        most(size, _MOST_PATTERN, "characters in a pattern, with its repetitions of groups written out")

    values, texts, left = 0, 0, [(1, schema)]
    while left:
        level, value = left.pop()
        values += 1
        most(values, _MOST_BYTES, "values")
        most(level, _MOST_LEVELS, "levels")
        if isinstance(value, str):
            most(len(value), _MOST_TEXT, "characters in a text")
            texts += len(value)
        elif isinstance(value, Mapping):
            properties, required = value.get("properties"), value.get("required")
            if isinstance(properties, Mapping):
                names = required if isinstance(required, list) else ()
                optional = len(properties.keys() - {name for name in names if isinstance(name, str)})
                most(optional, _MOST_OPTIONAL, "properties in an object that may be left out")
            if isinstance(patterns := value.get("patternProperties"), Mapping):
                most(sum(len(str(name)) for name in patterns), _MOST_BYTES, "characters in names and texts")
                for name in patterns:
                    check_pattern(str(name))
            for name, member in value.items():
                most(len(str(name)), _MOST_TEXT, "characters in a name")
                texts += len(str(name))
                if name in _PATTERNS and isinstance(member, str):
                    check_pattern(member)
                if not (name in _TEXTS and isinstance(member, str)):
                    left.append((level + 1, member))
        elif isinstance(value, list | tuple):
            left += [(level + 1, member) for member in value]
        most(texts, _MOST_BYTES, "characters in names and texts")


# A class that is not closed takes the rest: to look for its end at each bracket would be quadratic.
_CLASS = r"\[\^?\]?(?:\\.|[^]\\])*(?:\]|\\?\Z)"
_PATTERN = re.compile(rf"\\[pP]\{{\w*\}}|\\.|{_CLASS}|\{{(\d{{1,9}})(?:,(\d{{0,9}}))?\}}|.", re.DOTALL)


def _pattern_size(pattern: str) -> int:
    """How many characters and classes a pattern has with its repetitions of groups written out, as llguidance does."""
    groups, last = [0], 0  # sizes so far of the groups that are open, and of what a repetition would repeat
    for token in _PATTERN.finditer(pattern):
        text = token[0]
        if text == "(":
            groups.append(0)
        elif text == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        elif token[1]:
            times = max(int(token[1]), int(token[2] or 0), 1)
            if len(groups) > 1 or last > 1:  # one character alone is counted, not written out
                groups[-1] += last * (times - 1)
                last *= times
        elif text not in "?*+|^$":
            groups[-1] += 1
            last = 1
    return sum(groups)
