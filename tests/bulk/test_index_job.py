"""`bulk index`: the shards hold every vector once, answer as one index, and survive interruption."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from ridgeline import bulk
from ridgeline.errors import InputError
from ridgeline.search import Index, ShardedIndex, load_index

OPTIONS = {"key": "id", "shard_rows": 40, "device": "cpu", "metric": "l2"}


def make_vectors(rows: int, seed: int = 0):
    return np.random.default_rng(seed).standard_normal((rows, 8)).astype(np.float32)


def write_files(folder, vectors, ids=None, files=3, kind=None):
    """Parquet files with id, title and vector."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = np.arange(len(vectors)) * 10 if ids is None else ids
    rows = arrow.table(
        {
            "id": arrow.array(ids, arrow.int64()),
            "title": [f"title {i}" for i in ids],
            "vector": arrow.array(list(vectors), kind or arrow.list_(arrow.float32(), vectors.shape[1])),
        }
    )
    size = -(-len(rows) // files)
    for number in range(files):
        parquet.write_table(rows.slice(number * size, size), folder / f"{number}.parquet")
    return folder


def read_shards(target):
    """All files but the manifests, which have the times of the recall curve."""
    return {
        str(file.relative_to(target)): file.read_bytes()
        for file in sorted(target.rglob("*"))
        if file.is_file() and "_ridgeline" not in file.parts and file.name != "manifest.json"
    }


@pytest.mark.parametrize("spec", ["Flat", "IVF4,SQ8,Refine(Flat)"])
def test_shards_answer_as_one_index_of_all_rows(tmp_path, inline, spec):
    vectors = make_vectors(110)
    write_files(tmp_path / "in", vectors)
    answer = bulk.index(tmp_path / "in", tmp_path / "out", spec=spec, **OPTIONS)
    assert (answer["rows"], answer["computed"], answer["chunks"], answer["shards"]) == (110, 110, 3, 3)
    one = Index("Flat", metric="l2", device="cpu")
    one.add(vectors, np.arange(110) * 10)
    with load_index(tmp_path / "out", verify=True) as index:
        assert index.spec == spec
        found = index.search(vectors[:9] + 0.1, 5, nprobe=4, depth=8)
        expected = one.search(vectors[:9] + 0.1, 5)
        assert np.array_equal(found[1], expected[1])
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
        assert index.meta.take(index.find_rows([70]))["title"].to_pylist() == ["title 70"]


def test_without_a_key_rows_are_numbered_through_all_files(tmp_path, inline):
    vectors = make_vectors(100)
    write_files(tmp_path / "in", vectors, kind=arrow.list_(arrow.float32()))
    bulk.index(tmp_path / "in", tmp_path / "out", **(OPTIONS | {"key": None, "keep": ["title"]}))
    with load_index(tmp_path / "out") as index:
        assert index.ids.tolist() == list(range(100))
        assert index.meta.column_names == ["title"]
        assert index.search(vectors[[0, 55, 99]], 1)[1].ravel().tolist() == [0, 55, 99]


def test_an_interrupted_index_goes_on_and_gives_the_same_files(tmp_path, inline):
    write_files(tmp_path / "in", make_vectors(110))
    options = {**OPTIONS, "spec": "IVF4,Flat"}
    bulk.index(tmp_path / "in", tmp_path / "whole", **options)
    inline.stop_after = 1
    with pytest.raises(KeyboardInterrupt):
        bulk.index(tmp_path / "in", tmp_path / "out", **options)
    assert not (tmp_path / "out/shards.json").exists(), "half an index must not look complete"
    inline.stop_after = None
    [stopped] = [job for job in bulk.list_jobs() if job.state == "stopped"]
    answer = bulk.resume(stopped.job)
    assert (answer["rows"], answer["computed"], answer["reused"]) == (110, 70, 40)
    assert read_shards(tmp_path / "out") == read_shards(tmp_path / "whole")


def test_rows_without_a_usable_vector_are_rejected(tmp_path, inline):
    vectors: list[list[float] | None] = make_vectors(30).tolist()
    vectors[3], vectors[7], vectors[20] = None, [1.0, 2.0], [float("nan")] * 8
    rows = arrow.table(
        {"id": arrow.array(range(30), arrow.int64()), "vector": arrow.array(vectors, arrow.list_(arrow.float32()))}
    )
    (tmp_path / "in").mkdir()
    parquet.write_table(rows, tmp_path / "in/0.parquet")
    answer = bulk.index(tmp_path / "in", tmp_path / "out", **(OPTIONS | {"shard_rows": 10}))
    assert (answer["rows"], answer["rejects"]) == (27, 3)
    found = [
        json.loads(line)
        for file in sorted((tmp_path / "out/rejects").glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    assert [(reject["row"], reject["reason"]) for reject in found] == [
        (3, "'vector' is null"),
        (7, "its vector has 2 components, others have 8"),
        (20, "its vector is not finite, or too large"),
    ]
    with load_index(tmp_path / "out") as index:
        assert sorted(index.ids.tolist()) == [i for i in range(30) if i not in (3, 7, 20)]


def test_an_increment_builds_only_the_shards_whose_source_changed(tmp_path, inline):
    vectors = make_vectors(120)
    write_files(tmp_path / "in", vectors)
    bulk.index(tmp_path / "in", tmp_path / "out", **OPTIONS)
    before = read_shards(tmp_path / "out")
    vectors[50] = 9.0
    rows = parquet.read_table(tmp_path / "in/1.parquet")
    changed = rows.set_column(
        2, "vector", arrow.array(list(vectors[40:80]), arrow.list_(arrow.float32(), 8))
    )  # the second file is the second shard
    parquet.write_table(changed, tmp_path / "in/1.parquet")
    with pytest.raises(InputError, match="--incremental"):
        bulk.index(tmp_path / "in", tmp_path / "out", **OPTIONS)
    answer = bulk.index(tmp_path / "in", tmp_path / "out", incremental=True, **OPTIONS)
    assert (answer["rows"], answer["computed"], answer["reused"]) == (120, 40, 80)
    after = read_shards(tmp_path / "out")
    assert len({name.split("/")[1] for name in before.keys() & after.keys() if "/" in name}) == 2
    assert len(list((tmp_path / "out/shards").iterdir())) == 3, "the old shard is gone"
    with load_index(tmp_path / "out") as index:
        assert index.search(vectors[[50]], 1)[1].tolist() == [[500]]


def test_the_target_of_embed_is_a_source_and_names_its_model(tmp_path, settings, inline, model):
    (tmp_path / "in.txt").write_text("".join(f"a red house {i}\n" for i in range(25)))
    options = {"model": model, "device": "cpu", "dtype": "float32", "chunk_rows": 10}
    bulk.embed(tmp_path / "in.txt", tmp_path / "vectors", **options)
    bulk.index(tmp_path / "vectors", tmp_path / "out", device="cpu", shard_rows=10)
    with ShardedIndex.load(tmp_path / "out") as index:
        assert (len(index), index.model) == (25, model)
        assert index.meta["text"].to_pylist()[7] == "a red house 7"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"key": "title"}, r"--key title: the column is string"),
        ({"column": "title"}, "give a column of lists of floating-point numbers"),
        ({"spec": "IVF4,PQ3"}, "does not divide 8 dimensions"),
        ({"metric": "hamming"}, "hamming"),
        ({"keep": ["titel"]}, "did you mean 'title'"),
        ({"shard_rows": 0}, "--shard-rows is 0"),
        ({"key": None, "incremental": True}, "--incremental needs --key"),
    ],
)
def test_bad_options_are_one_sentence_and_write_nothing(tmp_path, inline, more, message):
    write_files(tmp_path / "in", make_vectors(20))
    with pytest.raises(InputError, match=message):
        bulk.index(tmp_path / "in", tmp_path / "out", **(OPTIONS | more))
    assert not (tmp_path / "out").exists()


def test_an_id_in_two_shards_is_named_and_no_index_appears(tmp_path, inline):
    ids = np.arange(80)
    ids[70] = 5
    write_files(tmp_path / "in", make_vectors(80), ids)
    with pytest.raises(InputError, match="has the value 5 twice"):
        bulk.index(tmp_path / "in", tmp_path / "out", **OPTIONS)
    assert not (tmp_path / "out/shards.json").exists()
