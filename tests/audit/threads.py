"""Run coroutines in a separate thread: the browser tests leave an event loop running in the main thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def run_in_thread(work: Callable[[], Any] | Coroutine) -> Any:
    """Run a function or a coroutine in a new thread and return its result."""
    with ThreadPoolExecutor(1) as pool:
        call = (lambda: asyncio.run(work)) if asyncio.iscoroutine(work) else work
        return pool.submit(call).result()
