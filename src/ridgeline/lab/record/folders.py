"""All records below a folder: what `history` and `report` are made of.

ridgeline history benchmarks/records
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.lab.record.record import Record, read


@dataclass(frozen=True)
class Gathered:
    """All records below a folder, each once, and the files that were refused, each with its sentence."""

    records: tuple[Record, ...]
    refused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def machines(self) -> int:
        return len({r.machine["fingerprint"] for r in self.records})


def gather(where: Path) -> Gathered:
    """Read every .jsonl below a folder. A file that holds no records of this version is refused, the others count."""
    if where.is_file():
        found = read(where)
        return Gathered(_once(found.records), (), (found.warning,) if found.warning else ())
    if not where.is_dir():
        raise InputError(f"there are no records at '{where}'; give a .jsonl file or a folder that holds recorded runs.")
    files = sorted(where.rglob("*.jsonl"))
    if not files:
        raise InputError(f"'{where}' holds no .jsonl file; record some runs first: ridgeline bench --out {where}.")
    records: list[Record] = []
    refused, warnings = [], []
    for file in files:
        try:
            found = read(file)
        except InputError as refusal:
            refused.append(str(refusal))
            continue
        records += found.records
        warnings += [found.warning] if found.warning else []
    if not records:
        why = refused[0] if refused else "its files are empty."
        raise InputError(f"'{where}' holds no record that can be read: {why}")
    return Gathered(_once(records), tuple(refused), tuple(warnings))


def gather_all(where: Iterable[Path]) -> Gathered:
    """The same of several files and folders. A file that is named itself must be whole."""
    found = [gather(one) for one in where]
    return Gathered(
        _once(r for one in found for r in one.records),
        tuple(dict.fromkeys(sentence for one in found for sentence in one.refused)),
        tuple(dict.fromkeys(sentence for one in found for sentence in one.warnings)),
    )


def _once(records: Iterable[Record]) -> tuple[Record, ...]:
    return tuple({r.id: r for r in records}.values())
