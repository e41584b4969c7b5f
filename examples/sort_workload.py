"""A complete custom workload: sorting, raced against the sort of Python.

ridgeline bench examples/sort_workload.py --case n=100000
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ridgeline.lab import Case, Check, Profile, Run, Steps, Work
from ridgeline.machine import Placement


class Sort:
    name = "sort"

    def cases(self, profile: Profile) -> list[Case]:
        sizes = (1_000, 100_000) if profile is Profile.QUICK else (1_000, 10_000, 100_000, 1_000_000)
        return [Case({"n": n}) for n in sizes]

    def work(self, case: Case) -> Work:
        """Compulsory: each number is read once and written once."""
        moved = 2 * 8 * case["n"]
        return Work(items=case["n"], unit="numbers", bytes={"memory": moved}, mix="copy", working_set=moved)

    def contenders(self, case: Case) -> list[str]:
        return ["ridgeline", "python"]  # ours first; in this example "ours" is the sort of numpy

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        random = np.random.default_rng()
        numbers = np.empty(case["n"])
        state = {"sorted": numbers}

        def reset() -> None:  # before every turn, not timed
            numbers[:] = random.random(case["n"])

        def sort_with_numpy() -> None:
            state["sorted"] = np.sort(numbers)

        def sort_with_python() -> None:
            state["sorted"] = sorted(numbers)

        step = sort_with_numpy if contender == "ridgeline" else sort_with_python
        return Steps(step, lambda: (numbers, state["sorted"]), reset, settings={"version": np.__version__})

    def check(self, case: Case, result: tuple) -> Check:
        """Check the timed buffers: ascending, and the same numbers."""
        numbers, ordered = result
        ascending = all(a <= b for a, b in pairwise(ordered))
        same_sum = sum(ordered) == np.float64(sum(sorted(numbers)))
        return Check(ok=ascending and same_sum, note="ascending, no number lost")


workload = Sort()
