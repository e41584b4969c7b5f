"""Rankings of any system, scored as trec_eval and torchmetrics do.

python -m pytest tests/recommend/test_score.py
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cli import main
from ridgeline.errors import InputError
from ridgeline.recommend.score import Table, parse_ranking_metrics, score_run, score_table

TREC_NAMES = {
    "ndcg": "ndcg",
    "ndcg@5": "ndcg_cut_5",
    "recall@5": "recall_5",
    "precision@5": "P_5",
    "hit@5": "success_5",
    "mrr": "recip_rank",
    "map": "map",
    "map@5": "map_cut_5",
}
IDS = st.text(st.characters(min_codepoint=48, max_codepoint=0x2FF, categories=["L", "N"]), min_size=1, max_size=4)
SCORES = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6, width=32), st.just(1 + 1e-12))
RUNS = st.dictionaries(st.sampled_from(["u1", "u2", "u3"]), st.dictionaries(IDS, SCORES, min_size=1), min_size=1)


def run(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return end.value.code, *capsys.readouterr()


def make_table(nested):
    rows = [(user, item, float(value)) for user, line in nested.items() for item, value in line.items()]
    users, items, values = zip(*rows, strict=True) if rows else ((), (), ())
    return Table(pa.array(users, pa.string()), pa.array(items, pa.string()), np.array(values, np.float64))


def score_slowly(run, truth, metric):
    """Return a metric per user of the truth by its definition, with trec_eval's order."""
    values = []
    for user in sorted(truth):
        relevant = {item for item, rating in truth[user].items() if rating >= 1}
        order = sorted(run.get(user, {}).items(), key=lambda p: (np.float32(p[1]), p[0]), reverse=True)
        items = [item for item, _ in order]
        name, _, cut = metric.partition("@")
        top = items[: int(cut)] if cut else items
        hits = [item in relevant for item in top]
        if name == "ndcg":
            gains = [max(truth[user].get(item, 0), 0) for item in top]
            ideal = sorted((max(r, 0) for r in truth[user].values()), reverse=True)[: int(cut) if cut else None]
            dcg, best = (sum(g / np.log2(n + 2) for n, g in enumerate(line)) for line in (gains, ideal))
            values.append(dcg / best if best else 0)
        elif name == "recall":
            values.append(sum(hits) / len(relevant) if relevant else 0)
        elif name == "precision":
            values.append(sum(hits) / int(cut))
        elif name == "hit":
            values.append(float(any(hits)))
        elif name == "mrr":
            values.append(1 / (hits.index(True) + 1) if any(hits) else 0)
        else:
            precisions = [sum(hits[: n + 1]) / (n + 1) for n, hit in enumerate(hits) if hit]
            values.append(sum(precisions) / len(relevant) if relevant else 0)
    return values


@settings(max_examples=60, deadline=None)
@given(data=st.data(), ranked=RUNS)
def test_every_metric_equals_its_definition(data, ranked):
    pool = sorted({item for line in ranked.values() for item in line} | {"other"})
    ratings = st.dictionaries(st.sampled_from(pool), st.integers(-1, 3), min_size=1)
    truth = data.draw(st.dictionaries(st.sampled_from(["u1", "u2", "u4"]), ratings, min_size=1))
    values, users, without = score_table(make_table(ranked), make_table(truth), list(TREC_NAMES))
    assert (users, without) == (sorted(truth), len(set(truth) - set(ranked)))
    for metric in TREC_NAMES:
        np.testing.assert_allclose(values[metric], score_slowly(ranked, truth, metric), atol=1e-9, err_msg=metric)


@pytest.mark.parametrize("seed", range(3))
def test_every_metric_equals_that_of_trec_eval_with_many_equal_scores(seed):
    pytrec_eval = pytest.importorskip("pytrec_eval")  # no wheel for some machines: the definition above is compared
    rng = np.random.default_rng(seed)
    ranked, truth = {}, {}
    for user in range(40):
        items = rng.choice(300, 60, replace=False).tolist()
        ranked[f"u{user}"] = {f"i{i}": float(rng.integers(-3, 4)) for i in items[:50]}
        truth[f"u{user}"] = {f"i{i}": int(rng.integers(1, 4)) for i in items[40 : 41 + rng.integers(0, 18)]}
    measures = {"ndcg", "ndcg_cut", "recall", "P", "success", "recip_rank", "map", "map_cut"}
    theirs = pytrec_eval.RelevanceEvaluator(truth, measures).evaluate(ranked)
    values, users, _ = score_table(make_table(ranked), make_table(truth), list(TREC_NAMES))
    for metric, name in TREC_NAMES.items():
        np.testing.assert_allclose(values[metric], [theirs[user][name] for user in users], atol=1e-6, err_msg=metric)


