"""Quick ceilings: measured in a separate process, in seconds, and not cached."""

from __future__ import annotations

import subprocess

import pytest

from ridgeline import machine
from ridgeline.errors import RidgelineError
from ridgeline.machine import ceiling_cpu, ceiling_measurement, measure_quick_ceilings, read_cached_ceilings

COMPUTER = machine.topology()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.slow
def test_the_quick_ceilings_of_the_cpu_hold_what_a_study_needs():
    ceilings = measure_quick_ceilings("cpu", COMPUTER)
    assert ceilings.device == "cpu"
    assert ceilings.compute("float32").value > 0
    for mix in ("read", "copy"):
        assert ceilings.bandwidth(mix, 1 << 26, threads=len(COMPUTER.usable_cpus)).value > 0
    assert read_cached_ceilings("cpu", COMPUTER) is None, "a bench measures more than this"


def test_it_measures_less_than_the_full_measurement(monkeypatch):
    calls = []

    def measure_memory(mix, size, cpus):
        calls.append((mix, size))
        return "memory"

    def measure_matmul(library, dtype, *rest):
        calls.append((library, dtype))
        return dtype

    monkeypatch.setattr(ceiling_cpu, "_measure_memory", measure_memory)
    monkeypatch.setattr(ceiling_cpu, "_measure_matmul", measure_matmul)
    rows = ceiling_cpu.measure_cpu_quickly(COMPUTER, lambda _: None)
    assert len(rows) == len(calls) <= 8
    assert {dtype for dtype in rows if dtype != "memory"} == {"float32"}


@pytest.mark.parametrize(
    ("device", "message"),
    [
        # slow: it imports torch in a process
        pytest.param("cuda:7", "the ceilings of cuda:7 could not be measured: ", marks=pytest.mark.slow),
        ("nothing", "of nothing could"),
    ],
)
def test_the_error_for_a_missing_device_is_one_sentence(device, message):
    with pytest.raises(RidgelineError, match=message):
        measure_quick_ceilings(device, COMPUTER)


@pytest.mark.parametrize("answer", ["", "{", "[]", '{"schema": 99}'])
def test_the_error_for_an_invalid_answer_is_one_sentence(monkeypatch, answer):
    process = subprocess.CompletedProcess([], 0, answer, "")
    monkeypatch.setattr(ceiling_measurement.subprocess, "run", lambda *command, **options: process)
    with pytest.raises(RidgelineError, match="could not be measured: the process gave no answer"):
        measure_quick_ceilings("cpu", COMPUTER)


def test_the_measurement_has_a_timeout(monkeypatch):
    def hang(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(ceiling_measurement.subprocess, "run", hang)
    with pytest.raises(RidgelineError, match="the ceilings of cpu took longer than 180 s"):
        measure_quick_ceilings("cpu", COMPUTER)
