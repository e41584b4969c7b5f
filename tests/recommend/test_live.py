"""Items and ratings that arrive after the fit: seen by the next answer, kept by the journal, refused as a whole.

python -m pytest tests/recommend/test_live.py
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError, Locked, RidgelineError
from ridgeline.recommend import Change, Options, Recommender, ServedModel, ServedModels, create_app, demo
from ridgeline.recommend.live import JOURNAL, MAX_TEXT_CHARS, Conflict, LiveData, NotFound, TooLarge, read_new_items
from ridgeline.recommend.models import FoldIn
from ridgeline.recommend.refits import refit
from ridgeline.web import run_in_background

ROBOT = {
    "id": "robot",
    "title": "Xylozoic Quagga",
    "text": "a robot learns to love",
    "genres": ["Sci-Fi"],
    "year": 2031,
}


@pytest.fixture
def folder(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def live(folder):
    with Recommender.load(folder) as instance:
        yield instance


def list_items(recommendations):
    return [a.item for a in recommendations]


def without_encoder(model):
    """Give a model a stand-in for an encoder: unit vectors that depend on the text only."""
    size = model.vectors.shape[1]

    def encode(texts):
        vectors = np.array([np.random.default_rng(list(text.encode())).standard_normal(size) for text in texts])
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    model._loaded_encoder.embedder = SimpleNamespace(
        encode=encode, encode_one=lambda text: encode([text])[0], dim=size, close=lambda: None, device="cpu"
    )
    return model


def test_an_added_item_is_found_changed_and_removed(live):
    assert live.add_items([ROBOT]) == {"added": 1}
    text = "Xylozoic Quagga. Genres: Sci-Fi. a robot learns to love"
    assert list_items(live.search(text, Options(1))) == ["robot"]
    assert live.describe_item("robot") == {**ROBOT, "genres": ["Sci-Fi"]}
    assert live.titles.find("xylozoic quagga")[0] == live.find_item("robot")
    assert "robot" in list_items(live.search("love", Options(5, "sci-fi", (2031, 2031))))
    live.put_item({"id": "robot", "title": "Glacier", "text": "ice climbers"})
    assert list_items(live.search("Glacier. ice climbers", Options(1))) == ["robot"]
    with pytest.raises(InputError, match="no title"):
        live.titles.find("xylozoic quagga")
    live.remove_items(["robot"])
    answers = [live.search("Glacier. ice climbers", Options(200)), live.recommend(3, Options(200))]
    assert all("robot" not in list_items(answer) for answer in answers)
    with pytest.raises(NotFound, match="robot"):
        live.describe_item("robot")


def test_an_item_of_the_fit_is_changed_and_removed(live):
    item, title = live.catalogue.ids[4].item(), live.catalogue.titles[4]
    live.put_item({"id": item, "title": "Quite Another Film"})
    assert live.catalogue.titles[live.find_item(item)] == "Quite Another Film"
    with pytest.raises(NotFound, match="any more"):
        live.similar(title)
    live.remove_items([item])
    assert item not in list_items(live.recommend(1, Options(200)))
    assert item not in [live.catalogue.ids[i] for i in live.top(np.arange(40), 200)[0].ravel() if i >= 0]
    assert all("Quite Another Film" not in a.why for user in range(1, 20) for a in live.recommend(user))


def test_an_item_is_recommended_to_those_who_like_what_its_fans_like(live):
    liked = [live.catalogue.ids[row].item() for row in live.likes.select(np.array([0])).items[:4].tolist()]
    live.add_items([{**ROBOT, "text": "", "genres": []}])
    rank = list_items(live.recommend(1, Options(200))).index("robot")
    live.add_ratings([{"user": f"fan{n}", "item": key, "rating": 5} for n in range(8) for key in ("robot", *liked)])
    assert list_items(live.recommend(1, Options(200))).index("robot") < rank
    assert live.recommend("fan0", Options(3))[0].basis == "likes"


def test_ratings_change_the_list_of_their_user_only(live):
    before = {user: live.recommend(user, Options(20)) for user in (1, 2, 3)}
    best = [a.item for a in before[1]]
    result = live.add_ratings([{"user": 1, "item": item, "rating": 5} for item in best[:5]])
    assert result == {"added": 5, "waiting": 0}
    after = list_items(live.recommend(1, Options(20)))
    assert not set(best[:5]) & set(after)
    assert all(live.recommend(user, Options(20)) == before[user] for user in (2, 3))
    live.remove_ratings([(1, item) for item in best[:5]])
    assert list_items(live.recommend(1, Options(20))) == best


def test_a_new_user_gets_what_the_same_likes_give_without_a_name(live):
    titles = ["Alien", "Aliens"]
    items = [live.catalogue.ids[live.titles.find(title)[0]].item() for title in titles]
    live.add_ratings([{"user": "nina", "item": item, "rating": 5, "time": n} for n, item in enumerate(items)])
    assert live.recommend("nina") == live.new(titles)
    assert list(live.user_ids[-1:]) == ["nina"]
    assert [r["item"] for r in live.list_ratings("nina")] == items


def test_a_rating_of_an_unknown_item_counts_once_the_item_comes(live, folder):
    assert live.add_ratings([{"user": "carl", "item": "later", "rating": 5}]) == {"added": 0, "waiting": 1}
    assert live.list_ratings("carl") == []
    live.close()
    with Recommender.load(folder) as again:
        again.add_items([{"id": "later", "title": "Later"}])
        assert [r["item"] for r in again.list_ratings("carl")] == ["later"]
        again.remove_items(["later"])
        assert again.list_ratings("carl") == []


def test_a_loaded_model_answers_as_the_one_that_took_the_changes(live, folder, tmp_path):
    live.add_items([ROBOT, {"id": 9001, "title": "Storm (1999)"}])
    live.add_ratings([{"user": u, "item": i, "rating": 4.5} for u in (1, "eve") for i in ("robot", 9001, 5)])
    live.remove_items([7])
    queries = [(1, Options(30)), ("eve", Options(30)), (2, Options(30))]
    want = [live.recommend(*query) for query in queries] + [live.search("a storm", Options(30))]
    live.save(tmp_path / "copy")
    live.close()
    for place in (folder, tmp_path / "copy"):
        with Recommender.load(place) as again:
            assert [again.recommend(*query) for query in queries] + [again.search("a storm", Options(30))] == want
            assert again.catalogue.ids[again.find_item(9001)] == 9001, "numbers stay numbers"


def test_one_process_writes_at_a_time_and_the_next_one_sees_all(folder):
    with Recommender.load(folder) as first, Recommender.load(folder) as second:
        without_encoder(first)
        without_encoder(second)
        first.add_items([ROBOT])
        with pytest.raises(Locked, match="locked by"):
            second.add_items([{"id": "x", "title": "X"}])
        first.close()
        with pytest.raises(Conflict, match="robot"):
            second.add_items([ROBOT])


BAD = {
    "no object": ("add_items", ["Alien"], InputError, "give an object"),
    "no id": ("add_items", [{"title": "A"}], InputError, "id of the item is missing"),
    "an id that is a list": ("add_items", [{"id": [1], "title": "A"}], InputError, "whole number"),
    "no title": ("add_items", [{"id": "a"}], InputError, "title of item 'a' is missing"),
    "an empty title": ("add_items", [{"id": "a", "title": " "}], InputError, "no title"),
    "a number as a text": ("add_items", [{"id": "a", "title": "A", "text": 5}], InputError, "text of item 'a' is int"),
    "half a character": ("add_items", [{"id": "a", "title": "\ud800"}], InputError, "half a character"),
    "a year in words": ("add_items", [{"id": "a", "title": "A", "year": "x"}], InputError, "year of item 'a'"),
    "another field": ("add_items", [{"id": "a", "title": "A", "txt": "x"}], InputError, "field 'txt'"),
    "a long text": ("add_items", [{"id": "a", "title": "A", "text": "x" * MAX_TEXT_CHARS}], TooLarge, "characters"),
    "an id twice": ("add_items", [{"id": "a", "title": "A"}, {"id": "a", "title": "B"}], Conflict, "'a' is twice"),
    "an id of the fit": ("add_items", [{"id": "n", "title": "A"}, {"id": 1, "title": "B"}], Conflict, "'1' already"),
    "a change of nothing": ("put_item", [{"id": "zz", "title": "A"}], NotFound, "'zz'"),
    "an item that is not there": ("remove_items", [1, "zz"], NotFound, "'zz'"),
    "a rating in words": ("add_ratings", [{"user": 1, "item": 1, "rating": "good"}], InputError, "give a number"),
    "a rating that is NaN": ("add_ratings", [{"user": 1, "item": 1, "rating": float("nan")}], InputError, "number"),
    "a time far ahead": ("add_ratings", [{"user": 1, "item": 1, "rating": 5, "time": 1e12}], InputError, "a day ahead"),
    "no user": ("add_ratings", [{"item": 1, "rating": 5}], InputError, "id of the user is missing"),
    "a rating that is not there": ("remove_ratings", [("nobody", 1)], NotFound, "has not rated"),
}


@pytest.mark.parametrize(("kind", "values", "error", "words"), BAD.values(), ids=BAD)
def test_a_wrong_change_is_refused_as_a_whole(model, kind, values, error, words):
    taken = without_encoder(make_copy(model))
    (result,) = taken.apply_changes([Change(kind, values)])
    assert type(result) is error
    assert words in str(result)
    assert not taken._live.lines
    assert taken.recommend(1) == model.recommend(1)


def make_copy(model):
    """A model of its own in memory, with the arrays of another."""
    copy = Recommender.__new__(Recommender)
    copy.__dict__ = {**model.__dict__, "_loaded_encoder": type(model._loaded_encoder)(), "_live": None}
    return copy


IDS = st.sampled_from(["1", "2", "a", "b", "c"])
USERS = st.sampled_from(["1", "new", "other"])
OPS = st.one_of(
    st.tuples(st.just("add_items"), IDS.map(lambda i: [{"id": i, "title": f"Film {i}"}])),
    st.tuples(st.just("put_item"), IDS.map(lambda i: [{"id": i, "title": f"Other {i}"}])),
    st.tuples(st.just("remove_items"), IDS.map(lambda i: [i])),
    st.tuples(
        st.just("add_ratings"),
        st.builds(
            lambda u, i, r: [{"user": u, "item": i, "rating": r, "time": 5}], USERS, IDS, st.sampled_from([1, 5])
        ),
    ),
    st.tuples(st.just("remove_ratings"), st.builds(lambda u, i: [(u, i)], USERS, IDS)),
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=st.lists(st.lists(OPS, min_size=1, max_size=4), max_size=5))
def test_any_changes_agree_with_two_dictionaries(model, groups):
    """A slow, obvious reference: the items that are there, and the ratings by user and item."""
    changed = without_encoder(make_copy(model))
    there = {str(key): title for key, title in zip(model.catalogue.ids.tolist(), model.catalogue.titles, strict=True)}
    rated = {(u, r["item"]): r["rating"] for u in ("1", "new", "other") for r in make_copy(model).list_ratings(u)}
    rated = {(user, str(item)): stars for (user, item), stars in rated.items()}
    for group in groups:
        results = changed.apply_changes([Change(*op) for op in group])
        for (kind, values), result in zip(group, results, strict=True):
            value = values[0]
            if kind == "remove_ratings":
                refused = rated.pop(value, None) is None
            elif kind == "add_ratings":
                rated[value["user"], value["item"]], refused = value["rating"], False
                assert result["waiting"] == (value["item"] not in there)
            elif kind == "remove_items":
                refused = there.pop(value, None) is None
            else:
                refused = (value["id"] in there) == (kind == "add_items")
                if not refused:
                    there[value["id"]] = value["title"]
            assert isinstance(result, InputError) == refused
    replayed = make_copy(model)
    replayed._get_live().apply(changed._get_live().lines)
    replayed._refresh()
    for each in (changed, replayed):
        keep = each.catalogue.find_allowed(None, None)
        assert {
            str(key): each.catalogue.titles[row] for row, key in enumerate(each.catalogue.ids) if keep[row]
        } == there
        for user in ("1", "new", "other"):
            want = {(u, i): stars for (u, i), stars in rated.items() if u == user and i in there}
            assert {(user, str(r["item"])): r["rating"] for r in each.list_ratings(user)} == want
            if user in each._get_live().user_rows:
                recommended = {str(a.item) for a in each.recommend(user, Options(999), explain=False)}
                assert recommended == {i for i in there if (user, i) not in want}


@pytest.mark.parametrize("users", [1, 30])
def test_a_fold_in_is_a_weighted_mean(users):
    rng = np.random.default_rng(users)
    fold = FoldIn(np.array([6, 7]), rng.integers(0, 6, (2, 20)), rng.random((2, 20), np.float32) / 20)
    shares = np.zeros((8, 8))
    for row, neighbours, weights in zip(fold.rows, fold.neighbours, fold.weights, strict=True):
        for neighbour, weight in zip(neighbours, weights, strict=True):
            shares[row, neighbour] += weight
    from scipy.sparse import csr_matrix

    likes = (rng.random((users, 8)) < 0.5).astype(np.float32)
    likes[:, 7] = 1
    np.testing.assert_allclose(fold.spread(csr_matrix(likes)).toarray(), likes + likes @ shares, rtol=1e-5)
    scores = rng.standard_normal((users, 8)).astype(np.float32)
    want = scores.copy()
    want[:, 6:] = (scores @ shares.T)[:, 6:]
    fold.fill(scores)
    np.testing.assert_allclose(scores, want, atol=1e-5)


def test_a_known_item_with_a_new_text_describes_new_items_as_after_a_load(folder):
    with without_encoder(Recommender.load(folder)) as live:
        live.add_items([ROBOT, {**ROBOT, "id": "twin"}, {"id": "other", "title": "Something Else"}])
        learnt = live.hybrid.ease.item_rows[0]
        live.put_item({**ROBOT, "id": live.catalogue.ids[learnt]})
        assert learnt in live.hybrid.ease.fold.neighbours[0], "its text is that of the new item now"
        live.add_ratings([{"user": "fan", "item": "robot", "rating": 5}])
        fold = live.hybrid.ease.fold
    with Recommender.load(folder) as again:
        loaded = again.hybrid.ease.fold
        for row in fold.rows.tolist():
            shares = [
                dict(zip(f.neighbours[f.places[row]], f.weights[f.places[row]], strict=True)) for f in (fold, loaded)
            ]
            assert {k: v for k, v in shares[0].items() if v} == pytest.approx({k: v for k, v in shares[1].items() if v})


def test_changes_of_many_threads_are_all_kept(folder):
    model = without_encoder(Recommender.load(folder))
    served = ServedModel("m", model)
    results = {}

    def add(number):
        item = {"id": f"t{number % 12}", "title": f"Film {number}"}
        results[number] = served.write(Change("add_items", [item]))

    threads = [threading.Thread(target=add, args=(n,)) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(isinstance(r, Conflict) for r in results.values()) == 12, "each id was taken once"
    served.close()
    with Recommender.load(folder) as again:
        assert all(again.describe_item(f"t{n}") for n in range(12))


def test_a_snapshot_does_not_change(folder):
    model = without_encoder(Recommender.load(folder))
    served = ServedModel("m", model)
    before, answer = served.snapshot, served.snapshot.recommend(2, Options(200))
    served.write(Change("add_items", [ROBOT]))
    assert before.recommend(2, Options(200)) == answer
    assert "robot" in list_items(served.snapshot.recommend(2, Options(200)))
    served.close()


def test_a_change_that_was_called_off_in_time_does_nothing_and_the_others_count(folder):
    served = ServedModels([ServedModel("m", without_encoder(Recommender.load(folder)))])
    with served.first.writing:  # the first group waits here, and what follows is the second one
        first = served.submit(Change("add_items", [{"id": "a", "title": "A"}]))
        while not first.running():
            time.sleep(0.001)
        others = [served.submit(Change("add_items", [{"id": key, "title": key}])) for key in "bc"]
        assert others[0].cancel()
    served.close()
    assert first.result() == others[1].result() == {"added": 1}, "close waits for them"
    with pytest.raises(RidgelineError, match="the server stops"):
        served.submit(Change("add_items", [{"id": "d", "title": "D"}]))
    with Recommender.load(folder) as again:
        assert [key in again._rows_of_items() for key in "abcd"] == [True, False, True, False]


def test_a_service_answers_with_what_another_process_adds(folder):
    with (
        Recommender.load(folder) as model,
        run_in_background(create_app(model)) as url,
        httpx.Client(base_url=url) as c,
    ):
        assert c.get("/api/items/robot").status_code == 404
        with Recommender.load(folder) as other:
            without_encoder(other).add_items([ROBOT])
            other.add_ratings([{"user": "kim", "item": item, "rating": 5} for item in (1, 2, "robot")])
            refused = c.post("/api/ratings", json={"ratings": [{"user": "kim", "item": 5, "rating": 1}]})
            assert refused.status_code == 503, "one process writes at a time"
            assert "another process writes to this model" in refused.json()["error"]
        end = time.monotonic() + 20
        while c.get("/api/recommend", params={"user": "kim"}).status_code != 200 and time.monotonic() < end:
            time.sleep(0.05)
        assert len(c.get("/api/ratings", params={"user": "kim"}).json()) == 3
        assert c.get("/api/items/robot").json()["title"] == ROBOT["title"]
        answer = c.post("/api/ratings", json={"ratings": [{"user": "kim", "item": 5, "rating": 1}]})
        assert answer.json() == {"added": 1, "waiting": 0}


def test_a_rating_outside_the_range_of_the_format_is_refused_also_after_a_refit(tmp_path):
    folder = tmp_path / "model"
    Recommender.fit(replace(demo.draw_dataset(), form="csv"), None).save(folder)
    outside = [{"user": 1, "item": 1, "rating": rating} for rating in (0, 5.5, 100, -3)]
    with Recommender.load(folder) as model:
        assert model.rating_range == (0.5, 5)
        for rating in outside:
            with pytest.raises(InputError, match=r"the ratings of this model go from 0\.5 to 5"):
                model.add_ratings([rating])
        model.add_ratings([{"user": 1, "item": 1, "rating": 0.5}])
    assert refit(folder) == 2
    with Recommender.load(folder) as model:
        assert model.version == 2
        with pytest.raises(InputError, match="go from"):
            model.add_ratings([outside[2]])


def test_other_data_may_have_any_ratings(model):
    model = copy(model)
    model.rating_range = None
    assert LiveData(model).check([Change("add_ratings", [{"user": 1, "item": 1, "rating": 800}])], list)[0] == [
        {"added": 1, "waiting": 0}
    ]


def test_a_look_at_an_item_or_at_ratings_changes_no_score(folder):
    with Recommender.load(folder) as model:
        before, item, ratings = model.recommend(1), model.describe_item(2), model.list_ratings(1)
        assert model._live is None
        assert model.recommend(1) == before
        assert model.list_ratings("unknown") == []
        without_encoder(model).add_items([ROBOT])
        assert (model.describe_item(2), model.list_ratings(1)) == (item, ratings), "the same once it is live"
        assert json.loads(json.dumps([item, *ratings])) == [item, *ratings]


def test_the_service_takes_items_and_ratings(folder):
    with (
        Recommender.load(folder) as model,
        run_in_background(create_app(model)) as url,
        httpx.Client(base_url=url) as c,
    ):
        answer = c.post("/api/items", json={"items": [ROBOT]})
        assert (answer.status_code, answer.json()) == (201, {"added": 1})
        assert c.get("/api/items/robot").json()["title"] == "Xylozoic Quagga"
        assert (
            c.get("/api/search", params={"q": "Xylozoic Quagga. Genres: Sci-Fi. a robot learns to love"}).json()[0][
                "item"
            ]
            == "robot"
        )
        ratings = [{"user": "kim", "item": item, "rating": 5} for item in (1, 2, "robot", "unknown")]
        answer = c.post("/api/ratings", json={"ratings": ratings})
        assert (answer.status_code, answer.json()) == (201, {"added": 3, "waiting": 1})
        answer = c.get("/api/recommend", params={"user": "kim"})
        assert answer.headers["x-ridgeline-model"] == "model"
        assert len(answer.json()) == 10
        assert [r["item"] for r in c.get("/api/ratings", params={"user": "kim"}).json()] == [1, 2, "robot"]
        assert c.delete("/api/ratings", params={"user": "kim", "item": 1}).json() == {"removed": 1}
        assert c.put("/api/items/robot", json={"title": "Steel Heart"}).json() == {"changed": 1}
        assert c.delete("/api/items/robot").json() == {"removed": 1}
        assert c.get("/api/models").json()["models"]["model"]["version"] == 1
        refused = {
            404: [c.get("/api/items/robot"), c.delete("/api/items/robot"), c.put("/api/items/zz", json={"title": "Z"})],
            409: [c.post("/api/items", json={"items": [{"id": "ok", "title": "x"}, {"id": 1, "title": "x"}]})],
            413: [
                c.post("/api/items", json={"items": [{"id": f"n{n}", "title": "x"} for n in range(1001)]}),
                c.post("/api/items", json={"items": [{"id": "n", "title": "x", "text": "y" * 200_000}]}),
            ],
            400: [
                c.post("/api/items", json={"items": []}),
                c.post("/api/items", content=b"{"),
                c.put("/api/items/1", json={"id": 2, "title": "x"}),
                c.get("/api/ratings"),
                c.get("/api/recommend", params={"user": 1, "model": "zz"}),
            ],
        }
        for status, answers in refused.items():
            assert [a.status_code for a in answers] == [status] * len(answers)
            assert all(set(a.json()) == {"error"} for a in answers)
        assert c.get("/api/items/ok").status_code == 404


@pytest.mark.parametrize("path", ["/api/items", "/api/ratings"])
def test_a_change_without_asgi_gets_the_answer_that_asgi_gives(folder, path):
    values = {"/api/items": {"id": "n", "title": "N"}, "/api/ratings": {"user": 1, "item": 2, "rating": 5}}[path]
    name = path.removeprefix("/api/")
    wrong = [b"{", b"[]", b"{}", json.dumps({name: [{**values, "more": 1}]}).encode(), b'{"a": "\\ud800"}']
    bodies = [*wrong, json.dumps({name: [values]}).encode()]
    answers = {}
    for rate in (None, 1e6):  # with a limit of requests, ASGI answers
        shutil.copytree(folder, copied := folder.with_name(f"model {rate}"))
        with (
            without_encoder(Recommender.load(copied)) as model,
            run_in_background(create_app(model, rate=rate)) as url,
            httpx.Client(base_url=url) as client,
        ):
            answers[rate] = [
                (a.status_code, a.text, a.headers["content-type"])
                for a in (client.post(path, content=b) for b in bodies)
            ]
            count = f'requests_total{{path="{path}",status="400"}} {len(wrong)}.0'
            assert count in client.get("/metrics").text
    assert answers[None] == answers[1e6]
    assert [status for status, _, _ in answers[None]] == [400] * len(wrong) + [201]


def test_a_file_of_items_is_read_whole_or_refused_by_line(tmp_path):
    path = tmp_path / "items.jsonl"
    path.write_text('{"id": 1, "title": "A"}\n\n{"id": "1", "title": "B"}\n')
    with pytest.raises(InputError, match="line 3: the id '1' is that of line 1"):
        read_new_items(path)
    path.write_text('{"id": 1, "title": "A"}\n{"id": 2,\n')
    with pytest.raises(InputError, match="line 2 is no JSON"):
        read_new_items(path)


KILLED = """
import sys
sys.path.insert(0, {tests!r})
from ridgeline.recommend import Recommender
from tests.recommend.test_live import without_encoder
model = without_encoder(Recommender.load({folder!r}))
for number in range(10**6):
    key = f"k{start}x{{number}}"
    model.add_items([{{"id": key, "title": key}}])
    model.add_ratings([{{"user": f"u{start}", "item": key, "rating": 4}}])
    print(key, flush=True)
