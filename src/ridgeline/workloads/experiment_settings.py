"""What an experiment may say: the structured configuration behind `src/ridgeline/conf/experiment/*.yaml`.

    ridgeline run experiment=quick_test --cfg job

Hydra refuses a key that is not here, and a value that is not of its type.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class VitSettings:
    """One vision transformer; depth 0 is the control: copies and no arithmetic."""

    name: str = "vit"
    patch_size: int = 16
    depth: int = 6
    heads: int | None = None  # null: one for 64 dimensions
    dim: int = 384
    mlp_dim: int | None = None  # null: 4 × dim


@dataclass
class TestSettings:
    """How each point is measured."""

    __test__ = False  # pytest: this is not a test

    num_samples: int = 500  # images
    batch_size: int = 10
    warmup_samples: int = 100
    memory_size_mb: int = 512  # of host memory, for images and answers
    tensor_shape: list[int] = field(default_factory=lambda: [3, 224, 224])  # channels, height, width
    compile_model: bool = False
    compile_mode: str = "default"  # default | reduce-overhead | max-autotune
    dtype: str = "auto"  # auto (fp16 on a GPU, fp32 on a CPU) | fp32 | bf16 | fp16
    output: str = "cls"  # cls | pooled | tokens: what comes back
    timeout_s: float = 300.0  # of one point, from the start of its process
    pinned: bool = True
    ring: int = 2  # batches under way
    graph: bool | None = None  # on a GPU, play the model as a recorded CUDA graph; null: vit_configs yes, a module no


@dataclass
class HardwareSettings:
    """Where the points stand: every GPU from every node."""

    gpu_ids: list[int] | None = None  # null: all there are, or else the CPUs; []: the CPUs
    numa_nodes: list[int] | None = None  # null: all that have memory and CPUs


@dataclass
class ExperimentSettings:
    name: str = "experiment"
    description: str = ""
    repeats: int = 1  # of every point, round by round: a test of differences needs 6
    max_workers: int = 1  # points at once, as far as GPUs and CPUs allow
    resume: bool | None = None  # true: go on with the newest folder; false: a new one; null: go on if it was stopped
    contention: bool = False  # let points share GPUs and CPUs: a study of its own
    ceilings: bool = True  # measure each device's limits once, in seconds, where no earlier bench has
    module: str | None = None  # package.module:factory, a model of your own instead of vit_configs
    test: TestSettings = field(default_factory=TestSettings)
    hardware: HardwareSettings = field(default_factory=HardwareSettings)
    vit_configs: list[VitSettings] = field(default_factory=lambda: [VitSettings()])
