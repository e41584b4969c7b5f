"""Synchronous calls of the torch back end: in the thread of the caller, through the thread of the group, and gloo.

    python benchmarks/fabric_torch.py            # --blocks 200 --calls 20

Two ranks make `dist.all_reduce` of float32 in blocks of calls, one way after the other, the first way of each round in
turn. A table shows the lower quartile of the time of a call over the blocks, and the ratio to the first way.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = (16, 1024, 16_384, 262_144)  # elements
WAYS = ("caller", "thread", "gloo")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare synchronous calls of the torch back end.")
    parser.add_argument("--blocks", type=int, default=200, help="Blocks of calls for each way (default: 200).")
    parser.add_argument("--calls", type=int, default=20, help="Calls in a block (default: 20).")
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--store", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank >= 0:
        measure(options.rank, options.store, options.blocks, options.calls)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--blocks", str(options.blocks), "--calls", str(options.calls)]
        ranks = [subprocess.Popen([*command, "--rank", str(rank), "--store", f"{folder}/store"]) for rank in range(2)]
        sys.exit(max(rank.wait() for rank in ranks))


def measure(rank: int, store: str, blocks: int, calls: int) -> None:
    import torch
    import torch.distributed as dist

    import ridgeline.fabric.torch  # noqa: F401
    from ridgeline.fabric import torch_backend

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    ours = dist.new_group(backend="ridgeline")
    submit = torch_backend._CallQueue.submit

    def submit_to_thread(queue: torch_backend._CallQueue, work: object, at_once: bool = False) -> object:
        return submit(queue, work, False)  # type: ignore[arg-type]

    if rank == 0:
        print(f"{'bytes':>9}" + "".join(f"{way + ' µs':>12}" for way in WAYS) + f"{'thread ÷':>12}{'gloo ÷':>10}")
    for size in SIZES:
        tensor, times = torch.zeros(size), {way: [] for way in WAYS}
        for block in range(blocks):
            for way in (*WAYS[block % 3 :], *WAYS[: block % 3]):
                torch_backend._CallQueue.submit = submit_to_thread if way == "thread" else submit
                group = None if way == "gloo" else ours
                dist.barrier()
                dist.all_reduce(tensor, group=group)
                start = time.perf_counter()
                for _ in range(calls):
                    dist.all_reduce(tensor, group=group)
                times[way].append((time.perf_counter() - start) / calls)
        if rank == 0:
            caller, thread, gloo = (statistics.quantiles(times[way], n=4)[0] for way in WAYS)
            print(
                f"{4 * size:>9,}{1e6 * caller:>12.1f}{1e6 * thread:>12.1f}{1e6 * gloo:>12.1f}"
                f"{thread / caller:>12.2f}{gloo / caller:>10.2f}",
                flush=True,
            )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
