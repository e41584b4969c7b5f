"""From a name to a workload: a module path, or a file of the user's own."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.lab.workload import Workload

METHODS = ("cases", "work", "contenders", "prepare", "check")


def load(reference: str) -> Workload:
    """The object `workload` of a module ("ridgeline.workloads.copy") or of a file ("mine/decode.py")."""
    if reference.endswith(".py"):
        path = Path(reference).resolve()
        if not path.is_file():
            raise InputError(f"there is no workload file '{reference}'.")
        spec = importlib.util.spec_from_file_location(f"ridgeline_workload_{path.stem}", path)
        if spec is None or spec.loader is None:
            raise InputError(f"'{reference}' cannot be loaded as Python.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # a file of the user's own: anything can be in it
            raise InputError(f"'{reference}' cannot be loaded: {type(error).__name__}: {error}.") from error
    else:
        module = importlib.import_module(reference)
    found: Workload | None = getattr(module, "workload", None)
    if found is None:
        raise InputError(f"'{reference}' defines no `workload`; end it with: workload = MyWorkload().")
    lacking = [m for m in METHODS if not callable(getattr(found, m, None))]
    if lacking or not getattr(found, "name", ""):
        raise InputError(f"the workload of '{reference}' lacks: {', '.join(lacking or ['name'])}.")
    return found
