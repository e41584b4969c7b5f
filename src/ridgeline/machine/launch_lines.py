"""A plan as lines to paste: for numactl, torchrun, Slurm and systemd.

ridgeline machine --plan 4 --as numactl -- python train.py
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from ridgeline.errors import unknown
from ridgeline.machine.hardware import Topology
from ridgeline.machine.placement import Placement


def write_launch_lines(on: Topology, placements: Sequence[Placement], launcher: str, command: Sequence[str]) -> str:
    """Return what starts `command` once per placement: a script, or one unit file per rank for systemd.

    on        the machine of the plan
    launcher  numactl, torchrun, slurm or systemd

    Raises InputError for another launcher.
    """
    write = _WRITERS.get(launcher)
    if write is None:
        raise unknown("launcher", launcher, _WRITERS)
    return "\n".join(write(on, placements, command))


def format_spans(numbers: Iterable[int]) -> str:
    """Write consecutive numbers as ranges.

    >>> format_spans([0, 1, 2, 3, 8, 10])
    '0-3,8,10'
    """
    out: list[list[int]] = []
    for n in sorted(numbers):
        if out and out[-1][1] == n - 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in out)


def _write_numactl(on: Topology, placements: Sequence[Placement], command: Sequence[str]) -> list[str]:
    lines = [f"export {_format_group(placements)}"]
    for rank, place in enumerate(placements):
        variables = " ".join([f"RANK={rank}", *_list_gpu_variables(on, place)])
        lines.append(f"{variables} numactl {_format_numactl(place)} {shlex.join(command)} &")
    return [*lines, "wait"]


def _write_torchrun(on: Topology, placements: Sequence[Placement], command: Sequence[str]) -> list[str]:
    # torchrun starts all ranks alike: each looks up its own options. Programs choose the GPU by LOCAL_RANK.
    options = " ".join(f'"{_format_numactl(place)}"' for place in placements)
    look_up = shlex.quote(f'options=({options}); exec numactl ${{options[$LOCAL_RANK]}} "$@"')
    run = f"torchrun --standalone --nproc-per-node={len(placements)} --no-python"
    return [*_comment_gpus(placements), f"{run} bash -c {look_up} rank {shlex.join(command)}"]


def _write_slurm(on: Topology, placements: Sequence[Placement], command: Sequence[str]) -> list[str]:
    # Slurm binds by mask only in a job that has the node to itself.
    lines = ["#!/bin/bash", "#SBATCH --nodes=1", "#SBATCH --exclusive", f"#SBATCH --ntasks={len(placements)}"]
    masks = ",".join(hex(sum(1 << cpu for cpu in place.cpus or ())) for place in placements)
    options = f"--cpu-bind=mask_cpu:{masks} --mem-bind=local"
    gpus = [place.gpu for place in placements if place.gpu is not None]
    if gpus:
        lines.append(f"#SBATCH --gpus-per-node={len(set(gpus))}")
        options += f" --gpu-bind=map_gpu:{','.join(map(str, gpus))}"
    return [*lines, f"srun {options} {shlex.join(command)}"]


def _write_systemd(on: Topology, placements: Sequence[Placement], command: Sequence[str]) -> list[str]:
    lines = []
    for rank, place in enumerate(placements):
        variables = [f"RANK={rank}", _format_group(placements), *_list_gpu_variables(on, place)]
        lines += [
            f"# /etc/systemd/system/rank-{rank}.service",
            "[Service]",
            f"ExecStart={' '.join(map(_quote_systemd, command))}",
            f"Environment={' '.join(variables)}",
            *([f"CPUAffinity={format_spans(place.cpus)}"] if place.cpus else []),
            "NUMAPolicy=local",
            "",
        ]
    return lines[:-1]


_WRITERS = {
    "numactl": _write_numactl,
    "torchrun": _write_torchrun,
    "slurm": _write_slurm,
    "systemd": _write_systemd,
}


def _format_numactl(place: Placement) -> str:
    """The options of one rank; a plan puts memory on the node of the running CPU."""
    return " ".join([*([f"--physcpubind={format_spans(place.cpus)}"] if place.cpus else []), "--localalloc"])


def _format_group(placements: Sequence[Placement]) -> str:
    """The variables by which ranks of torch and of fabric.init find each other."""
    return f"WORLD_SIZE={len(placements)} MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"


def _list_gpu_variables(on: Topology, place: Placement) -> list[str]:
    """The GPU by its UUID where that is known: a number depends on CUDA_VISIBLE_DEVICES of the shell."""
    if place.gpu is None:
        return []
    return [f"CUDA_VISIBLE_DEVICES={on.gpu(place.gpu).uuid or place.gpu}"]


def _comment_gpus(placements: Sequence[Placement]) -> list[str]:
    gpus = [place.gpu for place in placements]
    if None in gpus or gpus == list(range(len(gpus))):
        return []
    return [f"# GPUs of the ranks: {' '.join(map(str, gpus))}; the program must choose them so."]


def _quote_systemd(word: str) -> str:
    word = word.replace("%", "%%").replace("$", "$$").replace("\\", "\\\\").replace('"', '\\"')
    return word if re.fullmatch(r"[\w%$./:=@,+-]+", word) else f'"{word}"'
