"""Fixtures that several parts share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test, settings
from tests.browser import chromium
from tests.draws import choose_draws

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


reduced = set()


def pytest_itemcollected(item: pytest.Item) -> None:
    """In the quick lane a property is tested with a third of its examples, but with 10 or more if it has as many."""
    test = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    if not is_hypothesis_test(test) or test in reduced:
        return
    reduced.add(test)
    chosen = getattr(test, "_hypothesis_internal_use_settings", settings.default)
    quick = max(min(chosen.max_examples, 10), chosen.max_examples // 3)
    # Hypothesis has no public way to change the number that a decorator has set.
    test._hypothesis_internal_use_settings = settings(chosen, max_examples=choose_draws(quick, chosen.max_examples))


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of public datasets, where the machine has one."""
    folder = os.environ.get("RIDGELINE_DATA")
    if not folder:
        pytest.skip("RIDGELINE_DATA names no folder of datasets")
    return Path(folder)
