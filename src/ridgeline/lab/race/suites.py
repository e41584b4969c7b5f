"""A folder of benchmarks in the form of asv as a workload: `time_*` functions and methods, with their parameters.

    ridgeline bench benchmarks                       # the folder that asv.conf.json names, or any such folder
    ridgeline bench benchmarks --against main

Read as asv reads them: `setup`, `teardown`, `setup_cache`, `params`, `param_names`, as attributes of a function, its
class or its module; a `setup` that raises NotImplementedError leaves its case out. The modules are imported as a
package, with the folder above it on the path. `mem_*`, `peakmem_*` and `track_*` are not read, nor are `number` and
`repeat`: the lab chooses them.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ridgeline.errors import CaseLeftOut, InputError
from ridgeline.lab.workload import Case, Check, Profile, Run, Scalar, Steps, Work
from ridgeline.machine import Placement

CONFIG = "asv.conf.json"
COMMENT = re.compile(r"""("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/""", re.DOTALL)  # but not inside a string
COMMA = re.compile(r"""("(?:\\.|[^"\\])*")|,(\s*[}\]])""")  # before a bracket


@dataclass(frozen=True)
class Benchmark:
    """One `time_*` function, or method of a class."""

    name: str  # "bench_total.Total.time_sum"
    create: Callable[[], Any]  # returns what holds the function: a new object of the class, or the module
    method: str
    module: Any
    params: tuple[tuple[Any, ...], ...]
    param_names: tuple[str, ...]

    def list_points(self) -> list[tuple[dict[str, Scalar], tuple[Any, ...]]]:
        """Return the cases: the parameters as a record holds them, and their values."""
        points = []
        for values in itertools.product(*self.params):
            labels = {name: _show(value) for name, value in zip(self.param_names, values, strict=True)}
            points.append(({"benchmark": self.name, **labels}, values))
        return points


class Suite:
    """The benchmarks of a folder, as a workload."""

    needs_ceilings = False  # the work is not counted of these benchmarks

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self._project = _read_project(folder) or folder.resolve().parent.name
        self._benchmarks = list(_load_benchmarks(folder))
        if not self._benchmarks:
            raise InputError(f"'{folder}' holds no benchmark: no function or method time_* in its modules.")
        self._points = {_make_key(params): (b, values) for b in self._benchmarks for params, values in b.list_points()}

    def cases(self, profile: Profile) -> list[Case]:
        """List every benchmark with each of its parameters."""
        return [Case(params) for b in self._benchmarks for params, _ in b.list_points()]

    def work(self, case: Case) -> Work:
        """Count calls: the work of a foreign benchmark is not known."""
        return Work(items=1, unit="calls", launches=0)

    def contenders(self, case: Case) -> Sequence[str]:
        """Name the project; its versions are contenders with --against."""
        return [self._project]

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        """Set one benchmark up."""
        key = _make_key(case.params)
        if key not in self._points:
            raise InputError(f"there is no benchmark {case.label} in '{self.name}'.")
        benchmark, values = self._points[key]
        owner = benchmark.create()
        function = getattr(owner, benchmark.method)
        sources = [function, owner] if owner is benchmark.module else [function, owner, benchmark.module]
        caches = [source.setup_cache for source in sources if hasattr(source, "setup_cache")]
        arguments = (caches[0](), *values) if caches else values
        try:
            for source in reversed(sources):  # of the module first
                if hasattr(source, "setup"):
                    source.setup(*arguments)
        except NotImplementedError:
            raise CaseLeftOut("its setup raised NotImplementedError") from None
        step = function if not arguments else (lambda: function(*arguments))

        def close() -> None:
            for source in sources:
                if hasattr(source, "teardown"):
                    source.teardown(*arguments)

        return Steps(step, lambda: None, close=close)

    def check(self, case: Case, result: Any) -> Check:
        """Say that benchmarks of asv return no output to check."""
        return Check(ok=True, note="a benchmark of asv has no check")


def find_suite(folder: Path) -> Path:
    """Return the folder of the benchmarks: that of asv.conf.json in `folder`, or `folder` itself."""
    config = _read_config(folder)
    return folder / str(config.get("benchmark_dir", "benchmarks")) if config else folder


def _load_benchmarks(folder: Path) -> Iterator[Benchmark]:
    root = str(folder.resolve().parent)
    if root not in sys.path:
        sys.path.insert(0, root)
    importlib.invalidate_caches()
    package = folder.resolve().name
    names = sorted(
        ".".join(file.relative_to(folder).with_suffix("").parts)
        for file in folder.rglob("*.py")
        if file.name != "__init__.py"
        and not any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)
    )
    for name in names:
        try:
            module = importlib.import_module(f"{package}.{name}")
        except Exception as error:  # the code of a user may raise anything
            raise InputError(f"'{folder / name}' cannot be loaded: {type(error).__name__}: {error}.") from error
        for member, value in sorted(vars(module).items()):
            if member.startswith("time_") and inspect.isfunction(value) and value.__module__ == module.__name__:
                yield _describe(f"{name}.{member}", [value, module], partial(_return, module), member, module)
            elif inspect.isclass(value) and value.__module__ == module.__name__ and not member.startswith("_"):
                for method in sorted(m for m in dir(value) if m.startswith("time_") and callable(getattr(value, m))):
                    sources = [getattr(value, method), value, module]
                    yield _describe(f"{name}.{member}.{method}", sources, value, method, module)


def _return(module: Any) -> Any:
    return module


def _describe(name: str, sources: Sequence[Any], create: Callable[[], Any], method: str, module: Any) -> Benchmark:
    """Read params and param_names, which are one list for one parameter, or one list for each of several."""
    owner = next((source for source in sources if hasattr(source, "params")), sources[0])
    params = list(getattr(owner, "params", ()))
    if params and not isinstance(params[0], list | tuple):
        params = [params]
    names = list(next((s.param_names for s in sources if hasattr(s, "param_names")), ()))
    names += [f"param{i + 1}" for i in range(len(names), len(params))]
    return Benchmark(name, create, method, module, tuple(map(tuple, params)), tuple(names[: len(params)]))


def _show(value: Any) -> Scalar:
    return value if isinstance(value, int | float | str | bool) else repr(value)


def _make_key(params: Any) -> str:
    return json.dumps({name: str(value) for name, value in params.items()}, sort_keys=True)


def _read_project(folder: Path) -> str:
    return str(next((c["project"] for p in folder.resolve().parents[:2] if "project" in (c := _read_config(p))), ""))


def _read_config(folder: Path) -> dict[str, Any]:
    """Return asv.conf.json, which may hold comments; empty without one. Raises InputError for one that is damaged."""
    try:
        text = (folder / CONFIG).read_text()
    except OSError:
        return {}
    try:
        config = json.loads(COMMA.sub(r"\1\2", COMMENT.sub(r"\1", text)))
    except ValueError as error:
        raise InputError(f"'{folder / CONFIG}' is no JSON with comments: {error}.") from None
    return config if isinstance(config, dict) else {}