def test_metrics_equal_those_of_torchmetrics_where_no_scores_are_equal():
    torch = pytest.importorskip("torch")
    judge = pytest.importorskip("torchmetrics.functional.retrieval")
    rng = np.random.default_rng(0)
    scores, relevant = rng.random(50), rng.random(50) < 0.2  # scores above 0, as torchmetrics expects
    items = [f"i{n}" for n in range(50)]
    ranked = {"u": dict(zip(items, scores.tolist(), strict=True))}
    truth = {"u": {item: 1 for item, good in zip(items, relevant.tolist(), strict=True) if good}}
    values, _, _ = score_table(make_table(ranked), make_table(truth), ["ndcg@10", "recall@10", "mrr", "map"])
    p, t = torch.tensor(scores), torch.tensor(relevant)
    want = {
        "ndcg@10": judge.retrieval_normalized_dcg(p, t, top_k=10),
        "recall@10": judge.retrieval_recall(p, t, top_k=10),
        "mrr": judge.retrieval_reciprocal_rank(p, t),
        "map": judge.retrieval_average_precision(p, t),
    }
    for name, value in want.items():
        assert values[name][0] == pytest.approx(float(value), abs=1e-6), name


@pytest.fixture
def files(tmp_path):
    """The same run and truth as Parquet, CSV and files of trec_eval."""
    rng = np.random.default_rng(1)
    ranked = {u: {int(i): float(rng.integers(0, 5)) for i in rng.choice(40, 20, False)} for u in range(1, 9)}
    truth = {u: {int(i): int(rng.integers(1, 5)) for i in rng.choice(40, 6, False)} for u in range(1, 9)}
    for name, nested, column in (("run", ranked, "score"), ("truth", truth, "rating")):
        rows = [(u, i, v) for u, line in nested.items() for i, v in line.items()]
        users, items, values = (list(c) for c in zip(*rows, strict=True))
        table = pa.table({"user": users, "item": items, column: values})
        pq.write_table(table, tmp_path / f"{name}.parquet")
        pyarrow.csv.write_csv(table, tmp_path / f"{name}.csv")
    text = "".join(f"{u}\tQ0  {i} 0 {v} me\n" for u, line in ranked.items() for i, v in line.items())
    (tmp_path / "run.trec").write_text(text)
    (tmp_path / "truth.qrels").write_text("".join(f"{u} 0 {i} {v}\n" for u, d in truth.items() for i, v in d.items()))
    return tmp_path


def test_all_formats_give_the_same(files):
    pairs = [("run.parquet", "truth.parquet"), ("run.csv", "truth.csv"), ("run.trec", "truth.qrels")]
    results = [score_run(files / a, files / b, ["ndcg@5", "map"])["metrics"] for a, b in pairs]
    assert results[0] == results[1] == results[2]
    low, high = results[0]["map"]["ci"]
    assert low < results[0]["map"]["mean"] < high


def test_two_matrices_are_ranked_without_seen_items(files):
    rng = np.random.default_rng(2)
    folder = files / "factors"
    folder.mkdir()
    users, items = rng.standard_normal((8, 5)).astype(np.float32), rng.standard_normal((40, 5)).astype(np.float32)
    arrays = {"users": users, "items": items, "user_ids": np.arange(1, 9), "item_ids": np.arange(40)}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    (files / "seen.csv").write_text("user,item\n1,3\n2,4\n")
    scores = {str(u + 1): {str(i): float(users[u] @ items[i]) for i in range(40)} for u in range(8)}
    del scores["1"]["3"], scores["2"]["4"]
    table = pq.read_table(files / "truth.parquet").to_pylist()
    truth = {}
    for row in table:
        truth.setdefault(str(row["user"]), {})[str(row["item"])] = row["rating"]
    result = score_run(folder, files / "truth.parquet", ["ndcg@10", "map"], seen=files / "seen.csv")["metrics"]
    for metric in ("ndcg@10", "map"):
        assert result[metric]["mean"] == pytest.approx(np.mean(score_slowly(scores, truth, metric)), abs=1e-6)


