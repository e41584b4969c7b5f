"""Load a workload from a module or from a Python file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.lab.race.pytest_suite import PytestSuite, is_pytest_file
from ridgeline.lab.race.suites import Suite
from ridgeline.lab.workload import Workload, is_path

METHODS = ("cases", "work", "contenders", "prepare", "check")


def load_workload(reference: str) -> Workload:
    """Load the object `workload` of a module ("ridgeline.workloads.copy") or of a file ("mine/decode.py").

    A folder ("/home/me/benchmarks") is a suite of asv, a file test_*.py one of pytest-benchmark.

    Raises InputError if there is no such file, it fails, or `workload` lacks a method.
    """
    if "/" in reference and Path(reference).is_dir():
        return Suite(Path(reference))
    if is_path(reference):
        path = Path(reference).resolve()
        if not path.is_file():
            raise InputError(f"there is no workload file '{reference}'.")
        if is_pytest_file(reference):
            return PytestSuite(path)
        spec = importlib.util.spec_from_file_location(f"ridgeline_workload_{path.stem}", path)
        if spec is None or spec.loader is None:
            raise InputError(f"'{reference}' cannot be loaded as Python.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))  # the file can import its neighbours, as if Python ran it
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # the code of a user may raise anything
            raise InputError(f"'{reference}' cannot be loaded: {type(error).__name__}: {error}.") from error
    else:
        module = importlib.import_module(reference)
    workload: Workload | None = getattr(module, "workload", None)
    if workload is None:
        raise InputError(f"'{reference}' defines no `workload`; end it with: workload = MyWorkload().")
    missing = [m for m in METHODS if not callable(getattr(workload, m, None))]
    if missing or not getattr(workload, "name", ""):
        raise InputError(f"the workload of '{reference}' lacks: {', '.join(missing or ['name'])}.")
    return workload
