"""What the findings would say of a run: its steps timed here, its extras as a record keeps them."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter_ns

from tests.lab.conftest import make_record

from ridgeline.lab.findings import Standing, standings

STEPS = 12


def finding(workload, case, run) -> Standing:
    taken = []
    for _ in range(STEPS):
        run.reset()
        began = perf_counter_ns()
        run.step()
        taken.append(float(perf_counter_ns() - began))
    one = make_record({"ridgeline": taken}, case=case.to_json(), workload=workload.name, ceilings={})
    lane = replace(one.contenders[0], extras={"stages_ns": run.extras()["stages_ns"]})
    (found,) = standings([replace(one, contenders=(lane,))])
    return found
