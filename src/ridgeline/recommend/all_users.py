"""The best items of every user, as one Parquet file that is whole or not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ridgeline import store

if TYPE_CHECKING:
    from ridgeline.recommend.recommender import Recommender

USERS = 1_024  # ranked at a time: [USERS, items] float32 stays in memory


def write_all(model: Recommender, out: Path, k: int, tell: Callable[[str], object] = lambda _: None) -> int:
    """Rows written: user, rank (from 1), item, title, score."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    titles = np.array(model.catalogue.titles, dtype=object)
    rows = 0
    with store.publish(out) as tmp:
        writer = None
        for start in range(0, len(model.user_ids), USERS):
            users = np.arange(start, min(start + USERS, len(model.user_ids)))
            items, scores = model.top(users, k)
            there = items >= 0
            ranks = np.broadcast_to(np.arange(1, items.shape[1] + 1), items.shape)[there]
            who = np.broadcast_to(model.user_ids[users][:, None], items.shape)[there]
            found = items[there]
            table = pa.table(
                {
                    "user": who,
                    "rank": ranks.astype(np.int32),
                    "item": model.catalogue.ids[found],
                    "title": pa.array(titles[found].tolist(), pa.string()),
                    "score": scores[there].astype(np.float32),
                }
            )
            writer = writer or pq.ParquetWriter(tmp, table.schema)
            writer.write_table(table)
            rows += len(table)
            tell(f"{users[-1] + 1:,} of {len(model.user_ids):,} users")
        if writer is not None:
            writer.close()
    return rows
