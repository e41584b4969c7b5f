"""What points are held against: the measured ceilings of each device, found once, kept in the study's folder.

Of an earlier `ridgeline bench` or `ridgeline machine --ceilings` on this kind of machine where there was one, else
measured now, before the first point. Every record carries those its own work is held against.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.lab.experiment.folder import Folder
from ridgeline.lab.experiment.point import Point
from ridgeline.lab.record.record import Record
from ridgeline.lab.workload import Work
from ridgeline.machine import Ceilings, Topology, fingerprint

Measure = Callable[[str], Ceilings | None]  # a device's ceilings; None where there are none to be had
PLACE = "ceilings"


class Limits:
    """The ceilings of the devices of a run."""

    def __init__(self, folder: Folder, here: Topology) -> None:
        self._folder, self._machine = folder, fingerprint(here)
        self._known: dict[str, Ceilings] = {}

    def find(self, device: str, measure: Measure, say: Callable[[str], None]) -> None:
        """From the folder, or by `measure`; a study without ceilings goes on, and says so."""
        path = self._path(device)
        found = None
        with suppress(OSError, ValueError):
            found = Ceilings.from_json(json.loads(path.read_text(encoding="utf-8")))
        if found is None:
            try:
                found = measure(device)
            except RidgelineError as reason:
                say(f"no roofline: {reason}")
            if found is None:
                return
            path.parent.mkdir(exist_ok=True)
            self._folder.write(str(path.relative_to(self._folder.path)), json.dumps(found.to_json(), indent=1) + "\n")
        self._known[device] = found

    def missing(self, device: str) -> bool:
        return not self._path(device).exists()

    def of(self, point: Point, work: Mapping[str, Any]) -> dict[str, Any]:
        """Those a point's work is held against, as its record keeps them; the work may be as the child counted it."""
        found = self._known.get(device_of(point))
        if found is None:
            return {}
        from ridgeline.lab.judge import analyse

        return analyse.held_against(found, Work(**{field.name: work[field.name] for field in fields(Work)}))

    def _path(self, device: str) -> Path:
        return self._folder.path / PLACE / f"{self._machine}-{device.replace(':', '')}.json"


def raised(made: Record) -> Record:
    """The record, its ceilings lifted to what the point itself reached."""
    if not made.ceilings:
        return made
    from ridgeline.lab.judge import analyse

    return replace(made, ceilings=analyse.raised(made.ceilings, made))


def device_of(point: Point) -> str:
    """ "cpu", "cuda:1" """
    return "cpu" if point.gpu is None else f"cuda:{point.gpu}"