"""


def kill_while_writing(folder, kills, rng):
    """Start a writer, kill it after a random number of acknowledged changes, and check all of them; repeat."""
    acknowledged = {}
    for start in range(kills):
        code = KILLED.format(tests=str(Path(__file__).parents[2]), folder=str(folder), start=start)
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for _ in range(rng.randrange(1, 40)):
            acknowledged[child.stdout.readline().strip()] = f"u{start}"
        time.sleep(rng.random() / 100)
        child.send_signal(signal.SIGKILL)
        for line in child.stdout:
            if line.endswith("\n"):
                acknowledged[line.strip()] = f"u{start}"
        child.stdout.close()
        assert child.wait(60) == -signal.SIGKILL
    assert "" not in acknowledged, "a writer failed by itself"
    with Recommender.load(folder) as again:
        again = without_encoder(again)
        for user in set(acknowledged.values()):
            mine = [key for key, name in acknowledged.items() if name == user]
            stored = [r["item"] for r in again.list_ratings(user)]
            assert set(mine) <= set(stored)
            assert all(key.startswith(f"k{user[1:]}x") for key in stored), "ratings of another user"
            assert not set(mine) & set(list_items(again.recommend(user, Options(100))))
        again.add_items([{"id": "after", "title": "After"}])


def test_nothing_acknowledged_is_lost_by_two_kills(folder):
    kill_while_writing(folder, 2, random.Random(0))


@pytest.mark.slow  # fifty processes
def test_nothing_acknowledged_is_lost_by_fifty_kills(folder):
    kill_while_writing(folder, 50, random.Random(1))


def test_a_torn_last_line_of_the_journal_is_ignored(folder):
    with Recommender.load(folder) as model:
        without_encoder(model).add_items([ROBOT])
    journal = folder.with_name("model.live") / JOURNAL
    with journal.open("ab") as file:
        file.write(json.dumps({"op": "remove item", "id": "robot"}).encode()[:20])
    with Recommender.load(folder) as again:
        assert again.describe_item("robot")
