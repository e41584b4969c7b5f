"""`matmul`: one square matrix product, written into an existing buffer.

    ridgeline bench matmul --case n=1024,dtype=float32

Our contender is the call that measures the ceiling (the library product with `out=`): its share of the ceiling shows
how stable the machine is. The peers are the same product without `out=`, which allocates its result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ridgeline.lab import Case, Check, Profile, Run, Steps, Work, installed
from ridgeline.machine import Placement, topology

TOLERANCE = {"float64": 1e-12, "float32": 1e-4, "bfloat16": 2e-2, "float16": 5e-3}  # ‖error‖ / ‖reference‖
CHECKED_ROWS = 256  # a complete float64 reference would take longer than the race


class Matmul:
    name = "matmul"
    devices = ("cpu", "cuda")
    note = "Ours is the call of the ceiling: its share shows how stable the machine is; the ratios are the result."

    def cases(self, profile: Profile) -> Iterable[Case]:
        quick = profile is Profile.QUICK
        shared = (256, 1024) if quick else (128, 256, 512, 1024, 2048)
        large = (8192,) if quick else (4096, 8192)  # minutes on a CPU, milliseconds on a GPU
        cases = [Case({"n": n, "dtype": "float32"}) for n in shared]
        return cases + [Case({"n": n, "dtype": "bfloat16"}, device="cuda") for n in (*shared, *large)]

    def work(self, case: Case) -> Work:
        n, size = case["n"], {"float64": 8, "float32": 4}.get(case["dtype"], 2)
        return Work(
            items=case.ranks,
            unit="products",
            flops=2 * n**3 * case.ranks,
            bytes={"memory": 3 * n * n * size * case.ranks},
            dtype=case["dtype"],
            mix="read",
            threads=len(topology().usable_cpus),
        )

    def contenders(self, case: Case) -> Sequence[str]:
        if case.device != "cpu":
            return ["ridgeline", "torch"]
        numpy = ["numpy"] if case["dtype"] in ("float32", "float64") else []
        return ["ridgeline", *numpy, *(["torch"] if installed("torch") else [])]

    def missing(self, case: Case) -> dict[str, str]:
        return {} if installed("torch") else {"torch": "torch"}

    def libraries(self, case: Case, contender: str) -> Sequence[str]:
        return ("torch",) if contender == "torch" or case.device != "cpu" else ()

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        uses_torch = contender == "torch" or case.device != "cpu" or case["dtype"] not in ("float32", "float64")
        return _prepare_torch(case, contender) if uses_torch else _prepare_numpy(case, contender)

    def check(self, case: Case, result: tuple[Any, ...]) -> Check:
        import numpy as np

        a, b, out = (np.asarray(m, np.float64) for m in result)
        reference = a @ b
        error = float(np.linalg.norm(out - reference) / np.linalg.norm(reference))
        return Check(ok=error <= TOLERANCE[case["dtype"]], error=error)


def _prepare_numpy(case: Case, contender: str) -> Run:
    import numpy as np

    random, n = np.random.default_rng(), case["n"]
    a, b, out = (np.empty((n, n), case["dtype"]) for _ in range(3))
    state = {"out": out}

    def reset() -> None:
        for matrix in (a, b):
            matrix[:] = random.standard_normal((n, n))

    def multiply_into() -> None:
        np.matmul(a, b, out=out)

    def multiply() -> None:
        state["out"] = a @ b

    step = multiply_into if contender == "ridgeline" else multiply
    return Steps(
        step,
        lambda: (a[:CHECKED_ROWS], b, state["out"][:CHECKED_ROWS]),
        reset,
        settings={"library": "numpy", "out": step is multiply_into},
    )


def _prepare_torch(case: Case, contender: str) -> Run:
    import torch

    n, dtype = case["n"], getattr(torch, case["dtype"])
    a, b, out = (torch.empty(n, n, dtype=dtype, device=case.device) for _ in range(3))
    state = {"out": out}

    def reset() -> None:
        a.normal_()
        b.normal_()

    def multiply_into() -> None:
        torch.mm(a, b, out=out)

    def multiply() -> None:
        state["out"] = a @ b

    def result() -> tuple[Any, ...]:
        parts = (a[:CHECKED_ROWS], b, state["out"][:CHECKED_ROWS])
        return tuple(m.double().cpu().numpy() for m in parts)

    step = multiply_into if contender == "ridgeline" else multiply
    settings = {"library": "torch", "out": step is multiply_into, "threads": torch.get_num_threads()}
    return Steps(step, result, reset, settings=settings)


workload = Matmul()
