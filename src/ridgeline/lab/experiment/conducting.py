"""An experiment from beginning to end: its folder, its points, its pages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ridgeline.lab.experiment import report
from ridgeline.lab.experiment.folder import CONFIG, Folder, open_folder, write_state
from ridgeline.lab.experiment.point import Point, refuse_absent
from ridgeline.lab.experiment.rows import labels
from ridgeline.lab.experiment.runner import Manner, Results, Watcher, run
from ridgeline.machine import Topology
from ridgeline.store import lock


@dataclass(frozen=True)
class Ask:
    """What is to be done."""

    name: str
    description: str
    config: str  # resolved, as YAML
    resume: bool | None
    manner: Manner

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.config.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Finished:
    folder: Folder
    rows: list[dict[str, Any]]
    labels: dict[str, str]  # run_id -> what people read
    complaints: list[str]  # of a launcher


def conduct(
    ask: Ask,
    points: Sequence[Point],
    outputs: Path,
    here: Topology,
    watcher: Watcher,
    launch: Callable[[Folder], list[str]] | None = None,
) -> Finished:
    """Run all points here, or have `launch` send them elsewhere; then write results, summary and pages.

    Nothing is made on disk if a point cannot stand where it is asked to.
    """
    if launch is None:
        for point in points:
            refuse_absent(point, here)
    folder = open_folder(outputs, ask.name, ask.resume, ask.digest)
    with lock(folder.lock, timeout=0):
        state = _begin(folder, ask)
        results = Results(folder, state)
        complaints: list[str] = []
        try:
            if launch is None:
                run(points, folder, here, ask.manner, _also(watcher, results.update))
            else:
                complaints = launch(folder)
        except BaseException as stopped:
            folder.log(f"stopped: {type(stopped).__name__}")
            results.write(finished=False)
            raise
        for complaint in complaints:
            folder.log(f"a job FAILED: {complaint}")
        found = results.write(finished=not complaints)
        report.write(folder, folder.state())
        folder.log(f"finished: {sum(r['success'] for r in found)} of {len(found)} points measured")
    return Finished(folder, found, labels(folder.records()), complaints)


def _begin(folder: Folder, ask: Ask) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    state = {
        "name": ask.name,
        "description": ask.description,
        "command": ask.manner.command,
        "asked": ask.digest,
        "started": folder.state().get("started", now) if folder.resumed else now,
    }
    config = folder.path / CONFIG
    if config.exists() and config.read_text(encoding="utf-8") != ask.config:
        config.rename(folder.path / f"config-{len(list(folder.path.glob('config*.yaml')))}.yaml")
    folder.write(CONFIG, ask.config)
    write_state(folder, {**state, "finished": None})
    folder.log(f"{'goes on' if folder.resumed else 'starts'}: {ask.manner.command}")
    return state


def _also(watcher: Watcher, update: Callable[[], None]) -> Watcher:
    """The same watcher, and results.json kept up."""

    def end(point: Point, told: Any) -> None:
        update()
        watcher.end(point, told)

    return Watcher(watcher.start, watcher.begin, end, watcher.say)
