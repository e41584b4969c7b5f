"""What a training step waits for frames: batches of 64 items with two cameras of 224², decoded from videos at random.

    python benchmarks/trajectory_loader.py --workers 2 --step 0.05 [--images float32] [--peer PYTHON]
    python benchmarks/trajectory_loader.py --workers 8 --step resnet50 --out OUT.txt    # one GPU, some three minutes
    python benchmarks/trajectory_loader.py --cpu                                        # the CPU time of a batch

The dataset (two cameras, `--frames` images each, about 35 MB) is made at the start, in a temporary folder. Contenders
take turns, each in a process of its own:

threads    `TrajectoryDataset.batches` with `--workers` threads
processes  `TrajectoryDataset` in torch's DataLoader with `--workers` processes
lerobot    LeRobot's own dataset in a DataLoader; `--peer` is a Python in which it can be imported

`--step` is a sleep in seconds, or `resnet50`: forward, backward and SGD of torchvision's ResNet-50 over the 128 images
of a batch, in bfloat16, channels last, on the GPU. For a sleep the share of time that the loop waits for its batches is
printed; for `resnet50` the time of a step over a batch that stays on the GPU, divided by the time of a step of the
loop: how busy the loader keeps it. Needs av and pyarrow beside torch; `resnet50` needs torchvision.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

BATCH, SIZE, HZ = 64, 224, 30
KEYS = ("observation.images.front", "observation.images.wrist")


def make_dataset(folder: Path, frames: int) -> Path:
    """Write two folders of JPEG images, and make a LeRobot dataset of them."""
    from trajectory_cameras import PICTURES, make_pictures

    from ridgeline.trajectory import ConversionSettings, convert_many

    pictures = make_pictures((SIZE, SIZE))
    for offset, camera in ((0, "front"), (7, "wrist")):
        (folder / "log" / camera).mkdir(parents=True)
        for i in range(frames):
            (folder / f"log/{camera}/{i:06d}.jpg").write_bytes(pictures[(i + offset) % PICTURES])
    settings = ConversionSettings(hz=HZ, fps=HZ, cameras={"front": "front", "wrist": "wrist"}, task="benchmark")
    [result] = convert_many([folder / "log"], folder / "set", "lerobot", settings)
    if result.error:
        raise SystemExit(result.error)
    return folder / "set"


def open_loader(kind: str, root: str, workers: int, images: str, *, pin: bool) -> Callable[[], Iterator[Any]]:
    """Return what starts an epoch."""
    import torch

    deltas = {key: [0.0] for key in KEYS}
    dataset: Any
    if kind == "lerobot":
        from lerobot.datasets.lerobot_dataset import LeRobotDataset

        dataset = LeRobotDataset("local/benchmark", root=root, delta_timestamps=deltas, tolerance_s=1e-3)
    else:
        from ridgeline import TrajectoryDataset

        dataset = TrajectoryDataset(root, delta_timestamps=deltas, images=images)
    if kind == "threads":
        return lambda: dataset.batches(
            BATCH, torch.randperm(len(dataset)).tolist(), threads=workers, drop_last=True, pin=pin
        )
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=BATCH, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=True,
        pin_memory=pin, multiprocessing_context="forkserver" if pin else "fork",
    )  # fmt: skip
    return lambda: iter(loader)


def repeat(start: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    while True:
        yield from start()


def build_training() -> Callable[[Any], None]:
    """Return a step of ResNet-50 over a batch."""
    import torch
    from torchvision.models import resnet50

    torch.backends.cudnn.benchmark = True
    model = resnet50().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    target = torch.arange(2 * BATCH, device="cuda") % 1000

    def step(batch: Any) -> None:
        pixels = torch.cat([batch[key].cuda(non_blocking=True) for key in KEYS])
        if pixels.dtype == torch.uint8:
            pixels = pixels.float().div_(255)
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(
                model(pixels.contiguous(memory_format=torch.channels_last)), target
            )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def run_sleep(batches: Iterator[Any], steps: int, warm: int, seconds: float) -> dict[str, float]:
    waited = 0.0
    start = 0.0
    for number in range(warm + steps):
        if number == warm:
            waited, start = 0.0, time.perf_counter()
        before = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - before
        time.sleep(seconds)
    total = time.perf_counter() - start
    return {"wait_share": waited / total, "wait_ms": waited / steps * 1e3, "step_ms": total / steps * 1e3}


def run_training(batches: Iterator[Any], steps: int, warm: int) -> dict[str, float]:
    import torch

    step = build_training()
    batch = next(batches)
    resident = {key: batch[key].cuda() for key in KEYS}

    def measure(count: int, get: Callable[[], Any]) -> tuple[float, float]:
        torch.cuda.synchronize()
        start, waited = time.perf_counter(), 0.0
        for _ in range(count):
            before = time.perf_counter()
            item = get()
            waited += time.perf_counter() - before
            step(item)
            torch.cuda.current_stream().synchronize()  # the step's time, not that of its launches
        return (time.perf_counter() - start) / count * 1e3, waited / count * 1e3

    measure(warm, lambda: resident)
    alone = []
    loop = []
    waits = []
    for _ in range(3):
        alone.append(measure(steps, lambda: resident)[0])
        measure(warm, lambda: next(batches))  # what was built during the other measurement does not count
        total, wait = measure(steps, lambda: next(batches))
        loop.append(total)
        waits.append(wait)
    step_ms, loop_ms = statistics.median(alone), statistics.median(loop)
    return {
        "resident_step_ms": step_ms,
        "step_ms": loop_ms,
        "busy": step_ms / loop_ms,
        "wait_ms": statistics.median(waits),
    }


def run_contender(options: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(1)
    pin = options.step == "resnet50"
    batches = repeat(open_loader(options.run, options.root, options.workers, options.images, pin=pin))
    start = os.times()
    if pin:
        result = run_training(batches, options.steps, options.warm)
    else:
        result = run_sleep(batches, options.steps, options.warm, float(options.step))
    end = os.times()
    result["cpu_s"] = end.user + end.system - start.user - start.system
    print(json.dumps(result), flush=True)
    for process in multiprocessing.active_children():  # they wait for the next batch, and hold the pipe of this output
        process.kill()
    os._exit(0)


def measure_cpu(root: Path, rounds: int) -> list[str]:
    """Where the CPU time of a batch goes, in one thread: decoding alone, and then with everything."""
    import numpy as np
    import torch

    from ridgeline import TrajectoryDataset
    from ridgeline.trajectory.videos import VideoReader

    torch.set_num_threads(1)
    deltas = {key: [0.0] for key in KEYS}
    sets = {n: TrajectoryDataset(root, delta_timestamps=deltas, images=n, decoder="pyav") for n in ("uint8", "float32")}
    files = [next((root / "videos" / key).rglob("*.mp4")) for key in KEYS]
    readers = [VideoReader(file, HZ) for file in files]
    rng = np.random.default_rng(0)

    def decode(order: list[int]) -> None:
        for reader in readers:
            for number in sorted(order):
                for _ in reader.iterate(number, 1):
                    pass

    def collate(dataset: Any, order: list[int]) -> None:
        torch.utils.data.default_collate(dataset.__getitems__(order))

    loaders = {  # one thread, which keeps its files open
        n: d.batches(BATCH, (int(i) for i in rng.integers(0, len(d), 10**6)), threads=1, ahead=1)
        for n, d in sets.items()
    }
    work: dict[str, Callable[[list[int]], object]] = {"decoding alone (PyAV)": decode}
    for name, dataset in sets.items():
        work[f"{name}: batches()"] = partial(take, loaders[name])
        work[f"{name}: items and default_collate"] = partial(collate, dataset)
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        order = rng.permutation(len(sets["uint8"]))[:BATCH].tolist()
        for name, run in work.items():
            before = time.process_time()
            run(order)
            times[name].append((time.process_time() - before) * 1e3)
    return [f"{n}: {min(t):.1f} ms of CPU time at least, {statistics.median(t):.1f} median" for n, t in times.items()]


def take(loader: Iterator[Any], _: list[int]) -> None:
    """Take a batch, and wait until its thread has built the next one: that is the one that is measured."""
    next(loader)
    time.sleep(0.4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--step", default="0.05", help="seconds of sleep, or resnet50")
    parser.add_argument("--images", default="uint8", choices=("uint8", "float32"))
    parser.add_argument("--frames", type=int, default=6000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warm", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", default=None)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--run", default="", help=argparse.SUPPRESS)
    parser.add_argument("--root", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run_contender(options)
        return
    lines: list[str] = []

    def report(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    with tempfile.TemporaryDirectory() as name:
        root = make_dataset(Path(name), options.frames)
        size = sum(f.stat().st_size for f in root.rglob("*") if f.is_file()) / 1e6
        report(
            f"2 cameras x {options.frames} frames of {SIZE} x {SIZE}, {size:.0f} MB, batches of {BATCH} items at random"
        )
        if options.cpu:
            for line in measure_cpu(root, options.rounds * 5):
                report(line)
        else:
            race(root, options, report)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


def race(root: Path, options: argparse.Namespace, report: Callable[[str], None]) -> None:
    kinds = ["threads", "processes", *(["lerobot"] if options.peer else [])]
    loops: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(options.rounds):
        for kind in kinds[:: 1 if number % 2 else -1]:
            command = [options.peer if kind == "lerobot" else sys.executable, __file__, "--run", kind]
            command += ["--root", str(root)]
            for word in ("workers", "step", "images", "steps", "warm"):
                command += [f"--{word}", str(getattr(options, word))]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                report(f"{kind}: failed: {done.stderr.strip().splitlines()[-1:]}")
                continue
            result = json.loads(done.stdout.strip().splitlines()[-1])
            loops[kind].append(result["step_ms"])
            about = f"{kind:10} {options.workers} workers, {options.images}: step of {result['step_ms']:.1f} ms"
            if "busy" in result:
                report(f"{about}, {result['resident_step_ms']:.1f} ms without a loader: busy {result['busy']:.1%}")
            else:
                report(f"{about}, waits {result['wait_ms']:.1f} ms of it: {result['wait_share']:.1%}")
    for kind in kinds[1:]:
        if loops[kind] and loops["threads"]:
            ratio = statistics.median(loops[kind]) / statistics.median(loops["threads"])
            report(f"{kind} / threads, time of a step: {ratio:.2f}")


if __name__ == "__main__":
    main()
