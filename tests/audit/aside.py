"""Coroutines in a thread of their own: the browser tests leave an event loop running in the main one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def aside(work: Callable[[], Any] | Coroutine) -> Any:
    """What a function or a coroutine gives, called in a fresh thread."""
    with ThreadPoolExecutor(1) as pool:
        call = (lambda: asyncio.run(work)) if asyncio.iscoroutine(work) else work
        return pool.submit(call).result()
