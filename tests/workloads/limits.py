"""What the findings would say of a run: its steps timed here, its extras as a record keeps them."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter_ns

from tests.lab.conftest import make_record

from ridgeline.lab.judge.findings import Standing, standings

STEPS = 12
TRIES = 3  # other processes may slow either half of a try down


def finding(workload, case, run, apart=False) -> Standing:
    """The first that names a limit, or else the last; `apart`: stages are clocked in steps of their own."""
    for _ in range(TRIES):
        found = tried(workload, case, run, apart)
        if found.limit:
            break
    return found


def tried(workload, case, run, apart) -> Standing:
    """Stages and steps of the same moments: of the timed steps themselves, or of those between and after them."""
    taken = timed(run)
    between = run.extras()["stages_ns"]
    taken += timed(run)
    told = run.extras()["stages_ns"]
    stages = {name: between[name] + ns if apart else ns[-len(taken) :] for name, ns in told.items()}
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
