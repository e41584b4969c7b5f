"""Kill a rank while all ranks train with the torch back end, many times:

    python tests/fabric/torch_chaos.py KIND KILLS [SEED]        KIND: manual, ddp, fsdp, fsdp2 or messages

The other ranks must raise an error that names a rank, destroy their group, and end by themselves. Prints one line for
each wrong outcome and exits with 1 if there is one. The ranks are forked from this process, which has imported torch.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

KINDS = ("manual", "ddp", "fsdp", "fsdp2", "messages")
DEADLINE_S = 20.0  # of the calls; a dead rank is found long before
GUARD_S = 60.0
RAISED = 3


def main(kind: str, kills: int, seed: int) -> int:
    import torch
    import torch.distributed.fsdp

    import ridgeline.fabric.torch  # noqa: F401

    torch.set_num_threads(1)
    train_alone(kind)
    choice, wrong = random.Random(seed), 0
    for number in range(kills):
        ranks = choice.choice((2, 3))
        with tempfile.TemporaryDirectory() as folder:
            outcomes = kill_once(kind, ranks, choice.randrange(ranks), choice.random() ** 2 * 0.2, Path(folder))
        for rank, outcome in outcomes.items():
            if not (outcome.startswith("raised") and "rank" in outcome):
                wrong += 1
                print(f"kill {number}, rank {rank} of {ranks}: {outcome}", flush=True)
    print(f"{kind}: {kills} kills, {wrong} survivors did not raise", flush=True)
    return 1 if wrong else 0


def train_alone(kind: str) -> None:
    """Import what torch imports at its first step, so that not every rank does it."""
    import torch.distributed as dist

    dist.init_process_group("ridgeline", store=dist.HashStore(), rank=0, world_size=1)
    if kind != "messages":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # FSDP says that one rank has nothing to shard
            make_step(kind, 0, 1)()
    dist.destroy_process_group()


def kill_once(kind: str, ranks: int, victim: int, delay: float, folder: Path) -> dict[int, str]:
    """Return what happened to each of the other ranks."""
    reader, writer = os.pipe()
    pids = []
    for rank in range(ranks):
        if (pid := os.fork()) == 0:
            run_rank(kind, rank, ranks, folder, writer)
        pids.append(pid)
    os.close(writer)
    for _ in range(ranks):
        os.read(reader, 1)  # the rank has trained one step, or ended
    time.sleep(delay)
    os.kill(pids[victim], signal.SIGKILL)
    os.close(reader)
    os.waitpid(pids[victim], 0)
    return {rank: wait_for(pid, folder / f"rank{rank}") for rank, pid in enumerate(pids) if rank != victim}


def wait_for(pid: int, file: Path) -> str:
    deadline = time.monotonic() + GUARD_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            text = file.read_text() if file.exists() else ""
            return text if code == RAISED else f"exit code {code} {text}"
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "still running"


def run_rank(kind: str, rank: int, ranks: int, folder: Path, writer: int) -> None:
    """In the process of a rank; never returns."""
    import torch.distributed as dist

    code = 1
    try:
        dist.init_process_group(
            "ridgeline",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=DEADLINE_S),
        )
        step = make_step(kind, rank, ranks)
        step()
        os.write(writer, b".")
        try:
            while True:
                step()
        except Exception as error:
            (folder / f"rank{rank}").write_text(f"raised {type(error).__name__}: {error}")
        dist.destroy_process_group()
        code = RAISED
    except BaseException as error:
        (folder / f"rank{rank}").write_text(f"{type(error).__name__}: {error}")
    finally:
        os._exit(code)


def make_step(kind: str, rank: int, ranks: int) -> Any:
    """A function that trains one step."""
    import torch
    import torch.distributed as dist

    if kind == "messages":
        return lambda: exchange_around(rank, ranks)
    torch.manual_seed(0)
    norm = [torch.nn.BatchNorm1d(64)] if kind == "ddp" else []  # its buffers are sent before each forward pass
    model: Any = torch.nn.Sequential(torch.nn.Linear(64, 64), *norm, torch.nn.ReLU(), torch.nn.Linear(64, 1))
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.005)
    elif kind == "fsdp":
        model = torch.distributed.fsdp.FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    elif kind == "fsdp2":
        mesh = dist.init_device_mesh("cpu", (ranks,))
        for layer in (model[0], model[-1], model):
            torch.distributed.fsdp.fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(16, 64, generator=generator)).square().mean().backward()
        if kind == "manual":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= ranks
        optimizer.step()
        for parameter in model.parameters():
            if not parameter.isfinite().all():
                raise SystemExit("trained on to infinity")

    return step


def exchange_around(rank: int, ranks: int) -> None:
    import torch
    import torch.distributed as dist

    received = torch.zeros(100_000)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, received, (rank - 1) % ranks),
            dist.P2POp(dist.isend, torch.ones(100_000), (rank + 1) % ranks),
        ]
    )
    for work in works:
        work.wait()
    if not received.all():
        raise SystemExit("received wrong data")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0))
