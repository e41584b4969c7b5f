"""The folder of an experiment: `outputs/<name>-<time>/`, what lies in it, and whether it may be gone on with.

records.jsonl is the truth, a line per point as soon as it is measured; results.json, the summary and the pages are
made from it whenever they are needed.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ridgeline
from ridgeline.errors import InputError
from ridgeline.lab.record import record
from ridgeline.lab.record.record import Record
from ridgeline.store import owner, publish

SCHEMA = 1
SUMMARY, RESULTS, LOG, CONFIG, RUNS = (
    "experiment_summary.json",
    "results.json",
    "experiment.log",
    "config.yaml",
    "runs",
)
LOCK = ".lock"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_STAMP = re.compile(r"-\d{8}-\d{6}(-\d+)?$")


@dataclass(frozen=True)
class Folder:
    path: Path
    resumed: bool = False

    @property
    def lock(self) -> Path:
        return self.path / LOCK

    @property
    def runs(self) -> Path:
        return self.path / RUNS

    def records(self) -> list[Record]:
        """All that was measured; the line a killed writer tore is left out."""
        file = self.path / record.FILE
        return list(record.read(file).records) if file.exists() else []

    def state(self) -> dict[str, Any]:
        return read_state(self.path)

    def write(self, name: str, text: str) -> None:
        with publish(self.path / name) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def log(self, sentence: str) -> None:
        """A line for whoever follows with `tail -f`."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with _writing, (self.path / LOG).open("a", encoding="utf-8") as out:
            out.write(f"{now} {' '.join(sentence.split())}\n")


_writing = threading.Lock()


def open_folder(outputs: Path, name: str, resume: bool | None, asked: str) -> Folder:
    """The folder to write into: the newest of this name where it is to be gone on with, else a new one.

    resume  True: go on with the newest, finished or not; False: never; None: only if it was stopped or has failures,
            and was `asked` the same. A name that is a folder's whole name always means that one.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"experiment.name '{name}' cannot name a folder; use letters, digits, '-', '_' and '.'.")
    if (outputs / name / SUMMARY).is_file():
        read_state(outputs / name)
        return Folder(outputs / name, resumed=True)
    found = sorted(
        (p for p in outputs.glob(f"{name}-*") if _STAMP.sub("", p.name) == name and (p / SUMMARY).is_file()),
        key=lambda p: p.name,
    )
    if found and resume is not False:
        newest = found[-1]
        if resume or _same_and_open(newest, asked):
            read_state(newest)
            return Folder(newest, resumed=True)
    return Folder(_new(outputs, name))


def read_state(path: Path) -> dict[str, Any]:
    """The summary of an experiment's folder; one that another version wrote is refused."""
    try:
        state = json.loads((path / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"'{path / SUMMARY}' cannot be read: {error}.") from None
    schema = state.get("schema") if isinstance(state, dict) else None
    if schema != SCHEMA:
        raise InputError(
            f"'{path}' was written by another version (schema {schema!r}, this one has {SCHEMA}); "
            "use that version, or experiment.resume=false for a new folder."
        )
    found: dict[str, Any] = state
    return found


def write_state(folder: Folder, state: Mapping[str, Any]) -> None:
    whole = {"schema": SCHEMA, "ridgeline": ridgeline.__version__, **state}
    folder.write(SUMMARY, json.dumps(whole, indent=2) + "\n")


def _same_and_open(path: Path, asked: str) -> bool:
    try:
        state = read_state(path)
    except InputError:
        return False
    unfinished = not state.get("finished") or bool(state.get("failed"))
    return unfinished and state.get("asked") == asked and owner(path / LOCK) is None


def _new(outputs: Path, name: str) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        path = outputs / f"{name}-{stamp}{f'-{number}' if number else ''}"
        try:
            outputs.mkdir(parents=True, exist_ok=True)
            path.mkdir()
            (path / RUNS).mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise InputError(f"cannot write into '{outputs}': {error.strerror}; run it in a folder of yours.") from None
        return path
    raise InputError(f"'{outputs}' holds a thousand runs of '{name}' of this second; clear it.")
