"""The steps of a campaign: what each needs, whether this machine has it, how long it takes, and what that costs.

The steps are data (TOML), in order of value; the lab knows no engine.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, format_install
from ridgeline.lab.judge import Price, find_price
from ridgeline.machine import Topology

STATE_FILE = "campaign.json"
TO_DO, DONE, FAILED, IMPOSSIBLE = "to do", "done", "failed", "not possible here"
LIMIT = 3  # a step is stopped after this many times its estimate
BUDGET_SHARE = 0.8  # of a step's minutes: the races; the rest is for preparation
KEYS = {"name", "each", "why", "needs", "command", "minutes", "minutes_per_gpu", "settles"}
NUMBERS = ("gpus", "nodes", "gpu_nodes", "memory_gb", "cores", "hosts")
CPU_RANKS = 4  # of a host without GPUs, in jobs of several hosts
SHELL = "ssh -o BatchMode=yes {host} sh"
WORDS = {
    "gpus": "GPUs",
    "nodes": "NUMA nodes with CPUs",
    "gpu_nodes": "NUMA nodes with a GPU",
    "memory_gb": "GB of memory",
    "cores": "usable cores",
    "hosts": "hosts (--hosts A,B,…)",
}


@dataclass(frozen=True)
class Facts:
    """What the steps of a campaign depend on."""

    gpus: tuple[str, ...] = ()  # names
    nodes: tuple[int, ...] = (0,)  # NUMA nodes with CPUs
    gpu_nodes: int = 0  # how many nodes have a GPU; GPUs of an unknown node count for none
    memory_gb: float = 0.0
    cores: int = 1
    cpu: str = ""
    usable_cpus: int = 1
    torch: bool = True
    recorded: bool = False  # read from a file: what is installed there is not known, and assumed
    data: Mapping[str, str] = field(default_factory=dict)  # name → folder
    hosts: tuple[str, ...] = ()  # equal machines that a remote shell reaches, this one first
    shell: str = SHELL  # starts a shell on {host}

    @property
    def ranks(self) -> int:
        """Ranks on each host in jobs of several hosts: one for each GPU."""
        return len(self.gpus) or min(CPU_RANKS, self.cores)

    def describe(self) -> dict[str, Any]:
        """Return what a price depends on, in the form of a record's machine."""
        return {"cpu": self.cpu, "usable_cpus": self.usable_cpus, "gpus": [{"name": name} for name in self.gpus]}


@dataclass(frozen=True)
class CampaignStep:
    """One command of a campaign on this machine."""

    name: str
    why: str
    needs: tuple[str, ...]
    command: tuple[str, ...]
    minutes: float
    settles: str
    state: str  # to do | done | failed | not possible here
    reason: str = ""  # why it is not possible, or why it failed
    seconds: float | None = None  # what it took, if it ran
    hosts: int = 1  # how many machines it occupies

    @property
    def hours(self) -> float:
        """The estimated time in hours."""
        return self.minutes / 60

    def compute_usd(self, usd_per_hour: float) -> float:
        """Return what it costs on machines of this price each."""
        return self.hours * self.hosts * usd_per_hour

    @property
    def possible(self) -> bool:
        """Whether this machine has what it needs."""
        return self.state != IMPOSSIBLE

    def to_json(self, usd_per_hour: float | None) -> dict[str, Any]:
        """Return the step as a dict for JSON."""
        return {
            "name": self.name,
            "why": self.why,
            "needs": list(self.needs),
            "hours": round(self.hours, 3),
            "usd": None if usd_per_hour is None else round(self.compute_usd(usd_per_hour), 2),
            "hosts": self.hosts,
            "state": self.state,
            "reason": self.reason,
            "seconds": self.seconds,
            "settles": self.settles,
            "command": ["ridgeline", *self.command],
        }


def find_facts(machine: Topology, data: Mapping[str, str]) -> Facts:
    """Return the facts of this machine."""
    usable = set(machine.usable_cpus)
    return Facts(
        gpus=tuple(gpu.name for gpu in machine.gpus),
        nodes=tuple(n.id for n in machine.nodes if set(n.cpus) & usable),
        gpu_nodes=len({gpu.node for gpu in machine.gpus if gpu.node is not None}),
        memory_gb=machine.usable_memory_bytes / 1e9,
        cores=len({(c.package, c.core) for c in machine.cpus if c.usable}),
        cpu=machine.model,
        usable_cpus=len(usable),
        torch=find_spec("torch") is not None,
        data=dict(data),
    )


