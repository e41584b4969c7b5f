"""`ridgeline recommend`: every command from a folder to a result, on synthetic data.

python -m pytest tests/cli/test_recommend.py
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.embed import tiny

from ridgeline.cli import main
from ridgeline.recommend import Recommender, demo, recommender


def run(capsys, *words) -> tuple[int, str, str]:
    try:
        main([str(w) for w in words])
        code = 0
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    """Vectors are kept in a home of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The demo's films and users as a MovieLens folder, with one damaged row."""
    data = demo.draw_dataset()
    c, r = data.catalogue, data.ratings
    root = tmp_path_factory.mktemp("ml")
    films = [f'{i},"{t}",{"|".join(g)}' for i, t, g in zip(c.ids, c.titles, c.genres, strict=True)]
    (root / "movies.csv").write_text("movieId,title,genres\n" + "\n".join(films) + "\n")
    rows = [f"{u + 1},{c.ids[i]},{s},{t}" for u, i, s, t in zip(r.users, r.items, r.stars, r.times, strict=True)]
    rows.append("7,1,five,1500000000")
    (root / "ratings.csv").write_text("userId,movieId,rating,timestamp\n" + "\n".join(rows) + "\n")
    return root


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    pytest.importorskip("torch")
    return tiny.make(tmp_path_factory.mktemp("models") / "tiny", limit=500, max_position_embeddings=512)


@pytest.fixture(scope="module")
def model(folder, encoder, tmp_path_factory):
    out = tmp_path_factory.mktemp("fit") / "model"
    words = ["recommend", "fit", str(folder), "-o", str(out), "--encoder", str(encoder), "--device", "cpu", "--quiet"]
    with pytest.raises(SystemExit, match=r"^0$"):
        main(words)
    return out


@pytest.fixture(scope="module")
def broken(model, folder, tmp_path_factory) -> dict[str, Path]:
    """An old model; folders with a missing file, another encoding, times in milliseconds, an unclosed quote."""
    root = tmp_path_factory.mktemp("broken")
    known = Recommender.load(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recommender, "MODEL_FORMAT", 0)
        known.save(root / "old")
    (root / "half").mkdir()
    shutil.copy(folder / "movies.csv", root / "half")
    shutil.copytree(folder, root / "latin")
    (root / "latin/movies.csv").write_bytes("movieId,title,genres\n1,Amélie (2001),Comedy\n".encode("latin-1"))
    shutil.copytree(folder, root / "milli")
    rated = "".join(f"{n},1,4.0,1500000000000\n" for n in range(30))
    (root / "milli/ratings.csv").write_text("userId,movieId,rating,timestamp\n" + rated)
    shutil.copytree(folder, root / "quote")
    (root / "quote/movies.csv").write_text('movieId,title,genres\n1,Heat,Crime\n2,"Jaws,Horror\n3,Alien,Horror\n')
    (root / "page.html").mkdir()
    names = {"OLD": "old", "HALF": "half", "LATIN": "latin", "MILLI": "milli", "QUOTE": "quote"}
    return {**{name: root / place for name, place in names.items()}, "DATA.html": root / "page.html"}


def test_describe_names_the_damaged_row(capsys, folder):
    code, out, err = run(capsys, "recommend", "describe", folder)
    assert code == 0
    assert "users" in out
    assert "rating is 'five', not a number" in " ".join(err.split())
    summary = json.loads(run(capsys, "recommend", "describe", folder, "--json")[1])
    assert (summary["users"], summary["left_out"]) == (240, {"unreadable": 1})


def test_for_prints_json_and_a_table(capsys, model, folder):
    code, out, _ = run(capsys, "recommend", "for", 1, "--model", model, "-k", 7, "--json")
    results = json.loads(out)
    assert code == 0
    assert len(results) == 7
    assert set(results[0]) == {"item", "title", "genres", "score", "why", "basis", "ranks", "terms"}
    seen = {int(w.split(",")[1]) for w in (folder / "ratings.csv").read_text().splitlines() if w.startswith("1,")}
    assert not seen & {a["item"] for a in results}
    code, out, _ = run(capsys, "recommend", "for", 1, "--model", model, "--explain")
    assert code == 0
    assert "because of" in out


