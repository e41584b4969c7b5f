"""Fixtures that several parts share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings
from tests.browser import chromium

__all__ = ["chromium", "data"]

# Read when triton is imported, by whichever test comes first: without a GPU its kernels are interpreted.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A background job of a shell ignores Ctrl-C, and the processes that it starts inherit that; tests send it to them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# An example that waits for a busy machine is no failure.
settings.register_profile("without deadline", deadline=None)
settings.load_profile("without deadline")


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of public datasets, where the machine has one."""
    folder = os.environ.get("RIDGELINE_DATA")
    if not folder:
        pytest.skip("RIDGELINE_DATA names no folder of datasets")
    return Path(folder)
