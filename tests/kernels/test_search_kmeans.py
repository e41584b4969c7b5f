"""k-means, lists and product codes against plain NumPy.

python -m pytest tests/kernels/test_search_kmeans.py
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ridgeline.kernels.search import kmeans as search_kmeans  # noqa: E402
from ridgeline.kernels.search import product_codes as search_product_codes  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make_clusters(count: int, depth: int, centres: int, seed: int = 0) -> torch.Tensor:
    r = np.random.default_rng(seed)
    x = 4 * r.standard_normal((centres, depth))[r.integers(0, centres, count)] + 0.1 * r.standard_normal((count, depth))
    return torch.from_numpy(x).to(DEVICE, torch.float32)


@pytest.mark.parametrize("metric", ["ip", "l2"])
def test_rows_go_to_their_nearest_centre(metric, monkeypatch):
    monkeypatch.setattr(search_kmeans, "MAX_SCORES", 100)
    x, c = make_clusters(57, 12, 5), make_clusters(9, 12, 9, seed=1)
    list_ids, score = search_kmeans.assign_centres(x, c, metric=metric)
    a, b = x.double().cpu().numpy(), c.double().cpu().numpy()
    want = a @ b.T if metric == "ip" else 2 * a @ b.T - (b * b).sum(1)
    assert (list_ids.cpu().numpy() == want.argmax(1)).mean() > 0.95
    assert np.abs(score.cpu().numpy() - want.max(1)).max() < (1e-4 if DEVICE == "cpu" else 1)


@pytest.mark.parametrize("metric", ["ip", "l2"])
def test_centres_match_separate_clusters_and_are_reproducible(metric):
    x = make_clusters(600, 16, 8)
    centres = search_kmeans.train_centres(x, 24, metric=metric)
    assert torch.equal(centres, search_kmeans.train_centres(x, 24, metric=metric))
    assert not centres.isnan().any()
    if metric == "ip":
        assert torch.allclose(centres.norm(dim=1), torch.ones(24, device=DEVICE), atol=1e-5)
    else:
        list_ids, _ = search_kmeans.assign_centres(x, centres, metric=metric)
        assert (x - centres[list_ids.long()]).norm(dim=1).mean() < 1.5  # clusters have a distance of 22


def test_an_empty_list_restarts_from_a_far_row():
    x = torch.zeros(40, 4, device=DEVICE)
    x[:, 0] = torch.arange(40) % 2 + 1.0
    x[7] = 9.0
    centres = search_kmeans.train_centres(x, 3, metric="l2", rounds=12)
    list_ids, _ = search_kmeans.assign_centres(x, centres, metric="l2")
    assert (x - centres[list_ids.long()]).abs().max() < 0.3


def test_fewer_rows_than_lists_and_equal_rows_work():
    centres = search_kmeans.train_centres(torch.ones(3, 5, device=DEVICE), 7, metric="l2")
    assert torch.equal(centres, torch.ones(7, 5, device=DEVICE))
    assert search_kmeans.train_centres(torch.zeros(3, 5, device=DEVICE), 7).shape == (7, 5)


def test_rows_are_grouped_by_list_in_their_order():
    list_ids = torch.tensor([2, 0, 2, 3, 0, 2], dtype=torch.int32, device=DEVICE)
    lined, place, starts = search_kmeans.group_by_list(list_ids, 5)
    assert lined.tolist() == [0, 0, 2, 2, 2, 3]
    assert place.tolist() == [1, 4, 0, 2, 5, 3]
    assert starts.tolist() == [0, 2, 2, 5, 6, 6]
    assert search_kmeans.group_by_list(list_ids[:0], 2)[2].tolist() == [0, 0, 0]


def test_product_codes_are_the_nearest_of_each_part():
    x = make_clusters(700, 12, 300)
    books = search_product_codes.train_codebooks(x, 4, rounds=4)
    codes = search_product_codes.encode_product(x, books)
    assert codes.shape == (700, 4)
    a, b = x.double().cpu().numpy().reshape(700, 4, 3), books.double().cpu().numpy()
    away = ((a[:, :, None, :] - b[None]) ** 2).sum(3)
    taken = np.take_along_axis(away, codes.long().cpu().numpy()[:, :, None], 2)[:, :, 0]
    assert (taken <= away.min(2) + 1e-4).all()
    back = search_product_codes.decode_product(codes, books)
    assert (back - x).square().mean() < 0.1 * x.square().mean()


def test_a_sample_is_some_of_the_rows():
    x = torch.arange(5000.0, device=DEVICE)[:, None]
    draw_mask = search_kmeans.sample_rows(x, 4, per_list=100)
    assert draw_mask.shape == (400, 1)
    assert len(draw_mask.unique()) > 350
    assert search_kmeans.sample_rows(x, 4, per_list=2000) is x
