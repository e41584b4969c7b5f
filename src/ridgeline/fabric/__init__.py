"""Collectives as data: one schedule is proved, predicted and run.

>>> from ridgeline import fabric
>>> ring = fabric.schedule("all_reduce", "ring", ranks=4)
>>> fabric.prove(ring).steps
48
>>> fabric.predict(ring, network="dgx-a100", nbytes=1 << 20).kind
'predicted'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.errors import FabricError as FabricError
    from ridgeline.fabric.communicator import Communicator as Communicator
    from ridgeline.fabric.config import FabricConfig as FabricConfig
    from ridgeline.fabric.cost_tables import make_tables as make_tables
    from ridgeline.fabric.diagnosis import doctor as doctor
    from ridgeline.fabric.drawing import draw_svg as draw_svg
    from ridgeline.fabric.drawing import draw_text as draw_text
    from ridgeline.fabric.group import Handle as Handle
    from ridgeline.fabric.host_study import HostStudy as HostStudy
    from ridgeline.fabric.host_study import study_hosts as study_hosts
    from ridgeline.fabric.host_tuning import HostTuning as HostTuning
    from ridgeline.fabric.host_tuning import tune_hosts as tune_hosts
    from ridgeline.fabric.launch import RankError as RankError
    from ridgeline.fabric.launch import init as init
    from ridgeline.fabric.launch import join as join
    from ridgeline.fabric.launch import spawn as spawn
    from ridgeline.fabric.networks import PRESETS as PRESETS
    from ridgeline.fabric.networks import Network as Network
    from ridgeline.fabric.prediction import Prediction as Prediction
    from ridgeline.fabric.prediction import bus_factor as bus_factor
    from ridgeline.fabric.prediction import predict as predict
    from ridgeline.fabric.proof import Proof as Proof
    from ridgeline.fabric.proof import ProofError as ProofError
    from ridgeline.fabric.proof import prove as prove
    from ridgeline.fabric.remote_launch import launch_remotely as launch_remotely
    from ridgeline.fabric.schedule_types import Schedule as Schedule
    from ridgeline.fabric.schedule_types import Step as Step
    from ridgeline.fabric.schedules import ALGORITHMS as ALGORITHMS
    from ridgeline.fabric.schedules import schedule as schedule
    from ridgeline.fabric.selection import NEVER as NEVER
    from ridgeline.fabric.shared_buffers import empty as empty
    from ridgeline.fabric.torch_backend import make_torch_group as make_torch_group
    from ridgeline.fabric.torch_backend import register_torch_backend as register_torch_backend
    from ridgeline.fabric.training import MODELS as MODELS
    from ridgeline.fabric.training import Model as Model
    from ridgeline.fabric.training import TrainingStep as TrainingStep
    from ridgeline.fabric.training import training_step as training_step
    from ridgeline.fabric.tuning import load_tuned_network as load_tuned_network
    from ridgeline.fabric.tuning import tune as tune
    from ridgeline.fabric.watching import Watcher as Watcher

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "communicator": ["Communicator", "FabricError"],
        "config": ["FabricConfig"],
        "cost_tables": ["make_tables"],
        "diagnosis": ["doctor"],
        "drawing": ["draw_svg", "draw_text"],
        "group": ["Handle"],
        "host_study": ["HostStudy", "study_hosts"],
        "host_tuning": ["HostTuning", "tune_hosts"],
        "launch": ["RankError", "init", "join", "spawn"],
        "remote_launch": ["launch_remotely"],
        "networks": ["Network", "PRESETS"],
        "prediction": ["Prediction", "bus_factor", "predict"],
        "proof": ["Proof", "ProofError", "prove"],
        "schedule_types": ["Schedule", "Step"],
        "schedules": ["ALGORITHMS", "schedule"],
        "selection": ["NEVER"],
        "shared_buffers": ["empty"],
        "torch_backend": ["make_torch_group", "register_torch_backend"],
        "training": ["MODELS", "Model", "TrainingStep", "training_step"],
        "tuning": ["load_tuned_network", "tune"],
        "watching": ["Watcher"],
    },
)
