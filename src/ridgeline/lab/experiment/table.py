"""All experiments as one table: `ridgeline.lab.load_experiments("outputs/")`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, MissingExtra
from ridgeline.lab.experiment.folder import SUMMARY, Folder, read_state
from ridgeline.lab.experiment.rows import rows


def load_experiments(outputs: Path | str = "outputs") -> Any:
    """One pyarrow table with a row per point of every experiment below `outputs` (or of that one folder).

    Columns are those of results.json, and `folder`; a column that a row lacks is null there. `.to_pandas()` where
    pandas is installed.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtra("load_experiments", "experiments") from None
    found = load_rows(outputs)
    names = list(dict.fromkeys(name for one in found for name in one))
    return pa.table({name: [one.get(name) for one in found] for name in names})


def load_rows(outputs: Path | str = "outputs") -> list[dict[str, Any]]:
    """The same as plain rows, made from the records."""
    base = Path(outputs)
    folders = [base] if (base / SUMMARY).is_file() else sorted(p.parent for p in base.glob(f"*/{SUMMARY}"))
    if not folders:
        raise InputError(f"there is no experiment in '{outputs}'; run one: ridgeline run experiment=quick_test.")
    found: list[dict[str, Any]] = []
    for folder in folders:
        read_state(folder)
        found += [{"folder": folder.name, **one} for one in rows(Folder(folder).records())]
    return found
