"""How many examples a property test draws: few in the quick lane, many in `make test-all` and on a GPU."""

from __future__ import annotations

import os


def choose_draws(quick: int, all: int) -> int:
    return all if os.environ.get("RIDGELINE_DRAWS") == "all" else quick
