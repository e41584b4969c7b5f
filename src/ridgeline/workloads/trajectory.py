"""`trajectory`: batches of unevenly stamped trajectories onto new stamps.

    ridgeline bench trajectory --case batch=256,stamps=100,targets=50,channels=32,dtype=float32

Compulsory bytes: every value and stamp read once, every result written once. Stamps are float64 seconds since the
epoch on the CPU (the type logs come in) and float32 on a GPU, where all contenders get them shifted to zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ridgeline.lab import Case, Check, Profile, Run, Steps, Work
from ridgeline.lab.workload import installed
from ridgeline.machine import Placement

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 3e-6, "float64": 1e-12}
CHECKED = 64  # trajectories held against the float64 reference
LOOP_LIMIT = 1 << 19  # results beyond which a Python loop would take the whole budget


class Trajectory:
    name = "trajectory"
    devices = ("cpu", "cuda")

    def cases(self, profile: Profile) -> Iterable[Case]:
        base: dict[str, Any] = {"batch": 256, "stamps": 100, "targets": 50, "channels": 32}
        base |= {"dtype": "float32", "kind": "linear"}
        if profile is Profile.QUICK:
            return [Case(base), Case({**base, "kind": "cubic"}), Case({**base, "batch": 65536}, device="cuda")]
        sweep: list[dict[str, Any]] = [{"batch": n} for n in (16, 256, 4096)]
        sweep += [{"stamps": n, "targets": n // 2} for n in (50, 400, 4096)]
        sweep += [{"channels": n} for n in (8, 128)]
        sweep += [{"kind": k} for k in ("previous", "nearest", "cubic", "slerp", "angle")]
        sweep += [{"dtype": "float64"}]
        cases = [Case({**base, **change}) for change in sweep]
        large = [{"batch": 65536, "dtype": d} for d in ("bfloat16", "float16", "float32")]
        return cases + [Case({**base, **change}, device="cuda") for change in large]

    def work(self, case: Case) -> Work:
        size, stamp = BYTES[case["dtype"]], 8 if case.device == "cpu" else 4
        values = case["batch"] * case["channels"] * (case["stamps"] + case["targets"]) * size
        moved = values + case["batch"] * (case["stamps"] + case["targets"]) * stamp
        return Work(case["batch"], "trajectories", bytes={"memory": moved}, mix="copy", working_set=moved, threads=2)

    def contenders(self, case: Case) -> Sequence[str]:
        torch = ["torch"] if case["kind"] == "linear" and installed("torch") else []
        if case.device != "cpu":
            return ["ridgeline", *torch]
        half = case["dtype"] in ("float16", "bfloat16")
        small = case["batch"] * case["targets"] * case["channels"] <= LOOP_LIMIT
        loop = ["np.interp"] if case["kind"] == "linear" and small and not half else []
        numpy = ["numpy"] if case["kind"] in ("linear", "previous") and not half else []
        scipy = ["scipy"] if case["kind"] in ("cubic", "slerp") and small and installed("scipy") else []
        return ["ridgeline", *loop, *numpy, *torch, *scipy]

    def missing(self, case: Case) -> dict[str, str]:
        return {} if installed("torch") else {"torch": "torch"}

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        import numpy as np

        rng = np.random.default_rng()
        shape = (case["batch"], case["stamps"], case["channels"])
        values = np.empty(shape, np.float32)
        times: Any = 1.7e9 + np.cumsum(rng.uniform(0.001, 0.02, shape[:2]), 1)
        span = np.linspace(0, 1, case["targets"])
        at: Any = times[:, :1] + (times[:, -1:] - times[:, :1]) * span
        if case.device != "cpu":
            at, times = ((c - times[:, :1]).astype(np.float32) for c in (at, times))
        arrays = _on(case, values, times, at)
        found: dict[str, Any] = {}

        def reset() -> None:
            rng.standard_normal(out=values, dtype=np.float32)
            arrays[0][...] = _cast(case, values)

        engine = _engine(case, contender)

        def step() -> None:
            found["out"] = engine(*arrays)

        def result() -> tuple[Any, ...]:
            return tuple(_host(a)[:CHECKED] for a in (*arrays, found["out"]))

        reset()
        return Steps(step, result, reset, settings={"engine": contender})

    def check(self, case: Case, result: tuple[Any, ...]) -> Check:
        import numpy as np

        values, times, at, out = result
        wanted = np.stack([_reference(case["kind"], *row) for row in zip(values, times, at, strict=True)])
        error = float(np.abs(out - wanted).max() / max(1.0, float(np.abs(wanted).max())))
        centred = (out - out.mean(), wanted - wanted.mean())
        norms = float(np.linalg.norm(centred[0]) * np.linalg.norm(centred[1])) or 1.0
        quality = {"correlation": float((centred[0] * centred[1]).sum()) / norms}
        return Check(
            error <= TOLERANCE[case["dtype"]], error, quality, "largest error against float64, in units of the range"
        )


def _engine(case: Case, contender: str) -> Callable[[Any, Any, Any], Any]:
    from ridgeline.workloads import _trajectory_peers as peers

    if contender == "ridgeline":
        from ridgeline.trajectory import resample

        return lambda v, t, a: resample(v, t, a, kind=case["kind"], check=case.device == "cpu")
    return peers.engine(contender, case["kind"])


def _on(case: Case, values: Any, times: Any, at: Any) -> tuple[Any, Any, Any]:
    """The arrays as the contenders get them: numpy, or tensors where numpy has no such type or the GPU is meant."""
    import numpy as np

    if case.device == "cpu" and case["dtype"] != "bfloat16":
        return np.empty(values.shape, case["dtype"]), times, at
    import torch

    held = torch.empty(values.shape, dtype=getattr(torch, case["dtype"]), device=case.device)
    return held, torch.tensor(times, device=case.device), torch.tensor(at, device=case.device)


def _cast(case: Case, values: Any) -> Any:
    if case.device == "cpu" and case["dtype"] != "bfloat16":
        return values
    import torch

    return torch.from_numpy(values).to(case.device)


def _host(array: Any) -> Any:
    import numpy as np

    return np.asarray(array.double().cpu() if hasattr(array, "cpu") else array, np.float64)


def _reference(kind: str, values: Any, times: Any, at: Any) -> Any:
    """One trajectory in float64, by the field's own slow tools."""
    import numpy as np

    from ridgeline.workloads import _trajectory_peers as peers

    if kind == "linear":
        return np.stack([np.interp(at, times, values[:, d]) for d in range(values.shape[1])], 1)
    if kind in ("cubic", "slerp"):
        return peers.scipy_one(kind, values, times, at)
    i = np.clip(np.searchsorted(times, at, side="right") - 1, 0, len(times) - 1)
    j = np.minimum(i + 1, len(times) - 1)
    w = ((at - times[i]) / np.where(j > i, times[j] - times[i], 1))[:, None]
    if kind == "previous":
        return values[i]
    if kind == "nearest":
        return np.where(w > 0.5, values[j], values[i])
    turn = values[i] + w * np.remainder(values[j] - values[i] + np.pi, 2 * np.pi) - w * np.pi
    return np.remainder(turn + np.pi, 2 * np.pi) - np.pi


workload = Trajectory()
