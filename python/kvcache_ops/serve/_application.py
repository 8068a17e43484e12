"""The ASGI application: routes, and the path of a request from its body to its reply."""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cached_property, partial
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from kvcache_ops._errors import KvCacheError
from kvcache_ops.engine import Engine
from kvcache_ops.models import ChatTemplate
from kvcache_ops.serve._call import Call, read_call
from kvcache_ops.serve._clients import Events, cancelled_with_client, while_wanted
from kvcache_ops.serve._dispatcher import LOG, Answers, Dispatcher, Piece
from kvcache_ops.serve._logprobs import Logprobs
from kvcache_ops.serve._metrics import Metrics
from kvcache_ops.serve._refusal import OF_THE_SERVER, OVERLOADED, Refusal, of_answer, of_prompt, unsupported
from kvcache_ops.serve._replies import COMMENT, DONE, Reply, event
from kvcache_ops.serve._tools import CallReader, Tools, with_short_ids
from kvcache_ops.text._grammar import Grammar

_LARGEST_BODY = 16 << 20  # bytes
_MOST_HELD = 256 << 20  # of all bodies that are not parsed
_MOST_COMMAS = 1 << 20  # in a body: JSON of more values keeps all of Python waiting while it is parsed
_BODY_SECONDS = 60.0  # without a byte of a body
_QUIET = 15.0  # seconds without an event in a stream, before a comment is sent: proxies end at 60
_QUICK = 64  # tokens with logprobs whose JSON is written at once
_MOST_COMPILING = 16  # requests whose grammars are compiled, or wait for that
_HEALTH_SECONDS = 5.0  # that requests may wait before they are parsed

_T = TypeVar("_T")


def application(
    engine: Engine,
    *,
    name: str | None = None,
    max_requests: int = 256,
    context_shift: bool = False,
    api_key: str | None = None,
    allow_origin: Sequence[str] = (),
    stuck_after: float = 30,
) -> Starlette:
    """An ASGI application with OpenAI's interface to a model, and `/health` and `/metrics`.

    engine: it belongs to the application while that runs. name: the model's for clients, by default its own, with
    hyphens for what a shell would read otherwise. max_requests: running and waiting ones; more are
    refused with 503. context_shift: a chat longer than the context continues without its oldest messages, and an answer
    that outgrows it without half of the tokens after the beginning; else the chat is refused and the answer ends.
    api_key: what requests must bring as `Authorization: Bearer KEY`, but for /health and /metrics; else they get 401.
    allow_origin: the origins of pages whose scripts may ask (CORS), "*" for any. stuck_after: /health answers 503 where
    a step takes more seconds, or requests wait for several before they are parsed.

    Raises KvCacheError "serve_range" for a `max_requests` below 1, a `stuck_after` that is not above 0, and an engine
    without a thread.
    """
    if not engine.loop.threaded:
        raise KvCacheError("the engine has threaded=False, expected True: nobody would make its steps", "serve_range")
    if not isinstance(max_requests, int) or max_requests < 1:
        raise KvCacheError(f"max_requests is {max_requests!r}, expected at least 1", "serve_range")
    if not stuck_after > 0:
        raise KvCacheError(f"stuck_after is {stuck_after!r}, expected a number above 0", "serve_range")
    short = re.sub(r"[^\w.]+", "-", engine.model.name, flags=re.ASCII).strip("-") or "model"
    app = _Routes(engine, name or short, max_requests, context_shift, stuck_after).application()
    if api_key is not None:
        app.add_middleware(_ApiKey, key=api_key)
    if allow_origin:
        allowed = {"allow_origins": list(allow_origin), "allow_methods": ["*"], "allow_headers": ["*"]}
        app.add_middleware(CORSMiddleware, **allowed)  # type: ignore[arg-type]
    return app


