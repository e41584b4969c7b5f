"""From records to the rows of results.json: flat, one per point, with nothing that the record does not have.

    jq '.[] | {run_id, duration, success, gpu_id, numa_node}' outputs/*/results.json

`ridgeline.lab.load_experiments("outputs/")` reads all experiments as one table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, MissingExtra
from ridgeline.lab.experiment.folder import RESULTS, SUMMARY, ExperimentFolder, read_state, write_state
from ridgeline.lab.study.rows import build_rows, summarize

WRITE_EVERY_S = 2.0  # least time between two updates of results.json
WRITE_SHARE = 20  # an update that takes long is followed by a pause of this many times its duration


class ResultsWriter:
    """Updates results.json and the summary while points are measured."""

    def __init__(self, folder: ExperimentFolder, state: Mapping[str, Any]) -> None:
        self._folder, self._state = folder, dict(state)
        self._due = 0.0

    def update(self) -> None:
        """Write the results if the last update is long enough ago."""
        if time.monotonic() >= self._due:
            self.write(finished=False)

    def write(self, *, finished: bool) -> list[dict[str, Any]]:
        """Write results.json and the summary; return the rows."""
        start = time.monotonic()
        rows = build_rows(self._folder.records())
        self._folder.write(RESULTS, json.dumps(rows, indent=1) + "\n")
        end_time = datetime.now(UTC).isoformat(timespec="seconds") if finished else None
        write_state(self._folder, {**self._state, "finished": end_time, **summarize(rows)})
        now = time.monotonic()
        self._due = now + max(WRITE_EVERY_S, WRITE_SHARE * (now - start))
        return rows


def load_experiments(outputs: Path | str = "outputs") -> Any:
    """Return one pyarrow table with a row per point of every experiment below `outputs` (or of that one folder).

    Columns are those of results.json, and `folder`; a value that a row lacks is null. `.to_pandas()` works where pandas
    is installed. Raises InputError where there is no experiment, and MissingExtra without pyarrow.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtra("load_experiments", "experiments") from None
    rows = load_rows(outputs)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def load_rows(outputs: Path | str = "outputs") -> list[dict[str, Any]]:
    """Return the rows of every experiment below `outputs`, made from the records."""
    base = Path(outputs)
    folders = [base] if (base / SUMMARY).is_file() else sorted(p.parent for p in base.glob(f"*/{SUMMARY}"))
    if not folders:
        raise InputError(f"there is no experiment in '{outputs}'; run one: ridgeline run experiment=quick_test.")
    rows: list[dict[str, Any]] = []
    for folder in folders:
        read_state(folder)
        rows += [{"folder": folder.name, **row} for row in build_rows(ExperimentFolder(folder).records())]
    return rows
