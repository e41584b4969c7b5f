"""Collectives that are data: one schedule is proved, predicted and run.

>>> from ridgeline import fabric
>>> ring = fabric.schedule("all_reduce", "ring", ranks=4)
>>> fabric.prove(ring).steps
48
>>> fabric.predict(ring, network="dgx-a100", nbytes=1 << 20).kind
'predicted'
"""

from __future__ import annotations

from ridgeline.errors import FabricError
from ridgeline.fabric.arena import empty
from ridgeline.fabric.communicator import Communicator
from ridgeline.fabric.config import FabricConfig
from ridgeline.fabric.group import Handle
from ridgeline.fabric.launch import RankError, init, spawn
from ridgeline.fabric.networks import PRESETS, Network
from ridgeline.fabric.prediction import Prediction, predict
from ridgeline.fabric.proof import Proof, Refuted, prove
from ridgeline.fabric.schedules import ALGORITHMS, schedule
from ridgeline.fabric.steps import Schedule, Step
from ridgeline.fabric.training import MODELS, Model, TrainingStep, training_step
from ridgeline.fabric.tune import tune

__all__ = [
    "ALGORITHMS",
    "MODELS",
    "PRESETS",
    "Communicator",
    "FabricConfig",
    "FabricError",
    "Handle",
    "Model",
    "Network",
    "Prediction",
    "Proof",
    "RankError",
    "Refuted",
    "Schedule",
    "Step",
    "TrainingStep",
    "empty",
    "init",
    "predict",
    "prove",
    "schedule",
    "spawn",
    "training_step",
    "tune",
]
