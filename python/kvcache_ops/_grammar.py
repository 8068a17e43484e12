"""Answers that are JSON of a schema: which tokens may come next, by llguidance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvcache_ops._errors import KvCacheError
from kvcache_ops._optional import load as load_package

if TYPE_CHECKING:
    from kvcache_ops.models import Model

# Small models would write space for ever where they may.
_SPACE = {"whitespace_pattern": r"[ \n]{0,32}"}


class Grammar:
    """What answers of one model may be: see `Engine.json_grammar`. Any number of requests may have it, at once."""

    def __init__(self, matcher: Any, fingerprint: str) -> None:
        self._matcher, self.fingerprint = matcher, fingerprint  # of the model

    def begin(self) -> Position:
        """Where an answer begins."""
        return Position(self._matcher.deep_copy())


class Position:
    """Where an answer is in its grammar."""

    def __init__(self, matcher: Any) -> None:
        self._matcher, self._known = matcher, 0

    def masked(
        self, logits: NDArray[np.float32], answer: Sequence[int], out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """The logits (vocabulary) of tokens that may follow an answer, and -inf of the others; in `out` if it is given.

        Raises KvCacheError "grammar_failed" where the grammar is too complex.
        """
        self._follow(answer)
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
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
            raise KvCacheError(f"the grammar failed: {self._matcher.get_error()}", "grammar_failed")


class Grammars:
    """Makes grammars of one model, whose tokens it knows. Threads may share it."""

    def __init__(self, model: Model) -> None:
        """Raises KvCacheError: "package_missing", and "grammar_tokenizer" where llguidance refuses the tokenizer."""
        self._package, self._fingerprint = load_package("llguidance", "a grammar", "json"), model.fingerprint
        try:
            size, stops = model.config.vocab_size, list(model.stops) or None
            self._tokens = self._package.LLTokenizer(model.tokenizer.to_str(), n_vocab=size, eos_token=stops)
        except Exception as error:  # the package raises no narrower one
            raise KvCacheError(f"llguidance refuses the model's tokenizer: {error}", "grammar_tokenizer") from error

    def of_json(self, schema: Mapping[str, Any]) -> Grammar:
        """JSON of a schema. Raises KvCacheError "grammar_schema" for what is none, or has unknown keywords."""
        grammar = self._package.LLMatcher.grammar_from_json_schema(_json(schema), defaults=_SPACE)
        return self._made(grammar)

    def of_lark(self, text: str) -> Grammar:
        """Of llguidance's Lark. Raises KvCacheError "grammar_schema" for what is none, or refused in its schemas."""
        return self._made(self._package.LLMatcher.grammar_from_lark(text))

    def _made(self, grammar: str) -> Grammar:
        matcher = self._package.LLMatcher(self._tokens, grammar, log_level=0)
        if matcher.is_error():
            raise KvCacheError(f"the schema is refused: {matcher.get_error()}", "grammar_schema")
        return Grammar(matcher, self._fingerprint)


def lark_of_json(schema: Mapping[str, Any]) -> str:
    """JSON of a schema in a rule of Lark. Raises KvCacheError "grammar_schema" for a schema that is no JSON itself."""
    return f"%json {_json({'x-guidance': _SPACE, **schema})}"


def _json(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise KvCacheError(f"the schema is no JSON: {error}", "grammar_schema") from error
