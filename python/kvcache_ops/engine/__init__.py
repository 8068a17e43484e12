"""Continuous batching: many answers at once, from a model of `kvcache_ops.models`.

    engine = Engine("smollm2")
    for piece in engine.submit("The capital of France is", max_new_tokens=20):
        print(piece, end="")

It computes nothing itself. The manager decides where tokens lie and what of a prompt is cached already; one run of the
session for each step computes one token of every answer, and as much of new prompts as the budget allows. `_request`
is a request, `_scheduler` decides what a step computes, `_loop` makes steps in the engine's thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from operator import index
from threading import Lock
from typing import Any

from kvcache_ops._errors import KvCacheError
from kvcache_ops.engine._loop import Loop
from kvcache_ops.engine._request import Request, RequestState
from kvcache_ops.engine._scheduler import Scheduler
from kvcache_ops.models import Model, load  # which says what to install
from kvcache_ops.models._model import session_options
from kvcache_ops.text._grammar import Grammar, Grammars
from kvcache_ops.text._sampling import Sampling, TokenLogprobs

__all__ = ["Engine", "Request", "Sampling", "TokenLogprobs"]

_OF_THE_GRAPH = ("rope", "key_form", "mode")  # arguments of Manager that a graph decides
_OF_THE_MASK = ("window", "sink")  # arguments that need the graph's input attn_mask
_ALWAYS_SERVED = ("paged", "runs", "roped", 0)


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
    threads: of ONNX Runtime, 0 for all processors. threaded: a thread of the engine makes the steps, from the first
    request on; with False, `step` and reading an answer make them, in one thread at a time.
    management: further arguments of `Manager`, except `rope`, `key_form` "raw" and `mode` "cells", and, where the
    model's graph has no input attn_mask, `window` and `sink`.

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
        threaded: bool = True,
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
        session = self.model.session(session_options(threads))
        masked = any(value.name == "attn_mask" for value in session.get_inputs())
        for name in [*_OF_THE_GRAPH, *([] if masked else _OF_THE_MASK)]:
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
        self._keep, self._grammars_lock = keep, Lock()
        self._grammars: Grammars | None = None
        sizes = (self.model.config.vocab_size, self.context_length, max_batch, token_budget, prompt_lookup)
        self._scheduler = Scheduler(session, self.caches, *sizes)
        self.loop = Loop(self._scheduler, threaded)

    def submit(
        self, prompt: str | Sequence[int], *, keep: int | None = None, tag: Any = None, **sampling: Any
    ) -> Request:
        """A request that joins the next step that has room.

        keep: instead of the engine's. tag: what `watch` knows the request by. sampling: the fields of `Sampling`.
        Raises KvCacheError: "prompt_empty", "prompt_too_long", "prompt_type", "token_range", "keep_range",
        "grammar_tokenizer" for a grammar of another model, what Sampling raises, "engine_forked" in the child of a
        process whose engine has begun, and "engine_ended" where the engine answers no more.
        """
        tokens = self._checked(prompt)
        keep = self._keep if keep is None else keep
        if keep is not None and not 0 <= keep < self.context_length - 1:
            message = f"keep is {keep}, expected 0 to {self.context_length - 2}, two less than the context"
            raise KvCacheError(message, "keep_range")
        how = Sampling(**sampling)
        if how.grammar is not None and how.grammar.fingerprint != self.model.fingerprint:
            raise KvCacheError("the grammar is of another model, expected one of this engine's", "grammar_tokenizer")
        return self._submitted(RequestState(self.model, tokens, how, self.loop.forget, keep, tag))

    def _submitted(self, state: RequestState) -> Request:
        request = Request(self, state)  # before anything is sent: an interrupt drops it, which cancels it
        self.loop.submit(state)
        return request

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
                    self.loop.wait(request._state)
        finally:
            for request in requests:
                request.cancel()
        return requests

    def step(self) -> bool:
        """Makes one step of all running requests, which is needed where `threaded` is False; whether anything is left.

        An interrupt waits for the step's end. An exception in a step ends its requests, "step_failed". Raises
        KvCacheError "engine_ended" and "engine_forked".
        """
        self.loop.check()
        return self.loop.call(self.loop.step)

    @property
    def running(self) -> list[RequestState]:
        """The states, as `watch` gives them, of the requests that steps compute now, the youngest last; others wait."""
        return self._scheduler.running

    def watch(self, on_step: Callable[[float, list[RequestState]], None]) -> Callable[[], object]:
        """Calls a function after each step, in the steps' thread, for servers; returns a function that ends that.

        It gets the seconds of the step and the requests of which there is more to read, each with its `tag`; it must
        neither raise nor wait.
        """
        watchers, key = self._scheduler.watchers, object()
        watchers[key] = on_step
        return lambda: watchers.pop(key, None)

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

    def save(self, path: str | os.PathLike[str], tokens: Sequence[int]) -> None:
        """Writes the keys and values of tokens to a file. Steps compute what is not cached, beside others' answers.

        After a `load` a prompt that begins with them needs no more than its last page. Raises KvCacheError for tokens
        that `submit` refuses as a prompt, "layer_groups" where layers with a window keep that alone, and what
        `Manager.save_seq` raises.
        """
        self._check_whole()
        state = RequestState(self.model, self._checked(tokens), Sampling(max_new_tokens=1), self.loop.forget)
        state.saving = True
        request = self._submitted(state)
        try:
            while state.missing and state.finish is None:
                self.loop.wait(state)
            if state.error is not None:
                raise state.error
            # Beside the steps of others: it may take seconds until a file is on the disk.
            self.caches.managers[0].save_seq(path, self._memory, state.sequence)
        finally:
            request.cancel()
            self.loop.call(self.loop.wake)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Reads what `save` has written, of the same weights and format of cache. Prompts find its full pages."""
        self._check_whole()
        manager = self.caches.managers[0]
        self.loop.call(lambda: self.manager.free(manager.load_seq(path, self._memory)))

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

        def offload() -> None:
            self.manager.offload_prefix()
            self.manager.update(self._memory)

        self.loop.call(offload)
        return self.manager.flush(timeout)
