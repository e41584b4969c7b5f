"""Prometheus metrics of the server: requests, texts, tokens, the queue, how full batches are, latencies, GPU memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ridgeline import web
from ridgeline.serve.batcher import BatchSizes, Stopped

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True, eq=False)
class Gauges:
    """Values at one moment.

    queues      (model, requests without an answer, tokens in no batch yet)
    gpu_memory  (GPU, bytes)
    """

    queues: list[tuple[str, int, int]]
    gpu_memory: list[tuple[str, int]]

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        requests = GaugeMetricFamily("ridgeline_serve_queue_requests", "Requests without an answer", labels=["model"])
        tokens = GaugeMetricFamily("ridgeline_serve_queue_tokens", "Tokens that wait for a batch", labels=["model"])
        for model, request_count, token_count in self.queues:
            requests.add_metric([model], request_count)
            tokens.add_metric([model], token_count)
        yield requests
        yield tokens
        if self.gpu_memory:
            memory = GaugeMetricFamily("ridgeline_serve_gpu_memory_bytes", "Allocated by this server", labels=["gpu"])
            for gpu, count in self.gpu_memory:
                memory.add_metric([gpu], count)
            yield memory


def add_gauges(parts: Sequence[Gauges]) -> Gauges:
    """Return the sums of several processes."""
    queues: dict[str, tuple[int, int]] = {}
    memory: Counter[str] = Counter()
    for part in parts:
        for model, requests, tokens in part.queues:
            before = queues.get(model, (0, 0))
            queues[model] = before[0] + requests, before[1] + tokens
        memory.update(dict(part.gpu_memory))
    return Gauges([(model, *counts) for model, counts in queues.items()], list(memory.items()))


class Metrics:
    """The metrics of one server.

    measure  returns the values of this moment; Stopped if the process that knows them is being started
    """

    def __init__(self, measure: Callable[[], Awaitable[Gauges]]) -> None:
        self._measure = measure
        self.requests = web.RequestMetrics("serve")
        import prometheus_client as prometheus

        registry = self.requests.registry
        more: dict[str, Any] = {"namespace": "ridgeline", "subsystem": "serve", "registry": registry}
        self._texts = prometheus.Counter("texts", "Texts encoded or scored", ["model"], **more)
        self._tokens = prometheus.Counter("tokens", "Tokens encoded or scored", ["model"], **more)
        self._batches = prometheus.Counter("batches", "Batches", ["model"], **more)
        self._batch_seconds = prometheus.Histogram(
            "batch_seconds", "Time of a batch", ["model"], buckets=web.LATENCIES_S, **more
        )
        self._fill = prometheus.Histogram(
            "batch_fill", "Tokens of a batch as a share of the largest batch", ["model"], buckets=_SHARES, **more
        )
        self.largest_batch: dict[str, int] = {}

    def observe_batch(self, model: str, sizes: BatchSizes) -> None:
        self._texts.labels(model).inc(sizes.texts)
        self._tokens.labels(model).inc(sizes.tokens)
        self._batches.labels(model).inc()
        self._batch_seconds.labels(model).observe(sizes.seconds)
        self._fill.labels(model).observe(min(1.0, sizes.tokens / self.largest_batch.get(model, sizes.tokens)))

    async def show(self, request: Request) -> Response:
        """Answer all metrics."""
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry()
        with suppress(Stopped):
            registry.register(await self._measure())
        return self.requests.respond(registry)


def read_gpu_memory() -> list[tuple[str, int]]:
    """Return the bytes that this process has allocated on each GPU."""
    import sys

    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return []
    return [(str(i), int(torch.cuda.memory_allocated(i))) for i in range(torch.cuda.device_count())]