class _Routes:
    def __init__(self, engine: Engine, name: str, max_requests: int, context_shift: bool, stuck_after: float) -> None:
        self._engine, self._name, self._created = engine, name, int(time.time())
        self._max_requests, self._context_shift, self._lifespans = max_requests, context_shift, 0
        self._stuck_after = stuck_after
        # What a client can make expensive keeps only requests of its kind waiting.
        self._preparing = ThreadPoolExecutor(4, thread_name_prefix="prepare")  # parses, tokenizes, writes
        self._compiling = ThreadPoolExecutor(2, thread_name_prefix="compile")  # grammars
        self._compiled = self._held = 0  # requests whose grammars are compiled now; bytes of bodies
        self._metrics, self._logprobs = Metrics(), Logprobs(engine.model.tokenizer)
        self._dispatcher = Dispatcher(engine, self._metrics, max_requests)

    @cached_property
    def _template(self) -> ChatTemplate:
        """The model's, as the first chat needs it: a template that is none refuses chats, and nothing else."""
        return ChatTemplate(self._engine.model)

    def application(self) -> Starlette:
        routes = [
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model),
            Route("/v1/completions", partial(self._answer, chat=False), methods=["POST"]),
            Route("/v1/chat/completions", partial(self._answer, chat=True), methods=["POST"]),
            Route("/health", self._health),
            Route("/metrics", self._read_metrics),
        ]
        handlers = {Refusal: _refused, HTTPException: _http_error, ClientDisconnect: _gone, Exception: _failed}
        app = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=handlers)
        app.state.dispatcher = self._dispatcher
        return app

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        LOG.info("Serving the model %s", self._name)
        self._lifespans += 1
        self._dispatcher.start()
        try:
            yield
        finally:  # also where the parent application fails
            self._lifespans -= 1
            if not self._lifespans:
                await asyncio.to_thread(self._dispatcher.end)

    def _about(self) -> dict[str, object]:
        return {"id": self._name, "object": "model", "created": self._created, "owned_by": "kvcache_ops"}

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._about()]})

    async def _model(self, request: Request) -> Response:
        self._check_model(request.path_params["name"])
        return JSONResponse(self._about())

    async def _health(self, _: Request) -> Response:
        if not self._dispatcher.alive():
            return JSONResponse({"status": "down"}, 503)
        begin, seconds = time.perf_counter(), self._dispatcher.stuck()
        try:
            await asyncio.wait_for(_run(self._preparing, int), _HEALTH_SECONDS)
        except asyncio.TimeoutError:  # noqa: UP041, of Python 3.10
            return JSONResponse({"status": "stuck", "parsing_seconds": round(time.perf_counter() - begin, 1)}, 503)
        if seconds > self._stuck_after:
            return JSONResponse({"status": "stuck", "step_seconds": round(seconds, 1)}, 503)
        return JSONResponse({"status": "ok"})

    async def _read_metrics(self, _: Request) -> Response:
        text = await asyncio.to_thread(self._metrics.text)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    def _check_model(self, name: str) -> None:
        if name != self._name:
            message = f"there is no model {name!r}, expected {self._name!r}"
            raise Refusal(404, message, "model_not_found", "model")

    async def _answer(self, request: Request, chat: bool) -> Response:
        try:
            # The answer may take long: nothing keeps the bytes meanwhile.
            reading = _run(self._preparing, read_call, await self._body(request), chat, self._engine.context_length)
            call = await while_wanted(request.receive, reading)
        finally:
            self._held -= request.scope.pop("kvcache.held", 0)
        self._check_model(call.model)
        count = call.n * max(len(call.prompts), 1)
        if count > self._max_requests:
            message = f"{count} answers are asked for, expected at most {self._max_requests}"
            raise Refusal(400, message, "parameter_invalid", "n" if call.n > 1 else "prompt")
        parts = sum(1 + len(message.get("tool_calls", ())) for message in call.messages)
        if parts > self._engine.context_length:  # a template would take long to say so
            message = f"there are {parts} messages and calls in them, expected at most {self._engine.context_length}"
            raise Refusal(400, f"{message}, the tokens of the context", "context_length_exceeded", "messages")
        answers, reader = await while_wanted(request.receive, self._begin(call, chat))
        reply = Reply(chat, self._name, None if call.sampling["logprobs"] is None else self._logprobs, reader)
        if call.stream:
            return Events(self._events(answers, reply, count if chat else 0, call.usage), answers)
        return await self._whole(request.receive, answers, reply, count)

    async def _body(self, request: Request) -> bytes:
        """The bytes of a body, counted in the request's scope until they are parsed."""
        body, chunks = bytearray(), request.stream()
        while True:
            try:
                chunk = await asyncio.wait_for(anext(chunks), _BODY_SECONDS)
            except StopAsyncIteration:
                break
            except asyncio.TimeoutError:  # noqa: UP041, of Python 3.10
                message = f"nothing came of the body for {_BODY_SECONDS} seconds"
                raise Refusal(408, message, "request_timeout") from None
            body += chunk
            self._held += len(chunk)
            request.scope["kvcache.held"] = request.scope.get("kvcache.held", 0) + len(chunk)
            if len(body) > _LARGEST_BODY:
                raise Refusal(413, f"the body has more than {_LARGEST_BODY} bytes", "body_too_large")
            if self._held > _MOST_HELD:
                raise Refusal(503, f"bodies have more than {_MOST_HELD} bytes together", OVERLOADED)
        if (commas := body.count(b",")) > _MOST_COMMAS:
            raise Refusal(400, f"the body has {commas} commas, expected at most {_MOST_COMMAS}", "body_too_large")
        return bytes(body)

    async def _begin(self, call: Call, chat: bool) -> tuple[Answers, Callable[[], CallReader] | None]:
        """The answers to a call, and what makes readers of the calls in them."""
        answers, model = None, self._engine.model
        try:
            tools = Tools(call.tools, call.tool_choice, call.parallel_tool_calls, model) if call.tools else None
            answers = Answers(self._dispatcher, max(len(call.prompts), 1), call.n)
            prompts, keep = await _run(self._preparing, self._prompts, call, chat, tools)
            echoes: list[str | None] = [None for _ in prompts]
            if call.echo:
                echoes = [await _run(self._preparing, self._text, prompt) for prompt in call.prompts]
            grammar = await self._grammar(call.schema, tools)
            shown = frozenset(model.special_tokens) if call.special_tokens else tools and tools.shown_tokens
            more = {"keep": keep, "grammar": grammar, "shown_tokens": shown or frozenset()}
            await _run(self._preparing, answers.submit, prompts, echoes, call.sampling | more)
        except BaseException as error:
            if answers is not None:
                answers.cancel()
            if not isinstance(error, KvCacheError):
                raise
            if error.kind in OF_THE_SERVER:
                raise of_answer(error) from error
            raise of_prompt(error, "messages" if chat else "prompt") from error
        return answers, None if tools is None else partial(tools.reader, prompts[0])

    async def _grammar(self, schema: dict[str, Any] | None, tools: Tools | None) -> Grammar | None:
        try:
            if tools is not None and (text := await _run(self._preparing, tools.grammar, schema)) is not None:
                return await self._compile(partial(self._engine.lark_grammar, text))
            return None if schema is None else await self._compile(partial(self._engine.json_grammar, schema))
        except KvCacheError as error:
            if error.kind in OF_THE_SERVER:
                raise
            raise of_prompt(error, "response_format" if tools is None else "tools") from error

    async def _compile(self, grammar: Callable[[], Grammar]) -> Grammar:
        if self._compiled == _MOST_COMPILING:
            message = f"{self._compiled} grammars are compiled, expected at most {_MOST_COMPILING} with this one"
            raise KvCacheError(message, OVERLOADED)
        self._compiled += 1
        try:
            return await _run(self._compiling, grammar)
        finally:
            self._compiled -= 1

    async def _whole(self, receive: Receive, answers: Answers, reply: Reply, count: int) -> Response:
        pieces: list[list[Piece]] = [[] for _ in range(count)]
        async with cancelled_with_client(receive, answers):
            async for piece in answers.pieces():
                if piece is not None:
                    pieces[piece.index].append(piece)
                    if piece.error is not None:
                        raise of_answer(piece.error)
        return await _run(self._preparing, lambda: JSONResponse(reply.whole(pieces, answers.usage())))

    async def _events(self, answers: Answers, reply: Reply, roles: int, usage: bool) -> AsyncIterator[bytes]:
        sent = time.perf_counter()
        async for piece in answers.pieces(_QUIET):
            if piece is None:
                yield COMMENT
                continue
            if piece.error is not None:
                yield event(of_answer(piece.error).content())
                return
            for index in range(roles):  # with the first piece: before it, nothing is lost where somebody asks again
                yield reply.role(index)
            roles = 0
            quick = len(piece.logprobs) < _QUICK
            chunks = reply.piece(piece) if quick else await _run(self._preparing, reply.piece, piece)
            now = time.perf_counter()
            if chunks or now - sent > _QUIET:  # a call of a tool is held back until it is whole
                yield chunks or COMMENT
                sent = now
        if usage:
            yield reply.usage(answers.usage())
        yield DONE

    def _text(self, prompt: str | list[int]) -> str:
        return prompt if isinstance(prompt, str) else str(self._engine.model.tokenizer.decode(prompt))

    def _prompts(self, call: Call, chat: bool, tools: Tools | None) -> tuple[list[list[int]], int | None]:
        """Their tokens, and how many of the first stay in a context shift, if there is one."""
        context, special = self._engine.context_length, call.add_special_tokens

        def encode(prompt: str | list[int]) -> list[int]:
            if special or not isinstance(prompt, str):
                return self._engine.encode(prompt)
            return self._engine.model.encode(prompt, context, add_special_tokens=False)

        if not chat:
            keep = len(encode("")) if self._context_shift else None
            return [encode(prompt) for prompt in call.prompts], keep
        template, how = self._template, call.rendering
        for i, message in enumerate(call.messages):
            if "tool_calls" in message and "tool_calls" not in template.source:
                raise unsupported(f"messages[{i}].tool_calls")
        if tools is not None and not template.reads("tools"):
            raise unsupported("tools")
        effort = how["variables"].get("reasoning_effort")
        if effort is not None and not template.reads("reasoning_effort"):
            if effort != "none":
                raise unsupported("reasoning_effort")
            how = how | {"variables": {"enable_thinking": False} | how["variables"]}
        how = how | {"add_special_tokens": special}
        if tools is not None:
            choice = {"tool_choice": call.tool_choice}
            how |= {"tools": tools.for_template, "variables": choice | how["variables"]}
        messages = with_short_ids(call.messages, template.source)
        if not self._context_shift:
            return [template.tokens(messages, most=context, **how)], None
        _, tokens = template.shortened(messages, context, context // 2, **how)
        return [tokens], min(template.beginning(messages, **how), context // 2)


class _ApiKey:
    """Refuses requests without the key, except for /health and /metrics."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._expected = app, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] == "http" and path not in ("/health", "/metrics"):
            scheme, _, got = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(got, self._expected):
                refusal = Refusal(401, "the API key is missing or wrong", "invalid_api_key")
                return await refusal.response()(scope, receive, send)
        await self._app(scope, receive, send)


async def _run(pool: ThreadPoolExecutor, function: Callable[..., _T], *arguments: object) -> _T:
    """Calls a function in a pool, where it is given up, unless it has begun, when nobody waits for it any more."""

    def call() -> _T:
        try:
            return function(*arguments)
        except Exception:
            raise
        except BaseException as error:  # a panic of a package in Rust
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    return await asyncio.get_running_loop().run_in_executor(pool, call)


def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return error.response()


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405 and request.method == "OPTIONS":  # what a path allows is what it refuses others with
        return Response(status_code=204, headers=error.headers)
    response = Refusal(error.status_code, error.detail, HTTPStatus(error.status_code).name.lower()).response()
    response.headers.update(error.headers or {})
    return response


def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=400)  # nobody reads it


def _failed(_: Request, error: Exception) -> Response:
    return Refusal(500, f"{type(error).__name__}: {error}", "internal_error").response()
