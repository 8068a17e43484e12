"""Several engines behind one OpenAI address, by Ray Serve: docs/cluster.md.

    ray start --head --port 6379 --node-ip-address HEAD            # on the first host
    ray start --address HEAD:6379                                  # on each other host
    python examples/cluster/cluster.py MODEL --replicas 2 --tier redis://HEAD:6380/0     # on any; again to change it

Ray starts replicas, watches them, starts dead ones again, and routes a prompt to the replica that had one with the same
beginning. What a replica has computed is shared through the tiers.
"""

from __future__ import annotations

import asyncio
import json
from argparse import ArgumentParser
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import PrefixTreeActor
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

# Where Ray documents it, in ray.serve.llm, it cannot be imported without vLLM or SGLang.
ROUTER = "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router.PrefixCacheAffinityRouter"
NAME = "kvcache_ops"
TIMES = 3  # that an answer is begun
LOST = {"message": "the replica that gave this answer is gone", "type": "server_error", "param": None}


@dataclass(frozen=True)
class Question:
    """A client's request. The router looks at `prompt`, its text."""

    prompt: str
    scope: dict[str, Any]
    body: bytes


def text_of(body: bytes) -> str:
    """The text by which prompts share a beginning; never empty, since the router cannot handle that."""
    with suppress(ValueError, AttributeError, RecursionError):
        given = json.loads(body)
        return "\n".join(texts_of(given.get("messages") or given.get("prompt"))) or "null"
    return "null"


def texts_of(given: Any) -> Iterator[str]:
    """The texts in messages, their parts or prompts, without JSON around them, which all chats would share."""
    if isinstance(given, list):
        for one in given:
            yield from texts_of(one)
    elif isinstance(given, dict):
        yield from texts_of(given.get("content") or given.get("text"))
    else:
        yield str(given)


@serve.deployment
class Replica:
    """An engine with its cache, and the HTTP interface of `kvcache_ops.serve` to it."""

    async def __init__(self, model: str, tiers: list[str], share: float, most: int, options: dict[str, Any]) -> None:
        from kvcache_ops.engine import Engine
        from kvcache_ops.manager import tier
        from kvcache_ops.serve import application

        self._engine = Engine(model, tiers=[tier(address) for address in tiers], **options)
        self._application = application(self._engine, max_requests=most)
        self._lifespan = self._application.router.lifespan_context(self._application)
        await self._lifespan.__aenter__()
        self._computed, self._sharing = False, asyncio.create_task(self._share(share))

    async def _share(self, seconds: float) -> None:
        """Stores prefixes now and then, so that other replicas find them."""
        while True:
            await asyncio.sleep(seconds)
            if self._computed:
                self._computed = False
                await asyncio.to_thread(self._engine.close, 1e-3)  # which waits for no write

    async def __del__(self) -> None:
        self._sharing.cancel()
        await self._lifespan.__aexit__(None, None, None)  # which stores prefixes

    def check_health(self) -> None:
        """Where this raises, Ray starts another replica in the place of this one."""
        if self._sharing.done() or not self._application.state.dispatcher.alive():
            raise RuntimeError("the engine has ended, or shares no prefixes any more")

    async def ask(self, question: Question) -> AsyncIterator[Any]:
        """The status and the headers of the response, then its body, piece by piece."""
        messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        unread = [{"type": "http.request", "body": question.body}]

        async def receive() -> dict[str, Any]:
            return unread.pop() if unread else await asyncio.Future()

        self._computed = True
        running = asyncio.create_task(self._application(question.scope, receive, messages.put))
        running.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            while (message := await messages.get()) is not None:
                if message["type"] == "http.response.start":
                    headers = {name.decode(): value.decode() for name, value in message["headers"]}
                    yield message["status"], headers | {"x-replica": serve.get_replica_context().replica_id.unique_id}
                elif message["body"]:
                    yield message["body"]
            await running
        finally:  # also where the client is gone
            running.cancel()


