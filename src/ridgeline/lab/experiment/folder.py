"""The folder of an experiment: `outputs/<name>-<time>/`, its files, and whether a run may continue in it.

records.jsonl is the source of all results, with a line per point as soon as it is measured; results.json, the summary
and the pages are made from it.
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
from ridgeline.lab.record import RECORDS_FILE, Record, read_records
from ridgeline.store import get_owner, publish

SCHEMA = 1
SUMMARY, RESULTS, LOG, CONFIG, RUNS = (
    "experiment_summary.json",
    "results.json",
    "experiment.log",
    "config.yaml",
    "runs",
)
LOCK = ".lock"
DIGEST_KEY = "asked"  # key of the configuration's digest in the summary
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_STAMP = re.compile(r"-\d{8}-\d{6}(-\d+)?$")
_log_lock = threading.Lock()


@dataclass(frozen=True)
class ExperimentFolder:
    """The folder of one experiment; `resumed` says whether it holds points of an earlier run."""

    path: Path
    resumed: bool = False

    @property
    def lock(self) -> Path:
        return self.path / LOCK

    @property
    def runs(self) -> Path:
        return self.path / RUNS

    def records(self) -> list[Record]:
        """Return all records, without the incomplete line of a writer that was killed."""
        file = self.path / RECORDS_FILE
        return list(read_records(file).records) if file.exists() else []

    def state(self) -> dict[str, Any]:
        """Return the summary."""
        return read_state(self.path)

    def write(self, name: str, text: str) -> None:
        """Replace a file of the folder, in one atomic step."""
        with publish(self.path / name) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def log(self, sentence: str) -> None:
        """Append a line with the time to experiment.log."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with _log_lock, (self.path / LOG).open("a", encoding="utf-8") as out:
            out.write(f"{now} {' '.join(sentence.split())}\n")


def open_folder(outputs: Path, name: str, resume: bool | None, digest: str) -> ExperimentFolder:
    """Return the folder to write into: the newest of this name if it is to be resumed, else a new one.

    outputs  parent of all experiments
    name     of the experiment; the complete name of an existing folder always selects that folder
    resume   True: resume the newest, finished or not; False: never resume; None: resume if it was stopped or has
             failures, and its configuration has the same `digest`

    Raises InputError for a name that no folder can have, for a folder of another version, and where `outputs` cannot
    be written.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"experiment.name '{name}' cannot name a folder; use letters, digits, '-', '_' and '.'.")
    if (outputs / name / SUMMARY).is_file():
        read_state(outputs / name)
        return ExperimentFolder(outputs / name, resumed=True)
    folders = sorted(
        (p for p in outputs.glob(f"{name}-*") if _STAMP.sub("", p.name) == name and (p / SUMMARY).is_file()),
        key=lambda p: p.name,
    )
    if folders and resume is not False:
        newest = folders[-1]
        if resume or _can_resume(newest, digest):
            read_state(newest)
            return ExperimentFolder(newest, resumed=True)
    return ExperimentFolder(_create_folder(outputs, name))


def read_state(path: Path) -> dict[str, Any]:
    """Return the summary of an experiment's folder; raises InputError for one of another version."""
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
    summary: dict[str, Any] = state
    return summary


def write_state(folder: ExperimentFolder, state: Mapping[str, Any]) -> None:
    """Write the summary, with the version of its schema and of ridgeline."""
    summary = {"schema": SCHEMA, "ridgeline": ridgeline.__version__, **state}
    folder.write(SUMMARY, json.dumps(summary, indent=2) + "\n")


def _can_resume(path: Path, digest: str) -> bool:
    try:
        state = read_state(path)
    except InputError:
        return False
    unfinished = not state.get("finished") or bool(state.get("failed"))
    return unfinished and state.get(DIGEST_KEY) == digest and get_owner(path / LOCK) is None


def _create_folder(outputs: Path, name: str) -> Path:
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
