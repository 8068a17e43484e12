"""An engine's metrics in Prometheus' format."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from kvcache_ops.engine import Engine
from kvcache_ops.engine._request import RequestState

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class _Tiers(Collector):
    """The counters of an engine's tiers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        hits = CounterMetricFamily("kvcache_tier_hits", "Blocks found", labels=["tier"])
        misses = CounterMetricFamily("kvcache_tier_misses", "Blocks not found, by reason", labels=["tier", "reason"])
        moved = CounterMetricFamily("kvcache_tier_bytes", "Bytes read and written", labels=["tier", "way"])
        for i, tier in enumerate(self._engine.manager.tiers()):
            name = f"{i}-{tier['name']}"
            hits.add_metric([name], tier["hits"])
            moved.add_metric([name, "read"], tier["bytes_read"])
            moved.add_metric([name, "written"], tier["bytes_written"])
            for reason, count in tier["misses"].items():
                misses.add_metric([name, reason], count)
        yield from (hits, misses, moved)


class Metrics:
    """Counters of one application."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.generated = Counter("kvcache_generated_tokens", "Tokens of answers", registry=registry)
        self.first_token = Histogram(
            "kvcache_time_to_first_token_seconds", "From submission on", buckets=_SECONDS, registry=registry
        )
        self.step = Histogram("kvcache_step_seconds", "Steps of the engine", buckets=_SECONDS, registry=registry)
        self.loop = Histogram(
            "kvcache_loop_seconds", "From a step's end until its answers are sent", buckets=_SECONDS, registry=registry
        )
        self._seconds = Histogram("kvcache_request_seconds", "Whole requests", buckets=_SECONDS, registry=registry)
        self._requests = Counter("kvcache_requests", "By how they ended", ["finish"], registry=registry)
        self._prompt = Counter("kvcache_prompt_tokens", "Tokens of prompts", registry=registry)
        self._cached = Counter("kvcache_cached_prompt_tokens", "Those found in the cache", registry=registry)

    def watch(self, engine: Engine, count: Callable[[], int], stuck: Callable[[], float] = float) -> None:
        """Adds gauges that ask the engine whenever metrics are read.

        count: how many requests run or wait. stuck: for how many seconds a step runs, or its answers are not sent.
        """
        Gauge("kvcache_stuck_seconds", "Of a step that has not ended", registry=self._registry).set_function(stuck)
        requests = Gauge("kvcache_requests_now", "Running or waiting", ["state"], registry=self._registry)
        requests.labels("running").set_function(lambda: len(engine.running))
        requests.labels("waiting").set_function(lambda: max(count() - len(engine.running), 0))
        slots = Gauge("kvcache_cache_slots", "Slots of the cache", ["state"], registry=self._registry)
        slots.labels("used").set_function(lambda: engine.manager.stats()["used"])
        slots.labels("cached").set_function(lambda: engine.manager.stats()["cached"])
        slots.labels("free").set_function(lambda: engine.manager.stats()["free"])
        if engine.manager.tiers():
            self._registry.register(_Tiers(engine))
        size = Gauge("kvcache_cache_bytes", "Memory of the cache", registry=self._registry)
        size.set(engine.caches.nbytes)

    def ended(self, request: RequestState, seconds: float) -> None:
        """Counts a request that has ended."""
        self._requests.labels(request.finish).inc()
        self._prompt.inc(len(request.prompt))
        self._cached.inc(request.cached)
        self._seconds.observe(seconds)

    def text(self) -> bytes:
        """All metrics as text."""
        return generate_latest(self._registry)
