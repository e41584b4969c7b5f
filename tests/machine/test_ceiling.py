"""Ceilings: measurement with tiny sizes, the cache, and the lookup for a result."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.machine.trees import Recording

from ridgeline import machine
from ridgeline.errors import InputError
from ridgeline.machine import (
    Cache,
    Ceiling,
    Ceilings,
    Cpu,
    Gpu,
    Node,
    Topology,
    ceiling_cpu,
    ceiling_types,
    ceilings,
    identity,
    numa,
)
from ridgeline.machine.ceiling_measurement import cache_path

COMPUTER = machine.topology()
GPU = Gpu(0, "GPU-x", "H200", "0000:01:00.0", 0, (), None, None)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same measurement with tiny sizes."""
    for name, value in {"SIZES": (1 << 12, 1 << 14), "ROUNDS": 2, "ROUND_BYTES": 1 << 12, "MATMUL_MOST": 128}.items():
        monkeypatch.setattr(ceiling_cpu, name, value)
    monkeypatch.setattr(ceiling_cpu, "_choose_largest_size", lambda computer, threads: 1 << 13)


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces the measurement by a counter of its calls."""
    calls: list[str] = []

    def measure(computer, report):
        calls.append("cpu")
        return [Ceiling("copy", 10.0 + len(calls), 9.0, "GB/s", bytes=4096, threads=1)]

    monkeypatch.setattr(ceiling_cpu, "measure_cpu", measure)
    return calls


def test_the_cpu_is_measured_by_mix_size_and_threads(tiny: None):
    lines: list[str] = []
    result = ceilings("cpu", progress=lines.append, on=COMPUTER)
    memory = [c for c in result.measured if c.unit == "GB/s"]
    cores = len({(c.package, c.core) for c in COMPUTER.cpus if c.usable})
    assert {c.kind for c in memory} == {"read", "write", "copy", "triad"}
    assert {c.bytes for c in memory} >= {1 << 12, 1 << 13}
    assert {c.threads for c in memory if c.memory_node is None} == {1, cores}
    products = {(c.how, c.dtype) for c in result.measured if c.kind == "matmul"}
    assert {("numpy", "float32"), ("numpy", "float64")} <= products
    assert all(c.value >= c.median > 0 for c in result.measured)
    assert any("copy" in line for line in lines)


def test_the_cache_returns_the_same_ceilings(tiny: None):
    first = ceilings("cpu", on=COMPUTER)
    assert cache_path(COMPUTER, "cpu").is_file()
    assert ceilings("cpu", on=COMPUTER) == first


def test_the_cache_answers_until_fresh_is_set(measurements: list[str]):
    assert ceilings("cpu", on=COMPUTER).measured[0].value == 11
    assert ceilings("cpu", on=COMPUTER).measured[0].value == 11
    assert ceilings("cpu", on=COMPUTER, fresh=True).measured[0].value == 12
    assert ceilings("cpu", on=COMPUTER).measured[0].value == 12
    assert len(measurements) == 2


EMPTY_ROW = '{"schema": 1, "device": "cpu", "fingerprint": "", "measured": [{}]}'


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "\x00", '{"schema": 1}', EMPTY_ROW, EMPTY_ROW.replace("{}", "3")]
)
def test_a_damaged_cache_file_leads_to_a_new_measurement(text: str, measurements: list[str]):
    ceilings("cpu", on=COMPUTER)
    cache_path(COMPUTER, "cpu").write_text(text)
    ceilings("cpu", on=COMPUTER)
    ceilings("cpu", on=COMPUTER)
    assert len(measurements) == 2


def test_a_cache_file_of_another_schema_leads_to_a_new_measurement(measurements: list[str]):
    ceilings("cpu", on=COMPUTER)
    path = cache_path(COMPUTER, "cpu")
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"schema": ceiling_types.SCHEMA + 1}))
    ceilings("cpu", on=COMPUTER)
    assert len(measurements) == 2


def test_each_kind_of_machine_has_a_separate_cache(measurements: list[str]):
    other = replace(COMPUTER, model="Another CPU")
    ceilings("cpu", on=COMPUTER)
    ceilings("cpu", on=other)
    assert len(measurements) == 2
    assert cache_path(COMPUTER, "cpu") != cache_path(other, "cpu")
    assert cache_path(COMPUTER, "cpu") != cache_path(COMPUTER, "cuda:0") != cache_path(COMPUTER, "cuda:1")


def test_a_cache_that_cannot_be_written_loses_no_measurement(cache: Path, measurements: list[str]):
    (cache / "ridgeline").write_text("a file where a folder should be")
    assert ceilings("cpu", on=COMPUTER).measured[0].value == 11
    assert ceilings("cpu", on=COMPUTER).measured[0].value == 12


def test_an_interrupted_measurement_writes_no_cache(cache: Path, monkeypatch: pytest.MonkeyPatch):
    def stop(computer, report):
        raise KeyboardInterrupt

    monkeypatch.setattr(ceiling_cpu, "measure_cpu", stop)
    with pytest.raises(KeyboardInterrupt):
        ceilings("cpu", on=COMPUTER)
    assert not [p for p in cache.rglob("*") if p.is_file()]


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cuda:", "cuda:-1", "", "CPU", "cuda:²"])
def test_the_error_for_an_unknown_device_lists_the_valid_names(device: str):
    with pytest.raises(InputError, match=f"there is no device '{device}'.*cpu, cuda, cuda:N"):
        ceilings(device, on=COMPUTER)


def test_the_error_for_a_missing_gpu_lists_the_visible_gpus():
    with pytest.raises(InputError, match=r"there is no GPU 3; this process sees: 0 \(H200\)"):
        ceilings("cuda:3", on=replace(COMPUTER, gpus=(GPU,)))
    with pytest.raises(InputError, match="there is no GPU 0; this process sees: none"):
        ceilings("cuda", on=replace(COMPUTER, gpus=()))


def make_ceiling(kind: str, value: float, size: int, **more) -> Ceiling:
    return Ceiling(kind, value, value, "GB/s", bytes=size, **more)


CEILINGS = Ceilings(
    "cpu",
    "f",
    (
        make_ceiling("copy", 999, 1 << 20, threads=4, node=0, memory_node=1),
        make_ceiling("copy", 100, 1 << 10, threads=1),
        make_ceiling("copy", 50, 1 << 20, threads=1),
        make_ceiling("copy", 10, 1 << 30, threads=1),
        make_ceiling("copy", 200, 1 << 10, threads=4),
        make_ceiling("copy", 40, 1 << 20, threads=4),
        make_ceiling("read", 70, 1 << 20, threads=1),
        make_ceiling("h2d", 10, 1 << 20, how="pinned", node=0),
        make_ceiling("h2d", 50, 1 << 24, how="pinned", node=0),
        make_ceiling("h2d", 40, 1 << 28, how="pinned", node=0),
        make_ceiling("h2d", 5, 1 << 24, how="pageable", node=0),
        Ceiling("matmul", 100, 90, "GFLOP/s", dtype="float32", how="numpy"),
        Ceiling("matmul", 150, 90, "GFLOP/s", dtype="float32", how="torch"),
        Ceiling("launch", 4.0, 5.0, "µs", how="direct"),
    ),
)


@pytest.mark.parametrize(
    ("size", "threads", "value"),
    [
        (1, 1, 100),  # smaller than the smallest measured size
        (1 << 10, 1, 100),
        ((1 << 20) - 1, 1, 100),  # the next smaller size can only be too high
        (1 << 20, 1, 50),
        (1 << 40, 1, 10),
        (1 << 20, 4, 200),  # sizes are per thread: four threads use 4 MiB
        (1 << 22, 4, 40),
        (1 << 22, 2, 40),  # the next larger thread count
        (1 << 22, 64, 40),  # more threads than measured
    ],
)
def test_bandwidth_is_the_value_of_the_next_smaller_size_for_this_thread_count(size: int, threads: int, value: float):
    ceiling = CEILINGS.bandwidth("copy", size, threads)
    assert ceiling is not None
    assert ceiling.value == value


def test_bandwidth_of_an_unknown_mix_is_none():
    assert CEILINGS.bandwidth("scatter", 1 << 20) is None


def test_compute_is_the_best_of_all_libraries():
    best = CEILINGS.compute("float32")
    assert best is not None
    assert (best.value, best.how) == (150, "torch")
    assert CEILINGS.compute("int4") is None


@pytest.mark.parametrize(
    ("size", "value"), [(1, 10), (1 << 20, 10), ((1 << 20) + 1, 50), (1 << 24, 50), (1 << 25, 50), (1 << 40, 50)]
)
def test_a_transfer_is_compared_with_the_best_rate_up_to_its_size(size: int, value: float):
    ceiling = CEILINGS.transfer("h2d", size)
    assert ceiling is not None
    assert ceiling.value == value


def test_a_transfer_ceiling_depends_on_direction_and_memory():
    pageable = CEILINGS.transfer("h2d", 1 << 24, "pageable")
    assert pageable is not None
    assert pageable.value == 5
    assert CEILINGS.transfer("d2h", 1 << 24) is None


def test_a_value_in_base_units():
    assert [c.base for c in CEILINGS.measured[-3:]] == [1e11, 1.5e11, 4e-6]


def test_the_json_omits_empty_fields_and_reads_back():
    document = json.loads(json.dumps(CEILINGS.to_json()))
    assert document["schema"] == ceiling_types.SCHEMA
    assert (document["device"], document["fingerprint"]) == ("cpu", "f")
    assert document["measured"][1] == {
        "kind": "copy", "value": 100, "median": 100, "unit": "GB/s", "bytes": 1024, "threads": 1,
    }  # fmt: skip
    assert tuple(Ceiling(**row) for row in document["measured"]) == CEILINGS.measured


def test_the_largest_size_exceeds_every_cache_and_fits_into_memory():
    cpus = tuple(Cpu(c, 0, c, 0, True) for c in range(4))
    caches = (Cache(3, 1 << 30, (0, 1)), Cache(3, 1 << 30, (2, 3)))
    large = Topology((Node(0, (0, 1, 2, 3), 1 << 40),), cpus, caches, (), ())
    assert ceiling_cpu._choose_largest_size(large, 4) * 4 >= 4 * (2 << 30)
    small = replace(large, nodes=(Node(0, (0, 1, 2, 3), 1 << 30),))
    assert ceiling_cpu._choose_largest_size(small, 4) * 4 <= (1 << 30) // 8


def test_on_several_nodes_every_pair_of_cpus_and_memory_is_measured(tiny: None, monkeypatch: pytest.MonkeyPatch):
    """The second node is fake: the kernel is not called."""
    bound: list[tuple[int | None, int]] = []

    def time_mix(mix, size, cpus, **how):
        return [1000] * how["repeats"]

    class FakePlaced:
        def __init__(self, where, on) -> None:
            bound.append((where.node, len(where.cpus)))

        def __enter__(self):
            return self

        def __exit__(self, *_) -> None: ...

    monkeypatch.setattr(ceiling_cpu, "time_mix", time_mix)
    monkeypatch.setattr(ceiling_cpu, "placed", FakePlaced)
    monkeypatch.setattr(ceiling_cpu, "_list_products", lambda: iter(()))
    cpus = tuple(Cpu(c, c // 2, c, c // 2, True) for c in range(4))
    nodes = (Node(0, (0, 1), 1 << 30), Node(1, (2, 3), 1 << 15), Node(2, (), 1 << 30))
    computer = Topology(nodes, cpus, (), (), ())
    monkeypatch.setattr(numa, "memory_policy_supported", lambda: True)
    rows = [c for c in ceiling_cpu.measure_cpu(computer, lambda _: None) if c.memory_node is not None]
    assert {(c.node, c.memory_node) for c in rows} == {(n, m) for n in (0, 1) for m in (0, 1, 2)}
    assert all(c.threads == 2 for c in rows)
    assert all(c.bytes <= (1 << 15) // 8 for c in rows if c.memory_node == 1), "it must fit into a small node"
    monkeypatch.setattr(numa, "memory_policy_supported", lambda: False)
    assert not [c for c in ceiling_cpu.measure_cpu(computer, lambda _: None) if c.memory_node is not None]


def test_the_fingerprint_depends_on_the_kind_of_machine_but_not_on_its_memory(memory_path: Path):
    Recording(memory_path / "a").grid(1, 2)
    Recording(memory_path / "b").grid(1, 2).node(0, [0, 1], 77, (10,))
    Recording(memory_path / "c").grid(1, 4)
    a, b, c = (identity.fingerprint(machine.topology(memory_path / name)) for name in "abc")
    assert a == b != c
    assert len(a) == 16
    assert machine.fingerprint is identity.fingerprint


def test_the_description_of_a_machine_can_be_written_as_json():
    description = json.loads(json.dumps(identity.describe_machine(COMPUTER)))
    assert description["fingerprint"] == identity.fingerprint(COMPUTER)
    assert description["usable_cpus"] == len(COMPUTER.usable_cpus)
