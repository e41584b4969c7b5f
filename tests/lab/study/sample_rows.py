"""Synthetic rows with a known truth, as `results.json` has them."""

from __future__ import annotations

import itertools
import random
import statistics

BASE = {
    "experiment": "synthetic", "success": True, "error": None, "model": "m", "depth": 4, "dim": 256, "heads": 4,
    "mlp_dim": 1024, "patch_size": 16, "image_size": 224, "parameters": 1e6, "batch_size": 8, "dtype": "float16",
    "output": "cls", "compile_mode": "", "compile_seconds": None, "pinned": True, "ring": 2, "memory_size_mb": 512,
    "device": "cuda", "gpu_id": 0, "numa_node": 0, "distance": 10, "peak_memory": 1e9, "flops": 1e9,
    "h2d_bytes": 1e6, "d2h_bytes": 1e4,
}  # fmt: skip


def row(rng: random.Random, seconds: float = 1e-3, *, noise=0.0, within=0.02, samples=24, **changes):
    """Return one run: its true time, with noise between runs and within them (both of the logarithm)."""
    level = seconds * rng.lognormvariate(0, noise)
    samples_s = [level * rng.lognormvariate(0, within) for _ in range(samples)]
    columns = {**BASE, **changes}
    median = statistics.median(samples_s) if samples_s else level
    stages = {"h2d_seconds": level / 4, "compute_seconds": level, "d2h_seconds": level / 9}
    return {
        "run_id": f"{rng.getrandbits(64):016x}",
        "duration": 1.0,
        **stages,
        "throughput": columns["batch_size"] / median,
        "batch_seconds": median,
        "samples": samples_s,
        **columns,
    }


def two_nodes(rng: random.Random, penalty: dict[str, float], *, batches=(8, 16, 32), noise=0.01, gpus=(0, 1)):
    """Return every model from both nodes of every GPU; GPU g is near node g. A penalty is a factor of time."""
    rows = []
    for (model, factor), gpu, node, batch in itertools.product(penalty.items(), gpus, (0, 1), batches):
        far = node != gpu
        slow = factor if far else 1.0
        run = row(
            rng, 1e-4 * batch * slow, noise=noise, model=model, batch_size=batch, gpu_id=gpu, numa_node=node,
            distance=21 if far else 10,
        )  # fmt: skip
        run |= {"h2d_seconds": 1e-4 * (1 + 2 * (slow - 1)), "d2h_seconds": 1e-5 * (1 + 3 * (slow - 1))}
        rows.append(run)
    return rows
