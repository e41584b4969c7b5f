"""`trajectory`: resample batches of unevenly stamped trajectories onto new stamps.

    ridgeline bench trajectory --case batch=256,stamps=100,targets=50,channels=32,dtype=float32

Compulsory bytes: every value and stamp read once, every result written once. Uneven stamps are float64 seconds since
the epoch on the CPU (the type of logs) and float32 on a GPU, where all contenders get them shifted to zero. Uniform
stamps begin at zero; they exist because F.interpolate supports no others. Every rank has a separate batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ridgeline.lab import Case, Check, Profile, Run, Steps, Work, installed
from ridgeline.machine import Placement, topology
from ridgeline.workloads import _trajectory_peers as peers

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 3e-6, "float64": 1e-12}
INDEX_SLACK = 2**-22  # of a step per stamp: F.interpolate computes positions in float32
CHECKED = 64  # trajectories to compare with the float64 reference
LOOP_LIMIT = 1 << 19  # results; with more, a Python loop would use up the time budget
GPU_SHARE = 1 / 8  # limit of a case's compulsory bytes in a GPU's memory, which contenders and temporaries share
BASE: dict[str, Any] = {
    "batch": 256,
    "stamps": 100,
    "targets": 50,
    "channels": 32,
    "dtype": "float32",
    "kind": "linear",
    "clock": "uneven",
}
KINDS = ("previous", "nearest", "cubic", "slerp", "angle")


class Trajectory:
    name = "trajectory"
    weight = 3.0
    devices = ("cpu", "cuda")
    note = "F.interpolate ignores the stamps: it runs, and is correct, only with uniform stamps."

    def cases(self, profile: Profile) -> Iterable[Case]:
        changes = _quick() if profile is Profile.QUICK else _full()
        cases = [Case({**BASE, **change}, device) for device, change in changes]
        if profile is Profile.FULL:
            boards = len(topology().gpus)
            many = [Case({**BASE, "dtype": "bfloat16", "batch": b}, "cuda") for b in (256, 65536)]
            cases += [Case(c.params, c.device, ranks) for c in many for ranks in (2, 4, 8) if ranks <= boards]
        return [case for case in cases if case.device != "cuda" or self._fits(case)]

    def work(self, case: Case) -> Work:
        """Count arithmetic for linear only: three operations per result, three per weight."""
        size, stamp = BYTES[case["dtype"]], 8 if case.device == "cpu" else 4
        batch = case["batch"] * case.ranks
        moved = batch * (case["stamps"] + case["targets"]) * (case["channels"] * size + stamp)
        flops = 3 * batch * case["targets"] * (case["channels"] + 1) if case["kind"] == "linear" else 0
        return Work(
            items=batch,
            unit="trajectories",
            flops=flops,
            bytes={"memory": moved},
            dtype=case["dtype"],
            mix="copy",
            working_set=moved // case.ranks,
            threads=len(topology().usable_cpus),
        )

    def contenders(self, case: Case) -> Sequence[str]:
        linear = case["kind"] == "linear"
        torch = []
        if installed("torch") and case["kind"] in ("linear", "previous"):
            torch = ["torch", *(["torch.compile"] if peers.can_compile(case.device) else [])]
            torch += ["F.interpolate"] if linear and case["clock"] == "uniform" else []
        if case.device != "cpu":
            return ["ridgeline", *torch]
        half = case["dtype"] in ("float16", "bfloat16")
        small = case["batch"] * case["targets"] * case["channels"] <= LOOP_LIMIT
        loop = ["np.interp"] if linear and small and not half else []
        numpy = ["numpy"] if case["kind"] in ("linear", "previous") and not half else []
        scipy = ["scipy"] if case["kind"] in ("cubic", "slerp") and small and not half and installed("scipy") else []
        return ["ridgeline", *loop, *numpy, *torch, *scipy]

    def missing(self, case: Case) -> dict[str, str]:
        return {} if installed("torch") else {"torch": "torch"}

    def libraries(self, case: Case, contender: str) -> Sequence[str]:
        if contender == "torch.compile":
            return ("torch", "torch._dynamo", "torch._inductor.compile_fx")
        return ("torch",) if case.device != "cpu" or contender in ("torch", "F.interpolate") else ()

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        values, times, at = arrays = _inputs(case, on_device(case, place))
        engine, settings = _engine(case, contender, arrays)
        state: dict[str, Any] = {}
        reset = _rewriter(values)

        def step() -> None:
            state["out"] = engine(values, times, at)

        def result() -> tuple[Any, ...]:
            return tuple(host(a[:CHECKED]) for a in (*arrays, state["out"]))

        reset()
        return Steps(step, result, reset, settings=settings)

    def check(self, case: Case, result: tuple[Any, ...]) -> Check:
        import numpy as np

        values, times, at, out = result
        expected = np.stack([_reference(case["kind"], *row) for row in zip(values, times, at, strict=True)])
        allowed = TOLERANCE[case["dtype"]] + (case["stamps"] * INDEX_SLACK if case["clock"] == "uniform" else 0)
        difference = out - expected
        if case["kind"] == "angle":  # π and −π are equal
            difference -= 2 * np.pi * np.round(difference / (2 * np.pi))
        error = float(np.abs(difference).max() / max(1.0, float(np.abs(expected).max())))
        quality = {"correlation": correlation(out, expected)}
        return Check(error <= allowed, error, quality, "largest error against float64, in units of the range")

    def _fits(self, case: Case) -> bool:
        gpu_bytes = min((g.memory_bytes for g in topology().gpus if g.memory_bytes), default=None)
        return gpu_bytes is None or self.work(case).bytes["memory"] / case.ranks <= GPU_SHARE * gpu_bytes


def _quick() -> list[tuple[str, dict[str, Any]]]:
    large = [{"batch": 65536, "dtype": dtype} for dtype in ("float32", "bfloat16")]
    return [("any", change) for change in ({}, {"clock": "uniform"}, {"kind": "cubic"})] + [("cuda", c) for c in large]


def _full() -> list[tuple[str, dict[str, Any]]]:
    """Vary one parameter at a time around the base; on a GPU also in bfloat16 and with batches that fill it."""
    anywhere: list[dict[str, Any]] = [{"batch": n} for n in (16, 256, 4096)]
    anywhere += [{"stamps": n, "targets": n // 2} for n in (50, 400, 4096)]
    anywhere += [{"channels": n} for n in (8, 128)]
    anywhere += [{"kind": k} for k in KINDS]
    anywhere += [{"dtype": "float64"}, {"clock": "uniform"}]
    gpu: list[dict[str, Any]] = [{"batch": n} for n in (16, 64, 256, 1024, 2048, 16384, 65536)]
    gpu += [{"stamps": n, "targets": n // 2} for n in (50, 200, 400, 1024, 4096)]
    gpu += [{"channels": n} for n in (8, 16, 64, 128)]
    gpu += [{"kind": k, "batch": 65536} for k in KINDS]
    gpu = [{**change, "dtype": "bfloat16"} for change in gpu]
    gpu += [{"dtype": "float16"}, *({"batch": 65536, "dtype": d} for d in ("float16", "float32", "float64"))]
    return [("any", change) for change in anywhere] + [("cuda", change) for change in gpu]


def on_device(case: Case, place: Placement) -> str:
    """Return the device of this rank and make a GPU the process's current device, which the clock uses."""
    if case.device == "cpu":
        return "cpu"
    import torch

    device = torch.device(case.device if case.ranks == 1 or place.gpu is None else f"cuda:{place.gpu}")
    torch.cuda.set_device(device if device.index is not None else 0)
    return str(device)


