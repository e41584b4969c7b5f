"""Ceilings: measured in miniature, kept in the cache, looked up by what a result did."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.machine.trees import Recording

from ridgeline import machine
from ridgeline.errors import InputError
from ridgeline.machine import Cache, Cpu, Gpu, Node, Topology, ceiling, cpu_ceiling, identity, numa
from ridgeline.machine.ceiling import Ceiling, Ceilings, cache_path, ceilings

HERE = machine.topology()
GPU = Gpu(0, "GPU-x", "H200", "0000:01:00.0", 0, (), None, None)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same measurement, over in a blink."""
    for name, value in {"LADDER": (1 << 12, 1 << 14), "ROUNDS": 2, "ROUND_BYTES": 1 << 12, "MATMUL_MOST": 128}.items():
        monkeypatch.setattr(cpu_ceiling, name, value)
    monkeypatch.setattr(cpu_ceiling, "_memory_rung", lambda here, threads: 1 << 13)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces measuring by counting how often it was asked for."""
    asked: list[str] = []

    def measure(here, say):
        asked.append("cpu")
        return [Ceiling("copy", 10.0 + len(asked), 9.0, "GB/s", bytes=4096, threads=1)]

    monkeypatch.setattr(cpu_ceiling, "measure_cpu", measure)
    return asked


def test_the_cpu_is_measured_by_mix_size_and_threads(tiny: None):
    said: list[str] = []
    found = ceilings("cpu", progress=said.append, on=HERE)
    memory = [c for c in found.measured if c.unit == "GB/s"]
    cores = len({(c.package, c.core) for c in HERE.cpus if c.usable})
    assert {c.kind for c in memory} == {"read", "write", "copy", "triad"}
    assert {c.bytes for c in memory} >= {1 << 12, 1 << 13}
    assert {c.threads for c in memory if c.memory_node is None} == {1, cores}
    products = {(c.how, c.dtype) for c in found.measured if c.kind == "matmul"}
    assert {("numpy", "float32"), ("numpy", "float64")} <= products
    assert all(c.value >= c.median > 0 for c in found.measured)
    assert any("copy" in line for line in said)


def test_what_was_measured_is_kept_and_read_back_the_same(tiny: None):
    first = ceilings("cpu", on=HERE)
    assert cache_path(HERE, "cpu").is_file()
    assert ceilings("cpu", on=HERE) == first


def test_the_cache_answers_until_fresh_ones_are_asked_for(counted: list[str]):
    assert ceilings("cpu", on=HERE).measured[0].value == 11
    assert ceilings("cpu", on=HERE).measured[0].value == 11
    assert ceilings("cpu", on=HERE, fresh=True).measured[0].value == 12
    assert ceilings("cpu", on=HERE).measured[0].value == 12
    assert len(counted) == 2


EMPTY_ROW = '{"schema": 1, "device": "cpu", "fingerprint": "", "measured": [{}]}'


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "\x00", '{"schema": 1}', EMPTY_ROW, EMPTY_ROW.replace("{}", "3")]
)
def test_a_torn_cache_is_measured_again(text: str, counted: list[str]):
    ceilings("cpu", on=HERE)
    cache_path(HERE, "cpu").write_text(text)
    ceilings("cpu", on=HERE)
    ceilings("cpu", on=HERE)
    assert len(counted) == 2


def test_a_cache_of_another_schema_is_measured_again(counted: list[str]):
    ceilings("cpu", on=HERE)
    path = cache_path(HERE, "cpu")
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"schema": ceiling.SCHEMA + 1}))
    ceilings("cpu", on=HERE)
    assert len(counted) == 2


def test_another_kind_of_machine_has_a_cache_of_its_own(counted: list[str]):
    other = replace(HERE, model="Another CPU")
    ceilings("cpu", on=HERE)
    ceilings("cpu", on=other)
    assert len(counted) == 2
    assert cache_path(HERE, "cpu") != cache_path(other, "cpu")
    assert cache_path(HERE, "cpu") != cache_path(HERE, "cuda:0") != cache_path(HERE, "cuda:1")


def test_a_cache_that_cannot_be_written_loses_no_measurement(cache: Path, counted: list[str]):
    (cache / "ridgeline").write_text("a file where a folder should be")
    assert ceilings("cpu", on=HERE).measured[0].value == 11
    assert ceilings("cpu", on=HERE).measured[0].value == 12


def test_nothing_is_kept_when_measuring_is_interrupted(cache: Path, monkeypatch: pytest.MonkeyPatch):
    def stop(here, say):
        raise KeyboardInterrupt

    monkeypatch.setattr(cpu_ceiling, "measure_cpu", stop)
    with pytest.raises(KeyboardInterrupt):
        ceilings("cpu", on=HERE)
    assert not [p for p in cache.rglob("*") if p.is_file()]


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cuda:", "cuda:-1", "", "CPU", "cuda:²"])
def test_an_unknown_device_is_named_with_those_there_are(device: str):
    with pytest.raises(InputError, match=f"there is no device '{device}'.*cpu, cuda, cuda:N"):
        ceilings(device, on=HERE)


def test_a_gpu_that_is_not_there_is_named_with_those_there_are():
    with pytest.raises(InputError, match=r"there is no GPU 3; this process sees: 0 \(H200\)"):
        ceilings("cuda:3", on=replace(HERE, gpus=(GPU,)))
    with pytest.raises(InputError, match="there is no GPU 0; this process sees: none"):
        ceilings("cuda", on=replace(HERE, gpus=()))


def rung(kind: str, value: float, size: int, **more) -> Ceiling:
    return Ceiling(kind, value, value, "GB/s", bytes=size, **more)


LADDER = Ceilings(
    "cpu",
    "f",
    (
        rung("copy", 999, 1 << 20, threads=4, node=0, memory_node=1),
        rung("copy", 100, 1 << 10, threads=1),
        rung("copy", 50, 1 << 20, threads=1),
        rung("copy", 10, 1 << 30, threads=1),
        rung("copy", 200, 1 << 10, threads=4),
        rung("copy", 40, 1 << 20, threads=4),
        rung("read", 70, 1 << 20, threads=1),
        rung("h2d", 10, 1 << 20, how="pinned", node=0),
        rung("h2d", 50, 1 << 24, how="pinned", node=0),
        rung("h2d", 40, 1 << 28, how="pinned", node=0),
        rung("h2d", 5, 1 << 24, how="pageable", node=0),
        Ceiling("matmul", 100, 90, "GFLOP/s", dtype="float32", how="numpy"),
        Ceiling("matmul", 150, 90, "GFLOP/s", dtype="float32", how="torch"),
        Ceiling("launch", 4.0, 5.0, "µs", how="direct"),
    ),
)


@pytest.mark.parametrize(
    ("size", "threads", "value"),
    [
        (1, 1, 100),  # smaller than the smallest rung
        (1 << 10, 1, 100),
        ((1 << 20) - 1, 1, 100),  # the rung below can only be too high
        (1 << 20, 1, 50),
        (1 << 40, 1, 10),
        (1 << 20, 4, 200),  # rungs are per thread: four of them hold 4 MiB
        (1 << 22, 4, 40),
        (1 << 22, 2, 40),  # the next larger team
        (1 << 22, 64, 40),  # more threads than measured
    ],
)
def test_bandwidth_is_that_of_the_rung_below_for_as_many_threads(size: int, threads: int, value: float):
    found = LADDER.bandwidth("copy", size, threads)
    assert found is not None
    assert found.value == value


def test_bandwidth_of_an_unknown_mix_is_none():
    assert LADDER.bandwidth("scatter", 1 << 20) is None


def test_compute_is_the_best_of_all_libraries():
    best = LADDER.compute("float32")
    assert best is not None
    assert (best.value, best.how) == (150, "torch")
    assert LADDER.compute("int4") is None


@pytest.mark.parametrize(
    ("size", "value"), [(1, 10), (1 << 20, 10), ((1 << 20) + 1, 50), (1 << 24, 50), (1 << 25, 50), (1 << 40, 50)]
)
def test_a_transfer_is_held_against_the_best_up_to_its_size(size: int, value: float):
    found = LADDER.transfer("h2d", size)
    assert found is not None
    assert found.value == value


def test_a_transfer_is_looked_up_by_its_way_and_its_memory():
    pageable = LADDER.transfer("h2d", 1 << 24, "pageable")
    assert pageable is not None
    assert pageable.value == 5
    assert LADDER.transfer("d2h", 1 << 24) is None


def test_a_value_in_base_units():
    assert [c.base for c in LADDER.measured[-3:]] == [1e11, 1.5e11, 4e-6]


def test_the_json_leaves_out_what_is_not_known_and_reads_back():
    said = json.loads(json.dumps(LADDER.to_json()))
    assert said["schema"] == ceiling.SCHEMA
    assert (said["device"], said["fingerprint"]) == ("cpu", "f")
    assert said["measured"][1] == {
        "kind": "copy", "value": 100, "median": 100, "unit": "GB/s", "bytes": 1024, "threads": 1,
    }  # fmt: skip
    assert tuple(Ceiling(**row) for row in said["measured"]) == LADDER.measured


def test_the_largest_rung_is_beyond_every_cache_and_within_the_memory():
    cpus = tuple(Cpu(c, 0, c, 0, True) for c in range(4))
    caches = (Cache(3, 1 << 30, (0, 1)), Cache(3, 1 << 30, (2, 3)))
    roomy = Topology((Node(0, (0, 1, 2, 3), 1 << 40),), cpus, caches, (), ())
    assert cpu_ceiling._memory_rung(roomy, 4) * 4 >= 4 * (2 << 30)
    tight = replace(roomy, nodes=(Node(0, (0, 1, 2, 3), 1 << 30),))
    assert cpu_ceiling._memory_rung(tight, 4) * 4 <= (1 << 30) // 8


def test_on_several_nodes_every_pair_of_cpus_and_memory_is_measured(tiny: None, monkeypatch: pytest.MonkeyPatch):
    """With a second node that is only claimed: the kernel is not asked."""
    bound: list[tuple[int | None, int]] = []

    def time_mix(mix, size, cpus, **how):
        return [1000] * how["repeats"]

    class Standing:
        def __init__(self, where, on) -> None:
            bound.append((where.node, len(where.cpus)))

        def __enter__(self):
            return self

        def __exit__(self, *_) -> None: ...

    monkeypatch.setattr(cpu_ceiling, "time_mix", time_mix)
    monkeypatch.setattr(cpu_ceiling, "placed", Standing)
    monkeypatch.setattr(cpu_ceiling, "_libraries", lambda: iter(()))
    cpus = tuple(Cpu(c, c // 2, c, c // 2, True) for c in range(4))
    nodes = (Node(0, (0, 1), 1 << 30), Node(1, (2, 3), 1 << 15), Node(2, (), 1 << 30))
    here = Topology(nodes, cpus, (), (), ())
    monkeypatch.setattr(numa, "supported", lambda: True)
    found = [c for c in cpu_ceiling.measure_cpu(here, lambda _: None) if c.memory_node is not None]
    assert {(c.node, c.memory_node) for c in found} == {(n, m) for n in (0, 1) for m in (0, 1, 2)}
    assert all(c.threads == 2 for c in found)
    assert all(c.bytes <= (1 << 15) // 8 for c in found if c.memory_node == 1), "a small node must hold it"
    monkeypatch.setattr(numa, "supported", lambda: False)
    assert not [c for c in cpu_ceiling.measure_cpu(here, lambda _: None) if c.memory_node is not None]


def test_the_fingerprint_tells_kinds_of_machines_apart_and_not_their_memory(memory_path: Path):
    Recording(memory_path / "a").grid(1, 2)
    Recording(memory_path / "b").grid(1, 2).node(0, [0, 1], 77, (10,))
    Recording(memory_path / "c").grid(1, 4)
    a, b, c = (identity.fingerprint(machine.topology(memory_path / name)) for name in "abc")
    assert a == b != c
    assert len(a) == 16
    assert machine.fingerprint is identity.fingerprint


def test_the_facts_of_a_machine_go_into_json():
    facts = json.loads(json.dumps(identity.facts(HERE)))
    assert facts["fingerprint"] == identity.fingerprint(HERE)
    assert facts["usable_cpus"] == len(HERE.usable_cpus)
