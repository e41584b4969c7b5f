"""A worker in a module of its own: its process imports neither torch nor pytest."""

from __future__ import annotations

import os


class Dies:
    """A worker for a pool: exits on one task, doubles the others."""

    def __call__(self, device):
        def run(number):
            if number == 3:
                os._exit(9)
            return number * 2

        return run
