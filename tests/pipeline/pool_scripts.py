"""Parent processes that a test ends while their workers compute.

python -m tests.pipeline.pool_scripts busy|idle
"""

from __future__ import annotations

import sys

import numpy as np
from tests.pipeline.pool_jobs import Deadly

from ridgeline.pipeline import pool


class Slow(Deadly):
    def fn(self, chunk):
        if chunk[1] is not None:
            super().fn((0, "hang"))
        return np.zeros(1 << 20)


if __name__ == "__main__":
    how = "busy" if sys.argv[1] == "busy" else None
    with pool(Slow(), ["cpu"] * 2, place=None) as workers:
        print(*(w.pid for w in workers.stats()), flush=True)
        for _ in workers.map((np.zeros(1 << 20), how) for _ in range(4)):
            pass
        print("idle", flush=True)
        sys.stdin.read()
