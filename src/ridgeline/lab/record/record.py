"""The record: what was measured, raw, one JSON object per case, appended and never changed.

    ridgeline records ls benchmarks/records/h200.jsonl

Nothing derived is stored: medians, rates, verdicts are computed from a record whenever they are shown, so they
cannot disagree with it.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, StoreError
from ridgeline.lab.race.plan import Race
from ridgeline.lab.record.schema import RECORD, fault, is_finite
from ridgeline.lab.workload import Case, Work, label
from ridgeline.store import append_lines, read_lines

SCHEMA = 1
FILE = "records.jsonl"
NEEDED = {
    "case": ("device", "ranks"),
    "work": ("items", "unit", "flops", "bytes", "launches"),
    "machine": ("fingerprint", "cpu", "gpus", "nics", "nodes", "llc_domains", "usable_cpus", "memory_bytes"),
    "code": ("commit", "dirty", "libraries"),
    "race": ("rounds", "ended"),
    "weather": ("before", "after"),
}  # what a reader may count on; shape.py says of which types it is


@dataclass(frozen=True)
class Lane:
    """One contender's part of a record."""

    contender: str
    samples_ns: tuple[float, ...]
    samples_per_turn: int = 1
    calls_per_sample: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    placed: Mapping[str, Any] = field(default_factory=dict)
    extras: Mapping[str, Any] = field(default_factory=dict)
    check: Mapping[str, Any] | None = None
    failure: str | None = None
    turn_overhead_ns: tuple[int, ...] = ()


@dataclass(frozen=True)
class Record:
    schema: int
    id: str
    time: str  # UTC, ISO 8601
    workload: str
    case: Mapping[str, Any]
    work: Mapping[str, Any]
    placement: tuple[Mapping[str, Any], ...]  # one per rank
    machine: Mapping[str, Any]
    code: Mapping[str, Any]
    plan: Mapping[str, Any]
    race: Mapping[str, Any]  # rounds, those of each heat, how it ended
    weather: Mapping[str, Any]
    ceilings: Mapping[str, Any]  # the measured limits this case is held against
    contenders: tuple[Lane, ...]
    missing: Mapping[str, str] = field(default_factory=dict)  # peers not installed -> what brings them
    command: str = ""  # reproduces this record
    note: str = ""  # what a reader of the numbers must know, in the workload's words
    controls: tuple[str, ...] = ()  # contenders that are no peers: a bound, a part left out, the lab's own test

    @property
    def key(self) -> str:
        return key(self.workload, self.case, self.placement, self.cold, self.machine, self.code)

    @property
    def subject(self) -> str:
        """What a record is about, whatever code and weather it was made in: what `compare` matches by."""
        return _digest(self.workload, self.case, self.placement, self.cold)

    @property
    def cold(self) -> bool:
        """Whether the caches were emptied before every sample: another question than the warm one."""
        return bool(self.plan.get("cold"))

    @property
    def node(self) -> int | None:
        """The NUMA node that all ranks stood on, if it is one."""
        nodes = {place.get("node") for place in self.placement}
        found = nodes.pop() if len(nodes) == 1 else None
        return found if isinstance(found, int) else None

    @property
    def label(self) -> str:
        return label(self.case) + (" · cold" if self.cold else "")


@dataclass(frozen=True)
class Records:
    """A file's records and whether its last line was torn."""

    path: Path
    records: tuple[Record, ...]
    torn: bool

    @property
    def warning(self) -> str | None:
        return (
            f"the last line of '{self.path}' is torn (its writer was stopped); it is left out." if self.torn else None
        )


def key(
    workload: str,
    case: Mapping[str, Any],
    placement: Iterable[Mapping[str, Any]],
    cold: bool,
    machine: Mapping[str, Any],
    code: Mapping[str, Any],
) -> str:
    """Two runs with one key would measure the same thing: a stopped bench skips keys it has."""
    return _digest(workload, case, list(placement), cold, machine["fingerprint"], code.get("tree"), code["libraries"])


def from_race(
    workload: str,
    case: Case,
    work: Work,
    race: Race,
    machine: Mapping[str, Any],
    code: Mapping[str, Any],
    ceilings: Mapping[str, Any],
    missing: Mapping[str, str],
    command: str,
    note: str = "",
    controls: Iterable[str] = (),
) -> Record:
    lanes = tuple(
        Lane(
            contender=lane.entrant.name,
            samples_ns=tuple(lane.samples_ns),
            samples_per_turn=lane.samples_per_turn,
            calls_per_sample=lane.calls_per_sample,
            settings=lane.settings,
            placed=lane.placed,
            extras=lane.extras,
            check=lane.check,
            failure=lane.failure,
            turn_overhead_ns=tuple(lane.turn_overhead_ns),
        )
        for lane in race.lanes
    )
    return Record(
        schema=SCHEMA,
        id=uuid.uuid4().hex,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        workload=workload,
        case=case.to_json(),
        work={**asdict(work), "bytes": dict(work.bytes)},
        placement=tuple(asdict(p) for p in race.task.places),
        machine=machine,
        code=code,
        plan={k: v for k, v in asdict(race.plan).items() if k != "placement"},
        race={"rounds": sum(race.heats), "heats": race.heats, "ended": race.ended},
        weather=race.weather,
        ceilings=ceilings,
        contenders=lanes,
        missing=dict(missing),
        command=command,
        note=note,
        controls=tuple(controls),
    )


def append(folder: Path, record: Record) -> None:
    append_lines(folder / FILE, [to_json(record)])


def to_json(record: Record) -> dict[str, Any]:
    return asdict(record)


def read(path: Path | str) -> Records:
    """The records of a file, or of a folder's records.jsonl; foreign schemas and damage are named."""
    file = Path(path) / FILE if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise InputError(f"there are no records at '{path}'; give a .jsonl file or a folder that holds {FILE}.")
    try:
        journal = read_lines(file)
    except StoreError as damage:
        raise InputError(str(damage)) from damage
    return Records(file, tuple(_parse(file, n, line) for n, line in enumerate(journal.objects, 1)), journal.torn)


def _parse(file: Path, number: int, line: Mapping[str, Any]) -> Record:
    schema = line.get("schema")
    if schema != SCHEMA:
        raise InputError(
            f"'{file}' line {number} has record schema {schema!r}, this version reads {SCHEMA}; "
            "use the version that wrote it."
        )
    try:
        lanes = tuple(
            Lane(
                **{
                    **lane,
                    "samples_ns": tuple(lane["samples_ns"]),
                    "turn_overhead_ns": tuple(lane["turn_overhead_ns"]),
                }
            )
            for lane in line["contenders"]
        )
        lists = {"placement": tuple(line["placement"]), "controls": tuple(line.get("controls", ()))}
        made = Record(**{**line, **lists, "contenders": lanes})
    except (TypeError, KeyError) as wrong:
        raise InputError(f"'{file}' line {number} is no record: {wrong}.") from None
    for part, names in NEEDED.items():
        held = line[part]
        lacking = [name for name in names if not isinstance(held, dict) or name not in held]
        if lacking:
            raise InputError(f"'{file}' line {number} is no record: its {part} lacks {', '.join(lacking)}.")
    if (wrong_type := fault(line, RECORD)) is not None:
        raise InputError(f"'{file}' line {number} is no record: its {wrong_type.removeprefix('.')}.")
    for lane in lanes:
        if not all(is_finite(ns) and ns > 0 for ns in lane.samples_ns):
            raise InputError(f"'{file}' line {number} is no record: {lane.contender} has a time that is none.")
    return made


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]
