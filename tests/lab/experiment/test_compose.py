"""Hydra behind `ridgeline run`: every form of override composes, and an error is one sentence.

python -m pytest tests/lab/experiment/test_compose.py
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("hydra")

from ridgeline.errors import InputError
from ridgeline.lab.experiment.compose import compose_jobs, get_launcher
from ridgeline.lab.experiment.overrides import parse_arguments
from ridgeline.workloads.experiment import SOURCE

NAMES = (
    "quick_test",
    "numa_study",
    "scaling_study",
    "crossover_study",
    "transfer_study",
    "compile_study",
    "stability_study",
)
SHAPES = "experiment.test.tensor_shape=[3,224,224],[3,384,384],[3,512,512],[3,768,768]"


def jobs(*words: str):
    return [job.config.experiment for job in compose_jobs(parse_arguments(words), SOURCE)]


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_composes_under_its_own_name(name):
    (one,) = jobs(f"experiment={name}")
    assert one.name == name
    assert one.description
    assert len({model.name for model in one.vit_configs}) == len(one.vit_configs) >= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["experiment=quick_test", "experiment.hardware.gpu_ids=[0,1,2,3]"], 1),
        (["experiment=numa_study", "experiment.hardware.gpu_ids=[0,3]", "experiment.hardware.numa_nodes=[0,2,3]"], 1),
        (["-m", "experiment=scaling_study", "experiment.vit_configs[0].depth=2,4,6,8,10,12,16,20"], 8),
        (["-m", "experiment=scaling_study", "experiment.vit_configs[0].dim=128,256,384,512,768,1024,1280"], 7),
        (["-m", "experiment=numa_study", SHAPES, "experiment.test.batch_size=10,8,6,4"], 16),
        (["experiment=numa_study", SHAPES, "experiment.test.batch_size=10,8,6,4", "zip=[tensor_shape,batch_size]"], 4),
        (["experiment=numa_study", "experiment.test.batch_size=4,8,16,32", "experiment.test.memory_size_mb=512,9"], 8),
        (["experiment=scaling_study", "experiment.test.compile_model=true,false"], 2),
        (["experiment=numa_study", "experiment.test.batch_size=16,32,64", "experiment.max_workers=8"], 3),
        (["experiment=numa_study", "experiment.test.num_samples=5000", "experiment.test.timeout_s=1800"], 1),
        (["experiment=numa_study", "experiment.hardware.gpu_ids=[0],[1],[2],[3],[0,1],[0,2]"], 6),
        (["experiment=quick_test,numa_study"], 2),
        (["experiment.test.batch_size=range(1,4)"], 3),
    ],
)
def test_every_form_of_override_gives_its_number_of_jobs(words, count):
    assert len(jobs(*words)) == count


def test_overrides_change_the_configuration():
    configs = jobs("experiment=numa_study", SHAPES, "experiment.vit_configs[1].depth=3")
    assert [list(one.test.tensor_shape)[1] for one in configs] == [224, 384, 512, 768]
    assert {one.vit_configs[1].depth for one in configs} == {3}
    word = "experiment.vit_configs=[{name:small,patch_size:32,depth:2,heads:4,dim:256,mlp_dim:1024}]"
    configs = jobs("experiment.test.compile_model=true,false", word)
    assert [one.test.compile_model for one in configs] == [True, False]
    assert [(v.name, v.mlp_dim) for one in configs for v in one.vit_configs] == [("small", 1024)] * 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["experiment=no_such_study"], "no experiment 'no_such_study'.*compile_study, crossover_study, numa_study"),
        (["experiment.test.nonsense=1"], "no setting in experiment.test called 'nonsense'.*num_samples"),
        (["experiment.test.batch_size=many"], "experiment.test.batch_size=many.*Integer"),
        (["experiment.test.batch_size=1,,"], "cannot be read"),
        (["experiment.test.batch_size"], "cannot be read"),
        (["batch_size=1"], "no setting 'batch_size'"),
        (["+experiment.more=1"], "'more'"),
        (["experiment.vit_configs=[{nam:x}]"], "nam"),
        (["experiment.test.batch_size=interval(1,5)"], "no list of choices"),
        (["zip=[batch_size,ring]", "experiment.test.batch_size=1,2"], "zip names 'ring'"),
    ],
)
def test_an_error_is_one_sentence(words, message):
    with pytest.raises(InputError, match=message) as error:
        jobs(*words)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["plain", "a, b='c' [d]"])
def test_experiments_of_the_user_compose(tmp_path, name):
    tmp_path /= name
    (tmp_path / "experiment").mkdir(parents=True)
    body = "defaults:\n  - /schema/experiment@_here_\n  - _self_\nname: mine\ntest: {batch_size: 3}\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(body)
    (one,) = jobs("--config-dir", str(tmp_path), "experiment=mine")
    assert (one.name, one.test.batch_size, one.test.ring) == ("mine", 3, 2)
    (tmp_path / "experiment" / "mine.yaml").write_text(body.replace("batch_size", "batchsize"))
    with pytest.raises(InputError, match="batchsize"):
        jobs("--config-dir", str(tmp_path), "experiment=mine")
    with pytest.raises(InputError, match="is no folder"):
        jobs("--config-dir", str(tmp_path / "nowhere"))


def test_the_runner_imports_neither_hydra_nor_torch_nor_rich():
    code = "import sys, ridgeline.lab.experiment.compose, ridgeline.lab.experiment.runner; print(*sys.modules)"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split())
    assert "ridgeline.lab.experiment.runner" in loaded
    assert not loaded & {"hydra", "omegaconf", "torch", "rich", "numpy", "jinja2"}


def test_the_launcher_comes_from_its_override():
    assert get_launcher(parse_arguments(["hydra/launcher=submitit_slurm"])) == "submitit_slurm"
    assert get_launcher(parse_arguments(["hydra/launcher=basic"])) is None
    assert get_launcher(parse_arguments(["experiment=quick_test"])) is None
