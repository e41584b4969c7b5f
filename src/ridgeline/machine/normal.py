"""Is this value normal? The measured ceilings beside those of other machines of the same model.

    ridgeline machine --normal
    ridgeline machine --normal --like sister.json      # beside `ridgeline machine --ceilings --json` of another machine

The table (assets/normal.toml) has the limits of data sheets, with their source, and what the machines of our records
reached. Without records, typical is the share of the limit that a measured model reached, and the range is wider.
"""

from __future__ import annotations

import json
import re
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.machine.causes import COMPUTE, GPU_COMPUTE, GPU_MEMORY, LINK, MEMORY, Cause, find_causes
from ridgeline.machine.ceiling_measurement import ceilings as measure_ceilings
from ridgeline.machine.ceiling_measurement import remeasure_ceiling
from ridgeline.machine.ceiling_types import Ceiling, Ceilings, Progress
from ridgeline.machine.hardware import Topology, topology
from ridgeline.machine.nvml import read_gpu_settings
from ridgeline.machine.sysfs import Tree
from ridgeline.web import read_asset

TABLE = "normal.toml"
# The least share of the typical value that is normal. CPUs of virtual machines share memory channels and clocks.
FROM_RECORDS, FROM_LIMIT, CPU_MEMORY, CPU_COMPUTE, FROM_LIKE = 0.9, 0.75, 0.6, 0.75, 0.9
ABOVE_LIMIT, ABOVE_TYPICAL = 1.03, 1.5
SATURATING_CORES = 16  # fewer cores of a socket do not use all of its memory channels
SOCKET_SHARE = 0.75  # of the memory channels' limit, by all cores of a socket
LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}  # of PCIe, after the line code
DTYPES = ("bfloat16", "float16", "tf32", "float32", "float64", "float8_e4m3fn")
GENERAL = {
    MEMORY: "nothing in the settings explains it: other programs, slower or fewer memory modules (dmidecode -t memory)",
    COMPUTE: "nothing in the settings explains it: other programs, the clock under load (turbostat), another library",
    LINK: "nothing in the settings explains it: the slot, the riser, or the switch above the card (lspci -tv)",
    GPU_MEMORY: "nothing in the settings explains it: other programs on the GPU, its clocks (nvidia-smi -q -d CLOCK)",
    GPU_COMPUTE: "nothing in the settings explains it: power, heat, clocks under load (nvidia-smi -q -d PERFORMANCE)",
}
ABOVE = "it exceeds the data sheet: another variant of the model, or a cache took part; please report it"


