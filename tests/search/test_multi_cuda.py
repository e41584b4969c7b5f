"""MaxSim on a GPU has the results of the CPU; without a GPU the kernels are interpreted.

python -m pytest tests/search/test_multi_cuda.py
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.search.test_multi import best, draw, score

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from ridgeline.kernels.search import score_documents  # noqa: E402
from ridgeline.search import MultiIndex, multi_cuda  # noqa: E402

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def make_index(codes: str, dtype: str) -> MultiIndex:
    index = MultiIndex(codes, device="cpu", dtype=dtype)
    index.device, index._engines = DEVICE, multi_cuda
    return index


FORMS = [("Flat", "float16"), pytest.param("Flat", "float32", marks=pytest.mark.slow), ("SQ8", "float16")]


@pytest.mark.parametrize(("codes", "dtype"), FORMS)  # seconds each in the interpreter
def test_the_answer_is_that_of_float64(codes: str, dtype: str):
    documents, queries = draw(9, dim=20, longest=70), draw(1, dim=20, seed=1)
    queries.append(np.concatenate(draw(9, dim=20, seed=3))[:40])  # more than 32 vectors
    index = make_index(codes, dtype)
    index.add(documents[:7], ids=np.arange(7)[::-1] + 100)
    index.add(documents[7:])
    expected = score(queries, index.reconstruct(index.ids))
    scores, ids = index.search(queries, 3)
    assert np.array_equal(ids, best(expected, index.ids, 3))
    assert np.allclose(scores, -np.sort(-expected, 1)[:, :3], atol=1e-4)
    index.remove([int(ids[0, 0])])
    allowed = index.ids % 2 == 0
    filtered = index.search(queries[:1], 3, where=allowed)[1]
    expected = score(queries[:1], index.reconstruct(index.ids))
    assert np.array_equal(filtered, best(expected[:, allowed], index.ids[allowed], 3))


def test_equal_documents_are_ordered_by_id_and_all_are_looked_at(monkeypatch):
    monkeypatch.setattr(multi_cuda, "MORE_CANDIDATES", 0)
    one = draw(1, dim=16)[0]
    index = make_index("Flat", "float16")
    index.add([one[:2]] * 9, ids=np.arange(9)[::-1])
    assert index.search(one[:2], 2)[1].tolist() == [0, 1]


def test_a_saved_index_has_the_same_results_on_a_cpu(tmp_path):
    documents = draw(8, dim=16)
    index = make_index("SQ8", "float16")
    index.add(documents)
    index.remove([1, 2, 3])
    index.save(tmp_path / "m")
    found, ids = index.search(documents[:1], 4)
    again, expected = MultiIndex.load(tmp_path / "m", verify=True).search(documents[:1], 4)
    assert np.array_equal(ids, expected)
    assert np.allclose(found, again, atol=1e-5)


def test_a_document_of_no_power_of_two_and_a_negative_best_are_scored():
    rows = -torch.rand(5, 24, device=DEVICE)
    parts = torch.zeros(3, 32, 24, device=DEVICE)
    parts[:, 0] = torch.rand(3, 24, device=DEVICE)
    offsets = torch.tensor([0, 1, 5], device=DEVICE)
    found = score_documents(parts, rows, offsets)
    products = parts[:, 0].double() @ rows.double().T
    expected = torch.stack([products[:, 0], products[:, 1:].max(1).values], 1)
    assert torch.allclose(found.double(), expected, atol=1e-5)
