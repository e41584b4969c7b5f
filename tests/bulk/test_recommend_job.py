"""`bulk recommend`: every user gets the items that the model gives one by one, exactly once."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from tests.bulk.sources_made import read_parts

from ridgeline import Embedder, bulk
from ridgeline.errors import InputError
from ridgeline.recommend import Options, Recommender, demo

OPTIONS = {"chunk_rows": 7, "k": 4}


@pytest.fixture(scope="module")
def recommender(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recommender") / "films"
    random = np.random.default_rng(0)
    with Embedder(model, device="cpu") as embedder:
        vectors = random.standard_normal((500, embedder.dim)).astype(np.float32)
        Recommender.fit(demo.draw_dataset(), embedder, encode=lambda texts: vectors[: len(texts)]).save(folder)
    return folder


def write_users(path, users):
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.table({"user": users, "name": [f"user {u}" for u in users]}), path)


def read_rows(target):
    files = sorted(target.glob("part-*.parquet"))
    return arrow.concat_tables([parquet.read_table(file) for file in files]).to_pylist()


def test_every_user_gets_what_the_model_recommends(tmp_path, inline, recommender):
    with Recommender.load(recommender) as films:
        users = films.user_ids[:20].tolist()
        expected = {user: films.recommend(user, Options(k=4), explain=False) for user in users}
    write_users(tmp_path / "in/0.parquet", [*users[:9], 987654])
    write_users(tmp_path / "in/1.parquet", users[9:])
    answer = bulk.recommend(tmp_path / "in", tmp_path / "out", model=recommender, **OPTIONS)
    assert (answer["rows"], answer["rejects"], answer["chunks"]) == (20, 1, 3)
    rows = read_rows(tmp_path / "out")
    assert [row["user"] for row in rows] == users
    for row in rows:
        assert row["name"] == f"user {row['user']}"
        assert row["items"] == [found.item for found in expected[row["user"]]]
        np.testing.assert_allclose(row["scores"], [found.score for found in expected[row["user"]]], rtol=1e-5)
        assert row["basis"] == expected[row["user"]][0].basis
    [file] = (tmp_path / "out/rejects").glob("*.jsonl")
    assert "987654" in json.loads(file.read_text())["reason"]


def test_it_resumes_and_an_increment_ranks_only_new_users(tmp_path, inline, recommender):
    with Recommender.load(recommender) as films:
        users = films.user_ids[:18].tolist()
    write_users(tmp_path / "in/0.parquet", users[:15])
    bulk.recommend(tmp_path / "in", tmp_path / "whole", model=recommender, **OPTIONS)
    inline.stop_after = 1
    with pytest.raises(KeyboardInterrupt):
        bulk.recommend(tmp_path / "in", tmp_path / "out", model=recommender, **OPTIONS)
    inline.stop_after = None
    assert bulk.recommend(tmp_path / "in", tmp_path / "out", model=recommender, **OPTIONS)["reused"] == 7
    assert read_parts(tmp_path / "out") == read_parts(tmp_path / "whole")
    write_users(tmp_path / "in/0.parquet", users[2:])
    answer = bulk.recommend(tmp_path / "in", tmp_path / "out", model=recommender, incremental=True, **OPTIONS)
    assert (answer["rows"], answer["computed"], answer["removed"]) == (16, 3, 2)
    bulk.recommend(tmp_path / "in", tmp_path / "again", model=recommender, **OPTIONS)
    assert read_parts(tmp_path / "out") == read_parts(tmp_path / "again")


@pytest.mark.parametrize(
    ("more", "message"),
    [({"k": 0}, "-k is 0"), ({"column": "names"}, "did you mean 'name'"), ({"model": "nowhere"}, "is no model")],
)
def test_bad_options_are_one_sentence(tmp_path, inline, recommender, more, message):
    write_users(tmp_path / "in/0.parquet", [1, 2])
    with pytest.raises(InputError, match=message):
        bulk.recommend(tmp_path / "in", tmp_path / "out", **({"model": recommender} | OPTIONS | more))


def test_a_column_that_the_job_writes_is_refused(tmp_path, inline, recommender):
    parquet.write_table(arrow.table({"user": [1], "scores": [0.5]}), tmp_path / "in.parquet")
    with pytest.raises(InputError, match="has a column 'scores'"):
        bulk.recommend(tmp_path / "in.parquet", tmp_path / "out", model=recommender)