def test_similar_search_and_new_answer(capsys, model):
    code, _, err = run(capsys, "recommend", "similar", "Toi Stroy", "--model", model)
    assert code == 0
    assert "taken for 'Toy Story (1995)'" in err
    assert len(json.loads(run(capsys, "recommend", "search", "a shark", "--model", model, "--json")[1])) == 10
    results = json.loads(run(capsys, "recommend", "new", "--liked", "Alien", "--model", model, "--json", "-k", 3)[1])
    assert len(results) == 3


def test_new_shows_the_effect_of_the_text(capsys, model):
    words = ("recommend", "new", "--liked", "Alien", "--text", "a wedding", "--model", model)
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert "by likes" in out
    assert "by text" in out
    code, _, err = run(capsys, *words, "--text-weight", 2)
    assert code == 2
    assert "the text weight is 2; give 0 (likes alone) to 1 (text alone)." in " ".join(err.split())


def test_for_says_that_a_user_without_likes_gets_popular_items(capsys, model, tmp_path):
    with Recommender.load(model) as known:
        known.likes = known.likes.select(np.arange(len(known.likes)))
        known.likes.starts[0] = known.likes.starts[1]
        known.save(tmp_path / "m")
    code, _, err = run(capsys, "recommend", "for", 1, "--model", tmp_path / "m", "--explain")
    assert code == 0
    assert "likes nothing yet, so these are the items that most users like" in " ".join(err.split())


def test_all_writes_a_file(capsys, model, tmp_path):
    code, out, _ = run(capsys, "recommend", "all", "--model", model, "-o", tmp_path / "all.parquet", "-k", 3, "--json")
    assert code == 0
    assert json.loads(out)["rows"] == 720
    table = pq.read_table(tmp_path / "all.parquet")
    assert table.column_names == ["user", "rank", "item", "title", "score", "basis"]
    assert set(table["basis"].to_pylist()) == {"likes"}


def test_evaluate_prints_json_and_writes_a_page(capsys, folder, encoder, tmp_path):
    words = ("--split", "temporal-user", "--metrics", "recall@20,ndcg@10,coverage", "--encoder", encoder, "--json")
    code, out, _ = run(capsys, "recommend", "evaluate", folder, *words, "-o", tmp_path / "page.html", "--device", "cpu")
    evaluation = json.loads(out)
    assert code == 0
    assert evaluation["protocol"]["split"] == "temporal-user"
    assert "paired_vs_ease" in evaluation["models"]["hybrid"]
    page = (tmp_path / "page.html").read_text()
    assert "difference to EASE" in page
    assert f"{evaluation['models']['ease']['ndcg@10']['mean']:.4f}" in page


def test_evaluate_takes_a_split_of_the_user(capsys, folder, encoder, tmp_path):
    head, *rows = (folder / "ratings.csv").read_text().splitlines()
    (tmp_path / "train.csv").write_text("\n".join([head, *(r for i, r in enumerate(rows) if i % 5)]) + "\n")
    (tmp_path / "test.csv").write_text("\n".join([head, *rows[::5], "999,1,5,0"]) + "\n")
    files = ("--train", tmp_path / "train.csv", "--test", tmp_path / "test.csv")
    words = ("recommend", "evaluate", folder, *files, "--encoder", encoder, "--device", "cpu", "--json")
    code, out, _ = run(capsys, *words, "--metrics", "ndcg@10")
    protocol = json.loads(out)["protocol"]
    assert code == 0
    assert (protocol["split"], protocol["ease_lambda_from"]) == ("given", "validation")
    assert protocol["likes_held_out"] > 100
    code, _, err = run(capsys, "recommend", "evaluate", folder, *files[:2])
    assert (code, "--train needs the held-out ratings" in err) == (2, True)


