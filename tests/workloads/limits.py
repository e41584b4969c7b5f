"""What the findings would say of a run: its steps timed here, its extras as a record keeps them."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter_ns

from tests.lab.conftest import make_record

from ridgeline.lab.findings import Standing, standings

STEPS = 12
TRIES = 3  # other processes may slow either half of a try down


def finding(workload, case, run) -> Standing:
    """The first that names a limit, or else the last."""
    for _ in range(TRIES):
        found = tried(workload, case, run)
        if found.limit:
            break
    return found


def tried(workload, case, run) -> Standing:
    """Timed before and after the step is taken apart: weather that changes meanwhile is in both."""
    before = timed(run)
    stages = run.extras()["stages_ns"]
    taken = before + timed(run)
    one = make_record({"ridgeline": taken}, case=case.to_json(), workload=workload.name, ceilings={})
    lane = replace(one.contenders[0], extras={"stages_ns": stages})
    (found,) = standings([replace(one, contenders=(lane,))])
    return found


def timed(run) -> list[float]:
    taken = []
    for _ in range(STEPS):
        run.reset()
        began = perf_counter_ns()
        run.step()
        taken.append(float(perf_counter_ns() - began))
    return taken
