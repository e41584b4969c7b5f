"""Ceilings at a glance: measured in a process of their own, in seconds, and not kept for the machine."""

from __future__ import annotations

import subprocess

import pytest

from ridgeline import machine
from ridgeline.errors import RidgelineError
from ridgeline.machine import cpu_ceiling
from ridgeline.machine import quick_ceilings as glance
from ridgeline.machine.ceiling import cached

HERE = machine.topology()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_glance_at_the_cpu_has_what_a_study_is_held_against():
    found = glance.glance("cpu", HERE)
    assert found.device == "cpu"
    assert found.compute("float32").value > 0
    for mix in ("read", "copy"):
        assert found.bandwidth(mix, 1 << 26, threads=len(HERE.usable_cpus)).value > 0
    assert cached("cpu", HERE) is None, "a bench measures more than this"


def test_it_takes_fewer_than_the_whole_measurement(monkeypatch):
    asked = []
    monkeypatch.setattr(cpu_ceiling, "_memory", lambda mix, size, cpus: asked.append((mix, size)) or "memory")
    monkeypatch.setattr(cpu_ceiling, "_matmul", lambda library, dtype, *rest: asked.append((library, dtype)) or dtype)
    glanced = cpu_ceiling.glance_cpu(HERE, lambda _: None)
    assert len(glanced) == len(asked) <= 8
    assert {dtype for dtype in glanced if dtype != "memory"} == {"float32"}


@pytest.mark.parametrize(
    ("device", "said"), [("cuda:7", "the ceilings of cuda:7 could not be measured: "), ("nothing", "of nothing could")]
)
def test_a_device_that_is_not_there_is_one_sentence(device, said):
    with pytest.raises(RidgelineError, match=said):
        glance.glance(device, HERE)


@pytest.mark.parametrize("answer", ["", "{", "[]", '{"schema": 99}'])
def test_an_answer_that_is_none_is_one_sentence(monkeypatch, answer):
    done = subprocess.CompletedProcess([], 0, answer, "")
    monkeypatch.setattr(glance.subprocess, "run", lambda *command, **how: done)
    with pytest.raises(RidgelineError, match="could not be measured: no answer came"):
        glance.glance("cpu", HERE)


def test_one_that_hangs_is_not_waited_for_without_end(monkeypatch):
    def hang(command, **how):
        raise subprocess.TimeoutExpired(command, how["timeout"])

    monkeypatch.setattr(glance.subprocess, "run", hang)
    with pytest.raises(RidgelineError, match="the ceilings of cpu took longer than 180 s"):
        glance.glance("cpu", HERE)
