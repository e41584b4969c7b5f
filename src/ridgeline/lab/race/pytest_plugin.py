"""`pytest --ridgeline`: tests with the fixture `benchmark` of pytest-benchmark write records.

    pytest --ridgeline --ridgeline-out runs/monday

Without --ridgeline the plugin does nothing, and the fixture is that of pytest-benchmark. Two runs are compared by
`ridgeline compare runs/monday runs/tuesday`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

DEFAULT_S = 1.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("ridgeline")
    group.addoption("--ridgeline", action="store_true", help="Write records for the fixture benchmark.")
    group.addoption("--ridgeline-out", default="ridgeline-report", metavar="DIR", help="Folder for records.jsonl.")
    group.addoption(
        "--ridgeline-budget",
        type=float,
        default=DEFAULT_S,
        metavar="S",
        help="Seconds for each benchmark (default: 1).",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Define the fixture if it is asked for."""
    if config.getoption("--ridgeline"):
        config.pluginmanager.register(_Fixtures(), "ridgeline-fixtures")


class _Fixtures:
    @pytest.fixture
    def benchmark(self, request: pytest.FixtureRequest) -> BenchmarkFixture:
        """Measure a function, write a record, and return what the function returns."""
        return BenchmarkFixture(request)


class BenchmarkFixture:
    """The calls of pytest-benchmark's fixture: `benchmark(f, *args)`, `benchmark.pedantic(f, args, kwargs, setup)`."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self.extra_info: dict[str, Any] = {}
        self.group: str | None = None
        self._used = False

    @property
    def name(self) -> str:
        """The name of the test."""
        return str(self._request.node.name)

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Measure `function(*args, **kwargs)` and return what it returns."""
        result = function(*args, **kwargs)
        self._measure(lambda: function(*args, **kwargs), None)
        return result

    def pedantic(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        setup: Callable[[], Any] | None = None,
        rounds: int = 1,
        warmup_rounds: int = 0,
        iterations: int = 1,
    ) -> Any:
        """Measure with fixed arguments, or with those that `setup` returns before every call.

        How often is decided by the time, not by `rounds` and `iterations`.
        """
        words = dict(kwargs or {})
        if setup is None:
            return self(target, *args, **words)

        def prepare() -> tuple[Any, Any]:
            arguments = setup()
            return arguments if isinstance(arguments, tuple) and len(arguments) == 2 else (args, words)

        first_args, first_words = prepare()
        result = target(*first_args, **first_words)
        self._measure(lambda a, w: target(*a, **w), prepare)
        return result

    def weave(self, *_: Any, **__: Any) -> None:
        """Refuse: functions inside other code are not measured."""
        raise NotImplementedError("ridgeline does not weave benchmarks into other code; call benchmark(f).")

    def _measure(self, function: Callable[..., Any], setup: Callable[[], Any] | None) -> None:
        from ridgeline.lab.race import race
        from ridgeline.lab.record import append_record

        if self._used:
            raise RuntimeError("the fixture benchmark measures one function for each test.")
        self._used = True
        config, node = self._request.config, self._request.node
        result = race(
            {"test": function},
            setup=setup,
            check=False,
            fresh=setup is not None,
            budget=config.getoption("--ridgeline-budget"),
            name=str(node.nodeid).partition("[")[0],
        )
        out = Path(config.getoption("--ridgeline-out"))
        out.mkdir(parents=True, exist_ok=True)
        params = getattr(getattr(node, "callspec", None), "params", {})
        for record in result.records:
            case = {**{name: _to_scalar(value) for name, value in params.items()}, **record.case}
            append_record(out, replace(record, case=case))


def _to_scalar(value: Any) -> Any:
    return value if isinstance(value, int | float | str | bool) else json.dumps(value, default=repr)
