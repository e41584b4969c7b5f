"""The two profiles of every workload: the full profile contains the quick one."""

from __future__ import annotations

import pytest

from ridgeline.lab import Profile
from ridgeline.lab.race import load_workload
from ridgeline.lab.workload import get_weight, list_devices, list_libraries
from ridgeline.workloads import get_reference, list_workloads


@pytest.mark.parametrize("name", list_workloads())
def test_the_full_profile_contains_every_case_of_the_quick_one(name):
    workload = load_workload(get_reference(name))
    full = list(workload.cases(Profile.FULL))
    assert [case.label for case in workload.cases(Profile.QUICK) if case not in full] == []


@pytest.mark.parametrize("name", list_workloads())
def test_a_workload_has_a_weight_devices_and_libraries(name):
    workload = load_workload(get_reference(name))
    assert 0 < get_weight(workload) <= 3
    assert set(list_devices(workload)) <= {"cpu", "cuda"}
    for case in workload.cases(Profile.QUICK):
        for contender in workload.contenders(case):
            assert all(isinstance(module, str) for module in list_libraries(workload, case, contender))
