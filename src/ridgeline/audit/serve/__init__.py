"""A log on a web page, and a REST API for reading it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.audit.serve.http_service import make_service as make_service
    from ridgeline.audit.serve.live import Live as Live

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "http_service": ["make_service"],
        "live": ["Live"],
    },
)