def host(array: Any) -> Any:
    """Return an array or tensor of any device as float64 numpy."""
    import numpy as np

    return np.asarray(array.detach().double().cpu() if hasattr(array, "cpu") else array, np.float64)


def correlation(actual: Any, expected: Any) -> float:
    import numpy as np

    a, b = actual - actual.mean(), expected - expected.mean()
    return float((a * b).sum() / (np.linalg.norm(a) * np.linalg.norm(b) or 1.0))


def _inputs(case: Case, device: str) -> tuple[Any, Any, Any]:
    """Return values, times, at: numpy arrays, or tensors for bfloat16 and for a GPU."""
    import numpy as np

    shape = (case["batch"], case["stamps"], case["channels"])
    rng = np.random.default_rng()
    if case["clock"] == "uniform":
        times: Any = np.tile(np.arange(case["stamps"]) / 64, (case["batch"], 1))
    else:
        times = 1.7e9 + np.cumsum(rng.uniform(0.001, 0.02, shape[:2]), 1)
    at: Any = times[:, :1] + (times[:, -1:] - times[:, :1]) * np.linspace(0, 1, case["targets"])
    if device == "cpu" and case["dtype"] != "bfloat16":
        return np.empty(shape, case["dtype"]), times, at
    import torch

    if device != "cpu":
        at, times = ((c - times[:, :1]).astype(np.float32) for c in (at, times))
    values = torch.empty(shape, dtype=getattr(torch, case["dtype"]), device=device)
    return values, torch.tensor(times, device=device), torch.tensor(at, device=device)


def _rewriter(values: Any) -> Any:
    """Return a function that writes new random values in place."""
    import numpy as np

    if not isinstance(values, np.ndarray):
        return values.normal_
    rng, single = np.random.default_rng(), np.empty(values.shape, np.float32)

    def rewrite() -> None:
        rng.standard_normal(out=single, dtype=np.float32)
        values[...] = single

    return rewrite


def _engine(case: Case, contender: str, arrays: tuple[Any, Any, Any]) -> tuple[peers.Engine, dict[str, Any]]:
    """Return a contender's function and settings."""
    if contender != "ridgeline":
        return peers.engine(contender, case["kind"]), dict(peers.SETTINGS[contender])
    from ridgeline.trajectory import resample

    kind = case["kind"]
    if case.device == "cpu":
        return lambda v, t, a: resample(v, t, a, kind=kind), {"check": True, "out": False}
    values, _, at = arrays
    out = values.new_empty((*at.shape, values.shape[2]))
    return lambda v, t, a: resample(v, t, a, kind=kind, check=False, out=out), {"check": False, "out": True}


def _reference(kind: str, values: Any, times: Any, at: Any) -> Any:
    """Resample one trajectory in float64, with NumPy and SciPy."""
    import numpy as np

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
