"""The trajectory workloads: counted work, contenders, and a wrong result fails the check.

python -m pytest tests/workloads
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.lab import Case, Profile
from ridgeline.lab.race import load_workload
from ridgeline.machine import Placement
from ridgeline.workloads import get_reference
from ridgeline.workloads.trajectory import BASE, KINDS

torch = pytest.importorskip("torch")
PLACEMENT = Placement()
plain, million, training = (
    load_workload(get_reference(name)) for name in ("trajectory", "trajectory_million", "trajectory_training")
)


def small(**change):
    return Case({**BASE, "batch": 6, "stamps": 12, "targets": 7, "channels": 4, **change}, "cpu")


def steps(workload, case, contender):
    """The run after a reset and two steps, and what the workload says of its result."""
    run = workload.prepare(case, contender, PLACEMENT)
    run.reset()
    run.step()
    run.reset()
    run.step()
    return run, workload.check(case, run.result())


@pytest.mark.parametrize("kind", ["linear", *KINDS])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("clock", ["uneven", "uniform"])
def test_every_contender_of_every_kind_is_correct_and_has_settings(kind, dtype, clock):
    case = small(kind=kind, dtype=dtype, clock=clock)
    for contender in plain.contenders(case):
        if contender != "torch.compile":  # half a minute each
            run, check = steps(plain, case, contender)
            assert check.ok, (contender, check)
            assert check.quality["correlation"] > 0.999
            assert run.settings


@pytest.mark.slow  # torch compiles
@pytest.mark.filterwarnings("ignore")  # of torch's own making
def test_the_compiled_peer_is_correct():
    case = small()
    if "torch.compile" not in plain.contenders(case):
        pytest.skip("nothing to compile with")
    assert steps(plain, case, "torch.compile")[1].ok


@pytest.mark.parametrize("change", [lambda out: out + 1e-4, lambda out: out[::-1], lambda out: out * np.nan])
def test_a_wrong_result_fails_the_check(change):
    case = small()
    run = plain.prepare(case, "ridgeline", PLACEMENT)
    run.step()
    values, times, at, out = run.result()
    assert not plain.check(case, (values, times, at, change(out))).ok


def test_interpolate_takes_part_only_with_uniform_stamps():
    assert "F.interpolate" in plain.contenders(small(clock="uniform"))
    assert "F.interpolate" not in plain.contenders(small())
    assert "F.interpolate" not in plain.contenders(small(clock="uniform", kind="cubic"))
    uneven = small()
    run = plain.prepare(uneven, "F.interpolate", PLACEMENT)
    run.step()
    assert not plain.check(uneven, run.result()).ok  # and this is why
    assert "uniform" in run.settings["stamps"]


def test_the_compulsory_bytes_equal_a_count_by_hand():
    case = Case({**BASE, "dtype": "bfloat16"}, "cuda")
    assert plain.work(case).bytes == {"memory": 256 * 150 * (32 * 2 + 4)} == {"memory": 2_611_200}
    assert plain.work(Case(BASE, "cuda")).bytes == {"memory": 5_068_800}
    four = plain.work(replace(case, ranks=4))
    assert (four.items, four.bytes["memory"]) == (1024, 4 * 2_611_200)


@pytest.mark.parametrize("profile", list(Profile))
def test_the_sweeps_cover_all_parameters_without_duplicates(profile):
    for workload in (plain, million, training):
        cases = list(workload.cases(profile))
        keys = [(tuple(c.params.items()), c.device, c.ranks) for c in cases]
        assert len(set(keys)) == len(keys)
        assert all(workload.work(replace(c, device="cuda" if c.device == "any" else c.device)).items > 0 for c in cases)
        assert all(workload.contenders(c)[0] == "ridgeline" for c in cases)
    if profile is Profile.FULL:
        gpu = [c.params for c in plain.cases(profile) if c.device in ("any", "cuda")]
        assert {c["batch"] for c in gpu} >= {16, 256, 65536}
        assert {c["stamps"] for c in gpu} >= {50, 100, 200, 400, 4096}
        assert {c["channels"] for c in gpu} >= {8, 16, 32, 64, 128}
        assert {c["dtype"] for c in gpu} == {"float16", "bfloat16", "float32", "float64"}
        assert {c["kind"] for c in gpu} == {"linear", *KINDS}


@pytest.mark.parametrize("contender", ["ridgeline", "numpy", "torch"])
def test_the_million_is_correct_in_every_chunk_and_has_stage_times(contender):
    (base,) = (c for c in million.cases(Profile.QUICK) if c.device == "cpu")
    case = replace(base, params={**base.params, "trajectories": 1000, "resident": 800, "chunk": 300})
    run, check = steps(million, case, contender)
    assert check.ok, check
    assert check.quality["correlation"] > 0.999999
    stages = run.extras()["stages_ns"]
    assert list(stages) == ["h2d", "compute", "d2h"]
    assert [len(samples) for samples in stages.values()] == [2, 2, 2]
    assert min(stages["compute"]) > 0


def test_a_missing_chunk_fails_the_check():
    (base,) = (c for c in million.cases(Profile.QUICK) if c.device == "cpu")
    case = replace(base, params={**base.params, "trajectories": 1000, "resident": 800, "chunk": 300})
    run = million.prepare(case, "ridgeline", PLACEMENT)
    run.step()
    run.reset()  # the inputs are others now, and nothing has been computed from them
    assert not million.check(case, run.result()).ok


def test_the_million_counts_each_direction_separately():
    work = million.work(Case({**million._fitting(_million()).params, "trajectories": 1_000_000}, "cuda"))
    up, down = 1_000_000 * 120 * (14 + 1) * 4, 1_000_000 * 100 * 14 * 4
    assert work.bytes == {"memory": up + down, "pcie": up, "pcie_back": down}
    assert work.flops == 3 * 1_000_000 * 100 * (14 + 1)
    assert work.launches >= 62


def test_with_little_memory_fewer_trajectories_are_resident(monkeypatch):
    from ridgeline.workloads import trajectory_million

    monkeypatch.setattr(trajectory_million, "topology", lambda: type("Short", (), {"usable_memory_bytes": 16 << 30})())
    case = million._fitting(_million())
    assert (case["trajectories"], case["resident"]) == (1_000_000, 250_000)
    chunks = trajectory_million._chunks(case["trajectories"], case["resident"], case["chunk"])
    assert sum(part.stop - part.start for part in chunks) == 1_000_000
    assert max(part.stop for part in chunks) == 250_000


def _million():
    from ridgeline.workloads.trajectory_million import BASE as MILLION_BASE

    return Case(MILLION_BASE, "cuda")


@pytest.mark.ranks
@pytest.mark.parametrize("contender", ["ridgeline", "numpy in workers", "resampled before"])
def test_all_three_loaders_feed_the_network_the_same(contender):
    (base,) = (c for c in training.cases(Profile.QUICK) if c.device == "cpu")
    tiny = {"batch": 8, "dataset": 40, "width": 16, "workers": 1, "steps": 3}
    case = replace(base, params={**base.params, **tiny})
    threads = torch.get_num_threads()
    try:
        run, check = steps(training, case, contender)
        run.close()
    finally:
        torch.set_num_threads(threads)
    assert check.ok, check
    assert {stage: len(samples) for stage, samples in run.extras()["stages_ns"].items()} == {"train": 2, "wait": 2}