@dataclass(frozen=True)
class Finding:
    """One measured value beside what is typical for the model."""

    device: str  # cpu, cuda:0
    model: str  # of the table, else the name that the machine reports
    quantity: str  # "copy, 1 thread", "matmul bfloat16", "h2d, pinned"
    value: float
    unit: str
    typical: float | None
    limit: float | None  # of the data sheet
    normal_from: float | None
    verdict: str  # normal low high unknown
    source: str
    look_at: tuple[str, ...] = ()  # sentences, for low and high

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a dict for JSON."""
        return {**asdict(self), "look_at": list(self.look_at)}


@dataclass(frozen=True)
class Expected:
    """What is typical for one quantity."""

    typical: float | None = None
    limit: float | None = None
    share: float = FROM_RECORDS  # of typical, that is still normal
    source: str = ""


def find_normal(
    devices: Sequence[str],
    *,
    like: Sequence[Path] = (),
    fresh: bool = False,
    progress: Progress | None = None,
    on: Topology | None = None,
) -> list[Finding]:
    """Measure the ceilings of the devices, unless the cache has them, and compare each with what is typical.

    A value that looks low is measured once more, because another program may have disturbed it.
    """
    machine = on or topology()
    tree = Tree(Path("/"))
    documents = [(file.name, read_document(file)) for file in like]
    findings: list[Finding] = []
    for device in devices:
        index = int(device.partition(":")[2] or 0) if device.startswith("cuda") else None
        uuid = machine.gpu(index).uuid if index is not None else None
        settings = read_gpu_settings(uuid) if uuid else None
        causes = find_causes(tree, machine, settings, index)  # before the measurement, which is a load itself
        measured = measure_ceilings(device, fresh=fresh, progress=progress, on=machine)
        expected = expect_from_documents(documents, machine, device) if documents else None
        rows = compare_ceilings(measured, machine, tree, causes, expected)
        if any(row.verdict == "low" for row in rows):
            for _, ceiling in [pair for pair, row in zip(_pair(measured), rows, strict=True) if row.verdict == "low"]:
                measured = remeasure_ceiling(measured, ceiling, machine)
            if uuid and (after := read_gpu_settings(uuid)) and settings:
                causes = find_causes(tree, machine, replace(settings, throttle_reasons=after.throttle_reasons), index)
            rows = compare_ceilings(measured, machine, tree, causes, expected)
        findings += rows
    return findings


def compare_ceilings(
    measured: Ceilings,
    machine: Topology,
    tree: Tree,
    causes: Sequence[Cause] = (),
    expected: Mapping[str, Expected] | None = None,
) -> list[Finding]:
    """Return a finding for each quantity of a device; `expected` replaces the table."""
    model, table = _expect_from_table(measured.device, machine, tree)
    known = table if expected is None else expected
    findings = []
    for name, ceiling in _pair(measured):
        one = known.get(name, Expected())
        verdict = judge_value(ceiling.value, one)
        reasons: tuple[str, ...] = ()
        if verdict == "low":
            kind = _classify(measured.device, name)
            reasons = tuple(c.text for c in causes if kind in c.affects) or (GENERAL[kind],)
        elif verdict == "high":
            reasons = (ABOVE,)
        findings.append(
            Finding(
                measured.device,
                model,
                name,
                ceiling.value,
                ceiling.unit,
                one.typical,
                one.limit,
                one.share * one.typical if one.typical is not None else None,
                verdict,
                one.source,
                reasons,
            )
        )
    return findings


def judge_value(value: float, expected: Expected) -> str:
    """Return normal, low, high or unknown.

    >>> judge_value(4.2, Expected(4.2, 4.8)), judge_value(3.1, Expected(4.2, 4.8)), judge_value(5.5, Expected(4.2, 4.8))
    ('normal', 'low', 'high')
    """
    if expected.limit is not None and value > ABOVE_LIMIT * expected.limit:
        return "high"
    if expected.typical is None:
        return "unknown"
    if value < expected.share * expected.typical:
        return "low"
    return "high" if value > ABOVE_TYPICAL * expected.typical else "normal"


def read_document(file: Path) -> dict[str, Any]:
    """Read what `ridgeline machine --ceilings --json` wrote; raises InputError for anything else."""
    try:
        document = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"--like '{file}' cannot be read: {error}.") from None
    if not isinstance(document, dict) or not document.get("ceilings"):
        raise InputError(
            f"--like '{file}' has no ceilings; write it there with: ridgeline machine --ceilings --json > {file.name}."
        )
    return document


def expect_from_documents(
    documents: Sequence[tuple[str, Mapping[str, Any]]], machine: Topology, device: str
) -> dict[str, Expected]:
    """Return the median of each quantity over the machines of the documents that have this model.

    Raises InputError if none of them has it.
    """
    model = machine.gpu(int(device[5:])).name if device.startswith("cuda") else machine.model
    values: dict[str, list[float]] = {}
    names = []
    for name, document in documents:
        models = {"cpu": document.get("model")}
        models |= {f"cuda:{gpu['index']}": gpu["name"] for gpu in document.get("gpus", [])}
        for other, rows in document["ceilings"].items():
            if other.partition(":")[0] != device.partition(":")[0] or models.get(other) != model:
                continue
            measured = Ceilings.from_json({"schema": 1, "device": device, "fingerprint": "", "measured": rows})
            if measured is None:
                raise InputError(f"the ceilings in '{name}' are not of a form that this version reads.")
            names.append(name)
            for quantity, ceiling in _pair(measured):
                values.setdefault(quantity, []).append(ceiling.value)
    if not values:
        raise InputError(f"no file of --like has a {model}; compare with a machine of the same model.")
    share = CPU_MEMORY if device == "cpu" else FROM_LIKE
    source = ", ".join(dict.fromkeys(names))
    return {q: Expected(statistics.median(v), None, share, source) for q, v in values.items()}


def _pair(measured: Ceilings) -> list[tuple[str, Ceiling]]:
    """Return the quantities of a device that are compared, each with its ceiling."""
    rows = [c for c in measured.measured if c.memory_node is None]
    pairs: list[tuple[str, Ceiling]] = []
    largest = max((c.bytes or 0 for c in rows if c.kind == "copy"), default=0)
    threads = sorted({c.threads for c in rows if c.kind == "copy" and c.threads})
    for count in threads:
        words = "" if measured.device != "cpu" else f", {count} thread{'s' * (count > 1)}"
        for kind in ("read", "write", "copy"):
            best = [c for c in rows if c.kind == kind and c.threads == count and c.bytes == largest]
            pairs += [(f"{kind}{words}", c) for c in best[:1]]
    for dtype in DTYPES:
        best_product = measured.compute(dtype)
        pairs += [(f"matmul {dtype}", best_product)] if best_product else []
    for kind in ("h2d", "d2h"):
        transfers = [c for c in rows if c.kind == kind and c.how == "pinned"]
        pairs += [(f"{kind}, pinned", max(transfers, key=lambda c: c.value))] if transfers else []
    return pairs


def _classify(device: str, quantity: str) -> str:
    if quantity.endswith("pinned"):
        return LINK
    if quantity.startswith("matmul"):
        return COMPUTE if device == "cpu" else GPU_COMPUTE
    return MEMORY if device == "cpu" else GPU_MEMORY


@lru_cache(maxsize=1)
def load_table() -> dict[str, Any]:
    """Return the table of the package."""
    return tomllib.loads(read_asset(TABLE, "ridgeline.machine"))


def _expect_from_table(device: str, machine: Topology, tree: Tree) -> tuple[str, dict[str, Expected]]:
    if device == "cpu":
        return _expect_cpu(machine, tree)
    gpu = machine.gpu(int(device[5:]))
    shares = load_table()["shares"]
    expected = {}
    if link := _compute_link_gb_s(gpu.link):
        for kind in ("h2d", "d2h"):
            source = f"{gpu.link}: {link:.1f} GB/s after the line code"
            expected[f"{kind}, pinned"] = Expected(shares["link"] * link, link, FROM_LIMIT, source)
    row = next((r for r in load_table()["gpu"] if re.search(r["name"], gpu.name)), None)
    if row is None:
        return gpu.name, expected
    for kind in ("read", "write", "copy"):
        expected[kind] = Expected(shares[kind] * row["memory"], row["memory"], FROM_LIMIT, row["source"])
    for dtype, limit in row.get("matmul", {}).items():
        gflops = 1000 * limit
        expected[f"matmul {dtype}"] = Expected(shares["matmul"] * gflops, gflops, FROM_LIMIT, row["source"])
    for name, value in row.get("typical", {}).items():
        quantity = name.replace("matmul_", "matmul ") if name.startswith("matmul") else name
        quantity = f"{name}, pinned" if name in ("h2d", "d2h") else quantity
        if name in ("h2d", "d2h") and gpu.link != row.get("link", gpu.link):
            continue  # the records are from another link
        limit = expected.get(quantity, Expected()).limit
        expected[quantity] = Expected(value, limit, FROM_RECORDS, f"{row['records']}; limit: {row['source']}")
    return gpu.name, expected


def _expect_cpu(machine: Topology, tree: Tree) -> tuple[str, dict[str, Expected]]:
    fields = _read_cpuinfo(tree)
    row = next((r for r in load_table()["cpu"] if _is_model(r, fields, machine.model)), None)
    if row is None:
        return machine.model, {}
    first = {(c.package, c.core) for c in machine.cpus if c.usable}
    cores, sockets = len(first), max(1, len({package for package, _ in first}))
    limit, typical = row["memory"] * sockets, row.get("typical", {})
    virtual = "hypervisor" in fields.get("flags", "").split()
    source = "; ".join(filter(None, (row.get("records"), f"limit: {row['source']}")))
    expected = {}
    for kind in ("read", "copy"):
        if one := typical.get(f"{kind}_one"):
            expected[f"{kind}, 1 thread"] = Expected(one, limit, CPU_MEMORY, source)
        name = f"{kind}, {cores} threads"
        if every := typical.get(f"{kind}_all"):
            expected[name] = Expected(min(cores * every, SOCKET_SHARE * limit), limit, CPU_MEMORY, source)
        elif not virtual and cores >= SATURATING_CORES * sockets:
            expected[name] = Expected(SOCKET_SHARE * limit, limit, FROM_LIMIT, source)
        else:
            expected[name] = Expected(None, limit, CPU_MEMORY, source)
    for name, per_core in typical.items():
        if name.startswith("matmul_"):
            quantity = name.replace("_", " ")
            expected[quantity] = Expected(per_core * cores, None, CPU_COMPUTE, row["records"])
    return row["name"], expected


def _is_model(row: Mapping[str, Any], fields: Mapping[str, str], model: str) -> bool:
    if "vendor" not in row:
        return bool(row["name"] == model)
    numbers = [int(text) if (text := fields.get(key, "")).isdecimal() else -1 for key in ("cpu family", "model")]
    stepping = int(text) if (text := fields.get("stepping", "")).isdecimal() else -1
    return (
        fields.get("vendor_id") == row["vendor"]
        and numbers[0] == row["family"]
        and numbers[1] in row["models"]
        and ("steppings" not in row or stepping in row["steppings"])
    )


def _read_cpuinfo(tree: Tree) -> dict[str, str]:
    """Return the fields of the first processor."""
    fields: dict[str, str] = {}
    for line in (tree.text("proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), value.strip())
    return fields


def _compute_link_gb_s(link: str | None) -> float | None:
    match = re.fullmatch(r"PCIe (\d)\.0 x(\d+)", link or "")
    return LANE_GB_S[int(match[1])] * int(match[2]) if match and int(match[1]) in LANE_GB_S else None
