"""A growing column has the numbers of a list, in few parts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.audit.watch import meaning as module
from ridgeline.audit.watch.meaning import Column

numbers = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=9)


@given(numbers, st.lists(numbers | st.integers(0, 30), max_size=30), st.integers(0, 60))
def test_a_column_has_the_numbers_of_a_list(first, steps, since):
    column, expected = Column(np.int32, np.array(first, np.int32)), list(first)
    for step in steps:
        if isinstance(step, int):
            column.cut(step)
            expected = expected[:step]
        else:
            column.add(step)
            expected += step
        assert len(column) == len(expected)
        assert column.since(since).tolist() == expected[since:]
        assert column.since(0).dtype == np.int32


def test_parts_stay_few_and_large_ones_where_they_are(monkeypatch):
    monkeypatch.setattr(module, "PART", 1_024)
    column, moved = Column(np.int64), 0
    for n in range(3_000):
        before = [part.ctypes.data for part in column._parts]
        column.add(range(n % 7))
        joined = [len(part) for part in column._parts if part.ctypes.data not in before]
        moved += sum(joined)
        assert max(joined, default=0) <= 2 * 1_024
        assert len(column._parts) <= 12 + len(column) // 1_024
    assert moved < len(column) * 12
