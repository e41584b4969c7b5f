"""The limit that the lab finds for a run: its steps are timed here, its extras are as in a record."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter_ns

from tests.lab.conftest import make_record

from ridgeline.lab.judge import PathSummary, summarise_paths

STEPS = 12
TRIES = 3  # other processes may slow down one half of an attempt


def find_limit(workload, case, run, separate_steps=False) -> PathSummary:
    """The first summary with a limit, or else the last; `separate_steps`: stages are measured in extra steps."""
    for _ in range(TRIES):
        summary = summarise_run(workload, case, run, separate_steps)
        if summary.limit:
            break
    return summary


def summarise_run(workload, case, run, separate_steps) -> PathSummary:
    """Stages and steps from the same time: of the timed steps, or of the steps between and after them."""
    samples = time_steps(run)
    between = run.extras()["stages_ns"]
    samples += time_steps(run)
    after = run.extras()["stages_ns"]
    stages = {name: between[name] + ns if separate_steps else ns[-len(samples) :] for name, ns in after.items()}
    record = make_record({"ridgeline": samples}, case=case.to_json(), workload=workload.name, ceilings={})
    ours = replace(record.contenders[0], extras={"stages_ns": stages})
    (summary,) = summarise_paths([replace(record, contenders=(ours,))])
    return summary


def time_steps(run) -> list[float]:
    samples = []
    for _ in range(STEPS):
        run.reset()
        start = perf_counter_ns()
        run.step()
        samples.append(float(perf_counter_ns() - start))
    return samples
