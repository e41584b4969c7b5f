"""OpenTelemetry traces, if the library is installed: one span per request, as a child of the client's span."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any


class NoSpan:
    """Takes the place of a span where the library is missing."""

    def set_attribute(self, name: str, value: Any) -> None:
        pass


@contextmanager
def trace_request(path: str, headers: Mapping[str, str]) -> Iterator[Any]:
    """Record the block as a span; yield it."""
    tracer = get_tracer()
    if tracer is None:
        yield NoSpan()
        return
    from opentelemetry import trace
    from opentelemetry.propagate import extract

    with tracer.start_as_current_span(
        f"POST {path}", context=extract(dict(headers)), kind=trace.SpanKind.SERVER
    ) as span:
        yield span


@cache
def get_tracer() -> Any:
    """Return the tracer of this package, or None without the library."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer("ridgeline.serve")
