"""The jobs of this user: where their targets are, and the call that resumes each.

One file for each job in `$XDG_STATE_HOME/ridgeline/jobs/`. What a job has done stands in its target.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ridgeline.bulk.sources import HIDDEN
from ridgeline.bulk.storage import open_storage
from ridgeline.bulk.summary import SUMMARY
from ridgeline.bulk.target import LOCK, RUNS, Target, find_driver, read_state
from ridgeline.errors import InputError, RidgelineError, unknown
from ridgeline.store import publish


@dataclass(frozen=True)
class Job:
    """One job as `ridgeline jobs` shows it."""

    job: str
    kind: str
    target: str
    state: str  # "running", "stopped", "done", "missing" (its target is gone) or "unknown" (it cannot be read)
    done: int | None  # chunks
    chunks: int
    rows: int | None = None  # good rows that are done
    rejects: int | None = None
    driver: str | None = None  # the process that works on it now
    runs: tuple[dict[str, Any], ...] = ()  # what each run of the driver did, also the one that runs now
    page: str | None = None  # its summary, once it is done


def remember(job: str, kind: str, target: str, call: Mapping[str, Any], chunks: int) -> None:
    """Write how to resume a job; `call` holds the arguments of its function."""
    folder = _get_folder()
    content = {"job": job, "kind": kind, "target": target, "call": dict(call), "chunks": chunks}
    with suppress(OSError, RidgelineError):  # a home that cannot be written must not stop the job
        folder.mkdir(parents=True, exist_ok=True)
        with publish(folder / f"{job}.json", mode=0o600) as tmp:
            tmp.write_text(json.dumps(content, indent=1) + "\n")


def list_jobs() -> list[Job]:
    """Return the jobs of this user, sorted by id."""
    return [_describe(entry) for entry in _read_entries()]


def show_job(job: str) -> Job:
    """Return one job by its id, with the numbers of its runs."""
    entry = _describe(_find(job))
    if entry.done is None:
        return entry
    storage = open_storage(entry.target)
    content = json.loads(storage.read(f"{HIDDEN}/{RUNS}") or b"{}")
    page = f"{HIDDEN}/{SUMMARY}"
    return replace(
        entry,
        runs=tuple(content.get("runs", ())),
        page=storage.label(page) if entry.state == "done" and storage.state(page) else None,
    )


def get_call(job: str) -> tuple[str, dict[str, Any]]:
    """Return the kind of a job and the arguments that resume it."""
    entry = _find(job)
    return entry["kind"], dict(entry["call"])


def clean(job: str | None = None) -> list[str]:
    """Forget a job, or all that are done or whose target is gone; return their ids. Targets stay as they are.

    A job that has not finished also loses its commits and parts: its target becomes empty.
    """
    entries = [_find(job)] if job else _read_entries()
    removed = []
    for entry in entries:
        current = _describe(entry)
        if job is None and current.state not in ("done", "missing"):
            continue
        if current.state == "running":
            raise InputError(f"job '{entry['job']}' is running ({current.driver}); stop it first.")
        if current.state == "stopped":
            _empty_target(entry["target"])
        (_get_folder() / f"{entry['job']}.json").unlink(missing_ok=True)
        removed.append(entry["job"])
    return removed


def _empty_target(url: str) -> None:
    """Remove what an unfinished first run wrote; an unfinished update leaves the table as it was."""
    with Target(url) as target:
        state = target.state()
        if state is None or state.job["generation"] > 1:
            return
        for file in target.storage.list():
            if file.name != LOCK:
                target.storage.delete(file.name)


def _describe(entry: Mapping[str, Any]) -> Job:
    job, kind, url, chunks = entry["job"], entry["kind"], entry["target"], int(entry["chunks"])
    try:
        state = read_state(open_storage(url))
        driver = find_driver(url)
    except RidgelineError:
        return Job(job, kind, url, "unknown", None, chunks)
    if state is None:
        return Job(job, kind, url, "missing", None, chunks)
    word = "running" if driver else "done" if state.complete else "stopped"
    parts = state.parts.values()
    rows, rejects = sum(part.rows for part in parts), sum(part.rejects for part in parts)
    return Job(job, kind, url, word, len(parts), state.job["chunks"], rows, rejects, driver)


def _find(job: str) -> dict[str, Any]:
    entries = {entry["job"]: entry for entry in _read_entries()}
    if job not in entries:
        raise unknown("job", job, entries)
    return entries[job]


def _read_entries() -> list[dict[str, Any]]:
    entries = []
    for file in sorted(_get_folder().glob("*.json")):
        with suppress(OSError, ValueError):
            entry = json.loads(file.read_bytes())
            if isinstance(entry, dict) and {"job", "kind", "target", "call", "chunks"} <= entry.keys():
                entries.append(entry)
    return entries


def _get_folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "ridgeline" / "jobs"
