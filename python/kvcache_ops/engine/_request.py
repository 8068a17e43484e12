"""A request: its user's end of it, and its state, which the engine's steps change; and guesses of its next tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvcache_ops._errors import KvCacheError
from kvcache_ops.models import Model
from kvcache_ops.text._sampling import Sampler, Sampling, TokenLogprobs, scratch
from kvcache_ops.text._text_stream import TextStream

if TYPE_CHECKING:
    from kvcache_ops.engine import Engine

_LONGEST, _SHORTEST = 3, 2  # tokens that a guess is looked up by


class PromptLookup:
    """Guesses that the last tokens continue as at an earlier place, in the prompt or in the answer."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}  # the place after the latest of these tokens
        self._known = 0

    def guess(self, context: list[int], most: int) -> list[int]:
        """Guesses at most this many tokens. Each context is the one of the last guess and further tokens."""
        for end in range(max(self._known, _SHORTEST), len(context)):
            for length in range(_SHORTEST, min(_LONGEST, end) + 1):
                self._after[tuple(context[end - length : end])] = end
        self._known = len(context)
        for length in range(min(_LONGEST, len(context)), _SHORTEST - 1, -1):
            if (place := self._after.get(tuple(context[-length:]))) is not None:
                return context[place : place + most]
        return []


class RequestState:
    """A request as the engine's steps see it. They alone change it; `end` and `cancel` may come from any thread."""

    _ending: tuple[str | None, KvCacheError | None] = (None, None)

    def __init__(
        self,
        model: Model,
        prompt: list[int],
        sampling: Sampling,
        forget: Callable[[RequestState], None],
        keep: int | None = None,
        tag: Any = None,
    ) -> None:
        """forget: called once the request is cancelled, to free its place. tag: see `Engine.submit`."""
        self.prompt, self.text = prompt, ""
        self.answer: list[int] = []
        self.cached = self.shifted = self.guessed = 0
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.sampling, self.keep, self.tag = sampling, keep, tag
        self._model, self._forget = model, forget
        self._news: SimpleQueue[None] = SimpleQueue()  # has an entry where there is something to read
        self._sampler = Sampler(sampling, prompt)
        self._position = None if sampling.grammar is None else sampling.grammar.begin()
        shown = sampling.shown_tokens
        hidden = model.special_tokens.keys() - shown if shown else None
        self._stream = TextStream(model.tokenizer, prompt, hidden)
        self._decoded = 0  # characters that the stream has given
        self._unsaid = ""  # the end of the text, which may begin a stop
        # The scheduler's:
        self.context = list(prompt)  # the tokens that attention sees, or will see
        self.stored = 0  # how many of them the sequence has
        self.found = 0  # how many of them are cached, before any are stored
        self.awaited = 0  # the end of the page that it has waited for
        self.sequence = -1  # while it runs
        self.lookup = PromptLookup()
        self.guess: list[int] = []  # the tokens that the step checks after the context
        self.preempted = False  # once or more: its tokens are stored again
        self.saving = False  # `Engine.save` writes it: once all of it is stored, steps leave it and its sequence alone
        self.scoring = sampling.prompt_logprobs is not None  # the prompt's logprobs are not complete
        if self.scoring:
            self._prompt_stream, self._prompt_decoded = TextStream(model.tokenizer, []), 0
            self._score(TokenLogprobs(prompt[0], None, (), 0))

    @property
    def finish(self) -> str | None:
        """Why the answer ended, None until then."""
        return self._ending[0]

    @property
    def error(self) -> KvCacheError | None:
        """What has ended it, for the finish "error"."""
        return self._ending[1]

    @property
    def missing(self) -> int:
        """How many tokens of the context are not computed yet: 1 within an answer, 0 once a save is complete."""
        return len(self.context) - (self.stored or self.found)

    @property
    def missing_answer(self) -> int:
        """How many tokens the answer may still get."""
        return self.sampling.max_new_tokens - len(self.answer)

    def end(self, finish: str, error: KvCacheError | None = None) -> bool:
        """Ends the answer where it is. Returns whether it had not ended before."""
        ending = finish, error
        if vars(self).setdefault("_ending", ending) is not ending:  # of several threads, the first one ends it
            return False
        self._news.put(None)
        return True

    def cancel(self, error: KvCacheError | None = None) -> None:
        """Ends the answer, with an error if there is one, and has its place freed. Waits for nothing."""
        if self.end("cancelled" if error is None else "error", error):
            self._forget(self)

    def tell(self) -> None:
        """Wakes the reader. Without one, nothing accumulates but the text."""
        if self._news.empty():
            self._news.put(None)

    def wait(self) -> None:
        """Waits until there is more to read, or the end."""
        self._news.get()
        if self.finish is not None:
            self._news.put(None)  # for others who wait

    def score(self, stored: int, logits: NDArray[np.float32]) -> None:
        """Logprobs of the prompt's tokens that follow its first `stored` ones, from the logits of each."""
        for row, known in zip(logits, range(stored, stored + len(logits))):
            if self.scoring and known == len(self.prompt_logprobs):  # not once more where it was preempted
                likely = self.sampling.prompt_logprobs or 0
                self._score(TokenLogprobs.of(row, self.prompt[known], likely, self._prompt_decoded))

    def _score(self, scored: TokenLogprobs) -> None:
        self.prompt_logprobs.append(scored)
        self._prompt_decoded += len(self._prompt_stream.step(scored.token))
        self.scoring = len(self.prompt_logprobs) < len(self.prompt)

    def take(self, logits: NDArray[np.float32]) -> str | None:
        """Draws the next token. Returns the finish, if the answer ends with it."""
        if self.saving or self.sampling.max_new_tokens == 0:
            return None if self.saving else "length"
        allowed = logits
        if self._position is not None:
            allowed = self._position.masked(logits, self.answer, scratch(len(logits)))
        token, likely = self._sampler(allowed), self.sampling.logprobs
        model = self._model
        if token in model.stops or model.special_tokens.get(token) in self.sampling.stop:
            self._say(self._stream.rest(), last=True)
            return "stop"
        if likely is not None:
            self.logprobs.append(TokenLogprobs.of(logits, token, likely, self._decoded))
        self.answer.append(token)
        self.context.append(token)
        whole = self._position is not None and self._position.is_end(self.answer)
        last = whole or len(self.answer) == self.sampling.max_new_tokens
        piece = self._stream.step(token)
        self._decoded += len(piece)
        if self._say(piece + self._stream.rest() if last else piece, last) or whole:
            return "stop"
        return "length" if last else None

    def _say(self, piece: str, last: bool) -> bool:
        """Adds to the text, and holds back a possible beginning of a stop; whether a stop is complete."""
        self._unsaid += piece
        places = [place for stop in self.sampling.stop if (place := self._unsaid.find(stop)) >= 0]
        lengths = ((stop, n) for stop in self.sampling.stop for n in range(1, min(len(stop), len(self._unsaid) + 1)))
        held = max((n for stop, n in lengths if self._unsaid.endswith(stop[:n])), default=0)
        end = min(places) if places else len(self._unsaid) - (0 if last else held)
        self.text, self._unsaid = self.text + self._unsaid[:end], self._unsaid[end:]
        return bool(places)


