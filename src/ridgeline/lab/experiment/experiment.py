"""One experiment from start to end: its folder, its points, its pages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ridgeline.lab.experiment.folder import CONFIG, DIGEST_KEY, ExperimentFolder, open_folder, write_state
from ridgeline.lab.experiment.point import Point, check_available
from ridgeline.lab.experiment.report import write_report
from ridgeline.lab.experiment.results import ResultsWriter
from ridgeline.lab.experiment.runner import ProgressHooks, RunOptions, run_points
from ridgeline.lab.study.rows import label_runs
from ridgeline.machine import Topology
from ridgeline.store import lock


@dataclass(frozen=True)
class ExperimentRequest:
    """What to run.

    config  the resolved configuration as YAML
    resume  see `open_folder`
    """

    name: str
    description: str
    config: str
    resume: bool | None
    options: RunOptions

    @property
    def digest(self) -> str:
        """Identifies the configuration."""
        return hashlib.sha256(self.config.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ExperimentResult:
    """What an experiment measured.

    folder  where its files are
    rows    as in results.json
    labels  run_id -> name for people
    errors  a sentence for each job that failed on its launcher
    """

    folder: ExperimentFolder
    rows: list[dict[str, Any]]
    labels: dict[str, str]
    errors: list[str]


def run_experiment(
    request: ExperimentRequest,
    points: Sequence[Point],
    outputs: Path,
    machine: Topology,
    hooks: ProgressHooks,
    launch: Callable[[ExperimentFolder], list[str]] | None = None,
) -> ExperimentResult:
    """Run all points on this machine, or let `launch` send them elsewhere; then write results, summary and pages.

    Raises InputError, before it creates any file, if this machine lacks what a point needs.
    """
    if launch is None:
        for point in points:
            check_available(point, machine)
    folder = open_folder(outputs, request.name, request.resume, request.digest)
    with lock(folder.lock, timeout=0):
        writer = ResultsWriter(folder, _start(folder, request))
        errors: list[str] = []
        try:
            if launch is None:
                run_points(points, folder, machine, request.options, _update_results(hooks, writer))
            else:
                errors = launch(folder)
        except BaseException as interruption:
            folder.log(f"stopped: {type(interruption).__name__}")
            writer.write(finished=False)
            raise
        for error in errors:
            folder.log(f"a job FAILED: {error}")
        rows = writer.write(finished=not errors)
        write_report(folder, folder.state())
        folder.log(f"finished: {sum(row['success'] for row in rows)} of {len(rows)} points measured")
    return ExperimentResult(folder, rows, label_runs(folder.records()), errors)


def _start(folder: ExperimentFolder, request: ExperimentRequest) -> dict[str, Any]:
    """Write the configuration and the first summary; return the state of the experiment."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    state = {
        "name": request.name,
        "description": request.description,
        "command": request.options.command,
        DIGEST_KEY: request.digest,
        "started": folder.state().get("started", now) if folder.resumed else now,
    }
    config = folder.path / CONFIG
    if config.exists() and config.read_text(encoding="utf-8") != request.config:
        config.rename(folder.path / f"config-{len(list(folder.path.glob('config*.yaml')))}.yaml")
    folder.write(CONFIG, request.config)
    write_state(folder, {**state, "finished": None})
    folder.log(f"{'resumes' if folder.resumed else 'starts'}: {request.options.command}")
    return state


def _update_results(hooks: ProgressHooks, writer: ResultsWriter) -> ProgressHooks:
    """Return hooks that update results.json after every point, then call `hooks`."""

    def on_end(point: Point, row: Mapping[str, Any]) -> None:
        writer.update()
        hooks.on_end(point, row)

    return replace(hooks, on_end=on_end)