def read_facts(file: Path, data: Mapping[str, str]) -> Facts:
    """Return the facts of a machine from what `ridgeline machine --json` wrote there."""
    try:
        document = json.loads(file.read_text())
        usable = {cpu["id"] for cpu in document["cpus"] if cpu.get("usable", True)}
        cores = {(cpu.get("package"), cpu.get("core")) for cpu in document["cpus"] if cpu["id"] in usable}
        limit = (document.get("limits") or {}).get("memory_bytes")
        memory = sum(node["memory_bytes"] for node in document["nodes"])
        return Facts(
            gpus=tuple(str(gpu["name"]) for gpu in document["gpus"]),
            nodes=tuple(int(node["id"]) for node in document["nodes"] if set(node["cpus"]) & usable),
            gpu_nodes=len({gpu.get("node") for gpu in document["gpus"]} - {None}),
            memory_gb=min(memory, limit or memory) / 1e9,
            cores=len(cores),
            cpu=str(document.get("model", "")),
            usable_cpus=len(usable),
            recorded=True,
            data=dict(data),
        )
    except OSError as error:
        raise InputError(f"--topology '{file}' cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"--topology '{file}' is not what `ridgeline machine --json` writes.") from None


def plan_campaign(
    text: str, facts: Facts, *, out: Path, done: Mapping[str, Mapping[str, Any]] | None = None, only: Sequence[str] = ()
) -> list[CampaignStep]:
    """Return the steps for a machine, in order of value.

    text  TOML with tables [[step]]
    done  states of an earlier run of the same campaign: name → {"state", "reason"}
    only  names of steps, or their beginnings ("nccl" for nccl-2, nccl-4 …); empty: all
    """
    steps = [step for table in tomllib.loads(text)["step"] for step in _expand(table, facts, out)]
    if only:
        for name in only:
            if not any(_is_selected(step.name, name) for step in steps):
                known = ", ".join(step.name for step in steps)
                raise InputError(f"there is no step '{name}'; there are: {known}.")
        steps = [step for step in steps if any(_is_selected(step.name, name) for name in only)]
    return [_apply_state(step, done or {}) for step in steps]


def read_states(out: Path) -> dict[str, dict[str, Any]]:
    """Return the states of the steps that an earlier run wrote into `out`; empty without one."""
    file = out / STATE_FILE
    if not file.is_file():
        return {}
    try:
        states = json.loads(file.read_text())["steps"]
        return {str(name): dict(state) for name, state in states.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"'{file}' is damaged; move it away to begin again, or choose another --out.") from None


def find_hourly_price(prices: Sequence[Price], facts: Facts) -> tuple[float | None, str]:
    """Return dollars per hour of the whole machine, and where the price is from; None without a price."""
    device = "cuda" if facts.gpus else "cpu"
    price = find_price(prices, facts.describe(), device)
    if price is None:
        what = facts.gpus[0] if facts.gpus else f"{facts.cpu} with {facts.usable_cpus} CPUs"
        return None, f"no price for {what}; give --usd-per-hour"
    hourly = price.hourly() * (len(facts.gpus) if facts.gpus else 1)
    return hourly, f"{price.name}, {price.date}: {price.source}"


def _expand(table: Mapping[str, Any], facts: Facts, out: Path) -> Iterable[CampaignStep]:
    unknown = set(table) - KEYS
    if unknown or not table.get("name") or not table.get("command"):
        raise InputError(f"a step of the campaign is wrong: {sorted(unknown) or 'it needs name and command'}.")
    needs = tuple(table.get("needs", ()))
    reason = next((r for need in needs if (r := _find_lack(need, facts))), "")
    values: list[int | None] = [*_list_values(table.get("each"), facts)] if not reason else []
    for value in values or [None]:
        name = table["name"] if value is None else f"{table['name']}-{value}"
        minutes = float(table["minutes"]) + float(table.get("minutes_per_gpu", 0)) * len(facts.gpus)
        words = {
            "each": "N" if value is None else str(value),
            "out": str(out / "steps" / name),
            "budget": f"{round(BUDGET_SHARE * minutes * 60)}s",
            "gpus": str(len(facts.gpus)),
            "hosts": ",".join(facts.hosts[:value]),
            "ranks": str(facts.ranks),
            "shell": facts.shell,
            "python": sys.executable,
            **{f"data:{key}": folder for key, folder in facts.data.items()},
        }
        yield CampaignStep(
            name=name,
            why=table.get("why", ""),
            needs=needs,
            command=tuple(_fill(word, words) for word in table["command"]),
            minutes=minutes,
            settles=table.get("settles", ""),
            state=IMPOSSIBLE if reason else TO_DO,
            reason=reason,
            hosts=value if value is not None and table.get("each") == "hosts" else 1,
        )


def _find_lack(need: str, facts: Facts) -> str:
    """Return what this machine lacks, or an empty text."""
    if need == "torch":
        return "" if facts.torch else f"torch is missing: {format_install('torch')}"
    if need.startswith("data:"):
        name = need.partition(":")[2]
        folder = facts.data.get(name)
        if folder is None:
            return f"no data: add --data {name}=FOLDER"
        return "" if facts.recorded or Path(folder).is_dir() else f"--data {name}: there is no folder '{folder}'"
    match = re.fullmatch(r"(\w+)>=(\d+)", need)
    if not match or match[1] not in NUMBERS:
        raise InputError(f"a step of the campaign needs '{need}', which is not known; there are: {', '.join(NUMBERS)}.")
    value = getattr(facts, match[1])
    have = value if isinstance(value, int | float) else len(value)
    return "" if have >= int(match[2]) else f"it needs {match[2]} {WORDS[match[1]]}, and there are {have:g}"


def _list_values(each: str | None, facts: Facts) -> list[int]:
    if each == "ranks":
        return [n for n in (2, 4, 8, 16) if n <= len(facts.gpus)]
    if each == "nodes":
        return list(facts.nodes)
    if each == "gpus":
        return list(range(len(facts.gpus)))
    if each == "hosts":
        return [n for n in (2, 4, 8, 16) if n <= len(facts.hosts)]
    if each is not None:
        raise InputError(f"a step of the campaign has each = '{each}'; it is ranks, nodes, gpus or hosts.")
    return []


def _fill(word: str, words: Mapping[str, str]) -> str:
    for key, value in words.items():
        word = word.replace(f"{{{key}}}", value)
    return word


def _is_selected(step: str, name: str) -> bool:
    return step == name or re.fullmatch(rf"{re.escape(name)}-\d+", step) is not None


def _apply_state(step: CampaignStep, done: Mapping[str, Mapping[str, Any]]) -> CampaignStep:
    old = done.get(step.name)
    if old is None or not step.possible:
        return step
    return replace(step, state=str(old["state"]), reason=str(old.get("reason", "")), seconds=old.get("seconds"))