def test_two_matrices_are_ranked_as_deep_as_a_metric_looks(tmp_path):
    """The relevant item of either user is their last of 1,500; ids are texts whose order is not that of the rows."""
    items = np.linspace(1, 2, 1_500, dtype=np.float32)[:, None]
    arrays = {
        "users": np.array([[1.0], [-1.0]], np.float32),
        "items": items,
        "user_ids": np.array(["up", "down"]),
        "item_ids": np.array([f"film {row}" for row in range(len(items))]),
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    pq.write_table(pa.table({"user": ["up", "down"], "item": ["film 0", "film 1499"]}), tmp_path / "truth.parquet")
    metrics = score_run(tmp_path, tmp_path / "truth.parquet", ["recall@1499", "recall@1500"])["metrics"]
    assert [metrics[name]["mean"] for name in metrics] == [0.0, 1.0]


def test_a_truth_whose_ratings_have_another_name_is_refused(tmp_path):
    (tmp_path / "truth.csv").write_text("user,item,stars\nu1,a,1\n")
    (tmp_path / "run.csv").write_text("user,item,score\nu1,a,1\n")
    with pytest.raises(InputError, match="no column 'rating', and its column 'stars' is not used"):
        score_run(tmp_path / "run.csv", tmp_path / "truth.csv", ["map"])


def test_an_item_id_of_two_rows_is_named(tmp_path):
    arrays = {
        "users": np.ones((1, 1), np.float32),
        "items": np.ones((3, 1), np.float32),
        "user_ids": np.array([7]),
        "item_ids": np.array([4, 5, 4]),
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    pq.write_table(pa.table({"user": [7], "item": [5]}), tmp_path / "truth.parquet")
    with pytest.raises(InputError, match="item '4' of user '7' twice"):
        score_run(tmp_path, tmp_path / "truth.parquet", ["recall@2"])


def test_the_command_prints_the_paired_difference(files, capsys):
    better = pq.read_table(files / "run.parquet").to_pydict()
    truth = pq.read_table(files / "truth.parquet").to_pydict()
    relevant = set(zip(truth["user"], truth["item"], strict=True))
    better["score"] = [
        s + 10 * ((u, i) in relevant) for u, i, s in zip(better["user"], better["item"], better["score"], strict=True)
    ]
    pq.write_table(pa.table(better), files / "better.parquet")
    words = ["recommend", "score", files / "better.parquet", "--truth", files / "truth.parquet"]
    code, out, _ = run(capsys, *words, "--against", files / "run.parquet", "--json")
    assert code == 0
    assert json.loads(out)["paired"]["ndcg@10"]["ci"][0] > 0
    code, out, _ = run(capsys, *words, "--against", files / "run.parquet")
    assert code == 0
    assert "8 users, 0 of them without a ranking" in out


BAD = {
    "an item twice": ("user,item,score\n1,2,3\n1,2,4\n", "item '2' of user '1' twice"),
    "no score": ("user,item\n1,2\n", "no column 'score'"),
    "a score in words": ("user,item,score\n1,2,high\n1,3,4\n", "not a number"),
    "a score that is NaN": ("user,item,score\n1,2,nan\n", "not a number"),
}


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD)
def test_a_wrong_run_is_named(files, capsys, text, words):
    (files / "bad.csv").write_text(text)
    code, _, err = run(capsys, "recommend", "score", files / "bad.csv", "--truth", files / "truth.csv")
    assert code == 2
    assert words in " ".join(err.split())


def test_a_wrong_line_of_a_trec_file_is_named(files):
    (files / "bad.trec").write_text("1 Q0 2 0 0.5 me\n1 Q0 2 0\n")
    with pytest.raises(InputError, match="line 2 is '1 Q0 2 0', not 'user Q0 item rank score tag'"):
        score_run(files / "bad.trec", files / "truth.qrels", ["map"])
    with pytest.raises(InputError, match="there is no file"):
        score_run(files / "none.trec", files / "truth.qrels", ["map"])


@pytest.mark.parametrize("words", ["", "ndcg@0", "recall", "accuracy"])
def test_an_unknown_metric_is_refused(words):
    with pytest.raises(InputError):
        parse_ranking_metrics(words)
