"""Race commands: every run is a new process, contained, measured and checked.

    ridgeline bench -- ./old --flag -- ./new --flag

All commands start from one small process (command_runner.py), in turn, in shuffled order, one run a turn. What a
process gets by chance at its start (addresses, the core) differs from run to run and averages out.
"""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.lab.race import command_runner
from ridgeline.lab.race.own_race import OwnRace
from ridgeline.lab.race.process import ContenderFailure, Group
from ridgeline.lab.workload import Case
from ridgeline.machine import Placement, placed

KEEP_BYTES = 64 << 20  # of an output that --check reads
HELPER_TIMEOUT_S = 600.0  # of a set-up or clean-up command
CLOSE_S = 12.0  # the runner ends the processes of the last command in this time
MEMORY_SHARE = 0.75  # of the available memory: the limit without --memory


@dataclass(frozen=True)
class CommandOptions:
    """How commands are run and checked."""

    setup: str | None = None  # shell command before the first run of a case; {name} is a parameter
    prepare: str | None = None  # shell command before every run, not timed
    cleanup: str | None = None  # shell command after the last run of a case, also after a failure
    warmup: int = 1  # runs that do not count
    same_output: bool = False  # the standard output must be that of the first command
    check: str | None = None  # shell command that gets the output on its standard input; exit code 0: right
    exit_codes: tuple[int, ...] = (0,)
    memory_bytes: int | None = None  # per contender; None: three quarters of the available memory
    timeout_s: float = 120.0


def make_command_race(
    commands: Sequence[Sequence[str]],
    names: Sequence[str],
    options: CommandOptions,
    placement: Placement,
    repeat: str,
    margin: float,
) -> OwnRace:
    """Return the race of these commands; {name} in a word is replaced by the value of a parameter."""

    @contextmanager
    def start(case: Case) -> Iterator[Mapping[str, Group]]:
        runner = Runner(placement)
        reference: dict[str, str] = {}
        try:
            if options.setup:
                _run_shell(fill(options.setup, case), "--setup")
            groups = (CommandGroup(list(c), case, options, runner, reference) for c in commands)
            yield dict(zip(names, groups, strict=True))
        finally:
            runner.close()
            if options.cleanup:
                _run_shell(fill(options.cleanup, case), "--cleanup")

    settings = {**asdict(options), "commands": [list(c) for c in commands]}
    return OwnRace("commands", tuple(names), start, command=repeat, settings=settings, margin=margin)


def fill(text: str, case: Case) -> str:
    """Replace {name} by the value of each parameter of the case; other braces stay.

    >>> fill("head -c {size} {x}", Case({"size": 10}))
    'head -c 10 {x}'
    """
    for name, value in case.params.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


