"""`ridgeline index` and `ridgeline search`, in this process: output, files, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.embed import tiny
from tests.search.test_exact import make_clusters

from ridgeline import Index
from ridgeline.cli import main


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Run a command in this process: (exit code, stdout, stderr)."""
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_info:
            main([*map(str, words)])
        return exit_info.value.code or 0, *capsys.readouterr()

    return run


@pytest.fixture
def files(tmp_path: Path) -> Path:
    vectors = make_clusters(400, 8)
    np.save(tmp_path / "v.npy", vectors)
    np.save(tmp_path / "q.npy", make_clusters(3, 8, 1))
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 8)
    table = {"name": [f"n{i}" for i in range(400)], "year": np.arange(400) % 50, "key": np.arange(400) + 7000}
    pq.write_table(pa.table({**table, "vector": lists}), tmp_path / "v.parquet")
    return tmp_path


def test_vectors_become_an_index_that_is_searched(run_command, files: Path):
    code, out, err = run_command(
        "index", files / "v.npy", "-o", files / "ix", "--spec", "Flat", "--metric", "l2", "--device", "cpu"
    )
    assert (code, out.strip()) == (0, "Flat, l2: exact")
    assert "400 vectors of 8 dimensions" in err
    code, out, _ = run_command("search", files / "ix", "--vectors", files / "q.npy", "-k", 4, "--json")
    answer = json.loads(out)
    assert code == 0
    answers = [[row["id"] for row in each["found"]] for each in answer["results"]]
    assert answers == Index.load(files / "ix").search(make_clusters(3, 8, 1), 4)[1].tolist()
    code, out, err = run_command("search", files / "ix", "--vectors", files / "q.npy", "-k", 1, "--quiet")
    assert (code, err) == (0, "")
    assert out.count("distance²") == 3


def test_columns_of_parquet_are_ids_and_filters(run_command, files: Path):
    code, out, _ = run_command(
        "index", files / "v.parquet", "-o", files / "ix", "--spec", "IVF8,SQ8", "--ids", "key", "--device", "cpu"
    )
    assert code == 0
    assert "recall@10 against the vectors" in out
    command = [
        "search",
        files / "ix",
        "--vectors",
        files / "q.npy",
        "-k",
        5,
        "--where",
        "year >= 40",
        "--recall",
        ".9",
        "--json",
    ]
    rows = [row for each in json.loads(run_command(*command)[1])["results"] for row in each["found"]]
    assert len(rows) == 15
    assert all(row["year"] >= 40 and row["name"] == f"n{row['id'] - 7000}" for row in rows)


def test_the_json_of_an_index_has_its_recall(run_command, files: Path):
    code, out, _ = run_command(
        "index", files / "v.npy", "-o", files / "ix", "--spec", "IVF8,Flat", "--sample", 50, "--json", "--device", "cpu"
    )
    report_data = json.loads(out)
    assert code == 0
    assert (report_data["spec"], report_data["count"], report_data["recall"]["sample"]) == ("IVF8,Flat", 400, 50)


