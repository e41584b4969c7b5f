"""Prometheus metrics of the server: requests, texts, tokens, the queue, how full batches are, latencies, GPU memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ridgeline import web
from ridgeline.serve.batcher import BatchSizes

_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class Metrics:
    """The metrics of one server.

    queues  returns (model, requests without an answer, tokens in no batch yet) for each model
    """

    def __init__(self, queues: Callable[[], list[tuple[str, int, int]]]) -> None:
        self.requests = web.RequestMetrics("serve")
        from prometheus_client import Counter, Histogram

        registry = self.requests.registry
        more: dict[str, Any] = {"namespace": "ridgeline", "subsystem": "serve", "registry": registry}
        self._texts = Counter("texts", "Texts encoded or scored", ["model"], **more)
        self._tokens = Counter("tokens", "Tokens encoded or scored", ["model"], **more)
        self._batches = Counter("batches", "Batches", ["model"], **more)
        self._batch_seconds = Histogram("batch_seconds", "Time of a batch", ["model"], buckets=web.LATENCIES_S, **more)
        self._fill = Histogram(
            "batch_fill", "Tokens of a batch as a share of the largest batch", ["model"], buckets=_SHARES, **more
        )
        registry.register(_Gauges(queues))
        self.largest_batch: dict[str, int] = {}

    def observe_batch(self, model: str, sizes: BatchSizes) -> None:
        self._texts.labels(model).inc(sizes.texts)
        self._tokens.labels(model).inc(sizes.tokens)
        self._batches.labels(model).inc()
        self._batch_seconds.labels(model).observe(sizes.seconds)
        self._fill.labels(model).observe(min(1.0, sizes.tokens / self.largest_batch.get(model, sizes.tokens)))


class _Gauges:
    """Values that are read when they are asked for."""

    def __init__(self, queues: Callable[[], list[tuple[str, int, int]]]) -> None:
        self._queues = queues

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        requests = GaugeMetricFamily("ridgeline_serve_queue_requests", "Requests without an answer", labels=["model"])
        tokens = GaugeMetricFamily("ridgeline_serve_queue_tokens", "Tokens that wait for a batch", labels=["model"])
        for model, request_count, token_count in self._queues():
            requests.add_metric([model], request_count)
            tokens.add_metric([model], token_count)
        yield requests
        yield tokens
        memory = _read_gpu_memory()
        if memory:
            gauge = GaugeMetricFamily("ridgeline_serve_gpu_memory_bytes", "Allocated by this process", labels=["gpu"])
            for gpu, count in memory:
                gauge.add_metric([gpu], count)
            yield gauge


def _read_gpu_memory() -> list[tuple[str, int]]:
    import sys

    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return []
    return [(str(i), int(torch.cuda.memory_allocated(i))) for i in range(torch.cuda.device_count())]
