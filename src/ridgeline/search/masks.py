"""Which rows may be found: a condition, a row of truth values, or ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from ridgeline.errors import InputError
from ridgeline.search.arrays import Flags
from ridgeline.search.inputs import is_tensor, numbers
from ridgeline.search.rows import Rows
from ridgeline.search.where import rows_where


def allowed_rows(rows: Rows, where: Any) -> Flags | None:
    """uint8 [rows], or None where all are allowed.

    where  a string (where.py); truth values [len(index)], in the order of `index.ids`; or whole numbers: ids to look
           among, of which those that are not in the index are passed over
    """
    if where is None:
        return rows.alive
    chosen = np.zeros(rows.count, np.uint8)
    if isinstance(where, str):
        if rows.meta is None:
            raise InputError(f"where='{where}': the rows have no meta; add them with meta={{'column': values}}.")
        chosen[rows_where(where, rows.meta)] = 1
    else:
        values = where.detach().cpu().numpy() if is_tensor(where) else np.asarray(where)
        if values.dtype == np.bool_:
            if values.shape != (rows.live,):
                raise InputError(f"where is a mask of shape {values.shape} for {rows.live} rows; give one per row.")
            chosen[rows.live_rows[values]] = 1
        else:
            found = rows.find(numbers(values, "ids of where"))
            chosen[found[found >= 0]] = 1
    if rows.alive is not None:
        chosen &= rows.alive
    return chosen
