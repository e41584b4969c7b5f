"""The systemd journal, through `journalctl -o json`: from now on, or from the cursor where it was left.

The journal keeps what we have not read, so nothing is lost while the watcher is away, as long as the journal itself has
not been rotated past the cursor; then the batch says so. Three traps of journalctl are walked around: a follower shows
only the current boot, so what is there already is read before following; `--after-cursor` passes over one entry where
the cursor's own is gone, so the cursor's entry is asked for and compared; without `--all` a field of more than 4 KiB is
null.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ridgeline.audit.sources.source import LATEST, Batch, Event, Position, fitting
from ridgeline.errors import InputError, RidgelineError

_KEPT = ("_PID", "_UID", "_COMM", "_EXE", "_HOSTNAME", "_SYSTEMD_UNIT", "_TRANSPORT")
_WORD = re.compile(r"[^A-Za-z0-9_-]+")
_PROGRAM = 256  # letters of a program's name in an action
_AT_ONCE = 2_000  # entries of one batch
_LONGEST = 8 << 20
_LOST = "the journal no longer has the entry at which it was left; what it removed since then is not here."


class Journal:
    """`matches` are journalctl's own (`_SYSTEMD_UNIT=ssh.service`); `directory` holds journals of this or other
    machines, else it is this machine's own."""

    def __init__(self, matches: Sequence[str] = (), *, directory: Path | None = None, follow: bool = True) -> None:
        program = shutil.which("journalctl")
        if program is None:
            raise InputError("there is no journalctl on this machine, so there is no journal to watch.")
        for match in matches:
            if not re.fullmatch(r"[A-Z0-9_]+=.*", match):
                raise InputError(f"'{match}' is no match of the journal; write it like _SYSTEMD_UNIT=ssh.service.")
        if directory is not None and not directory.is_dir():
            raise InputError(f"there is no folder '{directory}' with journals.")
        where = [f"--directory={directory.absolute()}", "--merge"] if directory is not None else []
        self.name = "journal" + "".join(f":{m}" for m in [*where[:1], *sorted(matches)])
        self._command = [program, "-o", "json", "--all", "--no-pager", *where, *matches]
        self._follow = follow
        self._process: asyncio.subprocess.Process | None = None
        self._stopped = False
        self._cursor: str | None = None  # of the last entry that was read
        self._seen = 0

    def stop(self) -> None:
        self._stopped = True
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()  # what it had written is still in the pipe, and is read

    async def batches(self, position: Position | None) -> AsyncIterator[Batch]:
        self._cursor, began, lost = position["cursor"] if position else None, time.time(), False
        if self._cursor or not self._follow:  # what is there already, of every boot
            before = self._seen
            async for batch in self._read([]):
                yield batch
            if self._cursor and self._seen == before and not self._stopped:
                lost = True
                yield Batch([], {"cursor": self._cursor}, gaps=(_LOST,))
        if self._follow and not self._stopped:
            # Without a cursor a follower begins now; history can be had with --no-follow.
            async for batch in self._read(["-f", f"--since=@{began:.6f}"] if lost else ["-f"], lost):
                yield batch

    async def _read(self, how: list[str], lost: bool = False) -> AsyncIterator[Batch]:
        """One journalctl, from the cursor's own entry on, which is compared and left out."""
        follow, due = bool(how), None if lost else self._cursor
        start = [f"--cursor={due}"] if due else []
        lines = (["-n", "all"] if due or lost else ["-n", "0"]) if follow else []
        process = self._process = await asyncio.create_subprocess_exec(
            *self._command,
            *how,
            *lines,
            *start,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LONGEST,
        )
        if process.stdout is None or process.stderr is None:
            raise RidgelineError("journalctl gave no pipe to read from.")
        trouble = asyncio.create_task(process.stderr.read())
        try:
            async for some in _gathered(process.stdout):
                batch = self._batch(some, due, gone=_LOST if due and not follow else None)
                due = None
                if batch is not None:
                    yield batch
            said = (await trouble).decode(errors="replace").strip()
            status = await process.wait()
            if not self._stopped and (status != 0 or follow):
                raise InputError(f"journalctl ended with {status}: {said.splitlines()[-1] if said else 'no word'}.")
        finally:
            trouble.cancel()
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    def _batch(self, lines: list[bytes], due: str | None, gone: str | None) -> Batch | None:
        """Entries as events; the first is that of the cursor `due`, which was taken before, or else `gone` is true.

        A follower need not see it: it was there a moment ago, but may be of an earlier boot.
        """
        events, refused, first = list[Event](), list[tuple[str, str]](), None
        for line in lines:
            self._seen += 1
            try:
                found = json.loads(line)
                self._cursor = found["__CURSOR"]
                first = first or self._cursor
                if self._cursor != due:
                    events.append(event_of(found))
            except (ValueError, KeyError, TypeError) as error:
                refused.append((f"entry {self._seen} of the journal", f"it cannot be read ({error})"))
        gaps = (gone,) if gone and first != due else ()
        if not events and not refused and not gaps:
            return None
        return Batch(events, {"cursor": self._cursor} if self._cursor else None, refused=tuple(refused), gaps=gaps)


async def _gathered(stream: asyncio.StreamReader) -> AsyncIterator[list[bytes]]:
    """Lines, with those that are there already together."""
    rest = b""
    while data := await stream.read(1 << 18):
        *lines, rest = (rest + data).split(b"\n")
        for first in range(0, len(lines), _AT_ONCE):
            yield [line for line in lines[first : first + _AT_ONCE] if line.strip()]
    if rest.strip():
        yield [rest]


def event_of(entry: dict[str, Any]) -> Event:
    """An entry of the journal: who is its user, what its program said of which unit."""
    words = {name: _text(entry[name]) for name in _KEPT if entry.get(name) is not None}
    if entry.get("PRIORITY") is not None:
        words["priority"] = _text(entry["PRIORITY"])
    program = _text(entry.get("SYSLOG_IDENTIFIER") or entry.get("_COMM") or "unknown")
    unit = _text(entry.get("_SYSTEMD_UNIT") or entry.get("UNIT") or program)
    uid = entry.get("_UID")
    return {
        "time": _moment(entry),
        "source": "journal",
        "actor": fitting(f"uid {_text(uid)}", _PROGRAM) if uid is not None else None,
        "action": f"journal.{_WORD.sub('_', program)[:_PROGRAM].strip('_') or 'unknown'}",
        "subject": fitting(unit),
        "attributes": {"message": _text(entry.get("MESSAGE") or ""), **words},
    }


def _moment(entry: dict[str, Any]) -> int:
    """When it was said, else when the journal took it, else now; a time that the log cannot hold is none."""
    for name in ("_SOURCE_REALTIME_TIMESTAMP", "__REALTIME_TIMESTAMP"):
        with suppress(ValueError):
            said = int(_text(entry.get(name))) * 1000
            if 0 <= said <= LATEST:
                return said
    return time.time_ns()


def _text(value: Any) -> str:
    """journalctl writes what is no UTF-8 as numbers, and fields that stand twice as lists."""
    if isinstance(value, list):
        if all(isinstance(v, int) for v in value):
            return bytes(v & 255 for v in value).decode("utf-8", errors="backslashreplace")
        return " ".join(_text(v) for v in value)
    return str(value)
