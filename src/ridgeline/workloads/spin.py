"""`spin`: a test of the lab itself. A busy loop of known length races against itself, against a loop that is 5 %
longer, and against one that returns a wrong result.

    ridgeline bench spin

If the lab reports anything but SAME, SLOWER and WRONG, its other results are not reliable either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ridgeline import native
from ridgeline.lab import Case, Check, Profile, Run, Steps, Work
from ridgeline.machine import Placement

MULTIPLIER, INCREMENT = 6364136223846793005, 1442695040888963407
STEPS = {"ridgeline": 1.0, "same": 1.0, "slow5": 1.05, "wrong": 1.0}


class Spin:
    name = "spin"
    weight = 0.5
    controls = tuple(STEPS)[1:]
    note = "A test of the lab: the three verdicts should be SAME, SLOWER and WRONG."

    def cases(self, profile: Profile) -> Iterable[Case]:
        lengths = (100_000,) if profile is Profile.QUICK else (10_000, 100_000, 1_000_000)
        return [Case({"steps": n}) for n in lengths]

    def work(self, case: Case) -> Work:
        return Work(items=case["steps"] * case.ranks, unit="steps", flops=0)

    def contenders(self, case: Case) -> Sequence[str]:
        return list(STEPS)

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        steps = int(case["steps"] * STEPS[contender])
        state = {"seed": 1, "answer": 0}

        def reset() -> None:
            state["seed"] = state["seed"] * 31 % 1_000_003 + 1

        def step() -> None:
            state["answer"] = native.spin(steps, state["seed"])

        def result() -> tuple[int, int, int]:
            off = 1 if contender == "wrong" else 0
            return steps, state["seed"], state["answer"] + off

        return Steps(step, result, reset, settings={"steps": steps})

    def check(self, case: Case, result: tuple[int, int, int]) -> Check:
        steps, seed, answer = result
        return Check(ok=answer == compute_expected(steps, seed), note="the loop's closed form")


def compute_expected(steps: int, seed: int) -> int:
    """The result without the loop: the affine map x → ax + c composed with itself by squaring, modulo 2⁶⁴."""
    a, c, factor, constant = 1, 0, MULTIPLIER, INCREMENT
    while steps:
        if steps & 1:
            a, c = a * factor % 2**64, (c * factor + constant) % 2**64
        factor, constant = factor * factor % 2**64, (factor + 1) * constant % 2**64
        steps >>= 1
    return (a * seed + c) % 2**64


workload = Spin()