def test_texts_are_searched_with_the_model_of_the_index(run_command, tmp_path: Path):
    pytest.importorskip("torch")
    import ridgeline

    model = tiny.make(tmp_path / "tiny")
    with ridgeline.Embedder(str(model), device="cpu", dtype="float32") as embedder:
        np.save(tmp_path / "t.npy", embedder.encode(tiny.TEXTS))
    assert run_command("index", tmp_path / "t.npy", "-o", tmp_path / "ix", "--model", model, "--device", "cpu")[0] == 0
    code, out, _ = run_command("search", tmp_path / "ix", "--text", tiny.TEXTS[3], "-k", 1, "--json")
    assert code == 0
    first = json.loads(out)["results"][0]
    assert first["query"] == tiny.TEXTS[3]
    assert first["found"][0]["score"] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["index", "none.npy", "-o", "ix"], "there is no file 'none.npy'"),
        (["index", "v.csv", "-o", "ix"], "'.csv'"),
        (["index", "v.npy", "-o", "no/where/ix"], "there is no folder 'no/where'"),
        (["index", "v.npy", "-o", "ix", "--spec", "IFV8,Flat"], "'IFV8'"),
        (["index", "v.npy", "-o", "ix", "--spec", "IVF500,Flat"], "500 vectors or more"),
        (["index", "v.npy", "-o", "ix", "--ids", "key"], "from Parquet only"),
        (["index", "v.parquet", "-o", "ix", "--ids", "kee"], "did you mean 'key'"),
        (["index", "v.parquet", "-o", "ix", "--column", "name"], "vectors are lists of numbers"),
        (["index", "flat.npy", "-o", "ix"], "vectors are [n, dim]"),
        (["index", "nan.npy", "-o", "ix"], "vectors holds nan in column 0"),
        (["index", "many.npy", "-o", "ix"], "an archive of arrays (.npz)"),
        (["index", "none.parquet", "-o", "ix"], "'none.parquet' has no rows"),
        (["search", "none", "--vectors", "q.npy"], "does not exist"),
        (["search", "done"], "--text or as --vectors"),
        (["search", "done", "--text", "hello"], "--model NAME"),
        (["search", "done", "--vectors", "q.npy", "-k", "0"], "k is 0"),
        (["search", "done", "--vectors", "five.npy"], "5 dimensions, the index has 8"),
        (["search", "done", "--vectors", "q.npy", "--where", "yaer > 3"], "did you mean year"),
    ],
)
def test_bad_input_is_a_sentence_and_exit_code_2(
    run_command, files: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
):
    monkeypatch.chdir(files)
    Path("v.csv").write_text("1,2")
    np.save("flat.npy", np.zeros(5))
    np.savez("many.npz", a=np.zeros((2, 8)))
    Path("many.npz").rename("many.npy")
    pq.write_table(pa.table({"vector": pa.array([], pa.list_(pa.float32()))}), "none.parquet")
    np.save("five.npy", np.zeros((1, 5)))
    np.save("nan.npy", np.array([[1.0, 2.0], [np.nan, 0.0]]))
    run_command("index", "v.parquet", "-o", "done", "--device", "cpu", "--spec", "Flat")
    code, _, err = run_command(*words)
    assert code == 2
    assert message in err
    assert err.startswith("ridgeline: ")
    assert not Path("ix").exists()


@pytest.mark.parametrize("scores", [[1.5, None, 3.0], ["a", "b", "c"]])
def test_columns_named_like_result_fields_get_a_prefix(run_command, tmp_path: Path, scores: list):
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.eye(3, dtype=np.float32).ravel()), 3)
    columns = {"vector": vectors, "id": [101, 102, 103], "score": scores, "note": [1.0, float("nan"), 2.0]}
    pq.write_table(pa.table(columns), tmp_path / "v.parquet")
    np.save(tmp_path / "q.npy", np.eye(3)[1:2])
    run_command("index", tmp_path / "v.parquet", "-o", tmp_path / "ix", "--device", "cpu")
    code, out, _ = run_command("search", tmp_path / "ix", "--vectors", tmp_path / "q.npy", "-k", 10**12, "--json")
    assert code == 0
    best, *others = json.loads(out, parse_constant=pytest.fail)["results"][0]["found"]
    assert len(others) == 2
    assert best == {"id": 1, "score": 1.0, "meta.id": 102, "meta.score": scores[1], "note": None}
    code, out, _ = run_command("search", tmp_path / "ix", "--vectors", tmp_path / "q.npy", "-k", 1)
    assert code == 0
    assert out.split()[:7] == ["id", "score", "meta.id", "meta.score", "note", "1", "1.0000"]


def test_a_bad_condition_is_printed_with_its_position(run_command, files: Path):
    run_command("index", files / "v.parquet", "-o", files / "ix", "--device", "cpu")
    _, _, err = run_command("search", files / "ix", "--vectors", files / "q.npy", "--where", "year >> 3")
    assert err.splitlines()[-2:] == ["  year >> 3", "        ^"]
