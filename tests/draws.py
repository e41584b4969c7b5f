"""How many examples a property test draws: few in the quick lane, many in `make test-all` and on a GPU."""

from __future__ import annotations

import os
from pathlib import Path

ALL = os.environ.get("RIDGELINE_DRAWS") == "all" or Path("/dev/nvidiactl").exists()


def choose_draws(quick: int, all: int) -> int:
    return all if ALL else quick