class Request:
    """A prompt and its answer in progress. Iterating yields the answer's text in pieces, as it is computed.

    The engine computes it whether or not somebody reads; who reads later gets larger pieces. Ending the iteration
    before the answer ends, by `break`, an interrupt or by dropping the iterator, cancels the request; so does dropping
    the request. `prompt` and `answer` are tokens, `text` is the answer's text. `finish` says why it ended: "stop",
    "length", "cancelled" or "error", whose exception is `error`; None until then. `cached` counts the
    prompt's tokens that were found in the cache, `shifted` tokens that left the context, `guessed` the answer's tokens
    from the prompt lookup. `logprobs` has an entry for each token of the answer, `prompt_logprobs` for each token of
    the prompt, if `sampling` asks for them.
    """

    prompt: list[int]
    answer: list[int]
    text: str
    finish: str | None
    error: KvCacheError | None
    cached: int
    shifted: int
    guessed: int
    logprobs: list[TokenLogprobs]
    prompt_logprobs: list[TokenLogprobs]
    sampling: Sampling

    def __init__(self, engine: Engine, state: RequestState) -> None:
        self._engine, self._state = engine, state  # an engine lives as long as its requests

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._state, name)

    def __iter__(self) -> Iterator[str]:
        state, said = self._state, 0
        try:
            while True:
                finish, text = state.finish, state.text  # in this order: at the end the text is whole
                if len(text) > said:
                    yield text[said:]
                    said = len(text)
                elif finish is None:
                    self._engine.loop.wait(state)
                elif state.error is not None:
                    raise state.error
                else:
                    return
        finally:
            self.cancel()

    def cancel(self, error: KvCacheError | None = None) -> None:
        """Ends the answer where it is, and frees its place once the step that runs has ended.

        error: what the answer ends with, which iterating raises; None for "cancelled".
        """
        self._state.cancel(error)

    __del__ = cancel
