"""Tests with the fixture `benchmark` of pytest-benchmark as a workload, so that two versions can take turns.

    ridgeline bench tests/test_speed.py --against main --build 'pip install .'

The contender's process first runs the test with a fixture that calls the function once: it must pass. Then it runs
the test again in a thread that waits inside `benchmark(…)`, with all fixtures alive, while the function is timed.
`benchmark.pedantic(setup=…)` needs fresh arguments for every call: `pytest --ridgeline` measures such tests.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.lab.workload import Case, Check, Profile, Run, Steps, Work
from ridgeline.machine import Placement

WORDS = ("-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:benchmark", "-p", "no:xdist")
WAIT_S = 60.0  # for a test to reach its benchmark, or to end after it


def is_pytest_file(path: str) -> bool:
    """Whether a file has a name that pytest collects.

    >>> is_pytest_file("tests/test_speed.py"), is_pytest_file("mine/decode.py")
    (True, False)
    """
    name = Path(path).name
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


class PytestSuite:
    """The tests of a file that use the fixture `benchmark`."""

    needs_ceilings = False  # the work of these tests is unknown

    def __init__(self, file: Path) -> None:
        if find_spec("pytest") is None:
            raise InputError(f"'{file}' is a file of tests, and pytest is missing: pip install pytest.")
        self.name, self._file = file.stem, file.resolve()

    def cases(self, profile: Profile) -> list[Case]:
        """List the tests; raises InputError if there is none, or the file cannot be imported."""
        collector = _Collector()
        code, output = _run_pytest([str(self._file), "--collect-only"], [collector, _make_fixture(_call_once)])
        if not collector.tests:
            raise InputError(f"'{self._file}' has no test with the fixture benchmark{_explain(code, output)}.")
        return [Case({"test": name}) for name in collector.tests]

    def work(self, case: Case) -> Work:
        """Count calls: the work of a test is not known."""
        return Work(items=1, unit="calls", launches=0)

    def contenders(self, case: Case) -> Sequence[str]:
        """Name the folder above the tests; its versions are contenders with --against."""
        return [self._file.parent.parent.name or "test"]

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        """Run the test once, then hold it inside its benchmark."""
        test = f"{self._file}::{case['test']}"
        code, output = _run_pytest([test], [_make_fixture(_call_once)])
        if code:
            raise InputError(f"the test {case['test']} does not pass{_explain(code, output)}.")
        paused_test = _HeldTest()
        paused_test.start(test)
        return Steps(paused_test.function, lambda: None, close=paused_test.release)

    def check(self, case: Case, result: Any) -> Check:
        """Note that the test itself has checked."""
        return Check(ok=True, note="the test passed")


class _Collector:
    """Remembers the tests that use the fixture, by what follows the file in their names."""

    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_collection_finish(self, session: Any) -> None:
        self.tests = [i.nodeid.partition("::")[2] for i in session.items if "benchmark" in i.fixturenames]


def _call_once(function: Callable[[], Any]) -> Any:
    return function()


def _make_fixture(handle: Callable[[Callable[[], Any]], Any]) -> Any:
    """Return a plugin with the fixture `benchmark`, which hands the function to `handle` and returns its answer."""
    import pytest

    class Fixture:
        @pytest.fixture
        def benchmark(self) -> _Benchmark:
            return _Benchmark(handle)

    return Fixture()


class _Benchmark:
    """The calls of pytest-benchmark's fixture."""

    def __init__(self, handle: Callable[[Callable[[], Any]], Any]) -> None:
        self._handle = handle
        self.extra_info: dict[str, Any] = {}
        self.group: str | None = None

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._handle(partial(function, *args, **kwargs))

    def pedantic(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        setup: Callable[[], Any] | None = None,
        **_: Any,
    ) -> Any:
        if setup is not None:
            raise InputError("benchmark.pedantic(setup=…) needs fresh arguments for each call; use pytest --ridgeline.")
        return self._handle(partial(target, *args, **dict(kwargs or {})))


class _HeldTest:
    """A test that waits inside its benchmark until `release`."""

    def __init__(self) -> None:
        self._reached, self._released = threading.Event(), threading.Event()
        self._function: Callable[[], Any] | None = None
        self._thread: threading.Thread | None = None

    @property
    def function(self) -> Callable[[], Any]:
        """The function that the test measures."""
        assert self._function is not None  # noqa: S101  `start` has waited for it
        return self._function

    def start(self, test: str) -> None:
        """Run the test up to its benchmark; raises InputError if it does not get there."""

        def run() -> None:
            _call_pytest([test], [_make_fixture(self._hold)])
            self._reached.set()

        self._thread = threading.Thread(target=run, daemon=True)
        # pytest keeps the stream that it finds when it starts. What the test prints later is not redirected.
        with contextlib.redirect_stdout(io.StringIO()):
            self._thread.start()
            self._reached.wait(WAIT_S)
        if self._function is None:
            raise InputError(f"the test {test.partition('::')[2]} does not call benchmark within {WAIT_S:.0f} s.")

    def release(self) -> None:
        """Let the test go on to its end."""
        self._released.set()
        if self._thread is not None:
            self._thread.join(WAIT_S)

    def _hold(self, function: Callable[[], Any]) -> Any:
        self._function = function
        answer = function()
        self._reached.set()
        self._released.wait()
        return answer


def _run_pytest(arguments: Sequence[str], plugins: Sequence[Any]) -> tuple[int, str]:
    """Run pytest in this process; return its exit code and what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = _call_pytest(arguments, plugins)
    return code, output.getvalue()


def _call_pytest(arguments: Sequence[str], plugins: Sequence[Any]) -> int:
    import pytest

    return int(pytest.main([*arguments, *WORDS, "--capture=no"], plugins=list(plugins)))


def _explain(code: int, output: str) -> str:
    """Return the reason that pytest printed last, if it failed."""
    lines = [line.strip() for line in output.splitlines() if line.startswith(("E ", "FAILED", "ERROR"))]
    return f": {lines[0].removeprefix('E').strip().rstrip('.')[:300]}" if code and lines else ""