class Runner:
    """The small process that starts all commands of a race. It ends their processes when it ends."""

    def __init__(self, placement: Placement) -> None:
        command = [sys.executable, "-I", "-S", str(Path(command_runner.__file__).resolve())]
        with placed(placement) as where:
            self.placed = asdict(where)
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )

    def run(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Run one command; raises ContenderFailure if the runner itself does not answer."""
        assert self._process.stdin is not None  # noqa: S101  a pipe
        assert self._process.stdout is not None  # noqa: S101  a pipe
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ContenderFailure("lost the process that starts commands") from None
        ready, _, _ = select.select([self._process.stdout], [], [], order["timeout_s"] + 60)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            raise ContenderFailure("lost the process that starts commands")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the runner and every process that a command left; safe to call twice."""
        if self._process.stdin and not self._process.stdin.closed:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()


class CommandGroup:
    """One command of a race: carries out the orders that the process of a workload's contender carries out."""

    ranks = 1
    fresh = False

    def __init__(
        self, words: list[str], case: Case, options: CommandOptions, runner: Runner, reference: dict[str, str]
    ) -> None:
        self._argv = [fill(word, case) for word in words]
        self._words, self._case, self._options, self._runner = words, case, options, runner
        self._reference = reference  # "digest": of the output of the first command
        self._memory = options.memory_bytes or _choose_memory_limit()
        self._runs: dict[str, list[Any]] = {"cpu_ns": [], "peak_bytes": [], "instructions": []}
        self._check: dict[str, Any] = {"ok": True, "error": None, "quality": {}, "note": ""}

    def do(
        self, what: str, timeout_s: float, per_rank: Sequence[Mapping[str, Any]] | None = None, **order: Any
    ) -> list[dict[str, Any]]:
        """Carry out one order."""
        return [getattr(self, f"_do_{what}")(timeout_s)]

    def send(self, what: str, per_rank: Sequence[Mapping[str, Any]] | None = None, **order: Any) -> None:
        """Do nothing: nothing has to be loaded."""

    def receive(self, timeout_s: float, *, allow_failure: bool = False) -> list[dict[str, Any]]:
        """Return nothing."""
        return []

    def kill(self) -> None:
        """Do nothing: no process of a command outlives its run."""

    def _do_prepare(self, timeout_s: float) -> dict[str, Any]:
        for _ in range(self._options.warmup):
            self._run(timeout_s)
        answer = self._run(timeout_s, keep=KEEP_BYTES if self._options.check else 0)
        self._check_output(answer)
        return {
            "sample_ns": answer["wall_ns"],
            "calls_per_sample": 1,
            "settings": {"command": self._words},
            "placed": self._runner.placed,
            "check": self._check,
        }

    def _do_turn(self, timeout_s: float) -> dict[str, Any]:
        start = time.perf_counter_ns()
        answer = self._run(timeout_s)
        for name, values in self._runs.items():
            values.append(answer[name])
        if self._options.same_output:
            self._compare_output(answer)
        return {"samples_ns": [answer["wall_ns"]], "turn_ns": time.perf_counter_ns() - start}

    def _do_check(self, timeout_s: float) -> dict[str, Any]:
        if self._options.check:
            self._check_output(self._run(timeout_s, keep=KEEP_BYTES))
        return {"check": self._check}

    def _do_extras(self, timeout_s: float) -> dict[str, Any]:
        return {"extras": {"runs": self._runs}}

    def _do_close(self, timeout_s: float) -> dict[str, Any]:
        return {}

    def _run(self, timeout_s: float, keep: int = 0) -> dict[str, Any]:
        if self._options.prepare:
            _run_shell(fill(self._options.prepare, self._case), "--prepare")
        answer = self._runner.run(
            {"argv": self._argv, "timeout_s": timeout_s, "memory": self._memory, "keep": keep, "cwd": os.getcwd()}
        )
        if answer["failure"]:
            raise ContenderFailure(answer["failure"])
        if (code := answer["code"]) not in self._options.exit_codes:
            lines = [line.strip() for line in answer["stderr"].splitlines() if line.strip()]
            cause = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
            raise ContenderFailure(f"{cause}: {lines[-1][:300]}" if lines else cause)
        return answer

    def _check_output(self, answer: Mapping[str, Any]) -> None:
        if self._options.same_output:
            self._compare_output(answer)
        if self._options.check and self._check["ok"]:
            if answer["size"] > KEEP_BYTES:
                self._fail(f"its output has more than {KEEP_BYTES >> 20} MiB, which --check cannot read")
                return
            output = base64.b64decode(answer["output"] or "")
            code = _run_shell(fill(self._options.check, self._case), "--check", output)
            if code:
                self._fail(f"--check ended with exit code {code}")

    def _compare_output(self, answer: Mapping[str, Any]) -> None:
        if answer["digest"] != self._reference.setdefault("digest", answer["digest"]):
            self._fail("its standard output differs from that of the first command")

    def _fail(self, note: str) -> None:
        self._check = {**self._check, "ok": False, "note": note}


def _run_shell(text: str, option: str, stdin: bytes | None = None) -> int:
    """Run a shell command of the user; only --check may fail."""
    try:
        process = subprocess.run(
            ["sh", "-c", text],
            input=stdin if stdin is not None else b"",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=HELPER_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"{option} '{text}' did not end within {HELPER_TIMEOUT_S:.0f} s.") from None
    if process.returncode and option != "--check":
        lines = process.stderr.decode(errors="replace").strip().splitlines()
        reason = f": {lines[-1][:200]}" if lines else ""
        raise InputError(f"{option} '{text}' ended with exit code {process.returncode}{reason}.")
    return process.returncode


def _choose_memory_limit() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(int(line.split()[1]) * 1024 * MEMORY_SHARE)
    return None
