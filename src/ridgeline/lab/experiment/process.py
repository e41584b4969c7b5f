"""The parent's end of a point: start its process, hear its answer, end it when its time is over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ridgeline.lab.experiment.point import Point

LAST_WORDS = 64 << 10  # bytes of its log that are searched for them
PIECE = 1 << 20


class Running:
    """One child. `poll` gives its answer once there is one, or {"failed": why}."""

    def __init__(self, point: Point, cpus: tuple[int, ...], log: Path) -> None:
        self.point, self.cpus, self.log = point, cpus, log
        self.began = time.monotonic()
        order = json.dumps({**point.to_json(), "cpus": cpus}).encode()
        self.fd, theirs = os.pipe()
        life, self._life = os.pipe()
        try:
            with log.open("ab") as out:
                self._child = subprocess.Popen(
                    [sys.executable, "-m", "ridgeline.lab.experiment.child", str(theirs), str(life), str(os.getpid())],
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=out,
                    pass_fds=(theirs, life),
                    start_new_session=True,  # Ctrl-C is the parent's to handle, and its group is its own
                    env={**os.environ, "PYTHONUNBUFFERED": "1"},
                )
        finally:
            os.close(theirs)
            os.close(life)
        os.set_blocking(self.fd, False)
        self._said = b""
        assert self._child.stdin is not None  # noqa: S101  it was asked for
        with suppress(BrokenPipeError):  # it is gone already; poll will say why
            self._child.stdin.write(order)
            self._child.stdin.close()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def left_s(self) -> float:
        return self.point.timeout_s - self.seconds

    def poll(self) -> dict[str, Any] | None:
        ended = self._child.poll() is not None
        said_all = self._listen()
        if said_all or ended:
            with suppress(ValueError):
                found = json.loads(self._said, parse_constant=lambda _: None)
                if isinstance(found, dict):
                    return found
            return {"failed": self._cause_of_death()}
        if self.left_s <= 0:
            self._kill_group()
            return {"failed": f"gave no answer within {self.point.timeout_s:g} s and was stopped"}
        return None

    def close(self) -> None:
        """End the child and whatever it started; safe to call twice."""
        if self._child.returncode is None:
            self._kill_group()
            self._child.wait()
        for fd in (self.fd, self._life):
            with suppress(OSError):
                os.close(fd)
        self.fd = self._life = -1

    def _listen(self) -> bool:
        """Read what is there; True at the end."""
        with suppress(BlockingIOError):
            while piece := os.read(self.fd, PIECE):
                self._said += piece
            return True
        return False

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def _cause_of_death(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(5)
        code = self._child.returncode
        self._kill_group()  # what it forked is not left behind
        if code is None:
            how = "closed its pipe"
        else:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        with self.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - LAST_WORDS))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        return f"{how}: {lines[-1][:300]}" if lines else how
