"""A workload of one's own, whole: sorting, raced against Python's sort.

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
        return ["ridgeline", "python"]  # ours first; here "ours" is numpy's sort

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        random = np.random.default_rng()
        numbers = np.empty(case["n"])
        state = {"sorted": numbers}

        def reset() -> None:  # before every turn, not timed
            numbers[:] = random.random(case["n"])

        def by_numpy() -> None:
            state["sorted"] = np.sort(numbers)

        def by_python() -> None:
            state["sorted"] = sorted(numbers)

        step = by_numpy if contender == "ridgeline" else by_python
        return Steps(step, lambda: (numbers, state["sorted"]), reset, settings={"version": np.__version__})

    def check(self, case: Case, result: tuple) -> Check:
        """Of the timed buffers: rising, and the same numbers."""
        numbers, found = result
        rising = all(a <= b for a, b in pairwise(found))
        return Check(ok=rising and sum(found) == np.float64(sum(sorted(numbers))), note="rising, none lost")


workload = Sort()
