"""The systemd journal source: `journalctl -o json`, from now on, or from the saved cursor.

The journal keeps unread entries, so nothing is lost while no watcher runs, unless the journal was rotated past the
cursor; then the batch has a gap. Three traps of journalctl: a follower shows only the current boot, so existing entries
are read first; `--after-cursor` skips one entry if the entry of the cursor is gone, so the entry of the cursor is read
and compared; without `--all` a field of more than 4 KiB is null.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ridgeline.audit.sources.source import LATEST, Batch, Event, Position, shorten
from ridgeline.errors import InputError, RidgelineError

# Fields of an entry and the attributes that they become; the journal sets those with an underscore itself.
_FIELDS = {"_UID": "uid", "_PID": "pid", "_EXE": "exe", "_SYSTEMD_UNIT": "unit", "_HOSTNAME": "host", "_COMM": "comm"}
_WORD = re.compile(r"[^A-Za-z0-9_-]+")
_PROGRAM = 256  # most characters of a program's name in an action
_AT_ONCE = 2_000  # entries in one batch
_LONGEST = 8 << 20
_LOST = "the journal no longer has the last entry that was read; the entries that it removed since then are lost."


class Journal:
    """Reads the systemd journal.

    matches    match rules of journalctl, like `_SYSTEMD_UNIT=ssh.service`
    directory  a folder with journals of this or other machines; by default this machine's journal
    follow     wait for further entries
    """

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
        self._cursor: str | None = None  # of the last entry read
        self._seen = 0

    def stop(self) -> None:
        self._stopped = True
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()  # what it has written is still in the pipe, and is read

    async def batches(self, position: Position | None) -> AsyncGenerator[Batch, None]:
        self._cursor, start_s, lost = position["cursor"] if position else None, time.time(), False
        if self._cursor or not self._follow:  # existing entries, of every boot
            before = self._seen
            async for batch in self._read([]):
                yield batch
            if self._cursor and self._seen == before and not self._stopped:
                lost = True
                yield Batch([], {"cursor": self._cursor}, gaps=(_LOST,))
        if self._follow and not self._stopped:
            # Without a cursor a follower starts now; --no-follow reads the history.
            async for batch in self._read(["-f", f"--since=@{start_s:.6f}"] if lost else ["-f"], lost):
                yield batch

    async def _read(self, how: list[str], lost: bool = False) -> AsyncIterator[Batch]:
        """Run journalctl once, from the entry of the cursor on; that entry is compared and left out."""
        follow, expected = bool(how), None if lost else self._cursor
        start = [f"--cursor={expected}"] if expected else []
        lines = (["-n", "all"] if expected or lost else ["-n", "0"]) if follow else []
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
            async for some in _gather_lines(process.stdout):
                batch = self._batch(some, expected, gone=_LOST if expected and not follow else None)
                expected = None
                if batch is not None:
                    yield batch
            errors = (await trouble).decode(errors="replace").strip()
            status = await process.wait()
            if not self._stopped and (status != 0 or follow):
                raise InputError(
                    f"journalctl ended with {status}: {errors.splitlines()[-1] if errors else 'no message'}."
                )
        finally:
            trouble.cancel()
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    def _batch(self, lines: list[bytes], expected: str | None, gone: str | None) -> Batch | None:
        """Make a batch of entries. The first must be that of the cursor `expected`; if not, `gone` is the gap.

        A follower need not see that entry: it existed a moment ago, but may belong to an earlier boot.
        """
        events, refused, first = list[Event](), list[tuple[str, str]](), None
        for line in lines:
            self._seen += 1
            try:
                entry = json.loads(line)
                self._cursor = entry["__CURSOR"]
                first = first or self._cursor
                if self._cursor != expected:
                    events.append(make_event(entry))
            except (ValueError, KeyError, TypeError) as error:
                refused.append((f"entry {self._seen} of the journal", f"it cannot be read ({error})"))
        gaps = (gone,) if gone and first != expected else ()
        if not events and not refused and not gaps:
            return None
        return Batch(events, {"cursor": self._cursor} if self._cursor else None, refused=tuple(refused), gaps=gaps)


async def _gather_lines(stream: asyncio.StreamReader) -> AsyncIterator[list[bytes]]:
    """Yield lists of lines; lines that are available together come together."""
    start = list[bytes]()  # pieces of a line without an end yet
    while data := await stream.read(1 << 18):
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*start, lines[0]])
            start = []
        start.append(rest)
        for first in range(0, len(lines), _AT_ONCE):
            yield [line for line in lines[first : first + _AT_ONCE] if line.strip()]
    if (last := b"".join(start)).strip():
        yield [last]


def make_event(entry: dict[str, Any]) -> Event:
    """Make an event of a journal entry: actor the user, action the program, subject the unit."""
    words: dict[str, Any] = {
        name: _text(entry[field]) for field, name in _FIELDS.items() if entry.get(field) is not None
    }
    words |= {name: int(words[name]) for name in ("uid", "pid") if words.get(name, "").isdecimal()}
    if entry.get("_TRANSPORT") is not None:
        words["_transport"] = _text(entry["_TRANSPORT"])
    if entry.get("PRIORITY") is not None:
        words["priority"] = _text(entry["PRIORITY"])
    program = _text(entry.get("SYSLOG_IDENTIFIER") or entry.get("_COMM") or "unknown")
    unit = _text(entry.get("_SYSTEMD_UNIT") or entry.get("UNIT") or program)
    uid = entry.get("_UID")
    return {
        "time": _moment(entry),
        "source": "journal",
        "actor": shorten(f"uid {_text(uid)}", _PROGRAM) if uid is not None else None,
        "action": f"journal.{_WORD.sub('_', program)[:_PROGRAM].strip('_') or 'unknown'}",
        "subject": shorten(unit),
        "attributes": {"message": _text(entry.get("MESSAGE") or ""), **words},
    }


def _moment(entry: dict[str, Any]) -> int:
    """Return the time of the message, else the time of the journal, else now (ns); skip times that the log refuses."""
    for name in ("_SOURCE_REALTIME_TIMESTAMP", "__REALTIME_TIMESTAMP"):
        with suppress(ValueError):
            time_ns = int(_text(entry.get(name))) * 1000
            if 0 <= time_ns <= LATEST:
                return time_ns
    return time.time_ns()


def _text(value: Any) -> str:
    """Return a field as text: journalctl writes invalid UTF-8 as numbers, and repeated fields as lists."""
    if isinstance(value, list):
        if all(isinstance(v, int) for v in value):
            return bytes(v & 255 for v in value).decode("utf-8", errors="backslashreplace")
        return " ".join(_text(v) for v in value)
    return str(value)
