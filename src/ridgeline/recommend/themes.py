"""What an item is about, in a few words: the most relevant tags of the genome, else what users tagged most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.recommend.data import Problems
from ridgeline.recommend.tables import REAL, TEXT, WHOLE, read_columns

MOST = 10


def from_genome(root: Path, ids: NDArray[Any], problems: Problems) -> tuple[list[tuple[str, ...]], int]:
    """The `MOST` highest-scored genome tags of each item, and how many items have any."""
    none: list[tuple[str, ...]] = [()] * len(ids)
    if not (root / "genome-scores.csv").is_file():
        return none, 0
    words = read_columns(root / "genome-tags.csv", {"tagId": WHOLE, "tag": TEXT}, problems)
    names = dict(zip(words["tagId"].to_pylist(), words["tag"].to_pylist(), strict=True))
    scores = read_columns(root / "genome-scores.csv", {"movieId": WHOLE, "tagId": WHOLE, "relevance": REAL}, problems)
    items, tags, relevance = (np.asarray(c.to_numpy()) for c in scores.values())
    order = np.lexsort((tags, -relevance, items))
    items, tags = items[order], tags[order]
    starts = np.flatnonzero(np.r_[True, items[1:] != items[:-1]]) if len(items) else np.zeros(0, int)
    rows = {int(item): row for row, item in enumerate(ids.tolist())}
    found = list(none)
    for start, stop in zip(starts, np.r_[starts[1:], len(items)], strict=True):
        row = rows.get(int(items[start]))
        if row is not None:
            found[row] = tuple(names[t] for t in tags[start : min(stop, start + MOST)].tolist() if t in names)
    return found, sum(map(bool, found))


def from_tags(
    ids: NDArray[Any], items: NDArray[Any], tags: Sequence[str], themes: Sequence[tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """For items without themes: the `MOST` most frequent user tags, in any case, equal ones by the alphabet."""
    rows = {int(item): row for row, item in enumerate(ids.tolist())}
    counts: dict[int, Counter[str]] = {}
    for item, tag in zip(items.tolist(), tags, strict=True):
        row = rows.get(item)
        word = " ".join(tag.lower().split())
        if row is not None and word and not themes[row]:
            counts.setdefault(row, Counter())[word] += 1
    found = list(themes)
    for row, counted in counts.items():
        found[row] = tuple(w for w, _ in sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST])
    return found
