"""The measured ceilings of the devices of an experiment, stored in its folder.

They come from an earlier `ridgeline bench` or `ridgeline machine --ceilings` on this kind of machine, else from a
measurement before the first point. Every record has the ceilings that its own work is compared with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.lab.experiment.folder import ExperimentFolder
from ridgeline.lab.experiment.point import Point
from ridgeline.lab.record import Record
from ridgeline.lab.workload import Work
from ridgeline.machine import Ceilings, Topology, fingerprint

MeasureCeilings = Callable[[str], Ceilings | None]  # of a device ("cuda:1"); None where it has no ceilings
SUBFOLDER = "ceilings"


class DeviceCeilings:
    """The ceilings of the devices of a run."""

    def __init__(self, folder: ExperimentFolder, machine: Topology) -> None:
        self._folder, self._machine = folder, fingerprint(machine)
        self._known: dict[str, Ceilings] = {}

    def load(self, device: str, measure: MeasureCeilings, report: Callable[[str], None]) -> None:
        """Read the ceilings of a device from the folder, or measure them.

        Where neither works, the experiment continues without them, and `report` gets a sentence with the reason.
        """
        path = self._path(device)
        ceilings = None
        with suppress(OSError, ValueError):
            ceilings = Ceilings.from_json(json.loads(path.read_text(encoding="utf-8")))
        if ceilings is None:
            try:
                ceilings = measure(device)
            except RidgelineError as reason:
                report(f"no roofline: {reason}")
            if ceilings is None:
                return
            path.parent.mkdir(exist_ok=True)
            name = str(path.relative_to(self._folder.path))
            self._folder.write(name, json.dumps(ceilings.to_json(), indent=1) + "\n")
        self._known[device] = ceilings

    def is_missing(self, device: str) -> bool:
        """Whether the folder has no ceilings of a device."""
        return not self._path(device).exists()

    def describe(self, point: Point, work: Mapping[str, Any]) -> dict[str, Any]:
        """Return the ceilings for a point's work, as its record stores them."""
        ceilings = self._known.get(point.device_name)
        if ceilings is None:
            return {}
        from ridgeline.lab.judge import describe_ceilings

        amounts = {field.name: work[field.name] for field in fields(Work)}
        if not point.partners:
            return describe_ceilings(ceilings, Work(**amounts))
        # The work of a point with several GPUs is that of all of them; measured ceilings are those of one.
        count = len(point.gpus)
        amounts |= {"flops": amounts["flops"] / count, "bytes": {k: v / count for k, v in amounts["bytes"].items()}}
        described = describe_ceilings(ceilings, Work(**amounts))
        return {
            name: {**ceiling, "rate": count * ceiling["rate"], "what": f"{count} times {ceiling['what']}"}
            for name, ceiling in described.items()
        }

    def _path(self, device: str) -> Path:
        return self._folder.path / SUBFOLDER / f"{self._machine}-{device.replace(':', '')}.json"


def raise_to_result(record: Record) -> Record:
    """Return the record with ceilings that are at least what the point itself reached."""
    if not record.ceilings:
        return record
    from ridgeline.lab.judge import raise_ceilings

    return replace(record, ceilings=raise_ceilings(record.ceilings, record))
