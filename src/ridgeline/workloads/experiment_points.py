"""From the settings of an experiment to its points: every model on every GPU, with memory on every node.

Without a GPU the CPUs of a node compute: images are copied from memory of one node into memory local to the CPUs of
another, computed there, and copied back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
GRAPH_MODES = ("reduce-overhead", "max-autotune")  # modes of torch.compile that record CUDA graphs themselves
# For an estimate where no ceiling of this machine is known: an ordinary CPU and GPU, in FLOP/s and B/s.
ASSUMED = {"cpu": (2e10, 2e9), "cuda": (2e13, 1e10)}
START_S = {"cpu": 5.0, "cuda": 10.0}  # a process, its libraries, its memory
REACHED = 0.3  # share of a ceiling that a model reaches, for the estimate
STAGE_BATCHES = 30  # batches that time the stages by themselves, for the estimate


@dataclass(frozen=True)
class PointPlacement:
    """The GPUs that work together, the node of the CPUs and their number, the node of the memory."""

    gpus: tuple[int, ...]
    cpu_node: int
    node: int
    cpus: int


def list_points(settings: ExperimentSettings, machine: Topology) -> list[Point]:
    """Return all points, round by round, local and remote next to each other.

    Raises InputError with the setting and its value where a setting makes no sense.
    """
    test = settings.test
    _check_test(test)
    for name, number in (("max_workers", settings.workers), ("repeats", settings.repeats)):
        if number < 1:
            raise InputError(f"experiment.{name} is {number}; give 1 or more.")
    rounds = range(1, settings.repeats + 1)
    points = [
        _build_point(settings, model, placement, repeat)
        for repeat, model, placement in product(rounds, _list_models(settings), _list_placements(settings, machine))
    ]
    return list({point.key: point for point in points}.values())


def estimate_seconds(point: Point, ceilings: Ceilings | None = None) -> float:
    """Return the seconds that a point may take: its start, its batches, and the stages by themselves."""
    flops, rate = ASSUMED[point.device]
    dtype = str(point.params["dtype"])
    if ceilings is not None:
        compute = ceilings.compute(dtype)
        copy = ceilings.transfer("h2d", 1 << 24) if point.gpu is not None else ceilings.bandwidth("copy", 1 << 26)
        flops = REACHED * compute.base if compute else flops
        rate = REACHED * copy.base if copy else rate
    moved = sum(point.work.bytes.get(way, 0) for way in ("pcie", "pcie_back", "staged", "staged_back"))
    images = int(point.params["num_samples"]) + int(point.params["warmup_samples"])
    batches = images / point.work.items + STAGE_BATCHES
    count = max(1, len(point.gpus))
    flops, rate = flops * count, rate * count
    fill = point.staged_bytes / rate
    return START_S[point.device] + fill + batches * (point.work.flops / flops + moved / rate)


def count_bytes(up: int, down: int, weights: int, gpu: bool) -> dict[str, int]:
    """Return the compulsory bytes of a batch: over the bus or from memory to memory, and through local memory."""
    to_device, back = ("pcie", "pcie_back") if gpu else ("staged", "staged_back")
    return {to_device: up, back: down, "memory": up + down + weights}


def build_vit(model: VitSettings, test: TestSettings) -> Vit:
    """Return the transformer of these settings, with default proportions where a setting is null."""
    channels, height, width = test.tensor_shape
    heads = model.heads or max(1, model.dim // 64)
    mlp = model.mlp_dim or 4 * model.dim
    vit = Vit((channels, height, width), model.patch_size, model.depth, heads, model.dim, mlp)
    return replace(vit, output=test.output)


def _list_placements(settings: ExperimentSettings, machine: Topology) -> Iterator[PointPlacement]:
    hardware = settings.hardware
    usable = set(machine.usable_cpus)
    complete = [n.id for n in machine.nodes if n.id in machine.memory_nodes and usable & set(n.cpus)]
    nodes = complete if hardware.numa_nodes is None else list(hardware.numa_nodes)
    groups = [(g.index,) for g in machine.gpus] if hardware.gpu_ids is None else _parse_groups(hardware.gpu_ids)
    if len(set(nodes)) < len(nodes):
        raise InputError(f"experiment.hardware.numa_nodes={nodes} names one twice; name each once.")
    if not nodes:
        raise InputError("experiment.hardware.numa_nodes=[] leaves no node to run on; name a node, or null for all.")
    cpu_counts = {n.id: len(usable & set(n.cpus)) for n in machine.nodes}
    places: list[tuple[tuple[int, ...], int, int]] = [(group, node, node) for group, node in product(groups, nodes)]
    places = places or [((), cpu_node, node) for cpu_node, node in product(nodes, nodes)]
    for group, cpu_node, node in places:
        yield PointPlacement(group, cpu_node, node, max(1, cpu_counts.get(cpu_node, 1)))


def _parse_groups(gpu_ids: Any) -> list[tuple[int, ...]]:
    """Return the GPUs of each point: [0, 1] is two points, [[0, 1]] is one point of two GPUs that work together."""
    entries = list(gpu_ids) if isinstance(gpu_ids, Sequence) and not isinstance(gpu_ids, str) else None
    groups = [tuple(e) if isinstance(e, Sequence) and not isinstance(e, str) else (e,) for e in entries or ()]
    if entries is None or not all(group and all(type(gpu) is int for gpu in group) for group in groups):
        raise InputError(
            f"experiment.hardware.gpu_ids={gpu_ids} is no list of GPUs; write [0,1] for each of them, "
            "or [[0,1]] for GPUs that work together."
        )
    if len(set(groups)) < len(groups) or any(len(set(group)) < len(group) for group in groups):
        raise InputError(f"experiment.hardware.gpu_ids={gpu_ids} names one twice; name each once.")
    return groups


def _list_models(settings: ExperimentSettings) -> list[VitSettings | str]:
    if settings.module:
        if ":" not in settings.module:
            raise InputError(f"experiment.module '{settings.module}' is not of the form package.module:factory.")
        return [settings.module]
    if not settings.vit_configs:
        raise InputError("experiment.vit_configs is empty; give a model, or experiment.module=package.module:factory.")
    return list(settings.vit_configs)


def _build_point(
    settings: ExperimentSettings, model: VitSettings | str, placement: PointPlacement, repeat: int
) -> Point:
    test, gpus = settings.test, placement.gpus
    gpu = gpus[0] if gpus else None
    image = tuple(test.tensor_shape)
    dtype = _choose_dtype(test.dtype, gpu)
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
        "graph": _choose_graph(test, gpu, custom=isinstance(model, str)),
        "memory_size_mb": test.memory_size_mb,
        "num_samples": test.num_samples,
        "warmup_samples": test.warmup_samples,
        "repeat": repeat,
    }
    batch, size = test.batch_size, BYTES[dtype]
    names = ("patch_size", "depth", "heads", "dim", "mlp_dim")
    facts: dict[str, Any]
    if isinstance(model, str):
        facts = dict.fromkeys((*names, "parameters"))
        flops, up, down = 0, batch * prod(image) * size, 0
    else:
        vit = build_vit(model, test)
        params |= {name: getattr(vit, name) for name in names}
        facts = {"parameters": vit.parameters}
        flops, up, down = vit.flops(batch), vit.up_bytes(batch, size), vit.down_bytes(batch, size)
    devices = max(1, len(gpus))  # each has a batch of its own
    _check_pool(test, devices * (up + down))
    weights = (facts["parameters"] or 0) * size
    work = Work(
        devices * batch,
        "images",
        flops=devices * flops,
        bytes=count_bytes(devices * up, devices * down, devices * weights, gpu is not None),
        dtype=dtype,
        mix="read",
        threads=placement.cpus,
    )
    return Point(
        experiment=settings.name,
        name=params["model"],
        subject=SUBJECT,
        params=params,
        node=placement.node,
        cpu_node=placement.cpu_node,
        gpu=gpu,
        partners=gpus[1:],
        timeout_s=test.timeout_s,
        work=work,
        facts={"compile_seconds": None, **facts},
        staged_bytes=test.memory_size_mb << 20,
    )


def _choose_dtype(dtype: str, gpu: int | None) -> str:
    if dtype == "auto":
        return "float32" if gpu is None else "float16"
    if dtype not in DTYPES:
        raise unknown("experiment.test.dtype", dtype, ["auto", *DTYPES])
    return DTYPES[dtype]


def _choose_graph(test: TestSettings, gpu: int | None, *, custom: bool) -> bool:
    """Whether to record a CUDA graph of the model; some modes of torch.compile record one themselves."""
    if gpu is None or (test.compile_model and test.compile_mode in GRAPH_MODES):
        return False
    return not custom if test.graph is None else test.graph


def _check_test(test: TestSettings) -> None:
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


def _check_pool(test: TestSettings, batch_bytes: int) -> None:
    if batch_bytes > test.memory_size_mb << 20:
        raise InputError(
            f"a batch of {test.batch_size} with its answers is {batch_bytes / (1 << 20):,.1f} MB and does not fit "
            f"experiment.test.memory_size_mb={test.memory_size_mb}; give more memory or a smaller batch."
        )
