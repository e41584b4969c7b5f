"""A known penalty of a far node is measured, to the device and back; one node draws no map.

python -m pytest tests/lab/study/test_placement.py
"""

from __future__ import annotations

import random

import pytest
from tests.lab.study.sample_rows import row, two_nodes

from ridgeline.lab.study import Columns, study, tabulate
from ridgeline.lab.study.placement import compare_far_nodes

TRUTH = {"light": 1.5, "medium": 1.2, "heavy": 1.01}


def list_far_nodes(rows):
    return study(rows).findings["Placement"]["remote"]


def get_section(rows):
    return next(s for s in study(rows).sections if s.title == "Placement")


def test_the_map_shows_the_penalty_of_every_model_and_gpu():
    rows = two_nodes(random.Random(2), TRUTH)
    far_nodes = {(r["model"], r["who"]): r for r in list_far_nodes(rows)}
    assert set(far_nodes) == {(m, f"GPU {g}") for m in TRUTH for g in (0, 1)}
    for (model, processor), r in far_nodes.items():
        gpu = int(processor[-1])
        assert (r["node"], r["near"], r["distance"]) == (1 - gpu, gpu, 21)
        assert r["overall"]["ratio"]["value"] == pytest.approx(TRUTH[model], rel=0.04)
        assert r["up"]["ratio"]["value"] == pytest.approx(1 + 2 * (TRUTH[model] - 1))
        assert r["down"]["ratio"]["value"] == pytest.approx(1 + 3 * (TRUTH[model] - 1))
    section = get_section(rows)
    assert "Most sensitive: light" in section.sentences[0]
    assert "Least sensitive: heavy" in section.sentences[1]
    assert "Penalty of a far node" in section.markup
    assert section.markup.count(">nearest</text>") == 2 * 3 * len(far_nodes), "wide and narrow, three maps"


@pytest.mark.parametrize("batches", [(8, 16, 32), tuple(range(1, 9))], ids=["few pairs", "many pairs"])
def test_the_interval_covers_the_true_penalty_about_as_often_as_stated(batches):
    rng, covered, trials = random.Random(3), 0, 0
    for _ in range(60):
        table = tabulate(two_nodes(rng, {"a": 1.2}, batches=batches, noise=0.03), Columns())
        for r in compare_far_nodes(table):
            covered += r.overall.ratio.low <= 1.2 <= r.overall.ratio.high
            trials += 1
    assert covered / trials >= 0.9


def test_every_gpu_has_a_sentence_with_its_node():
    sentences = study(two_nodes(random.Random(8), TRUTH)).sections[0].sentences
    assert any(
        s.startswith("GPU 0 belongs to node 0; time over all models against node 0: node 1 +") for s in sentences
    )
    assert any(s.startswith("GPU 1 belongs to node 1;") for s in sentences)
    inverted = study(two_nodes(random.Random(8), {"a": 0.7}, batches=tuple(range(1, 9)))).sections[0].sentences
    assert any(s.startswith("GPU 0 belongs to node 1;") for s in inverted), (
        "the measurement counts, not the table of distances"
    )


def test_one_node_draws_no_map():
    section = get_section([row(random.Random(0), batch_size=b) for b in (8, 16)])
    assert section.sentences == ["One node: there is no far node to measure."]
    assert not section.charts


def test_the_section_says_that_nodes_or_pairs_are_missing():
    assert "cannot be studied" in get_section([row(random.Random(0), numa_node=None)]).sentences[0]
    rows = [row(random.Random(0), numa_node=n, batch_size=n + 1) for n in (0, 1)]
    assert "nothing to compare" in get_section(rows).sentences[0]


def test_without_distances_the_lowest_node_is_the_base_and_the_section_says_so():
    rng = random.Random(4)
    rows = [row(rng, t, numa_node=n, distance=None) for n, t in ((3, 1e-3), (5, 2e-3))]
    (r,) = list_far_nodes(rows)
    assert (r["near"], r["node"]) == (3, 5)
    assert any("No row has a distance" in s for s in get_section(rows).sentences)


def test_the_section_says_what_the_interval_of_a_single_pair_leaves_out():
    rng = random.Random(5)
    rows = [row(rng, t, numa_node=n, distance=10 + 11 * n) for n, t in ((0, 1e-3), (1, 1.3e-3))]
    (r,) = list_far_nodes(rows)
    assert r["overall"]["one_run"]
    assert r["overall"]["p"] is None
    assert r["overall"]["ratio"]["low"] < 1.3 < r["overall"]["ratio"]["high"]
    assert "noise between runs is not in it" in study(rows).markdown


def test_cpus_compute_where_there_is_no_gpu():
    """Memory of the other node is far for the CPUs of either node."""
    rng = random.Random(6)
    rows = [
        row(rng, 1e-3 * (1.3 if cpus != memory else 1.0) * (2 if cpus else 1), device="cpu", gpu_id=None, within=0.0,
            device_node=cpus, numa_node=memory, distance=20 if cpus != memory else 10)
        for cpus in (0, 1) for memory in (0, 1)
    ]  # fmt: skip
    results = {r["who"]: (r["near"], r["node"], r["overall"]["ratio"]["value"]) for r in list_far_nodes(rows)}
    assert results == {"CPUs of node 0": (0, 1, pytest.approx(1.3)), "CPUs of node 1": (1, 0, pytest.approx(1.3))}
