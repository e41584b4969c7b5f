"""All that a search reads, and what is done with it as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ridgeline.search.engine import Ask, Engine
from ridgeline.search.inputs import finite_norms, matrix
from ridgeline.search.recall import Curve
from ridgeline.search.rows import Rows


@dataclass(frozen=True)
class State:
    """All that a search reads, replaced whole by whoever changes the index."""

    rows: Rows
    engine: Engine | None = None  # None until something was trained or added
    curve: Curve | None = None
    doors: dict[Any, Any] = field(init=False, default_factory=dict)  # searches that are recorded, by their words


def open_door(state: State, words: Any, given: Any, ask: Ask) -> None:
    """Where the engine has such a search recorded, the next one with the same words goes straight to it."""
    found = getattr(state.engine, "door", None)
    recording = found(given, ask) if found is not None else None
    if recording is None:
        return
    if isinstance(words[1], np.dtype):
        if hasattr(recording, "on_host"):
            state.doors[words] = _host_door(state, recording)
        return
    if _counted(state.rows):
        state.doors[words] = recording
        return

    def door(queries: Any) -> tuple[Any, Any]:
        scores, rows = recording(queries)
        return scores, ids_of(state.rows, rows)

    state.doors[words] = door


def _host_door(state: State, recording: Any) -> Any:
    counted = _counted(state.rows)

    def door(query: Any) -> tuple[Any, Any]:
        scores, rows = recording.on_host(query)
        if np.isnan(scores[0, 0]):
            finite_norms(matrix(query, None, "queries"), "queries")  # says why
        return scores, rows if counted else ids_of(state.rows, rows)

    return door


def swept(state: State) -> State:
    """Without the rows that were removed."""
    if state.rows.alive is None or state.engine is None:
        return state
    kept = state.rows.live_rows
    return replace(state, rows=state.rows.taken(kept), engine=state.engine.taken(kept))


def ids_of(rows: Rows, found: Any) -> Any:
    """Ids for rows, −1 for none; on the device of `found`."""
    ids: Any = rows.ids.rows
    if isinstance(found, np.ndarray):
        if not len(ids):
            return np.full_like(found, -1)
        return np.where(found >= 0, ids[np.maximum(found, 0)], -1)
    return found if _counted(rows) else rows.named(found)


def _counted(rows: Rows) -> bool:
    """Whether ids are counted from 0: an id is its row."""
    ids = rows.ids.rows
    return not len(ids) or (rows.rising and int(ids[-1]) == rows.count - 1)
