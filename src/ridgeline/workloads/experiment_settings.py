"""The settings of an experiment: the structured configuration behind `src/ridgeline/conf/experiment/*.yaml`.

    ridgeline run experiment=quick_test --cfg job

Hydra refuses a key that is not here, and a value of another type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class VitSettings:
    """One vision transformer; depth 0 is the control: copies and no arithmetic."""

    name: str = "vit"
    patch_size: int = 16
    depth: int = 6
    heads: int | None = None  # null: one per 64 dimensions
    dim: int = 384
    mlp_dim: int | None = None  # null: 4 × dim


@dataclass
class TestSettings:
    """How each point is measured."""

    __test__ = False  # pytest: this is not a test

    num_samples: int = 500  # images
    batch_size: int = 10
    warmup_samples: int = 100
    memory_size_mb: int = 512  # host memory for images and answers
    tensor_shape: list[int] = field(default_factory=lambda: [3, 224, 224])  # channels, height, width
    compile_model: bool = False
    compile_mode: str = "default"  # default | reduce-overhead | max-autotune
    dtype: str = "auto"  # auto (fp16 on a GPU, fp32 on a CPU) | fp32 | bf16 | fp16
    output: str = "cls"  # cls | pooled | tokens: what the model returns
    timeout_s: float = 300.0  # of one point, from the start of its process
    pinned: bool = True
    ring: int = 2  # batches in the pipeline at the same time
    graph: bool | None = None  # on a GPU, replay the model as a CUDA graph; null: vit_configs yes, a module no


@dataclass
class HardwareSettings:
    """Where points run: every GPU, with memory on every node."""

    # null: all GPUs, or the CPUs where there is none; []: the CPUs; [0,1]: two points; [[0,1]]: one point of two GPUs
    gpu_ids: Any = None
    numa_nodes: list[int] | None = None  # null: all nodes that have memory and CPUs
    max_workers: int | None = None  # of this hardware; null: experiment.max_workers


@dataclass
class ExperimentSettings:
    """All settings of one experiment."""

    name: str = "experiment"
    description: str = ""
    repeats: int = 1  # of every point, round by round: a test of differences needs 6
    max_workers: int = 1  # points at the same time, as far as GPUs and CPUs allow
    resume: bool | None = None  # true: resume the newest folder; false: a new one; null: resume if it was stopped
    contention: bool = False  # let points share GPUs and CPUs, to measure what that costs
    ceilings: bool = True  # measure each device's ceilings once, in seconds, unless an earlier bench did
    module: str | None = None  # package.module:factory, your own model instead of vit_configs
    test: TestSettings = field(default_factory=TestSettings)
    hardware: HardwareSettings = field(default_factory=HardwareSettings)
    vit_configs: list[VitSettings] = field(default_factory=lambda: [VitSettings()])

    @property
    def workers(self) -> int:
        """The points that run at the same time."""
        return self.max_workers if self.hardware.max_workers is None else self.hardware.max_workers
