"""Processes that die. The module imports neither torch nor pytest, so that a worker starts quickly."""

from __future__ import annotations

import os
import warnings


def fork() -> int:
    """Fork for a child that does not use Lance, which warns if another test has loaded it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "lance is not fork-safe", UserWarning)
        return os.fork()


class Dies:
    """A worker for a pool: exits on one task, doubles the others."""

    def __call__(self, device):
        def run(number):
            if number == 3:
                os._exit(9)
            return number * 2

        return run
