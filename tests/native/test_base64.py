"""Base64 of rows is that of the standard library."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.native import encode_base64


@given(st.integers(0, 4), st.integers(0, 40), st.binary(max_size=3), st.integers(0, 2**32 - 1))
def test_every_row_is_encoded_as_the_standard_library_encodes_it(count, dim, text, seed):
    rows = np.random.default_rng(seed).integers(0, 2**32, (count, dim), np.uint32).view(np.float32)
    expected = [text + base64.b64encode(row.tobytes()) + b"!" for row in rows]
    assert encode_base64(rows, text, b"!") == expected


def test_rows_that_are_not_next_to_each_other_are_refused():
    with pytest.raises(TypeError):
        encode_base64(np.zeros((4, 8), np.float32)[:, ::2])
    with pytest.raises(TypeError):
        encode_base64(np.zeros((4, 8), np.float64))
