"""From an experiment's settings to its points: every model on every GPU from every node, and what cannot be.

Without a GPU the CPUs of a node take its part: images are copied from memory of one node into memory beside the CPUs
of another, computed there, and copied back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

from ridgeline.errors import InputError, unknown
from ridgeline.lab import Work
from ridgeline.lab.experiment import Point
from ridgeline.machine import Ceilings, Topology
from ridgeline.workloads.experiment_settings import ExperimentSettings, TestSettings, VitSettings
from ridgeline.workloads.trajectory import BYTES
from ridgeline.workloads.vit import Vit

SUBJECT = "ridgeline.workloads.experiment_subject:measure"
DTYPES = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    **{name: name for name in ("float32", "bfloat16", "float16")},
}
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
RECORDING = ("reduce-overhead", "max-autotune")  # those that record CUDA graphs themselves
# For an estimate where no ceiling of this machine is known: a plain CPU and a plain GPU, in FLOP/s and B/s.
ASSUMED = {"cpu": (2e10, 2e9), "cuda": (2e13, 1e10)}
START_S = {"cpu": 5.0, "cuda": 10.0}  # a process, its libraries, its memory
SHARE = 0.3  # of a ceiling that a model reaches, for the estimate


@dataclass(frozen=True)
class Stand:
    """A GPU, the node of the CPUs and how many there are, the node of the memory."""

    gpu: int | None
    cpu_node: int
    node: int
    cpus: int


def points(settings: ExperimentSettings, here: Topology) -> list[Point]:
    """All points, round by round, local and remote next to each other; what makes no sense is refused by its value."""
    test = settings.test
    _refuse(test)
    for name in ("max_workers", "repeats"):
        if getattr(settings, name) < 1:
            raise InputError(f"experiment.{name} is {getattr(settings, name)}; give 1 or more.")
    rounds = range(1, settings.repeats + 1)
    found = [
        _point(settings, model, stand, repeat)
        for repeat, model, stand in product(rounds, _models(settings), _stands(settings, here))
    ]
    return list({point.key: point for point in found}.values())


def estimate_s(point: Point, ceilings: Ceilings | None = None) -> float:
    """Seconds a point may take: its start, its batches, and the stages once more by themselves."""
    flops, rate = ASSUMED[point.device]
    dtype = str(point.params["dtype"])
    if ceilings is not None:
        compute = ceilings.compute(dtype)
        copied = ceilings.transfer("h2d", 1 << 24) if point.gpu is not None else ceilings.bandwidth("copy", 1 << 26)
        flops = SHARE * compute.base if compute else flops
        rate = SHARE * copied.base if copied else rate
    moved = sum(point.work.bytes.get(way, 0) for way in ("pcie", "pcie_back", "staged", "staged_back"))
    batches = (int(point.params["num_samples"]) + int(point.params["warmup_samples"])) / point.work.items + 30
    fill = point.staged_bytes / rate
    return START_S[point.device] + fill + batches * (point.work.flops / flops + moved / rate)


def _stands(settings: ExperimentSettings, here: Topology) -> Iterator[Stand]:
    hardware = settings.hardware
    usable = set(here.usable_cpus)
    able = [n.id for n in here.nodes if n.id in here.memory_nodes and usable & set(n.cpus)]
    nodes = able if hardware.numa_nodes is None else list(hardware.numa_nodes)
    gpus = [g.index for g in here.gpus] if hardware.gpu_ids is None else list(hardware.gpu_ids)
    for name, numbers in (("gpu_ids", gpus), ("numa_nodes", nodes)):
        if len(set(numbers)) < len(numbers):
            raise InputError(f"experiment.hardware.{name}={numbers} names one twice; name each once.")
    if not nodes:
        raise InputError("experiment.hardware.numa_nodes=[] leaves no place to stand; name a node, or null for all.")
    room = {n.id: len(usable & set(n.cpus)) for n in here.nodes}
    pairs: list[tuple[int | None, int, int]] = [(gpu, node, node) for gpu, node in product(gpus, nodes)]
    pairs = pairs or [(None, cpus, node) for cpus, node in product(nodes, nodes)]
    yield from (Stand(gpu, cpus, node, max(1, room.get(cpus, 1))) for gpu, cpus, node in pairs)


def _models(settings: ExperimentSettings) -> list[VitSettings | str]:
    if settings.module:
        if ":" not in settings.module:
            raise InputError(f"experiment.module '{settings.module}' is not of the form package.module:factory.")
        return [settings.module]
    if not settings.vit_configs:
        raise InputError("experiment.vit_configs is empty; give a model, or experiment.module=package.module:factory.")
    return list(settings.vit_configs)


def _point(settings: ExperimentSettings, model: VitSettings | str, stand: Stand, repeat: int) -> Point:
    test, gpu = settings.test, stand.gpu
    image = tuple(test.tensor_shape)
    dtype = _dtype(test.dtype, gpu)
    params: dict[str, Any] = {
        "model": model if isinstance(model, str) else model.name,
        "module": model if isinstance(model, str) else "",
        "channels": image[0],
        "image_size": image[1],
        "image_width": image[2],
        "batch_size": test.batch_size,
        "dtype": dtype,
        "output": test.output,
        "compile_mode": test.compile_mode if test.compile_model else "",
        "pinned": test.pinned,
        "ring": test.ring,
        "graph": _graph(test, gpu, own=isinstance(model, str)),
        "memory_size_mb": test.memory_size_mb,
        "num_samples": test.num_samples,
        "warmup_samples": test.warmup_samples,
        "repeat": repeat,
    }
    batch, size = test.batch_size, BYTES[dtype]
    if isinstance(model, str):
        sizes: dict[str, Any] = dict.fromkeys(("patch_size", "depth", "heads", "dim", "mlp_dim", "parameters"))
        flops, up, down = 0, batch * prod(image) * size, 0
        facts = sizes
    else:
        vit = vit_of(model, test)
        names = ("patch_size", "depth", "heads", "dim", "mlp_dim")
        params |= {name: getattr(vit, name) for name in names}
        flops, up, down = vit.flops(batch), vit.up_bytes(batch, size), vit.down_bytes(batch, size)
        facts = {"parameters": vit.parameters}
    _refuse_pool(test, up + down)
    work = Work(
        batch,
        "images",
        flops=flops,
        bytes=moved(up, down, (facts["parameters"] or 0) * size, gpu is not None),
        dtype=dtype,
        mix="read",
        threads=stand.cpus,
    )
    return Point(
        experiment=settings.name,
        name=params["model"],
        subject=SUBJECT,
        params=params,
        node=stand.node,
        cpu_node=stand.cpu_node,
        gpu=gpu,
        timeout_s=test.timeout_s,
        work=work,
        facts={"compile_seconds": None, **facts},
        staged_bytes=test.memory_size_mb << 20,
    )


def moved(up: int, down: int, weights: int, gpu: bool) -> dict[str, int]:
    """Compulsory bytes of a batch: over the bus or from memory to memory, and through the memory that computes."""
    there, back = ("pcie", "pcie_back") if gpu else ("staged", "staged_back")
    return {there: up, back: down, "memory": up + down + weights}


def vit_of(model: VitSettings, test: TestSettings) -> Vit:
    """The transformer that is meant, its proportions filled in."""
    channels, height, width = test.tensor_shape
    heads = model.heads or max(1, model.dim // 64)
    mlp = model.mlp_dim or 4 * model.dim
    vit = Vit((channels, height, width), model.patch_size, model.depth, heads, model.dim, mlp)
    return replace(vit, output=test.output)


def _dtype(asked: str, gpu: int | None) -> str:
    if asked == "auto":
        return "float32" if gpu is None else "float16"
    if asked not in DTYPES:
        raise unknown("experiment.test.dtype", asked, ["auto", *DTYPES])
    return DTYPES[asked]


def _graph(test: TestSettings, gpu: int | None, *, own: bool) -> bool:
    """Whether the model is recorded; those modes of torch.compile that record by themselves are left to it."""
    if gpu is None or (test.compile_model and test.compile_mode in RECORDING):
        return False
    return not own if test.graph is None else test.graph


def _refuse(test: TestSettings) -> None:
    for name in ("num_samples", "batch_size", "memory_size_mb", "ring", "timeout_s"):
        if getattr(test, name) <= 0:
            raise InputError(f"experiment.test.{name} is {getattr(test, name)}; give more than 0.")
    if test.warmup_samples < 0:
        raise InputError(f"experiment.test.warmup_samples is {test.warmup_samples}; give 0 or more.")
    if len(test.tensor_shape) != 3:
        raise InputError(
            f"experiment.test.tensor_shape is {list(test.tensor_shape)}; give channels, height and width, "
            "like [3,224,224]."
        )
    if test.compile_mode not in MODES:
        raise unknown("experiment.test.compile_mode", test.compile_mode, MODES)


def _refuse_pool(test: TestSettings, batch_bytes: int) -> None:
    if batch_bytes > test.memory_size_mb << 20:
        raise InputError(
            f"a batch of {test.batch_size} with its answers is {batch_bytes / (1 << 20):,.1f} MB and does not fit "
            f"experiment.test.memory_size_mb={test.memory_size_mb}; give more memory or a smaller batch."
        )
