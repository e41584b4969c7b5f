"""How many requests a server answered and how long they took, in Prometheus's text format.

    metrics = RequestMetrics("recommend")
    routes = [Route("/api/stats", metrics.measure("/api/stats", stats)), Route("/metrics", metrics.show)]

It needs prometheus-client: the extra `serve`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ridgeline.errors import InputError, MissingExtra

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

LATENCIES_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
MEDIA_TYPE = "text/plain; version=0.0.4"
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # prometheus-client reads it when it is imported

Handler = Callable[["Request"], Awaitable["Response"]]


class RequestMetrics:
    """The metrics `ridgeline_PART_requests_total` and `ridgeline_PART_request_seconds` of one server.

    registry  of prometheus-client, for further metrics of the server
    """

    def __init__(self, part: str) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Histogram
        except ImportError:
            raise MissingExtra("the server", "serve") from None
        self.registry = CollectorRegistry()
        more: dict[str, Any] = {"namespace": "ridgeline", "subsystem": part, "registry": self.registry}
        self._requests = Counter("requests", "Requests by path and status", ["path", "status"], **more)
        self._seconds = Histogram(
            "request_seconds", "From the request to its answer", ["path"], buckets=LATENCIES_S, **more
        )

    def observe(self, path: str, status: int, seconds: float) -> None:
        """Count a request; `path` is that of the route, so that a client cannot make new labels."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def measure(self, path: str, handler: Handler) -> Handler:
        """Return a handler that counts its requests."""

        async def handle(request: Request) -> Response:
            start_s, status = time.perf_counter(), 500
            try:
                response = await handler(request)
                status = response.status_code
            except InputError:
                status = 400  # as the application answers it
                raise
            finally:
                self.observe(path, status, time.perf_counter() - start_s)
            return response

        return handle

    def format(self, *more: Any) -> str:
        """Return the metrics as text, with those of more registries.

        With PROMETHEUS_MULTIPROC_DIR in the environment, as prometheus-client has it, they are the sums over all
        processes that share this folder.
        """
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        registry = self.registry
        if os.environ.get(SHARED_FOLDER):
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        texts: list[bytes] = [generate_latest(r) for r in (registry, *more)]
        return b"".join(texts).decode()

    async def show(self, request: Request) -> Response:
        """Answer the metrics."""
        return self.respond()

    def respond(self, *more: Any) -> Response:
        """Return a response with the metrics, and those of more registries."""
        from starlette.responses import Response

        return Response(self.format(*more), media_type=MEDIA_TYPE)
