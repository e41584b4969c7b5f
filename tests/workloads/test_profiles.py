"""The two profiles of every workload: what a quick bench shows, a full one shows too."""

from __future__ import annotations

import pytest

from ridgeline.lab import Profile
from ridgeline.lab.race.loading import load
from ridgeline.lab.workload import devices_of, libraries_of, weight_of
from ridgeline.workloads import names, reference


@pytest.mark.parametrize("name", names())
def test_the_full_profile_holds_every_case_of_the_quick_one(name):
    workload = load(reference(name))
    full = list(workload.cases(Profile.FULL))
    assert [case.label for case in workload.cases(Profile.QUICK) if case not in full] == []


@pytest.mark.parametrize("name", names())
def test_a_workload_says_what_it_deserves_and_what_each_contender_loads(name):
    workload = load(reference(name))
    assert 0 < weight_of(workload) <= 3
    assert set(devices_of(workload)) <= {"cpu", "cuda"}
    for case in workload.cases(Profile.QUICK):
        for contender in workload.contenders(case):
            assert all(isinstance(module, str) for module in libraries_of(workload, case, contender))
