"""Records: what a race measures, raw, one JSON object per case, appended to a file and never changed.

    ridgeline records ls benchmarks/records/h200.jsonl

A record stores nothing that can be derived. Readers compute medians, rates and verdicts from it each time, so that
they cannot contradict the record.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, StoreError
from ridgeline.lab.record.schema import RECORD, REQUIRED, SCHEMA, find_fault, is_finite, upgrade
from ridgeline.lab.workload import OURS, format_case
from ridgeline.store import append_lines, read_lines

RECORDS_FILE = "records.jsonl"


@dataclass(frozen=True)
class ContenderResult:
    """What one contender of a race measured: raw samples in nanoseconds per step, and how it ran."""

    contender: str
    samples_ns: tuple[float, ...]
    samples_per_turn: int = 1
    calls_per_sample: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    placed: Mapping[str, Any] = field(default_factory=dict)  # CPUs and memory node, read back from the kernel
    extras: Mapping[str, Any] = field(default_factory=dict)  # measurements besides time
    check: Mapping[str, Any] | None = None
    failure: str | None = None
    turn_overhead_ns: tuple[int, ...] = ()


@dataclass(frozen=True)
class Record:
    """One case that a race measured, with the machine, the code, and the samples of every contender."""

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
    race: Mapping[str, Any]  # number of rounds, rounds of each execution, why it ended
    conditions: Mapping[str, Any]  # load, clocks and heat of the machine, before and after
    ceilings: Mapping[str, Any]  # the measured limits of the resources this case uses
    contenders: tuple[ContenderResult, ...]
    missing: Mapping[str, str] = field(default_factory=dict)  # peers that are not installed -> how to install them
    command: str = ""  # reproduces this record
    note: str = ""  # what a reader of the numbers must know
    controls: tuple[str, ...] = ()  # contenders that are not peers: a bound, a part of the work, a test of the lab

    @property
    def key(self) -> str:
        """Identifies the measurement: see `compute_key`."""
        return compute_key(self.workload, self.case, self.placement, self.cold, self.machine, self.code)

    @property
    def subject(self) -> str:
        """Identifies what is measured, for any code and machine: `compare` matches records by it."""
        return _hash(self.workload, self.case, self.placement, self.cold)

    @property
    def cold(self) -> bool:
        """Whether the race emptied the caches before every sample."""
        return bool(self.plan.get("cold"))

    @property
    def reference(self) -> str:
        """The contender that the others are compared with: the one that the plan names, else ours, else the first."""
        names = [result.contender for result in self.contenders]
        named = self.plan.get("reference")
        if isinstance(named, str) and named in names:
            return named
        return OURS if OURS in names or not names else names[0]

    @property
    def is_ours(self) -> bool:
        """Whether ridgeline itself was measured; else all contenders are those of a user."""
        return self.reference == OURS and "reference" not in self.plan

    @property
    def node(self) -> int | None:
        """The NUMA node of all ranks, or None if they are on several or on an unknown one."""
        nodes = {place.get("node") for place in self.placement}
        node = nodes.pop() if len(nodes) == 1 else None
        return node if isinstance(node, int) else None

    @property
    def label(self) -> str:
        """The case as text for people."""
        return format_case(self.case) + (" · cold" if self.cold else "")


@dataclass(frozen=True)
class RecordFile:
    """The records of one file. `torn`: the last line is incomplete because its writer was stopped."""

    path: Path
    records: tuple[Record, ...]
    torn: bool

    @property
    def warning(self) -> str | None:
        """A sentence about a torn last line, or None."""
        if not self.torn:
            return None
        return f"the last line of '{self.path}' is torn (its writer was stopped); it is left out."


@dataclass(frozen=True)
class RecordFolder:
    """All records below a folder, without duplicates, and a sentence for each file that cannot be read."""

    records: tuple[Record, ...]
    refused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def machines(self) -> int:
        """The number of kinds of machine."""
        return len({r.machine["fingerprint"] for r in self.records})


def compute_key(
    workload: str,
    case: Mapping[str, Any],
    placement: Iterable[Mapping[str, Any]],
    cold: bool,
    machine: Mapping[str, Any],
    code: Mapping[str, Any],
) -> str:
    """Return a hash of what a run measures. A stopped benchmark skips the keys that it has recorded."""
    return _hash(workload, case, list(placement), cold, machine["fingerprint"], code.get("tree"), code["libraries"])


def append_record(folder: Path, record: Record) -> None:
    """Append `record` to the records.jsonl of `folder`."""
    append_lines(folder / RECORDS_FILE, [record_to_json(record)])


def record_to_json(record: Record) -> dict[str, Any]:
    """Return the record as a dict that `json.dumps` can write."""
    return asdict(record)


def read_records(path: Path | str) -> RecordFile:
    """Read a .jsonl file, or the records.jsonl of a folder; records of older schemas are upgraded.

    Raises InputError if there is no such file or a line is not a record.
    """
    file = Path(path) / RECORDS_FILE if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise InputError(f"there are no records at '{path}'; give a .jsonl file or a folder that holds {RECORDS_FILE}.")
    try:
        journal = read_lines(file)
    except StoreError as damage:
        raise InputError(str(damage)) from damage
    return RecordFile(file, tuple(_parse(file, n, line) for n, line in enumerate(journal.objects, 1)), journal.torn)


def gather_records(path: Path) -> RecordFolder:
    """Read every .jsonl file below a folder, or one file.

    A file of a folder that holds no readable records is named in `refused`. Raises InputError if no record is left,
    or if `path` is a file that cannot be read.
    """
    if path.is_file():
        file = read_records(path)
        return RecordFolder(_remove_duplicates(file.records), (), (file.warning,) if file.warning else ())
    if not path.is_dir():
        raise InputError(f"there are no records at '{path}'; give a .jsonl file or a folder that holds recorded runs.")
    paths = sorted(path.rglob("*.jsonl"))
    if not paths:
        raise InputError(f"'{path}' holds no .jsonl file; record some runs first: ridgeline bench --out {path}.")
    records: list[Record] = []
    refused, warnings = [], []
    for file_path in paths:
        try:
            file = read_records(file_path)
        except InputError as error:
            refused.append(str(error))
            continue
        records += file.records
        warnings += [file.warning] if file.warning else []
    if not records:
        reason = refused[0] if refused else "its files are empty."
        raise InputError(f"'{path}' holds no record that can be read: {reason}")
    return RecordFolder(_remove_duplicates(records), tuple(refused), tuple(warnings))


def gather_all_records(paths: Iterable[Path]) -> RecordFolder:
    """Read several files and folders, see `gather_records`."""
    folders = [gather_records(path) for path in paths]
    return RecordFolder(
        _remove_duplicates(r for folder in folders for r in folder.records),
        tuple(dict.fromkeys(sentence for folder in folders for sentence in folder.refused)),
        tuple(dict.fromkeys(sentence for folder in folders for sentence in folder.warnings)),
    )


def _remove_duplicates(records: Iterable[Record]) -> tuple[Record, ...]:
    return tuple({r.id: r for r in records}.values())


def _parse(file: Path, number: int, line: Mapping[str, Any]) -> Record:
    place, new = f"'{file}' line {number}", upgrade(line)
    if new.get("schema") != SCHEMA:
        raise InputError(
            f"{place} has record schema {new.get('schema')!r}, this version reads up to {SCHEMA}; "
            "use the version that wrote it."
        )
    try:
        contenders = tuple(
            ContenderResult(
                **{
                    **result,
                    "samples_ns": tuple(result["samples_ns"]),
                    "turn_overhead_ns": tuple(result["turn_overhead_ns"]),
                }
            )
            for result in new["contenders"]
        )
        lists = {"placement": tuple(new["placement"]), "controls": tuple(new.get("controls", ()))}
        record = Record(**{**new, **lists, "contenders": contenders})
    except (TypeError, KeyError) as error:
        raise InputError(f"{place} is no record: {error}.") from None
    for part, names in REQUIRED.items():
        table = new[part]
        missing = [name for name in names if not isinstance(table, dict) or name not in table]
        if missing:
            raise InputError(f"{place} is no record: its {part} lacks {', '.join(missing)}.")
    if (fault := find_fault(new, RECORD)) is not None:
        raise InputError(f"{place} is no record: its {fault.removeprefix('.')}.")
    for result in contenders:
        if not all(is_finite(ns) and ns > 0 for ns in result.samples_ns):
            raise InputError(f"{place} is no record: {result.contender} has a time that is not a number above 0.")
    return record


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]
