"""`trajectory_million`: resample a dataset of RT-X's size and shape, from host memory to the device and back.

    ridgeline bench trajectory_million --device cuda

Trajectories of 120 → 100 frames × 14 channels, all onto one clock of 50 Hz. The limit is the link to the device; the
bytes of each direction count separately, because a link carries both at once. Stage times (H2D, compute, D2H) are in
the record's extras. With little host memory fewer trajectories are `resident` and pass several times. A CPU gets fewer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ridgeline.lab import Case, Check, Profile, Run, Steps, Work, installed
from ridgeline.machine import Placement, topology
from ridgeline.workloads import _trajectory_peers as peers
from ridgeline.workloads.trajectory import correlation, host, on_device

BASE: dict[str, Any] = {"trajectories": 1_000_000, "stamps": 120, "targets": 100, "channels": 14}
BASE |= {"resident": 1_000_000, "chunk": 16384, "depth": 2, "memory": "pinned"}
HZ = 50
SIZE = 4  # bytes of a float32, values and stamps alike
TOLERANCE = 3e-6
PIECE = 1 << 14  # random trajectories; the others are multiples of them
CHECKED = 256  # spread over the dataset
HOST_SHARE = 0.6  # of the host memory, for all contenders together
MAX_STEPS = 64  # steps whose stage times go into the record

Stages = dict[str, float]


class Million:
    name = "trajectory_million"
    devices = ("cpu", "cuda")
    controls = ("in turn",)
    note = (
        "ridgeline and torch go through the same pipeline; 'in turn' is ridgeline on one CUDA stream, without overlap. "
        "The time is from the first byte to the device to the last byte back."
    )

    def cases(self, profile: Profile) -> Iterable[Case]:
        if not installed("torch"):
            return []
        small = Case({**BASE, "trajectories": 20_000, "resident": 20_000, "chunk": 2048, "memory": "plain"}, "cpu")
        changes: list[dict[str, Any]] = [{}]
        if profile is Profile.FULL:
            changes += [{"chunk": n} for n in (4096, 65536)]
            changes += [{"depth": n} for n in (1, 3)]
            changes += [{"memory": "pageable"}]
        return [small, *(self._fitting(Case({**BASE, **change}, "cuda")) for change in changes)]

    def work(self, case: Case) -> Work:
        up, down = self._bytes(case)
        chunks = -(-case["trajectories"] // case["chunk"])
        done = case["trajectories"] * case.ranks
        flops = 3 * done * case["targets"] * (case["channels"] + 1)
        moved = {"memory": (up + down) * case.ranks}
        if case.device == "cpu":
            threads = len(topology().usable_cpus)
            return Work(done, "trajectories", flops=flops, bytes=moved, threads=threads)
        moved |= {"pcie": up * case.ranks, "pcie_back": down * case.ranks}
        return Work(done, "trajectories", flops=flops, bytes=moved, launches=chunks)

    def contenders(self, case: Case) -> Sequence[str]:
        if case.device != "cpu":
            return ["ridgeline", "torch", "in turn"]
        return ["ridgeline", "numpy", "torch"]

    def libraries(self, case: Case, contender: str) -> Sequence[str]:
        return ("torch",)

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        import torch

        device = on_device(case, place)
        values, times, out = data = _dataset(case)
        chunks = _chunks(case["trajectories"], len(values), case["chunk"])
        rows = torch.linspace(0, len(values) - 1, min(CHECKED, len(values))).long()
        at = torch.arange(case["targets"], dtype=torch.float32, device=device) / HZ
        fn = _engine(contender, at, case["chunk"])
        stage_times: deque[Stages] = deque(maxlen=MAX_STEPS)
        run = _in_turn if contender == "in turn" else _run_pipeline

        def step() -> None:
            stage_times.append(run(case, device, data, chunks, fn))

        def reset() -> None:
            values.neg_()
            out[rows] = float("nan")

        def result() -> tuple[Any, ...]:
            return tuple(host(a) for a in (values[rows], times[rows], at, out[rows]))

        def extras() -> dict[str, Any]:
            return {
                "stages_ns": {
                    stage: [round(1e9 * s[stage]) for s in stage_times]
                    for stage in (stage_times[-1] if stage_times else ())
                }
            }

        reset()
        return Steps(step, result, reset, settings={"chunks": len(chunks)}, extras=extras)

    def check(self, case: Case, result: tuple[Any, ...]) -> Check:
        import numpy as np

        values, times, at, out = result
        expected = np.stack(
            [[np.interp(at, t, channel) for channel in v.T] for v, t in zip(values, times, strict=True)]
        )
        expected = expected.transpose(0, 2, 1)
        error = float(np.abs(out - expected).max() / max(1.0, float(np.abs(expected).max())))
        return Check(
            error <= TOLERANCE,  # False for NaN: a row without a result
            error,
            {"correlation": correlation(out, expected)},
            "largest error against float64, in units of the range",
        )

    def _bytes(self, case: Case) -> tuple[int, int]:
        """Return the bytes to the device (values and stamps) and back (results)."""
        up = case["trajectories"] * case["stamps"] * (case["channels"] + 1) * SIZE
        return up, case["trajectories"] * case["targets"] * case["channels"] * SIZE

    def _fitting(self, case: Case) -> Case:
        """Reduce the resident trajectories until all contenders fit into memory; the others reuse that memory."""
        host_bytes, count = HOST_SHARE * topology().usable_memory_bytes, case["resident"]
        share = sum(self._bytes(case)) * len(self.contenders(case)) / case["trajectories"]
        while share * count > host_bytes:
            count //= 2
        return Case({**case.params, "resident": count, "chunk": min(case["chunk"], count)}, case.device)


def _chunks(total: int, resident: int, chunk: int) -> list[slice]:
    """Return chunks of the resident trajectories, repeated until `total` trajectories have passed.

    >>> _chunks(7, 3, 2)
    [slice(0, 2, None), slice(2, 3, None), slice(0, 2, None), slice(2, 3, None), slice(0, 1, None)]
    """
    chunks: list[slice] = []
    while total > 0:
        size = min(resident, total)
        chunks += [slice(start, min(start + chunk, size)) for start in range(0, size, chunk)]
        total -= resident
    return chunks


def _dataset(case: Case) -> tuple[Any, Any, Any]:
    """Return values [N, S, D], times [N, S] in seconds since the start, and empty results [N, T, D]; N are resident."""
    import numpy as np
    import torch

    from ridgeline.pipeline import allocate_pinned

    def allocate(*shape: int) -> Any:
        return allocate_pinned(shape) if case["memory"] == "pinned" else torch.empty(shape)

    n, stamps, targets, channels = (case[k] for k in ("resident", "stamps", "targets", "channels"))
    values, times, out = allocate(n, stamps, channels), allocate(n, stamps), allocate(n, targets, channels)
    rng, piece = np.random.default_rng(), min(n, PIECE)
    clock = np.cumsum(rng.uniform(0.2, 1.8, (piece, stamps)), 1)
    clock = (clock - clock[:, :1]) / (clock[:, -1:] - clock[:, :1]) * (targets - 1) / HZ
    values[:piece] = torch.from_numpy(rng.standard_normal((piece, stamps, channels), dtype=np.float32))
    times[:piece] = torch.from_numpy(clock.astype(np.float32))
    for turn, start in enumerate(range(piece, n, piece), 1):
        stop = min(start + piece, n)
        torch.mul(values[: stop - start], 1 + turn / 128, out=values[start:stop])
        times[start:stop] = times[: stop - start]
    return values, times, out


def _engine(contender: str, at: Any, chunk: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    if contender in ("ridgeline", "in turn"):
        from ridgeline.trajectory import resample

        return lambda b: {"out": resample(b["values"], b["times"], at, check=False)}
    grid = at.expand(chunk, -1).contiguous()
    engine = peers.engine(contender, "linear")
    if contender == "numpy":
        import torch

        def by_numpy(batch: dict[str, Any]) -> dict[str, Any]:
            arrays = (batch["values"], batch["times"], grid[: len(batch["values"])])
            return {"out": torch.from_numpy(engine(*(a.numpy() for a in arrays)))}

        return by_numpy
    return lambda b: {"out": engine(b["values"], b["times"], grid[: len(b["values"])])}


def _run_pipeline(case: Case, device: str, data: tuple[Any, Any, Any], chunks: list[slice], fn: Any) -> Stages:
    from ridgeline.pipeline import stream, sum_stage_seconds

    values, times, out = data

    def batches() -> Iterator[dict[str, Any]]:
        for part in chunks:
            yield {"values": values[part], "times": times[part]}

    landing = lambda index: {"out": out[chunks[index]]}  # noqa: E731
    with stream(batches(), fn, device=device, depth=case["depth"], out=landing) as results:
        for _ in results:
            pass
    return sum_stage_seconds(results.timeline())


def _in_turn(case: Case, device: str, data: tuple[Any, Any, Any], chunks: list[slice], fn: Any) -> Stages:
    """Copy, compute and copy back in sequence on one CUDA stream; all queued at once, so that the GPU never waits."""
    import torch

    values, times, out = data
    marks: list[list[Any]] = []

    def mark() -> None:
        marks[-1].append(torch.cuda.Event(enable_timing=True))
        marks[-1][-1].record()

    for part in chunks:
        marks.append([])
        mark()
        batch = {
            name: data_array[part].to(device, non_blocking=True)
            for name, data_array in (("values", values), ("times", times))
        }
        mark()
        result = fn(batch)["out"]
        mark()
        out[part].copy_(result, non_blocking=True)
        mark()
    torch.cuda.synchronize()
    stages = ("h2d", "compute", "d2h")
    return {stage: sum(m[i].elapsed_time(m[i + 1]) for m in marks) / 1e3 for i, stage in enumerate(stages)}


workload = Million()
