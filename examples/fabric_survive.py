"""Train with DDP on four ranks; one is killed, and the other three go on: python examples/fabric_survive.py

On several hosts replace `spawn` by `comm = fabric.init()` under your launcher (see docs/fabric.md, Several hosts).
"""

from __future__ import annotations

import os
import signal
import sys

import torch
from torch.nn.parallel import DistributedDataParallel

from ridgeline import fabric
from ridgeline.fabric import make_torch_group

STEPS, KILLED_AT, ROWS, RATE = 20, 8, 16, 0.05


def make_batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(ROWS, 8, generator=random)
    return x, x.sum(1, keepdim=True)


def make_network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))


def train(comm: fabric.Communicator) -> tuple[list[float], list[int], torch.Tensor]:
    """Return the losses, the number of ranks in each step, and the weights of this rank."""
    torch.set_num_threads(1)
    first_rank, step = comm.rank, 0
    network = make_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    model = DistributedDataParallel(network, process_group=make_torch_group(comm))
    losses: list[float] = []
    sizes: list[int] = []
    while step < STEPS:
        if step == KILLED_AT and first_rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        x, y = make_batch(step, comm.rank)
        optimizer.zero_grad()
        try:
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
        except (fabric.FabricError, RuntimeError):  # DDP wraps the error of its group
            comm = comm.shrink(timeout=20)
            # A rank may have ended the step in which another one got the error: all continue from the newest weights.
            # SGD has no further state; broadcast that of your optimizer, too.
            steps = comm.all_gather(torch.tensor([step])).flatten()
            step = int(steps.max())
            for parameter in network.parameters():
                comm.broadcast(parameter.data, int(steps.argmax()))
            model = DistributedDataParallel(network, process_group=make_torch_group(comm))
            continue
        optimizer.step()
        step += 1
        losses.append(loss.item())
        sizes.append(comm.size)
    return losses, sizes, torch.cat([p.detach().flatten() for p in network.parameters()])


if __name__ == "__main__":
    hosts = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    for rank, outcome in enumerate(fabric.spawn(train, 4, on_error="collect", hosts=hosts)):
        if isinstance(outcome, fabric.RankError):
            print(outcome)
        else:
            losses, sizes, weights = outcome
            ranks = f"{sizes[0]}, then {sizes[-1]} ranks"
            print(f"rank {rank}: {ranks}; loss {losses[-1]:.3f}; |weights| {weights.norm():.6f}")