@serve.deployment
class Address:
    """What clients see. An answer whose replica dies is begun again by another one, unless some has been given."""

    def __init__(self, replicas: DeploymentHandle) -> None:
        self._ask = replicas.options(stream=True).ask

    async def __call__(self, request: Request) -> Response:
        """Any request to the server's interface."""
        body = await request.body()
        names = ("type", "http_version", "method", "path", "raw_path", "root_path", "query_string", "headers", "scheme")
        scope = {name: request.scope[name] for name in names if name in request.scope}
        question = Question(text_of(body), scope, body)
        for _ in range(TIMES):
            try:
                answer = aiter(self._ask.remote(question))
                status, headers = await anext(answer)
                first = await anext(answer, b"")
            except (BackPressureError, DeploymentUnavailableError) as error:
                return JSONResponse({"error": LOST | {"message": str(error), "code": "overloaded"}}, 503)
            except RayActorError:
                continue
            headers.pop("content-length", None)
            return StreamingResponse(pieces(first, answer, headers), status, headers)
        return JSONResponse({"error": LOST | {"code": "replica_lost"}}, 503)


async def pieces(first: bytes, answer: AsyncIterator[bytes], headers: dict[str, str]) -> AsyncIterator[bytes]:
    """The body, and at the end of one whose replica has died an error."""
    yield first
    try:
        async for piece in answer:
            yield piece
    except RayActorError:
        if not headers.get("content-type", "").startswith("text/event-stream"):
            raise
        yield f"data: {json.dumps({'error': LOST | {'code': 'replica_lost'}})}\n\n".encode()


def main() -> None:
    """Deploys, or changes what is deployed: replicas that stay go on with what they do."""
    parser = ArgumentParser(description="Engines behind one OpenAI address, by Ray Serve.")
    parser.add_argument("model", help="a folder that `kvcache_ops build` has written, on every host at this path")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--tier", action="append", default=[], help="as of `kvcache_ops serve`; the nearest first")
    parser.add_argument("--cpus", type=int, default=2, help="of a replica; its engine has as many threads")
    parser.add_argument("--max-tokens", type=int, help="slots of a replica's cache")
    parser.add_argument("--max-requests", type=int, default=64, help="of a replica, running and waiting")
    parser.add_argument("--share", type=float, default=10, help="seconds between two times that prefixes are stored")
    parser.add_argument("--drain", type=float, default=60, help="seconds for the answers of a replica that is removed")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    router = RequestRouterConfig(
        request_router_class=ROUTER,
        # A prefix that many want is computed by a second replica, too.
        request_router_kwargs={"imbalanced_threshold": given.max_requests // 4, "do_eviction": True},
    )
    # Where nothing but their number changes, Ray restarts no replica; it is not told so by public arguments.
    others = {name: value for name, value in vars(given).items() if name != "replicas"}
    same: dict[str, Any] = {"version": json.dumps(others), "_internal": True}
    replicas = Replica.options(
        **same,
        num_replicas=given.replicas,
        ray_actor_options={"num_cpus": given.cpus},
        max_ongoing_requests=given.max_requests,
        max_queued_requests=given.max_requests,
        request_router_config=router,
        graceful_shutdown_timeout_s=given.drain,
        health_check_period_s=2,
    )
    options = {"threads": given.cpus, "max_tokens": given.max_tokens}
    engines = replicas.bind(given.model, given.tier, given.share, given.max_requests, options)
    # On the head, which has the address: a host that dies takes no client's connection with it.
    head = {"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}}
    address = Address.options(**same, ray_actor_options=head, max_ongoing_requests=10_000)
    ray.init(address="auto")
    # What the router knows, where it looks for it: elsewhere it would wait for a free processor, and die with its host.
    known = {"name": "LlmPrefixTreeActor", "namespace": f"serve::{NAME}::Replica", "lifetime": "detached"}
    PrefixTreeActor.options(**known, **head, get_if_exists=True).remote()
    serve.start(http_options={"host": given.host, "port": given.port, "location": "HeadOnly"})
    serve.run(address.bind(engines), name=NAME)


if __name__ == "__main__":
    main()
