"""The systemd journal, through `journalctl -o json`: from now on, or from the cursor where it was left.

The journal keeps what we have not read, so nothing is lost while the watcher is away, as long as the journal itself has
not been rotated past the cursor; then the batch says so.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from ridgeline.audit.sources import Batch, Event, Position
from ridgeline.errors import InputError, RidgelineError

_KEPT = ("_PID", "_UID", "_COMM", "_EXE", "_HOSTNAME", "_SYSTEMD_UNIT", "_TRANSPORT")
_WORD = re.compile(r"[^A-Za-z0-9_-]+")
_AT_ONCE = 2_000  # entries of one batch
_LONGEST = 8 << 20


class Journal:
    """`matches` are journalctl's own (`_SYSTEMD_UNIT=ssh.service`)."""

    def __init__(self, matches: Sequence[str] = (), *, follow: bool = True) -> None:
        program = shutil.which("journalctl")
        if program is None:
            raise InputError("there is no journalctl on this machine, so there is no journal to watch.")
        for match in matches:
            if not re.fullmatch(r"[A-Z0-9_]+=.*", match):
                raise InputError(f"'{match}' is no match of the journal; write it like _SYSTEMD_UNIT=ssh.service.")
        self.name = "journal" + "".join(f":{m}" for m in sorted(matches))
        self._command = [program, "-o", "json", "--no-pager", *(["-f"] if follow else []), *matches]
        self._follow = follow
        self._process: asyncio.subprocess.Process | None = None
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()  # what it had written is still in the pipe, and is read

    async def batches(self, position: Position | None) -> AsyncIterator[Batch]:
        # Without a cursor a follower begins now; history can be had with --no-follow.
        start = [f"--after-cursor={position['cursor']}"] if position else ["-n", "0"] if self._follow else []
        process = self._process = await asyncio.create_subprocess_exec(
            *self._command, *start, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, limit=_LONGEST
        )
        if process.stdout is None or process.stderr is None:
            raise RidgelineError("journalctl gave no pipe to read from.")
        trouble = asyncio.create_task(process.stderr.read())
        seen, cursor = 0, position["cursor"] if position else None
        try:
            async for lines in _gathered(process.stdout):
                events, refused = list[Event](), list[tuple[str, str]]()
                for line in lines:
                    seen += 1
                    try:
                        found = json.loads(line)
                        cursor = found["__CURSOR"]
                        events.append(event_of(found))
                    except (ValueError, KeyError, TypeError) as error:
                        refused.append((f"entry {seen} of the journal", f"it cannot be read ({error})"))
                yield Batch(events, {"cursor": cursor} if cursor else None, refused=tuple(refused))
            said = (await trouble).decode(errors="replace").strip()
            status = await process.wait()
            if not self._stopped and (status != 0 or self._follow):
                raise InputError(f"journalctl ended with {status}: {said.splitlines()[-1] if said else 'no word'}.")
        finally:
            trouble.cancel()
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


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
    stamp = entry.get("_SOURCE_REALTIME_TIMESTAMP") or entry.get("__REALTIME_TIMESTAMP")
    uid = entry.get("_UID")
    return {
        "time": int(_text(stamp)) * 1000 if stamp else time.time_ns(),
        "source": "journal",
        "actor": f"uid {_text(uid)}" if uid is not None else None,
        "action": f"journal.{_WORD.sub('_', program).strip('_') or 'unknown'}",
        "subject": unit,
        "attributes": {"message": _text(entry.get("MESSAGE") or ""), **words},
    }


def _text(value: Any) -> str:
    """journalctl writes what is no UTF-8 as numbers, and fields that stand twice as lists."""
    if isinstance(value, list):
        if all(isinstance(v, int) for v in value):
            return bytes(v & 255 for v in value).decode("utf-8", errors="backslashreplace")
        return " ".join(_text(v) for v in value)
    return str(value)
