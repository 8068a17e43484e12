"""Continuous batching: many answers at once, from a model of `kvcache_ops.models`.

    engine = Engine("smollm2")
    for piece in engine.submit("The capital of France is", max_new_tokens=20):
        print(piece, end="")

It computes nothing itself. The manager decides where tokens lie and what of a prompt is cached already; one run of the
session for each step computes one token of every answer, and as much of new prompts as the budget allows.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import count, islice
from numbers import Integral
from operator import index
from threading import Lock, RLock
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from kvcache_ops._errors import CapacityError, KvCacheError, ManagerError
from kvcache_ops.manager import Append, Step
from kvcache_ops.models import Model, load  # which says what to install
from kvcache_ops.models._grouped_manager import GroupsStep
from kvcache_ops.models._model import session_options
from kvcache_ops.text._grammar import Grammar, Grammars
from kvcache_ops.text._prompt_lookup import PromptLookup
from kvcache_ops.text._sampling import Sampler, Sampling, TokenLogprobs, scratch

# isort: split
from kvcache_ops.text._text_stream import TextStream

__all__ = ["Engine", "Request", "Sampling", "TokenLogprobs"]

_OF_THE_GRAPH = ("rope", "key_form", "mode")  # arguments of Manager that a graph decides
_OF_THE_MASK = ("window", "sink")  # and those that need its input attn_mask
_ALWAYS_SERVED = ("paged", "runs", "roped", 0)
_SCORED_BYTES = 64 << 20  # of logits of prompts in a step


class Request:
    """A prompt and its answer in progress. Iterating yields the answer's text in pieces, as it is computed.

    Ending the iteration before the answer ends, by `break` or by dropping the iterator, cancels the request; so does
    dropping the request. `prompt` and `answer` are tokens, `text` is the answer's text. `finish` says why it ended:
    "stop", "length", "cancelled" or "error", whose exception is `error`; None until then. `cached` counts tokens of the
    prompt that were found in the cache, `shifted` those that left the context, `guessed` those of the answer that came
    from the prompt lookup. `logprobs` has what `sampling` asks for, for each token of the answer, `prompt_logprobs` for
    each token of the prompt.
    """

    def __init__(self, engine: Engine, prompt: list[int], sampling: Sampling, keep: int | None) -> None:
        self.prompt, self.text = prompt, ""
        self.answer: list[int] = []
        self.finish: str | None = None
        self.error: KvCacheError | None = None
        self.cached = self.shifted = self.guessed = 0
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.sampling = sampling
        self._engine = engine
        self._sampler = Sampler(sampling, prompt)
        self._position = None if sampling.grammar is None else sampling.grammar.begin()
        shown = sampling.shown_tokens
        hidden = engine.model.special_tokens.keys() - shown if shown else None
        self._stream = TextStream(engine.model.tokenizer, prompt, hidden)
        self._decoded = 0  # characters that the stream has given
        self._unsaid = ""  # text that may be the beginning of a stop
        self.changed: Callable[[], None] | None = None  # called once there is more to read, also from within a step
        # The engine's:
        self.number = next(engine.numbers)
        self.keep = keep
        self.context = list(prompt)  # the tokens that attention sees, or will see
        self.stored = 0  # how many of them the sequence has
        self.found: int | None = None  # how many of them a look into the cache has found, before they are stored
        self.looked = 0  # the step in which it looked
        self.sequence = -1  # while it runs
        self.lookup = PromptLookup()
        self.guess: list[int] = []  # the tokens that the step checks after the context
        self.preempted = False  # once or more: its tokens are stored again
        self.scoring = sampling.prompt_logprobs is not None  # the prompt's logprobs are not complete
        if self.scoring:
            self.found = 0  # what would be found in the cache has no logits
            self._prompt_stream, self._prompt_decoded = TextStream(engine.model.tokenizer, []), 0
            self._score(TokenLogprobs(prompt[0], None, (), 0))

    @property
    def missing(self) -> int:
        """How many tokens of the context are still to be computed: 1 of an answer under way, 0 of what is saved."""
        return len(self.context) - (self.stored or self.found or 0)

    @property
    def missing_answer(self) -> int:
        """How many tokens the answer may still get."""
        return self.sampling.max_new_tokens - len(self.answer)

    def __iter__(self) -> Iterator[str]:
        said = 0
        try:
            while True:
                if len(self.text) > said:
                    piece, said = self.text[said:], len(self.text)
                    yield piece
                elif self.finish is not None:
                    if self.error is not None:
                        raise self.error
                    return
                else:
                    self._engine.step(self)
        finally:
            self.cancel()

    def tell(self) -> None:
        """Says that there is more to read."""
        if self.changed is not None:
            self.changed()

    def cancel(self) -> None:
        """Ends the answer where it is, and frees its place."""
        self._engine.end(self, "cancelled")

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
        """Draws the next token; gives why the answer ends with it, if it does."""
        if self.sampling.max_new_tokens == 0:
            return "length"
        allowed = logits
        if self._position is not None:
            allowed = self._position.masked(logits, self.answer, scratch(len(logits)))
        token, likely = self._sampler(allowed), self.sampling.logprobs
        model = self._engine.model
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
        """Adds to the text, but for what may begin a stop; whether there is one."""
        self._unsaid += piece
        places = [place for stop in self.sampling.stop if (place := self._unsaid.find(stop)) >= 0]
        lengths = ((stop, n) for stop in self.sampling.stop for n in range(1, min(len(stop), len(self._unsaid) + 1)))
        held = max((n for stop, n in lengths if self._unsaid.endswith(stop[:n])), default=0)
        end = min(places) if places else len(self._unsaid) - (0 if last else held)
        self.text, self._unsaid = self.text + self._unsaid[:end], self._unsaid[end:]
        return bool(places)


class _Saving(Request):
    """A prompt that is not answered. Once it is `complete`, steps leave it and its sequence alone until it ends."""

    @property
    def complete(self) -> bool:
        """Whether all of the prompt is stored."""
        return self.stored == len(self.context)

    def take(self, _: NDArray[np.float32]) -> None:
        """Draws nothing."""


def _held(requests: Iterable[ref[Request]]) -> list[Request]:
    """Those that somebody still has."""
    return [request for reference in list(requests) if (request := reference()) is not None]


class Engine:
    """A model, its session, its cache, and the requests that share them. Threads may share it.

    model: a model from `models.load`, or its path. max_tokens: slots of the cache, for all answers together; by default
    the model's context, at most 16384. max_batch: answers computed at once. token_budget: tokens of a step, at least
    `max_batch`. Each running answer gets its next token; of the rest the oldest prompt gets half, and the prompts with
    the fewest tokens left get the remainder, so that a short prompt does not wait for long ones.
    keep: when a sequence outgrows the context, its first `keep` tokens stay and half of the others are dropped; None
    ends the answer there.
    window_tokens: slots of each further cache, for layers that see a window of tokens, for all answers together; by
    default room for a step and the windows of all answers, or of 4 if max_tokens is less than 80 windows. With tiers
    these layers keep all tokens.
    prompt_lookup: a step checks up to this many guesses of an answer's next tokens, which followed the same tokens
    earlier in the text; the answer is the same, and sooner where it repeats text.
    threads: of ONNX Runtime, 0 for all processors. management: further arguments of `Manager`, except `rope`,
    `key_form` "raw" and `mode` "cells", and, where the model's graph has no input attn_mask, `window` and `sink`.

    Raises KvCacheError: "engine_range" for a number, "engine_option" for an option that the graph does not support, and
    what `Manager` raises.
    """

    def __init__(
        self,
        model: Model | str | os.PathLike[str],
        *,
        max_tokens: int | None = None,
        max_batch: int = 16,
        token_budget: int = 512,
        keep: int | None = None,
        window_tokens: int | None = None,
        prompt_lookup: int = 0,
        threads: int = 0,
        **management: Any,
    ) -> None:
        ranges = [("max_batch", max_batch, 1), ("token_budget", token_budget, max_batch)]
        ranges += [("prompt_lookup", prompt_lookup, 0)]
        given = {"max_tokens": max_tokens, "window_tokens": window_tokens}
        ranges += [(name, got, 1) for name, got in given.items() if got is not None]
        for name, got, least in ranges:
            if not isinstance(got, Integral) or got < least:
                why = ", which is max_batch: a step has a token of each answer" if name == "token_budget" else ""
                raise KvCacheError(f"{name} is {got!r}, expected at least {least}{why}", "engine_range")
        self.model = model if isinstance(model, Model) else load(model)
        self._session = self.model.session(session_options(threads))
        names = [value.name for value in self._session.get_inputs()]
        self._inputs = [name for name in names if hasattr(Step, name.partition(".")[0])]
        self._masked = "attn_mask" in names
        for name in [*_OF_THE_GRAPH, *([] if self._masked else _OF_THE_MASK)]:
            if management.get(name) not in (None, *_ALWAYS_SERVED):
                message = f"{name} is {management[name]!r}, which the model's graph does not serve"
                raise KvCacheError(f"{message}: expected it to be left out", "engine_option")
        grouped = self.model.layer_groups.windows != (None,)
        if prompt_lookup and (management.get("window") or self.model.config.window or grouped):
            # After a wrong guess, rows before the window are needed again.
            management = management | {"slack": max(prompt_lookup, management.get("slack") or 0)}
        self._tiers = bool(management.get("tiers"))
        self.caches = self.model.caches(
            max_tokens or min(self.model.config.context_length, 16384),
            batch=None if self._tiers else max_batch,
            step_tokens=token_budget,
            window_tokens=window_tokens,
            **management,
        )
        self.cache, self.manager, self._memory = self.caches.caches[0], self.caches.manager, self.caches.memory
        spec, most = self.cache.spec, self.caches.longest
        if spec.cache_mode == 1:
            pages = min(most // spec.page_size, management.get("max_pages") or most)
            most = pages * spec.page_size
        self.context_length = min(self.model.config.context_length, most)
        self._max_batch, self._budget, self._keep, self._lookup = max_batch, token_budget, keep, prompt_lookup
        # Requests are their users', who may let go of them. Of those that run also the sequence; the youngest last.
        # A step costs what runs, however many wait: of these, what has ended is said, not searched.
        self._waiting: OrderedDict[int, ref[Request]] = OrderedDict()  # by their numbers
        self._running: dict[ref[Request], int] = {}
        self.numbers = count()
        self._gone: deque[int] = deque()  # have ended, or nobody has them any more; may still wait
        self._steps = self._passed = 0  # steps so far; requests that have passed the first one that waits
        # What has the lock is not interrupted by what frees a sequence: garbage collection comes at any place.
        self._lock, self._busy, self._grammars_lock = RLock(), False, Lock()
        self._grammars: Grammars | None = None
        self._most_scored = max(_SCORED_BYTES // (4 * self.model.config.vocab_size), 1)
        self._logits = np.empty((max_batch, self.model.config.vocab_size), np.float32)
        self._binding = self._session.io_binding()
        self.caches.bind(self._binding)

    def submit(self, prompt: str | Sequence[int], *, keep: int | None = None, **sampling: Any) -> Request:
        """A request that joins the next step that has room; reading an answer drives the steps.

        keep: instead of the engine's. sampling: the fields of `Sampling`. Raises KvCacheError: "prompt_empty",
        "prompt_too_long", "prompt_type", "token_range", "keep_range", "grammar_tokenizer" for a grammar of another
        model, and what Sampling raises.
        """
        tokens = self._checked(prompt)
        keep = self._keep if keep is None else keep
        if keep is not None and not 0 <= keep < self.context_length - 1:
            message = f"keep is {keep}, expected 0 to {self.context_length - 2}, two less than the context"
            raise KvCacheError(message, "keep_range")
        request = Request(self, tokens, Sampling(**sampling), keep)
        grammar = request.sampling.grammar
        if grammar is not None and grammar.fingerprint != self.model.fingerprint:
            raise KvCacheError("the grammar is of another model, expected one of this engine's", "grammar_tokenizer")
        self._submit(request)
        return request

    def _submit(self, request: Request) -> None:
        with self._lock:
            self._waiting[request.number] = self._reference(request)

    def json_grammar(self, schema: Mapping[str, Any] | None = None) -> Grammar:
        """A grammar of JSON for `Sampling.grammar`: of a schema, by default any object. Does not wait for a step.

        Needs the extra `json`, llguidance. Raises KvCacheError: "package_missing", "grammar_schema" for an invalid
        schema or unknown keywords, and "grammar_tokenizer".
        """
        return self._of_model().of_json({"type": "object"} if schema is None else schema)

    def lark_grammar(self, text: str) -> Grammar:
        """A grammar in llguidance's Lark for `Sampling.grammar`. Raises what `json_grammar` raises."""
        return self._of_model().of_lark(text)

    def _of_model(self) -> Grammars:
        with self._grammars_lock:
            if self._grammars is None:
                self._grammars = Grammars(self.model)
            return self._grammars

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """The tokens of a prompt.

        Raises KvCacheError "prompt_type", and for a text what `Model.encode` raises, where the context is `most`.
        """
        if isinstance(prompt, str):
            return self.model.encode(prompt, self.context_length)
        if isinstance(prompt, bytes | bytearray | memoryview):
            raise KvCacheError(f"the prompt is {type(prompt).__name__}, expected a text or tokens", "prompt_type")
        try:
            self._check_length(len(prompt))
            return [index(token) for token in prompt]
        except TypeError as error:
            raise KvCacheError(f"the prompt is neither a text nor tokens: {error}", "prompt_type") from error

    def _checked(self, prompt: str | Sequence[int]) -> list[int]:
        """The tokens of a prompt that the cache can hold. Raises KvCacheError as `submit` does."""
        tokens = self.encode(prompt)
        if not tokens:
            raise KvCacheError("the prompt has no tokens, expected at least one", "prompt_empty")
        self._check_length(len(tokens))
        if not 0 <= min(tokens) <= max(tokens) < self.model.config.vocab_size:
            message = f"the prompt has tokens {min(tokens)} to {max(tokens)}, expected 0 to less than vocab_size"
            raise KvCacheError(f"{message} {self.model.config.vocab_size}", "token_range")
        return tokens

    def _check_length(self, tokens: int) -> None:
        if tokens > self.context_length:
            message = f"the prompt has {tokens} tokens, expected at most {self.context_length}, the context"
            raise KvCacheError(message, "prompt_too_long")

    @property
    def running(self) -> list[Request]:
        """The requests that steps compute now, the youngest last; others wait."""
        return _held(self._running)

    def generate(self, prompts: Sequence[str | Sequence[int]], **sampling: Any) -> list[Request]:
        """Finished requests for these prompts; a failed one has an `error`.

        Where a prompt is refused, or the call is interrupted, all of them are cancelled.
        """
        requests: list[Request] = []
        try:
            for prompt in prompts:
                requests.append(self.submit(prompt, **sampling))
            for request in requests:
                while request.finish is None:
                    self.step(request)
        finally:
            for request in requests:
                request.cancel()
        return requests

    def step(self, wanted: Request | None = None) -> bool:
        """One step of all that run, or none if `wanted` has ended meanwhile. Returns whether anything is left to do."""
        with self._alone():
            if wanted is None or wanted.finish is None:
                self._collect()
                self._join()
                if self.running:
                    self._advance()
                self._collect()
            return bool(self.running or self._waiting)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """With the lock; afterwards the sequences of requests that have ended meanwhile are free."""
        with self._lock:
            self._busy = True
            try:
                yield
            finally:
                try:
                    self._collect()
                finally:
                    self._busy = False

    def end(self, request: Request, finish: str, error: KvCacheError | None = None) -> None:
        """Ends a request that is still active. What has the lock frees it, if garbage collection calls this there."""
        with self._lock:
            if request.finish is None:
                request.finish, request.error = finish, error
                self._gone.append(request.number)
                request.tell()
            if not self._busy:
                with self._alone():
                    pass

    def _end(self, request: Request, finish: str, error: KvCacheError | None = None) -> None:
        if request.finish is None:
            request.finish, request.error = finish, error
            request.tell()
        self._free(request)

    def save(self, path: str | os.PathLike[str], tokens: Sequence[int]) -> None:
        """Writes keys and values of these tokens, computing those that are not cached, in steps beside others' answers.

        After a `load` a prompt that begins with them needs no more than its last page. Raises KvCacheError for tokens
        that `submit` refuses as a prompt, "layer_groups" where layers with a window keep that alone, and what
        `Manager.save_seq` raises.
        """
        self._check_whole()
        saving = _Saving(self, self._checked(tokens), Sampling(max_new_tokens=1), None)
        self._submit(saving)
        try:
            while not saving.complete and saving.finish is None:
                self.step(saving)
            if saving.error is not None:
                raise saving.error
            # Without the lock: it may take seconds until a file is on the disk.
            self.caches.managers[0].save_seq(path, self._memory, saving.sequence)
        finally:
            saving.cancel()

    def load(self, path: str | os.PathLike[str]) -> None:
        """Reads what `save` has written, of the same weights and format of cache. Prompts find its full pages."""
        self._check_whole()
        with self._alone():
            self.manager.free(self.caches.managers[0].load_seq(path, self._memory))

    def _check_whole(self) -> None:
        if self.model.layer_groups.windows != (None,):
            message = "layers with a window keep that alone, expected all tokens: build with layer_groups=False"
            raise KvCacheError(message, "layer_groups")

    def close(self, timeout: float = 2.0) -> bool:
        """Stores the prefixes that the cache has in the tiers, where later engines find them.

        timeout: seconds to wait for their writes. Returns whether all are written. Does nothing without tiers.
        """
        if not self._tiers:
            return True
        with self._alone():
            self.manager.offload_prefix()
            self.manager.update(self._memory)
            return self.manager.flush(timeout)

    def _join(self) -> None:
        """Lets requests run in their order. One that was preempted waits for room for all of it, and some may pass it.

        Those have room for the whole of their answers, and are at most four times `max_batch`.
        """
        blocked, free = False, cache(self.caches.free)  # which a sequence without rows does not change
        for number, reference in list(islice(self._waiting.items(), 4 * self._max_batch)):
            request = reference()
            if len(self._running) == self._max_batch:
                return
            if request is None or request.finish is not None or reference in self._running:
                del self._waiting[number]  # an interrupt came before this was done
                continue
            if blocked:
                whole = min(len(request.context) + request.sampling.max_new_tokens, self.context_length)
                if self._passed == 4 * self._max_batch or not self._has_room(whole, free()):
                    continue
                self._passed += 1
            elif request.preempted and self._running and not self._has_room(len(request.context), free()):
                blocked = True
                continue
            else:
                self._passed = 0
            # Nobody has pages of a salt of its own.
            request.sequence = self.manager.create(salt=os.urandom(16) if request.scoring else b"")
            self._running[self._reference(request)] = request.sequence
            del self._waiting[number]

    def _has_room(self, tokens: int, free: list[int]) -> bool:
        return self.caches.has_room(tokens, len(self._running), free)

    def _free(self, request: Request) -> None:
        if ref(request) in self._running:
            self._free_sequence(ref(request))
        request.stored, request.found, request.guess = 0, 0 if request.scoring else None, []

    def _free_sequence(self, running: ref[Request]) -> None:
        try:
            self.manager.free(self._running[running])
        except ManagerError as error:
            if error.kind != "unknown_seq":  # freed, by a call that an interrupt followed
                raise
        del self._running[running]

    def _reference(self, request: Request) -> ref[Request]:
        return ref(request, partial(self._let_go, request.number))

    def _let_go(self, number: int, _: ref[Request]) -> None:
        """Forgets a request that nobody has any more, or lets what has the lock do it."""
        self._gone.append(number)
        if self._lock.acquire(blocking=False):
            try:
                if not self._busy:
                    with self._alone():
                        pass
            finally:
                self._lock.release()

    def _collect(self) -> None:
        """Forgets requests that have ended, or that nobody has any more, and frees the sequences of those that ran."""
        while self._gone:
            self._waiting.pop(self._gone[0], None)
            self._gone.popleft()
        for running in list(self._running):
            request = running()
            if request is None:
                self._free_sequence(running)
            elif request.finish is not None:
                self._free(request)

    def _wait(self, request: Request) -> None:
        """Takes a request's place from it; it is the next to run, and computes again what is not cached."""
        request.preempted |= request.stored > 0
        self._waiting[request.number] = self._reference(request)
        self._waiting.move_to_end(request.number, last=False)
        self._free(request)

    def _advance(self) -> None:
        """A step: what each request gets is stored, and those that have all of their tokens stored draw the next."""
        self._steps += 1
        running = self.running  # until the step's end, even if its owner drops one
        for request in [r for r in running if r.stored == len(r.context) - 1 == self.context_length]:
            self._shift(request)
        opened = self._begin()
        if opened is None:
            return
        step, parts = opened
        order = [int(a) for a in step.order]
        done = [e for e, a in enumerate(order) if parts[a][0].stored + parts[a][1] == len(parts[a][0].context)]
        starts = [int(start) for start in step.seqstarts]
        scored = [e for e, a in enumerate(order) if parts[a][0].scoring]
        try:
            with step:
                drawn = [range(starts[e + 1] - 1 - len(parts[order[e]][0].guess), starts[e + 1]) for e in done]
                wanted = [*drawn, *(range(starts[e], starts[e + 1]) for e in scored)]
                logits = self._run(step, [row for rows in wanted for row in rows])
                cached = [int(n) for n in step.cached]
            for a, n in zip(order, cached):
                if not parts[a][0].preempted:
                    parts[a][0].cached += n
            of_part = np.split(logits, np.cumsum([len(rows) for rows in wanted])[:-1]) if wanted else []
            for e, rows in zip(scored, of_part[len(done) :]):
                request = parts[order[e]][0]
                self._answer(request, partial(request.score, request.stored + 1, rows))
            for request, n in parts:
                request.stored += n
            for e, rows in zip(done, of_part):
                self._draw(parts[order[e]][0], rows)
        except KeyboardInterrupt:
            step.__exit__(KeyboardInterrupt, None, None)  # unless it has ended
            for request in [r for r, _ in parts if ref(r) in self._running]:
                if not self.manager.seq_len(request.sequence) == request.stored < len(request.context):
                    self._wait(request)  # stored, and not counted or not drawn
            raise
        finally:
            for request in [r for r in running if r.finish is not None]:
                self._free(request)

    def _draw(self, request: Request, logits: NDArray[np.float32]) -> None:
        """The next token and the correct part of a guess; the sequence loses the rest."""
        (guess, request.guess), before = (request.guess, []), request.guessed
        for row, right in zip(logits, [*guess, None]):
            self._answer(request, partial(request.take, row))
            if request.finish is not None:
                return
            if request.context[-1] != right:
                break
            request.stored += 1
            request.guessed += 1
        if wrong := len(guess) - (request.guessed - before):
            last = self.manager.pos_max(request.sequence)
            assert last is not None  # the sequence has the guess's tokens
            self.manager.seq_rm(request.sequence, last - wrong + 1)

    def _answer(self, request: Request, take: Callable[[], str | None]) -> None:
        """Has a request take its logits, unless it has ended meanwhile; what goes wrong with it ends it alone."""
        if request.finish is not None:
            return
        try:
            finish = take()
        except KvCacheError as error:
            self._end(request, "error", error)
        except BaseException as error:  # whatever it is, it is this request's, a panic of a package in Rust, too
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            self._end(request, "error", KvCacheError(f"the answer failed: {error}", "answer_failed"))
        else:
            if finish is not None:
                self._end(request, finish)
            else:
                request.tell()

    def _begin(self) -> tuple[Step | GroupsStep, list[tuple[Request, int]]] | None:
        """Opens a step; what it gets of which request. Where there is no room for all, the youngest wait."""
        lookup = self._lookup
        while self.running:
            parts = self._parts(lookup)
            if not parts:  # what runs is being saved
                return None
            looked = [r for r, _ in parts if not r.stored and r.found is not None and not r.scoring]
            stale = [r for r in looked if r.looked != self._steps]
            for request in stale:  # another request may have stored what it needs
                request.found = None
            if stale:
                continue
            appends = [Append(r.sequence, tokens=r.context[r.stored : r.stored + n] + r.guess) for r, n in parts]
            new = {a: r for a, (r, _) in enumerate(parts) if r.found is None and not r.stored}
            try:
                step = self.manager.begin_step(appends, self._memory)
            except CapacityError as error:
                if any(request.guess for request, _ in parts):
                    lookup = 0
                elif new:  # perhaps there is room for a chunk
                    for request in new.values():
                        request.found, request.looked = 0, self._steps
                elif error.kind == "no_slot" and self.manager.defrag():
                    pass  # there may be room, in pieces
                elif len(self._running) == 1:
                    self._end(self.running[0], "error", error)
                else:
                    self._wait(next(r for r in self.running[::-1] if r.missing))
                continue
            for a, cached in zip(step.order, step.cached):
                request, _ = parts[int(a)]
                if not request.stored:
                    # Of the cache, or of what another prompt stores in this very step.
                    request.found, request.looked = int(cached), self._steps
            if len(step.token_ids) <= self._budget:
                return step, parts
            step.rollback()  # a new prompt was taken whole, to see what of it is cached
        return None

    def _parts(self, lookup: int) -> list[tuple[Request, int]]:
        """How many of its tokens each request gets: all if it is new, else its part of the budget, if it has one.

        What is left of the budget goes to guesses.
        """
        known = [r for r in self.running if r.stored or r.found is not None]
        oldest = next((r for r in known if r.missing > 1), None)
        left = self._budget - sum(r.missing == 1 for r in known)
        reserved = 0 if oldest is None else min(oldest.missing, (left + 1) // 2)
        left, parts, scored = self._budget - reserved, [], self._most_scored
        for request in sorted(known, key=lambda r: r.missing):
            computed = reserved if request is oldest else 0
            more = min(request.missing - computed, left)
            left -= more
            computed += more
            if request.scoring:
                computed = min(computed, scored)
                scored -= computed
            if computed:
                parts.append((request, len(request.context) - request.missing - request.stored + computed))
        for request, _ in parts:
            request.guess = []
            if request.stored == len(request.context) - 1:
                room = min(self.context_length - len(request.context), request.missing_answer - 1, left, lookup)
                request.guess = request.lookup.guess(request.context, room) if room > 0 else []
                left -= len(request.guess)
        return parts + [(r, len(r.context)) for r in self.running if r not in known]

    def _shift(self, request: Request) -> None:
        """Makes room in the context of a request, or ends it."""
        if request.keep is None:
            return self._end(request, "length")
        try:
            removed = self.manager.context_shift(request.sequence, self.context_length, 1, n_keep=request.keep)
        except ManagerError as error:
            if error.kind not in ("shift_limit", "not_shiftable") and not isinstance(error, CapacityError):
                return self._end(request, "error", error)
            removed = (self.context_length - request.keep) // 2  # what is left is computed again
            self._wait(request)
        request.stored = max(request.stored - removed, 0)
        request.shifted, request.lookup = request.shifted + removed, PromptLookup()
        del request.context[request.keep : request.keep + removed]

    def _run(self, step: Step | GroupsStep, rows: list[int]) -> NDArray[np.float32]:
        """Runs an open step; the logits of these of its tokens, until the next run."""
        feeds = {name: np.atleast_1d(np.asarray(getattr(step, name), np.int64)) for name in self._inputs}
        feeds["logit_rows"] = np.array(rows, np.int64)
        if self._masked:
            feeds["attn_mask"] = step.mask()
        for name, array in feeds.items():
            self._binding.bind_cpu_input(name, array)
        if len(rows) > len(self._logits):  # of prompts whose logprobs somebody wants
            self._logits = np.empty((len(rows), self._logits.shape[1]), np.float32)
        logits = self._logits[: len(rows)]
        self._binding.bind_output("logits", "cpu", 0, np.float32, logits.shape, logits.ctypes.data)
        self._session.run_with_iobinding(self._binding)
        return logits
