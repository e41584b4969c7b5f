"""A server of several processes: engines (engine.py), workers (worker.py), and this process.

The supervisor opens the address, starts the processes, starts again what dies, and ends them in order: first the
workers, which answer what they accepted, then the engines. All workers accept connections from one socket. The sockets
of the engines belong to the supervisor, too, so that workers find a new engine where the old one was. There is one
engine for each device; only the first one has the indexes, whose rows can change.
"""

from __future__ import annotations

import logging
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from ridgeline import web
from ridgeline.errors import InputError, RidgelineError
from ridgeline.pipeline import die_with_parent
from ridgeline.serve.catalog import Settings
from ridgeline.serve.process_setup import DRAIN_S

MAX_WORKERS = 256
CHECK_S = 0.05
ENGINE_EXIT_S = 15.0  # from SIGTERM to the end of the engine
PAUSES_S = (0.0, 1.0, 5.0, 15.0, 60.0)  # before a process that died again and again is started once more
STABLE_S = 60.0  # a process that ran for so long has started well
_START = "import sys; sys.path[:] = {path!r}; from ridgeline.serve.supervisor import run_child; run_child()"
_log = logging.getLogger("ridgeline.serve")


@dataclass(eq=False)
class _Process:
    """The engine or a worker, and the process that runs it now.

    module   its `main` is called with the options
    options  sent by a pipe: a command line would show the token
    fds      open files that it inherits
    shared   the folder of the metrics of all processes
    """

    name: str
    module: str
    options: dict[str, Any]
    fds: tuple[int, ...]
    shared: Path
    process: subprocess.Popen[bytes] | None = None
    deaths: int = 0  # in a row
    started_s: float = 0.0
    start_s: float = 0.0  # when it is started again
    report: int = -1  # the end of a pipe: what the process says once, after its start
    _life: int = field(default=-1, repr=False)

    def start(self) -> None:
        self.release()
        report, child_report = os.pipe()
        life, self._life = os.pipe()
        self.report = report
        content = pickle.dumps((self.module, self.options, child_report, life, os.getpid()))
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START.format(path=sys.path)],
                stdin=subprocess.PIPE,
                stdout=2,  # text that libraries print is no part of our output
                env={**os.environ, web.SHARED_FOLDER: str(self.shared)},
                pass_fds=(*self.fds, child_report, life),
                start_new_session=True,  # only the supervisor gets Ctrl-C
            )
        finally:
            os.close(child_report)
            os.close(life)
        self.started_s = time.monotonic()
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):  # it is dead already
                self.process.stdin.write(content)
                self.process.stdin.close()

    def restart_if_dead(self) -> None:
        """Start the process again if it has ended; after a pause, if it ends again and again."""
        now_s = time.monotonic()
        if self.process is not None:
            code = self.process.poll()
            if code is None:
                return
            self.process = None
            self.deaths = 1 if now_s - self.started_s > STABLE_S else self.deaths + 1
            self.start_s = now_s + PAUSES_S[min(self.deaths, len(PAUSES_S)) - 1]
            ended = f"exited with code {code}" if code >= 0 else f"was killed by signal {-code}"
            _log.error("the %s %s and is started again %s", self.name, ended, self._read_refusal())
        if now_s >= self.start_s:
            try:
                self.start()
            except OSError as error:
                _log.error("the %s could not be started (%s)", self.name, error)
                self.start_s = now_s + PAUSES_S[-1]

    def _read_refusal(self) -> str:
        """Return what a process that has ended said of its reason."""
        if self.report < 0:
            return ""
        with os.fdopen(self.report, "rb") as file:
            content = file.read()
        self.report = -1
        kind, message = pickle.loads(content) if content else ("", "")  # noqa: S301  from our own process
        return f"({message})" if kind == "refused" else ""

    def terminate(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def end(self, deadline_s: float) -> None:
        """Wait for the end of the process until a time, then kill it."""
        if self.process is not None:
            try:
                self.process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.release()

    def release(self) -> None:
        for fd in (self.report, self._life):
            if fd >= 0:
                os.close(fd)
        self.report = self._life = -1


def run(
    workers: int,
    models: Sequence[str],
    indexes: Sequence[str],
    settings: Settings,
    devices: Sequence[str],
    *,
    host: str,
    port: int,
    token: str | None,
    watch: bool,
    announce: Callable[[str], object],
) -> None:
    """Serve with `workers` workers, and an engine for each device, until Ctrl-C or SIGTERM."""
    if not models and len(devices) > 1:
        raise InputError(f"there are {len(devices)} devices and no model; an index is on one device.")
    if not 1 <= workers <= MAX_WORKERS:
        raise InputError(f"--workers is {workers}; give 1 to {MAX_WORKERS}.")
    with (
        _catch_signals() as stop,
        tempfile.TemporaryDirectory(prefix="ridgeline-serve-", ignore_cleanup_errors=True) as folder,
        ExitStack() as stack,
    ):
        shared = Path(folder) / "metrics"
        shared.mkdir()
        listener, url = web.open_listener(host, port)
        with listener:
            engines, paths = [], []
            for number, device in enumerate(devices):
                paths.append(str(Path(folder) / f"engine-{number}"))
                engine_listener = stack.enter_context(socket.socket(socket.AF_UNIX))
                engine_listener.bind(paths[-1])
                engine_listener.listen(MAX_WORKERS)
                fd = engine_listener.fileno()
                options = {"models": models, "indexes": () if number else indexes, "watch": watch, "engine_fd": fd}
                options["settings"] = replace(settings, device=device)
                name = "engine" if len(devices) == 1 else f"engine {number + 1} ({device})"
                engines.append(_Process(name, "ridgeline.serve.engine", options, (fd,), shared))
            options = {"engine_paths": paths, "settings": settings, "listener_fd": listener.fileno()}
            options |= {"workers": workers, "token": token, "host": host}
            processes = [
                _Process(f"worker {number}", "ridgeline.serve.worker", options, (listener.fileno(),), shared)
                for number in range(1, workers + 1)
            ]
            try:
                for process in (*engines, *processes):  # workers start while the engines load their models
                    process.start()
                if all(_wait_until_loaded(engine, stop) for engine in engines):
                    announce(f"Serving on {url}/ (Ctrl-C stops it)")
                    while not stop.wait(CHECK_S):
                        for process in (*engines, *processes):
                            process.restart_if_dead()
                listener.close()
                for process in processes:
                    process.terminate()
                deadline_s = time.monotonic() + DRAIN_S + 5.0
                for process in processes:
                    process.end(deadline_s)
                for engine in engines:
                    engine.terminate()
                for engine in engines:
                    engine.end(time.monotonic() + ENGINE_EXIT_S)
            finally:
                for process in (*processes, *engines):
                    process.end(0.0)


def _wait_until_loaded(engine: _Process, stop: threading.Event) -> bool:
    """Wait until the engine has loaded the models; raise its error; False if the server has to stop before."""
    content = b""
    while not stop.is_set():
        if not select.select([engine.report], [], [], CHECK_S)[0]:
            continue
        part = os.read(engine.report, 65536)
        content += part
        if part:
            continue
        if not content:
            code = engine.process.wait() if engine.process is not None else 0
            raise RidgelineError(f"the engine ended while it loaded the models (exit code {code}); see its messages.")
        kind, message = pickle.loads(content)  # noqa: S301  from our own process
        if kind != "loaded":
            raise InputError(message)
        return True
    return False


@contextmanager
def _catch_signals() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_child() -> None:
    """Run the engine or a worker: the main function of their processes."""
    module, options, report_fd, life, parent = pickle.load(sys.stdin.buffer)  # noqa: S301  from the supervisor
    die_with_parent(life, parent)
    for fd in (report_fd, life):
        os.set_inheritable(fd, False)

    def report(kind: str, message: str) -> None:
        with os.fdopen(report_fd, "wb") as file:
            pickle.dump((kind, message), file)

    import_module(module).main(options, report)
