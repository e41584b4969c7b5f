"""Run the steps of a campaign, one process each; a stopped campaign goes on where it stood.

The folder of a campaign:

    campaign.json          the state of every step, written after each
    steps/NAME/            what a step wrote: records.jsonl, answer.json, log.txt
    records.jsonl          the records of all steps, each once
    report.html            the report over them
    NAME.tar.gz            all of that, to be sent
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ridgeline.errors import Exit, InputError
from ridgeline.lab.campaign.steps import DONE, FAILED, LIMIT, STATE_FILE, TO_DO, CampaignStep
from ridgeline.lab.record import RECORDS_FILE, gather_all_records, merge_records, read_records
from ridgeline.lab.report import write_report
from ridgeline.machine import describe_machine
from ridgeline.store import lock, publish

STEPS = "steps"
GRACE_S = 10.0  # between SIGINT, which lets a step keep its records, and SIGKILL
LOG_TAIL = 4096
PR_SET_PDEATHSIG = 1

Report = Callable[[CampaignStep], None]


@dataclass(frozen=True)
class CampaignResult:
    """What a campaign left: its steps, the number of records, the page and the archive (None without records)."""

    steps: tuple[CampaignStep, ...]
    records: int
    page: Path | None
    archive: Path


def run_campaign(
    steps: Sequence[CampaignStep],
    out: Path,
    *,
    on_start: Report = lambda _: None,
    on_end: Report = lambda _: None,
    program: Sequence[str] = (sys.executable, "-m", "ridgeline"),
    draw_pictures: Any = None,
) -> CampaignResult:
    """Run every possible step that is not done, in order; then write records, report and archive.

    Failed steps run again. Ctrl-C stops the step in progress, which keeps its records, and the campaign.
    """
    _create_folder(out)
    current = list(steps)
    with lock(out / ".lock", timeout=0):
        _write_state(out, current)
        for i, step in enumerate(current):
            if step.state in (TO_DO, FAILED):
                on_start(step)
                current[i] = _run_step(step, out / STEPS / step.name, program)
                _write_state(out, current)
                on_end(current[i])
        return _finish(current, out, draw_pictures)


def _run_step(step: CampaignStep, folder: Path, program: Sequence[str]) -> CampaignStep:
    """Run one command in its folder; return the step with its new state."""
    folder.mkdir(parents=True, exist_ok=True)
    answer = folder / ("answer.json" if "--json" in step.command else "answer.txt")
    limit_s = LIMIT * step.minutes * 60
    start = time.monotonic()
    with (folder / "log.txt").open("ab") as log, publish(answer) as temporary, temporary.open("wb") as output:
        process = subprocess.Popen(
            [*program, *step.command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=log,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            _stop(process)
            reason = f"it took longer than {limit_s / 60:.3g} minutes, {LIMIT} times its estimate, and was stopped"
            return replace(step, state=FAILED, reason=reason, seconds=round(time.monotonic() - start))
        except BaseException:
            _stop(process)
            raise
    step = replace(step, seconds=round(time.monotonic() - start))
    # Findings (a peer that is wrong, a slow commit) are results.
    if code in (Exit.OK, Exit.FINDINGS, Exit.SLOWER, Exit.UNCLEAR):
        return replace(step, state=DONE, reason="")
    return replace(step, state=FAILED, reason=f"exit code {code}: {_read_last_line(folder / 'log.txt')}")


def _end_with_parent() -> None:
    """In the child: ask the kernel for SIGINT when the campaign is killed, so that no step runs on without it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a step and all that it started; kill what is left."""
    for number, wait_s in ((signal.SIGINT, GRACE_S), (signal.SIGKILL, GRACE_S)):
        with suppress(OSError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


def _finish(steps: Sequence[CampaignStep], out: Path, draw_pictures: Any) -> CampaignResult:
    """Merge the records of all steps, write the report, and pack the folder."""
    files = [file for file in sorted((out / STEPS).rglob("*.jsonl")) if _holds_records(file)]
    page, count = None, 0
    if files:
        count = merge_records(files, out)[0]
        page = write_report(gather_all_records([out / RECORDS_FILE]).records, out, draw_pictures=draw_pictures)
    archive = out / f"{out.resolve().name}.tar.gz"
    with publish(archive) as temporary, tarfile.open(temporary, "w:gz") as tar:
        for file in sorted(out.rglob("*")):
            name = file.relative_to(out)
            if file.is_file() and file != archive and not any(part.startswith(".") for part in name.parts):
                tar.add(file, arcname=f"{out.resolve().name}/{name}")
    return CampaignResult(tuple(steps), count, page, archive)


def _holds_records(file: Path) -> bool:
    with suppress(InputError):
        return bool(read_records(file).records)
    return False


def _create_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"'{out}' is a file; name a folder by --out.")
    if out.is_dir() and any(out.iterdir()) and not (out / STATE_FILE).is_file():
        raise InputError(f"'{out}' holds other files; name a new folder by --out.")
    try:
        (out / STEPS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder '{out}' cannot be written: {error.strerror}.") from None


def _write_state(out: Path, steps: Sequence[CampaignStep]) -> None:
    """Write the states of these steps; the states of others, which this run does not have, stay."""
    file = out / STATE_FILE
    old: Mapping[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    states = dict(old.get("steps", {}))
    for step in steps:
        states[step.name] = {
            "state": step.state,
            "reason": step.reason,
            "estimated_s": round(step.minutes * 60),
            "seconds": step.seconds if step.seconds is not None else states.get(step.name, {}).get("seconds"),
            "command": ["ridgeline", *step.command],
        }
    document = {
        "started": old.get("started") or datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "steps": states,
    }
    with publish(file) as temporary:
        temporary.write_text(json.dumps(document, indent=1))


def _read_last_line(file: Path) -> str:
    with suppress(OSError):
        tail = file.read_bytes()[-LOG_TAIL:].decode(errors="replace")
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        return lines[-1][:300] if lines else "no message"
    return "no message"