def test_the_demo_needs_no_data(capsys, encoder):
    code, out, _ = run(capsys, "recommend", "demo", "--encoder", encoder, "--device", "cpu", "--json")
    assert code == 0
    assert all(json.loads(out)["answers"].values())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("for", "99999", "--model", "MODEL"), "no user '99999'"),
        (("for", "1l0", "--model", "MODEL"), "the nearest are 10, 210, 190; `new` serves users without ratings"),
        (("similar", "xqzzw", "--model", "MODEL"), "no title like 'xqzzw'; search finds films by what they are about"),
        (("similar", "Toi Stry of Zqxw", "--model", "MODEL"), "the nearest are 'Toy Story 2 (1999)', "),
        (("new", "--liked", "xqzzw", "--model", "MODEL"), "no title like 'xqzzw'"),
        (("for", "1", "--model", "MODEL", "--genre", "Polka"), "There are: Action, Adventure"),
        (("all", "--model", "OLD", "-o", "OUT.parquet"), "has format 0, and this version reads 1; fit it again"),
        (("serve", "OLD"), "has format 0, and this version reads 1; fit it again"),
        (("fit", "HALF", "-o", "OUT"), "has movies.csv but no ratings.csv; extract the whole download again"),
        (("evaluate", "HALF"), "has movies.csv but no ratings.csv; extract the whole download again"),
        (("describe", "LATIN"), "movies.csv line 2 is not UTF-8; convert the file (iconv -t utf8)"),
        (("for", "1", "--model", "MODEL", "--genre", "Westen"), "did you mean 'Western'"),
        (("for", "1", "--model", "MODEL", "--year", "1990-1980"), "end before they begin"),
        (("for", "1", "--model", "NOWHERE"), "does not exist"),
        (("for", "1", "--model", "DATA"), "no manifest.json"),
        (("new", "--model", "MODEL"), "needs liked titles or a text"),
        (("fit", "NOWHERE", "-o", "OUT"), "does not exist"),
        (("all", "--model", "MODEL", "-o", "x.csv"), "does not end in .parquet"),
        (("evaluate", "DATA", "--split", "weekly"), "no split 'weekly'"),
        (("evaluate", "DATA", "--metrics", "accuracy"), "no metric 'accuracy'"),
        (("evaluate", "DATA", "-o", "NOWHERE/p.html"), "nowhere'; create it first"),
        (("evaluate", "DATA", "-o", "DATA.html"), "is a folder; give the name of a file"),
        (("evaluate", "DATA", "--ease-lambda", "inf"), "λ is inf; give a finite number above 0"),
        (("fit", "DATA", "-o", "OUT", "--ease-lambda", "inf"), "λ is inf; give a finite number above 0"),
        (("fit", "DATA", "-o", "OUT", "--vectors", "OUT"), "are the same folder; give two folders side by side"),
        (("fit", "DATA", "-o", "DATA", "--vectors", "DATA/v"), "lie within each other; give two folders side by side"),
        (("fit", "DATA", "-o", "OUT", "--template", "{year:d}"), "gives 'year' a format; write {year} alone"),
        (("fit", "DATA", "-o", "OUT", "--template", "{title!z}"), "gives 'title' a format; write {title} alone"),
        (("similar", "x" * 40_000, "--model", "MODEL"), "xxx…'; search finds films by what they are about"),
        (("describe", "MILLI"), "1500000000000, which looks like milliseconds; divide by 1000"),
        (("fit", "MILLI", "-o", "OUT"), "1500000000000, which looks like milliseconds; divide by 1000"),
        (("describe", "QUOTE"), "movies.csv line 3: the quote that opens a value is not closed in its row"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(capsys, model, folder, broken, tmp_path, words, message):
    places = {"MODEL": model, "DATA": folder, "NOWHERE": tmp_path / "nowhere", "OUT": tmp_path / "out", **broken}
    places["OUT.parquet"] = tmp_path / "out.parquet"
    places |= {"NOWHERE/p.html": tmp_path / "nowhere/p.html", "DATA/v": folder / "v"}
    code, _, err = run(capsys, "recommend", *(places.get(w, w) for w in words))
    assert code == 2
    assert message in " ".join(err.split())
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_a_token_comes_from_a_file_or_the_environment(capsys, model, tmp_path, monkeypatch):
    from ridgeline import web

    served = []
    monkeypatch.setattr(web, "serve", lambda app, *, announce, **_: (served.append(app.rules.token), announce("at /")))
    monkeypatch.delenv("RIDGELINE_RECOMMEND_TOKEN", raising=False)
    code, _, err = run(capsys, "recommend", "serve", model, "--token", "a-token-of-sixteen-or-more")
    assert (code, "seen by every user" in err, "RIDGELINE_RECOMMEND_TOKEN" in err, "sixteen" in err) == (2, 1, 1, 0)
    path = tmp_path / "token"
    code, _, err = run(capsys, "recommend", "serve", model, "--token-file", path)
    token = path.read_text().strip()
    assert (code, path.stat().st_mode & 0o777, served, token in err, str(path) in " ".join(err.split())) == (
        (0, 0o600, [token], False, True)
    )
    assert run(capsys, "recommend", "serve", model, "--token-file", path)[0] == 0
    monkeypatch.setenv("RIDGELINE_RECOMMEND_TOKEN", "token-of-the-environment")
    assert run(capsys, "recommend", "serve", model)[0] == 0
    assert served == [token, token, "token-of-the-environment"]
    path.chmod(0o644)
    code, _, err = run(capsys, "recommend", "serve", model, "--token-file", path)
    assert (code, "can be read by others" in " ".join(err.split())) == (2, True)


def test_add_takes_items_and_ratings_or_none(capsys, model, tmp_path):
    copied, items, ratings = tmp_path / "model", tmp_path / "items.jsonl", tmp_path / "ratings.csv"
    shutil.copytree(model, copied)
    items.write_text('{"id": "cli", "title": "Lighthouse", "text": "a keeper alone"}\n{"id": "1", "title": "Taken"}\n')
    ratings.write_text("user,item,rating\nann,cli,5\nann,2,4\nann,nothing,3\n")
    words = ["recommend", "add", copied, "--items", items, "--ratings", ratings, "--device", "cpu"]
    code, _, err = run(capsys, *words)
    assert code == 2
    assert "there is an item '1' already" in " ".join(err.split())
    items.write_text(items.read_text().splitlines()[0])
    assert json.loads(run(capsys, *words, "--json")[1]) == {"items": 1, "ratings": 3, "waiting": 1}
    results = json.loads(run(capsys, "recommend", "for", "ann", "--model", copied, "-k", 300, "--json")[1])
    assert not {"cli", 2} & {a["item"] for a in results}
    for name, words in {"bad": "no column 'user'", "user,item,rating\n1,2,good": "not a number"}.items():
        ratings.write_text(name)
        code, _, err = run(capsys, "recommend", "add", copied, "--ratings", ratings)
        assert code == 2
        assert words in " ".join(err.split())
    assert run(capsys, "recommend", "add", copied)[0] == 2


@pytest.mark.slow  # two processes load torch
def test_two_devices_encode_the_item_texts_together(folder, encoder, model, tmp_path, capsys):
    words = ("--encoder", encoder, "--device", "cpu,cpu", "--json")
    code, out, err = run(capsys, "recommend", "fit", folder, "-o", tmp_path / "two", *words)
    assert code == 0, err
    assert json.loads(out)["vectors"]["ok"]
    with Recommender.load(model) as one, Recommender.load(tmp_path / "two") as two:
        np.testing.assert_allclose(one.vectors, two.vectors, atol=1e-6)


def test_a_device_of_several_that_is_not_there_is_named(folder, tmp_path, capsys):
    code, _, err = run(capsys, "recommend", "fit", folder, "-o", tmp_path / "out", "--device", "cpu,cuda:77")
    assert code == 2
    assert "cuda:77" in err
    assert not (tmp_path / "out").exists()
