"""Lines to paste: executed by the shell, they start every rank where the plan says."""

from __future__ import annotations

import configparser
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.machine.trees import Recording

from ridgeline.errors import InputError
from ridgeline.machine import Gpu, Placement, Topology, plan, topology, write_launch_lines

COMMAND = ["python", "my file.py", "it's", '"$HOME"', "50%"]
RECORD = """#!{python}
import json, os, sys
from pathlib import Path
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES")
row = {{"words": sys.argv[1:], **{{n: os.environ[n] for n in names if n in os.environ}}}}
Path({folder!r}, f"rank-{{os.environ.get('RANK') or os.environ['LOCAL_RANK']}}").write_text(json.dumps(row))
"""
TORCHRUN = """#!/bin/bash
[ "$1 $2 $3" = "--standalone --nproc-per-node=2 --no-python" ] || exit 9
for LOCAL_RANK in 0 1; do export LOCAL_RANK; "${@:4}"; done
"""


@pytest.fixture
def computer(tmp_path: Path) -> Topology:
    """Two nodes of two cores with two threads each."""
    return topology(Recording(tmp_path / "tree").grid(2, 2, 2).root)


@pytest.fixture
def execute(tmp_path: Path):
    """Runs lines in bash beside a numactl and a torchrun that only record; returns what each rank got."""
    tools, rows = tmp_path / "tools", tmp_path / "rows"
    for folder in (tools, rows):
        folder.mkdir()
    for name, text in (("numactl", RECORD.format(python=sys.executable, folder=str(rows))), ("torchrun", TORCHRUN)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}

    def run(lines: str) -> list[dict]:
        path = f"{tools}:{os.environ['PATH']}"
        subprocess.run(["bash", "-eu", "-c", lines], check=True, timeout=60, env={**environment, "PATH": path})
        return [json.loads(file.read_text()) for file in sorted(rows.iterdir())]

    return run


def _add_gpus(computer: Topology, *uuids: str | None) -> Topology:
    gpus = [Gpu(i, uuid, "A GPU", f"0000:0{i}:00.0", i % 2, (), None, None) for i, uuid in enumerate(uuids)]
    return replace(computer, gpus=tuple(gpus))


def test_numactl_lines_start_every_rank_on_its_cpus(computer, execute):
    ranks = execute(write_launch_lines(computer, plan(computer, 2, "node"), "numactl", COMMAND))
    assert [(r["RANK"], r["WORLD_SIZE"]) for r in ranks] == [("0", "2"), ("1", "2")]
    assert [r["words"] for r in ranks] == [
        ["--physcpubind=0-3", "--localalloc", *COMMAND],
        ["--physcpubind=4-7", "--localalloc", *COMMAND],
    ]


def test_a_torchrun_line_gives_each_local_rank_its_cpus(computer, execute):
    ranks = execute(write_launch_lines(computer, plan(computer, 2, "core"), "torchrun", COMMAND))
    assert [r["words"] for r in ranks] == [
        ["--physcpubind=0-1", "--localalloc", *COMMAND],
        ["--physcpubind=4-5", "--localalloc", *COMMAND],
    ]


def test_a_slurm_script_binds_by_masks(computer):
    lines = write_launch_lines(computer, plan(computer, 2, "node"), "slurm", ["python", "my file.py"]).splitlines()
    assert lines[:4] == ["#!/bin/bash", "#SBATCH --nodes=1", "#SBATCH --exclusive", "#SBATCH --ntasks=2"]
    assert lines[4:] == ["srun --cpu-bind=mask_cpu:0xf,0xf0 --mem-bind=local python 'my file.py'"]


def test_each_rank_has_a_systemd_unit(computer):
    text = write_launch_lines(computer, plan(computer, 2, "node"), "systemd", COMMAND)
    units = text.split("\n\n")
    assert [unit.splitlines()[0] for unit in units] == [f"# /etc/systemd/system/rank-{k}.service" for k in (0, 1)]
    for unit, cpus in zip(units, ("0-3", "4-7"), strict=True):
        parser = configparser.ConfigParser(interpolation=None)
        parser.read_string(unit)
        service = parser["Service"]
        assert service["CPUAffinity"] == cpus
        assert service["NUMAPolicy"] == "local"
        assert service["ExecStart"] == r"""python "my file.py" "it's" "\"$$HOME\"" 50%%"""
        assert "WORLD_SIZE=2" in service["Environment"].split()


def test_a_rank_sees_its_gpu_by_uuid_or_by_number(computer, execute):
    machine = _add_gpus(computer, "GPU-0a", None)
    placements = plan(machine, 2, "gpu")
    ranks = execute(write_launch_lines(machine, placements, "numactl", ["true"]))
    assert [r["CUDA_VISIBLE_DEVICES"] for r in ranks] == ["GPU-0a", "1"]
    slurm = write_launch_lines(machine, placements, "slurm", ["true"])
    assert "#SBATCH --gpus-per-node=2\n" in slurm
    assert "--gpu-bind=map_gpu:0,1 true" in slurm
    assert "CUDA_VISIBLE_DEVICES=GPU-0a" in write_launch_lines(machine, placements, "systemd", ["true"])
    assert not write_launch_lines(machine, placements, "torchrun", ["true"]).startswith("#"), "rank i takes GPU i"
    shared = write_launch_lines(machine, plan(machine, 4, "gpu"), "torchrun", ["true"])
    assert shared.startswith("# GPUs of the ranks: 0 1 0 1;")


def test_a_rank_without_cpus_is_not_bound(computer, execute):
    assert execute(write_launch_lines(computer, [Placement()], "numactl", ["true"]))[0]["words"] == [
        "--localalloc",
        "true",
    ]


def test_an_unknown_launcher_is_refused(computer):
    with pytest.raises(InputError, match="no launcher 'slrum'; did you mean 'slurm'"):
        write_launch_lines(computer, [], "slrum", [])
