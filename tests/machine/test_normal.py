"""`machine --normal`: measured values beside the table and beside other machines, and the causes that are shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.machine.trees import Recording

from ridgeline.errors import InputError
from ridgeline.machine import Ceiling, Ceilings, Gpu, Topology, topology
from ridgeline.machine.causes import find_causes
from ridgeline.machine.limits import Limits
from ridgeline.machine.normal import (
    ABOVE_LIMIT,
    Expected,
    compare_ceilings,
    expect_from_documents,
    judge_value,
    load_table,
    read_document,
)
from ridgeline.machine.nvml import GpuSettings
from ridgeline.machine.sysfs import Tree

RECORDS = Path(__file__).parents[2] / "benchmarks" / "records"
H200 = "h200-machine.json"
VIRTUAL = (
    "vendor_id : GenuineIntel\ncpu family : 6\nmodel : 143\nmodel name : Xeon\nstepping : 8\nflags : fpu hypervisor\n"
)


@pytest.fixture(scope="module")
def h200() -> dict:
    return json.loads((RECORDS / H200).read_text())


@pytest.fixture
def machine(memory_path: Path) -> Topology:
    tree = Recording(memory_path).grid(1, 16, 1).cpuinfo(VIRTUAL)
    gpu = Gpu(0, "GPU-a", "NVIDIA H200", "0000:41:00.0", 0, (), 141 << 30, "PCIe 5.0 x16")
    return replace(topology(tree.root), gpus=(gpu,))


def read_ceilings(document: dict, device: str) -> Ceilings:
    rows = document["ceilings"][device]
    measured = Ceilings.from_json({"schema": 1, "device": device, "fingerprint": "", "measured": rows})
    assert measured is not None
    return measured


def scale(measured: Ceilings, factor: float, kind: str) -> Ceilings:
    rows = tuple(replace(c, value=c.value * factor) if c.kind == kind else c for c in measured.measured)
    return replace(measured, measured=rows)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_the_recorded_machine_is_normal_by_the_table(h200, machine, memory_path: Path, device: str):
    findings = compare_ceilings(read_ceilings(h200, device), machine, Tree(memory_path))
    verdicts = {f.quantity: f.verdict for f in findings}
    assert set(verdicts.values()) <= {"normal", "unknown"}, verdicts
    assert list(verdicts.values()).count("normal") >= 6
    assert all(f.source for f in findings if f.verdict == "normal")


def test_the_table_has_the_values_of_the_records_that_it_names(h200):
    row = next(r for r in load_table()["gpu"] if r["name"] == "H200")
    measured = read_ceilings(h200, "cuda:0")
    for dtype in ("bfloat16", "float16", "tf32", "float32", "float64"):
        best = measured.compute(dtype)
        assert best is not None
        assert row["typical"][f"matmul_{dtype}"] == pytest.approx(best.value, rel=1e-3)
    largest = max(c.bytes or 0 for c in measured.measured if c.kind == "copy")
    for kind in ("read", "write", "copy"):
        value = next(c.value for c in measured.measured if c.kind == kind and c.bytes == largest)
        assert row["typical"][kind] == pytest.approx(value, rel=1e-3)
        assert load_table()["shares"][kind] == pytest.approx(value / row["memory"], abs=0.01)


def test_a_value_below_the_range_is_low_and_says_what_to_look_at(h200, machine, memory_path: Path):
    slow = scale(read_ceilings(h200, "cuda:0"), 0.5, "h2d")
    tree = Recording(memory_path).pci("0000:41:00.0", 0x030200, 0x10DE, node=0, link=("32.0 GT/s", 16))
    tree.write("sys/bus/pci/devices/0000:41:00.0/current_link_width", "8\n")
    causes = find_causes(Tree(memory_path), machine, GpuSettings(hbm=True), 0)
    (low,) = [f for f in compare_ceilings(slow, machine, Tree(memory_path), causes) if f.verdict == "low"]
    assert low.quantity == "h2d, pinned"
    assert any("8 of 16 lanes" in sentence for sentence in low.look_at)


def test_a_low_value_without_a_cause_still_names_a_place_to_look(h200, machine, memory_path: Path):
    findings = compare_ceilings(scale(read_ceilings(h200, "cuda:0"), 0.5, "copy"), machine, Tree(memory_path))
    assert [len(f.look_at) for f in findings if f.verdict == "low"] == [1]


def test_a_model_that_the_table_lacks_is_unknown_but_its_link_is_not(h200, machine, memory_path: Path):
    other = replace(machine, gpus=(replace(machine.gpus[0], name="Unheard-of 9000"),))
    findings = compare_ceilings(read_ceilings(h200, "cuda:0"), other, Tree(memory_path))
    assert {f.verdict for f in findings if not f.quantity.endswith("pinned")} == {"unknown"}
    assert {f.verdict for f in findings if f.quantity.endswith("pinned")} == {"normal"}


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("NVIDIA H100 80GB HBM3", 3350),
        ("NVIDIA H100 PCIe", 2000),
        ("NVIDIA H200", 4800),
        ("NVIDIA GH200 480GB", 4000),
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("NVIDIA A100 80GB PCIe", 1935),
        ("NVIDIA A100-PCIE-40GB", 1555),
        ("NVIDIA A10G", 600),
        ("NVIDIA L40S", 864),
        ("NVIDIA L4", 300),
        ("Tesla T4", 320),
    ],
)
def test_names_of_the_driver_find_their_variant(h200, machine, memory_path: Path, name: str, memory: int):
    other = replace(machine, gpus=(replace(machine.gpus[0], name=name),))
    rows = compare_ceilings(read_ceilings(h200, "cuda:0"), other, Tree(memory_path))
    assert {f.limit for f in rows if f.quantity == "copy"} == {memory}


@given(st.floats(1e-3, 1e6), st.one_of(st.none(), st.floats(1e-3, 1e6)), st.one_of(st.none(), st.floats(1e-3, 1e6)))
def test_a_value_is_judged_by_the_range_alone(value: float, typical: float | None, limit: float | None):
    verdict = judge_value(value, Expected(typical, limit, 0.9))
    if limit is not None and value > ABOVE_LIMIT * limit:
        assert verdict == "high"
    elif typical is None:
        assert verdict == "unknown"
    elif 0.9 * typical <= value <= typical:
        assert verdict == "normal"
    elif value < 0.9 * typical:
        assert verdict == "low"


def test_every_row_of_the_table_has_a_source_and_every_record_exists():
    for row in load_table()["gpu"] + load_table()["cpu"]:
        assert row["source"]
        assert ("typical" in row) == ("records" in row), row["name"]
        for name in row.get("records", "").replace("benchmarks/records/", "").split(", "):
            assert not name or (RECORDS / name).is_file(), name


def test_a_machine_like_another_is_compared_with_its_file(h200, machine, tmp_path: Path, memory_path: Path):
    file = tmp_path / "sister.json"
    faster = {**h200, "ceilings": {"cuda:0": [{**r, "value": 2 * r["value"]} for r in h200["ceilings"]["cuda:0"]]}}
    file.write_text(json.dumps(faster))
    expected = expect_from_documents([(file.name, read_document(file))], machine, "cuda:0")
    findings = compare_ceilings(read_ceilings(h200, "cuda:0"), machine, Tree(memory_path), (), expected)
    assert {f.verdict for f in findings} == {"low"}
    assert {f.source for f in findings} == {"sister.json"}


def test_a_file_without_ceilings_and_one_of_another_model_are_refused(h200, machine, tmp_path: Path):
    file = tmp_path / "m.json"
    file.write_text(json.dumps({k: v for k, v in h200.items() if k != "ceilings"}))
    with pytest.raises(InputError, match="no ceilings"):
        read_document(file)
    other = replace(machine, gpus=(replace(machine.gpus[0], name="NVIDIA L4"),))
    with pytest.raises(InputError, match="NVIDIA L4"):
        expect_from_documents([("m.json", h200)], other, "cuda:0")


def test_each_setting_that_slows_a_machine_down_is_a_cause(memory_path: Path):
    tree = Recording(memory_path).grid(2, 4, 1).cpuinfo(VIRTUAL)
    cpu0 = "sys/devices/system/cpu/cpu0"
    tree.write(f"{cpu0}/cpufreq/scaling_governor", "powersave\n").write(
        f"{cpu0}/thermal_throttle/core_throttle_count", "7\n"
    )
    tree.write("sys/devices/system/cpu/intel_pstate/no_turbo", "1\n").write("proc/loadavg", "9.10 8 7 1/2 3\n")
    tree.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
    tree.write("proc/sys/kernel/numa_balancing", "1\n")
    machine = replace(topology(tree.root), limits=Limits(cpu_quota=2.5))
    found = {c.what: c.text for c in find_causes(Tree(memory_path), machine)}
    assert set(found) == {"governor", "heat", "turbo", "load", "thp", "numa", "cgroup", "virtual"}
    assert "powersave" in found["governor"]
    assert "2.5 CPUs on 8" in found["cgroup"]


def test_a_machine_in_order_has_no_cause(memory_path: Path):
    tree = Recording(memory_path).grid(2, 4, 1).cpuinfo("model name : bare metal\nflags : fpu sse\n")
    tree.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n")
    tree.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    tree.write("proc/loadavg", "0.10 0 0 1/2 3\n").pci("0000:41:00.0", 0x030200, 0x10DE, node=1, link=("32.0 GT/s", 16))
    machine = topology(tree.root)
    settings = GpuSettings(hbm=True, ecc=True, mig=False, power_limit_w=700, default_power_w=700, busy_percent=0)
    assert find_causes(Tree(memory_path), machine, settings, 0) == []


def test_each_setting_of_a_gpu_is_a_cause(machine, memory_path: Path):
    settings = GpuSettings(False, True, True, 300.0, 700.0, 1200, 1980, 1593, 2619, 80, ("software power cap",))
    causes = [c.what for c in find_causes(Tree(memory_path), machine, settings, 0)]
    assert sorted(set(causes) - {"virtual"}) == ["clocks", "ecc", "load", "mig", "power", "throttle"]
    assert causes.count("clocks") == 2


def test_a_cpu_of_the_table_without_records_is_normal_only_on_bare_metal(memory_path: Path):
    rome = "vendor_id : AuthenticAMD\ncpu family : 23\nmodel : 49\nmodel name : EPYC 7742\n"
    tree = Recording(memory_path).grid(1, 64, 1).cpuinfo(rome + "flags : fpu\n")
    rows = Ceilings("cpu", "", (Ceiling("copy", 160.0, 150.0, "GB/s", bytes=1 << 27, threads=64),))
    (bare,) = compare_ceilings(rows, topology(tree.root), Tree(memory_path))
    assert (bare.verdict, bare.limit) == ("normal", 204.8)
    tree.cpuinfo(rome + "flags : fpu hypervisor\n")
    (virtual,) = compare_ceilings(rows, topology(tree.root), Tree(memory_path))
    assert virtual.verdict == "unknown", "a guest may have any part of the memory channels"
