"""Experiments: many points, each in its own placed process, recorded, resumable, made into pages.

    ridgeline run experiment=quick_test

The runner knows points and subjects, not what they measure; `workloads/` introduces the pipeline to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.lab.experiment.child import Order as Order
    from ridgeline.lab.experiment.child import Outcome as Outcome
    from ridgeline.lab.experiment.child import resolve as resolve
    from ridgeline.lab.experiment.compose import (
        Job as Job,
    )
    from ridgeline.lab.experiment.compose import (
        Source as Source,
    )
    from ridgeline.lab.experiment.compose import (
        composed as composed,
    )
    from ridgeline.lab.experiment.compose import (
        launch as launch,
    )
    from ridgeline.lab.experiment.compose import (
        launcher_of as launcher_of,
    )
    from ridgeline.lab.experiment.compose import (
        show as show,
    )
    from ridgeline.lab.experiment.conducting import Ask as Ask
    from ridgeline.lab.experiment.conducting import Finished as Finished
    from ridgeline.lab.experiment.conducting import conduct as conduct
    from ridgeline.lab.experiment.folder import Folder as Folder
    from ridgeline.lab.experiment.folder import open_folder as open_folder
    from ridgeline.lab.experiment.point import Point as Point
    from ridgeline.lab.experiment.point import refuse_absent as refuse_absent
    from ridgeline.lab.experiment.runner import Manner as Manner
    from ridgeline.lab.experiment.runner import Results as Results
    from ridgeline.lab.experiment.runner import Watcher as Watcher
    from ridgeline.lab.experiment.runner import run as run
    from ridgeline.lab.experiment.words import Words as Words
    from ridgeline.lab.experiment.words import parted as parted

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "child": ["Order", "Outcome", "resolve"],
        "compose": ["Job", "Source", "composed", "launch", "launcher_of", "show"],
        "conducting": ["Ask", "Finished", "conduct"],
        "folder": ["Folder", "open_folder"],
        "point": ["Point", "refuse_absent"],
        "runner": ["Manner", "Results", "Watcher", "run"],
        "words": ["Words", "parted"],
    },
)
