"""Experiments: many points, each in its own placed process, recorded, resumable, made into pages.

    ridgeline run experiment=quick_test

The runner knows points and subjects, not what they measure; `workloads/` introduces the pipeline to it.
"""

from __future__ import annotations

from ridgeline.lab.experiment.child import Order, Outcome, resolve
from ridgeline.lab.experiment.folder import Folder, open_folder
from ridgeline.lab.experiment.point import Point, refuse_absent
from ridgeline.lab.experiment.run import Manner, Results, Watcher, run

__all__ = [
    "Folder",
    "Manner",
    "Order",
    "Outcome",
    "Point",
    "Results",
    "Watcher",
    "open_folder",
    "refuse_absent",
    "resolve",
    "run",
]
