"""Queries made ready, and answers handed over."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from ridgeline.kernels.search import queries as search_queries

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("unit", [True, False])
def test_queries_are_float32_and_of_unit_length_where_wanted(dtype, unit):
    made = torch.randn(3, 14, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)[:, ::2]
    made[1] = 0
    found, norms = search_queries.ready(made, unit)
    wide = made.double().cpu().numpy()
    lengths = np.linalg.norm(wide, axis=1)
    wanted = wide / np.where(lengths > 0, lengths, 1)[:, None] if unit else wide
    np.testing.assert_allclose(found.cpu().numpy(), wanted, atol=1e-7)
    np.testing.assert_allclose(norms.cpu().numpy(), lengths)
    assert found.dtype == torch.float32


def test_a_query_that_is_not_finite_has_found_nothing():
    queries = torch.ones(3, 4, device=DEVICE)
    queries[0, 1], queries[2, 3] = float("nan"), float("inf")
    _, norms = search_queries.ready(queries, True)
    values, numbers = torch.ones(3, 2, device=DEVICE), torch.full((3, 2), 5, device=DEVICE)
    found = search_queries.handed(values, numbers, norms)
    assert found[0].isnan().tolist() == [[True] * 2, [False] * 2, [True] * 2]
    assert found[1].tolist() == [[-1, -1], [5, 5], [-1, -1]]
    values.zero_()
    assert (found[0][1] == 1).all()  # a copy
