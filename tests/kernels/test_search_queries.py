"""Queries are prepared, and results copied."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from ridgeline.kernels.search import queries as search_queries  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("unit", [True, False])
def test_queries_are_float32_and_normalised_on_request(dtype, unit):
    make_rows = torch.randn(3, 14, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)[:, ::2]
    make_rows[1] = 0
    actual, norms, _ = search_queries.prepare_queries(make_rows, unit)
    wide = make_rows.double().cpu().numpy()
    lengths = np.linalg.norm(wide, axis=1)
    expected = wide / np.where(lengths > 0, lengths, 1)[:, None] if unit else wide
    np.testing.assert_allclose(actual.cpu().numpy(), expected, atol=1e-7)
    np.testing.assert_allclose(norms.cpu().numpy(), lengths)
    assert actual.dtype == torch.float32


def test_a_query_that_is_not_finite_has_no_results():
    queries = torch.ones(3, 4, device=DEVICE)
    queries[0, 1], queries[2, 3] = float("nan"), float("inf")
    _, norms, _ = search_queries.prepare_queries(queries, True)
    values, numbers = torch.ones(3, 2, device=DEVICE), torch.full((3, 2), 5, device=DEVICE)
    actual = search_queries.copy_results(values, numbers, norms)
    assert actual[0].isnan().tolist() == [[True] * 2, [False] * 2, [True] * 2]
    assert actual[1].tolist() == [[-1, -1], [5, 5], [-1, -1]]
    values.zero_()
    assert (actual[0][1] == 1).all()  # a copy
