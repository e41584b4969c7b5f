"""The immutable state of an index: a search reads one snapshot, a change makes a new one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ridgeline.search.engine import Engine, SearchOptions
from ridgeline.search.inputs import as_matrix, compute_finite_norms
from ridgeline.search.recall import Curve
from ridgeline.search.rows import Rows, make_empty_rows
from ridgeline.search.truth import TruthSample, make_truth_sample


@dataclass(frozen=True)
class Snapshot:
    """The rows, the engine and the measured recall of an index. A change replaces the snapshot as a unit."""

    rows: Rows
    engine: Engine | None = None  # None before the first train or add
    curve: Curve | None = None
    truth: TruthSample | None = None  # only if the codes lose precision
    fast_paths: dict[Any, Any] = field(init=False, default_factory=dict)  # recorded searches by shape and options


def add_fast_path(snapshot: Snapshot, key: Any, given: Any, options: SearchOptions) -> None:
    """If the engine has a recording of this search, use it for the next search with the same key."""
    get_fast_path = getattr(snapshot.engine, "get_fast_path", None)
    recording = get_fast_path(given, options) if get_fast_path is not None else None
    if recording is None:
        return
    if isinstance(key[1], np.dtype):
        if hasattr(recording, "search_on_host"):
            snapshot.fast_paths[key] = _make_host_fast_path(snapshot, recording)
        return
    if _ids_are_rows(snapshot.rows):
        snapshot.fast_paths[key] = recording
        return

    def fast_path(queries: Any) -> tuple[Any, Any]:
        scores, rows = recording(queries)
        return scores, map_ids(snapshot.rows, rows)

    snapshot.fast_paths[key] = fast_path


def _make_host_fast_path(snapshot: Snapshot, recording: Any) -> Any:
    ids_are_rows = _ids_are_rows(snapshot.rows)
    checks_queries = getattr(recording, "checks_queries", False)

    def fast_path(queries: Any) -> tuple[Any, Any]:
        scores, rows = recording.search_on_host(queries)
        if not checks_queries and np.isnan(scores[:, 0]).any():
            compute_finite_norms(as_matrix(queries, None, "queries"), "queries")  # raises with the reason
        return scores, rows if ids_are_rows else map_ids(snapshot.rows, rows)

    return fast_path


def drop_removed_rows(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without the removed rows."""
    if snapshot.rows.alive is None or snapshot.engine is None:
        return snapshot
    live_rows = snapshot.rows.live_rows
    return replace(snapshot, rows=snapshot.rows.select_rows(live_rows), engine=snapshot.engine.select_rows(live_rows))


def drop_all_rows(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without rows whose engine stays trained; ids start at 0 again."""
    engine, truth = snapshot.engine, snapshot.truth
    return Snapshot(
        make_empty_rows(),
        None if engine is None else engine.select_rows(np.zeros(0, np.int64)),
        truth=None if truth is None else make_truth_sample(truth.queries, 0),
    )


def number_rows(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without the removed rows whose ids are counted from 0; its truth sample is given up."""
    snapshot = drop_removed_rows(snapshot)
    rows = snapshot.rows
    numbered = make_empty_rows().append(rows.count, None, rows.meta)
    return replace(snapshot, rows=numbered, curve=None, truth=None)


def map_ids(rows: Rows, row_numbers: Any) -> Any:
    """Return the ids of rows, −1 for no row, on the device of `row_numbers`."""
    ids: Any = rows.ids.rows
    if isinstance(row_numbers, np.ndarray):
        if not len(ids):
            return np.full_like(row_numbers, -1)
        return np.where(row_numbers >= 0, ids[np.maximum(row_numbers, 0)], -1)
    return row_numbers if _ids_are_rows(rows) else rows.map_tensor_ids(row_numbers)


def _ids_are_rows(rows: Rows) -> bool:
    """Whether ids are counted from 0, so that an id is its row."""
    ids = rows.ids.rows
    return not len(ids) or (rows.rising and int(ids[-1]) == rows.count - 1)
