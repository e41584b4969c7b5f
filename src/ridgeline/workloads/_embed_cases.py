"""Which texts the workload `embed` is raced on: the everyday ones, and one parameter at a time around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ridgeline.embed import DEFAULT, cpu_dtype

BASE: dict[str, Any] = {"stage": "end to end", "texts": "even", "batch": 64, "tokens": 32, "dtype": "float32"}
BASE |= {"model": DEFAULT}
MOVIES = {"cpu": 1_000, "cuda": 62_423}


def quick() -> list[tuple[str, dict[str, Any]]]:
    few: list[dict[str, Any]] = [{"batch": 32}, {"stage": "one", "batch": 1}]
    cpu: list[dict[str, Any]] = [*few, {"stage": "tokenize", "batch": 1024}]
    gpu: list[dict[str, Any]] = [*few, {"stage": "tokenize", "batch": 4096}, {"batch": 4096}]
    gpu += [{"texts": "movies", "batch": MOVIES["cuda"]}]
    return [("cpu", c) for c in cpu] + [("cuda", {"dtype": "float16", **c}) for c in gpu]


def full() -> list[tuple[str, dict[str, Any]]]:
    """One parameter at a time around the base; the batches are those of the tables that are asked for."""
    cpu = _sweep((1, 10, 32, 100, 1000), 64, (8, 16, 64, 128, 256, 512), (16, 32, 128), MOVIES["cpu"])
    cpu += [{"stage": "tokenize", "batch": n} for n in (1024, 4096)] + [{"stage": "load", "batch": 1}]
    types: list[dict[str, Any]] = [{}, {"stage": "one", "batch": 1}, {"stage": "forward"}, {"batch": 1000}]
    types += [{"tokens": n} for n in (16, 128)]
    half = [{**c, "dtype": cpu_dtype()} for c in types]

    batches, lengths = (1, 16, 32, 128, 256, 512, 1024, 2048, 4096), (8, 16, 64, 128, 256, 512)
    gpu = _sweep(batches, 1024, lengths, (8, 16, 32, 64, 128, 256, 512), MOVIES["cuda"])
    gpu += [{"stage": "forward", "batch": n} for n in batches]
    gpu += [{"stage": "tokenize", "batch": n} for n in (64, 4096)] + [{"stage": "load", "batch": 1}]
    gpu = [{"dtype": "float16", **c} for c in gpu]
    other: list[dict[str, Any]] = [{"batch": 1024}, {"stage": "forward", "batch": 1024}, {"stage": "one", "batch": 1}]
    other += [{"texts": "movies", "batch": MOVIES["cuda"]}, {"stage": "forward", "batch": 1024, "tokens": 512}]
    gpu += [{**c, "dtype": dtype} for c in other for dtype in ("float32", "bfloat16")]
    found = [("cpu", c) for c in cpu + half] + [("cuda", c) for c in gpu]
    unique = {(device, tuple(sorted({**BASE, **c}.items()))): (device, c) for device, c in found}
    return list(unique.values())


def _sweep(
    batches: Sequence[int], batch: int, lengths: Sequence[int], alone: Sequence[int], movies: int
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"batch": n} for n in (*batches, batch)]
    for stage in ("end to end", "forward"):
        found += [{"stage": stage, "batch": batch, "tokens": n} for n in sorted({*lengths, BASE["tokens"]})]
    found += [{"stage": "one", "batch": 1, "tokens": n} for n in alone]
    return found + [{"stage": stage, "texts": "movies", "batch": movies} for stage in ("end to end", "tokenize")]
