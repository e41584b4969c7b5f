"""The nearest normal templates equal those of a full stable sort."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.audit.anomaly import neighbours as module
from ridgeline.audit.anomaly.neighbours import NEAREST, Neighbours
from ridgeline.audit.watch.meaning import Vocabulary


def slow(rows: list[tuple[int, np.ndarray]], normal: set[int], vector: np.ndarray) -> list[tuple[int, float]]:
    cosines = [float(known @ vector) if id in normal else -2.0 for id, known in rows]
    order = sorted(range(len(rows)), key=lambda row: -cosines[row])[:NEAREST]
    return [(rows[row][0], cosines[row]) for row in order if cosines[row] > -2.0]


steps = st.lists(st.tuples(st.sampled_from(["new", "mark", "unmark"]), st.integers(0, 15)), max_size=40)


@given(steps, st.integers(0, 7))
@settings(max_examples=80, deadline=None)
def test_the_nearest_are_those_of_a_full_sort(steps, queries):
    vectors = np.eye(4, dtype=np.float32)[np.arange(16) % 4] * (1 + np.arange(16)[:, None] % 3)  # many are equal
    neighbours, rows, normal, most = Neighbours(), [], set(), 8
    place = 0
    before, module.MOST = module.MOST, most
    try:
        for what, id in steps:
            known = [row[0] for row in rows]
            if what == "new" and id not in known:
                neighbours.learn(id, vectors[id], "family", None)
                if len(rows) < most:
                    rows.append((id, vectors[id]))
                else:
                    normal.discard(rows[place][0])
                    rows[place] = (id, vectors[id])
                place = (place + 1) % most
                normal.discard(id)
            elif what != "new":
                neighbours.mark(id, what == "mark")
                if id in known:
                    (normal.add if what == "mark" else normal.discard)(id)
        assert neighbours.nearest(vectors[queries]) == slow(rows, normal, vectors[queries])
    finally:
        module.MOST = before


def fill_neighbours(count: int, dim: int = 384) -> tuple[Neighbours, np.ndarray]:
    vectors = np.random.default_rng(0).normal(size=(count, dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    neighbours = Neighbours()
    for id, vector in enumerate(vectors):
        neighbours.learn(id, vector, "family", None)
        neighbours.mark(id, id % 3 > 0)
    return neighbours, vectors


def test_cosines_are_those_of_float64():
    neighbours, vectors = fill_neighbours(2_000)
    normal = np.arange(2_000) % 3 > 0
    for query in vectors[::400]:
        exact = np.where(normal, vectors.astype(float) @ query.astype(float), -2.0)
        order = np.argsort(-exact, kind="stable")[:NEAREST]
        nearest = neighbours.nearest(query)
        assert [id for id, _ in nearest] == order.tolist()
        np.testing.assert_allclose([cosine for _, cosine in nearest], exact[order], atol=1e-6)


def test_products_use_one_thread_only():
    """A BLAS would have all cores turn in circles between two new sentences."""
    neighbours, vectors = fill_neighbours(4_096)
    until = time.monotonic() + 60
    while time.monotonic() < until:  # threads that worked in the tests before this one go to sleep
        others = time.process_time() - time.thread_time()
        time.sleep(0.05)
        if time.process_time() - time.thread_time() - others < 0.001:
            break
    spent, thread_s = time.process_time(), time.thread_time()
    for vector in vectors[:100]:
        neighbours.nearest(vector)
        neighbours.tone(vector)
        time.sleep(0.002)
    thread_s = time.thread_time() - thread_s
    assert time.process_time() - spent - thread_s < 0.25 * thread_s


@given(st.lists(st.lists(st.sampled_from("abcdefghijklmnop"), max_size=9), max_size=12))
@settings(deadline=None)
def test_a_text_is_encoded_once_and_keeps_its_vector(calls):
    encoded: list[str] = []

    def encode(texts):
        encoded.extend(texts)
        return np.array([[ord(text), 1] for text in texts], np.float32)

    words = Vocabulary(encode)
    answers = [(texts, words.embed(texts)) for texts in calls]
    all_vectors = words.vectors()
    for texts, vectors in answers:
        assert [row[0] for row in vectors] == [ord(text) for text in texts]
    assert encoded == words.texts == list(dict.fromkeys(text for texts in calls for text in texts))
    assert [chr(int(row[0])) for row in all_vectors] == words.texts
