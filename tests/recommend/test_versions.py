"""Versions of a model: refits with what arrived, the way back, models side by side.

python -m pytest tests/recommend/test_versions.py
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.recommend.test_live import ROBOT, list_items, without_encoder

from ridgeline.errors import InputError
from ridgeline.recommend import (
    Change,
    Options,
    Recommender,
    RefitRules,
    ServedModel,
    ServedModels,
    create_app,
    parse_refit,
    parse_shares,
    refit,
)
from ridgeline.recommend.live import Conflict, NotFound
from ridgeline.recommend.serving import Refitter
from ridgeline.recommend.versions import find_version, get_current, get_live_folder, list_versions
from ridgeline.web import run_in_background


@pytest.fixture(scope="module")
def changed(saved, tmp_path_factory):
    """A model with changes of every kind, refitted once, and what its first version answered."""
    folder = tmp_path_factory.mktemp("versions") / "model"
    shutil.copytree(saved, folder)
    with Recommender.load(folder) as model:
        without_encoder(model)
        fans = [{"user": f"fan{n}", "item": item, "rating": 5} for n in range(6) for item in ("robot", 1, 2, 3, 4)]
        model.add_items([ROBOT, {"id": 9001, "title": "Storm (1999)"}])
        model.add_ratings([*fans, {"user": 1, "item": "later", "rating": 5}, {"user": 1, "item": 7, "rating": 2}])
        model.put_item({"id": 5, "title": "Quite Another Film"})
        model.remove_items([6])
        answer = model.recommend("fan0", Options(20))
    assert refit(folder) == 2
    return folder, answer


@pytest.fixture
def folder(changed, tmp_path):
    for path in (changed[0], get_live_folder(changed[0])):
        shutil.copytree(path, tmp_path / path.name)
    return tmp_path / "model"


def test_a_refit_learns_what_arrived(folder):
    with Recommender.load(folder) as model:
        assert model.version == 2
        assert model._live is None or not model._live.lines
        assert model.catalogue.ids[model.find_item("robot")] == "robot"
        assert model.catalogue.ids[model.find_item(9001)] == 9001, "numbers stay numbers"
        assert model.find_item("robot") in model.hybrid.ease.item_rows, "the item is learnt, not folded in"
        assert model.describe_item("robot") == {**ROBOT, "genres": ["Sci-Fi"]}
        assert model.describe_item(5)["title"] == "Quite Another Film"
        assert [r["item"] for r in model.list_ratings("fan3")] == ["robot", 1, 2, 3, 4]
        assert 7 in [r["item"] for r in model.list_ratings(1)]
        with pytest.raises(NotFound, match="'6'"):
            model.describe_item(6)
        assert "robot" not in list_items(model.recommend("fan0", Options(20)))


def test_ratings_of_items_that_are_not_there_wait_through_a_refit(folder, saved):
    with Recommender.load(saved) as before:
        users = [str(before.user_ids[row]) for row in before.seen.users[before.seen.items == before.find_item(6)]]
    with Recommender.load(folder) as model:
        without_encoder(model).add_items([{"id": "later", "title": "Later"}, {"id": 6, "title": "Again"}])
        assert "later" in [r["item"] for r in model.list_ratings(1)]
        assert users
        assert all(6 in [r["item"] for r in model.list_ratings(user)] for user in users)


def test_an_earlier_version_has_all_changes(folder, changed):
    with Recommender.load(folder) as model:
        without_encoder(model).add_ratings([{"user": "late", "item": 1, "rating": 5}])
    served = ServedModel("m", Recommender.load(folder), path=folder)
    assert served.list_versions() == [1, 2]
    assert served.replace(1) == served.version == 1
    assert list_items(served.snapshot.recommend("fan0", Options(5))) == list_items(changed[1])[:5]
    assert [r["item"] for r in served.snapshot.list_ratings("late")] == [1]
    assert get_current(folder) == 1, "also after a restart"
    with pytest.raises(InputError, match="no version 9; it has 1, 2"):
        served.replace(9)
    served.close()


def test_changes_during_a_swap_are_in_the_new_version(folder):
    model = without_encoder(Recommender.load(folder))
    served = ServedModel("m", model, path=folder)
    served.write(Change("add_items", [{"id": "x", "title": "X"}]))
    old = served.snapshot
    assert served.replace(2) == 2
    assert served.snapshot is not old
    assert served.snapshot.describe_item("x")["title"] == "X"
    assert isinstance(served.write(Change("add_items", [{"id": "x", "title": "Y"}])), Conflict)
    assert served.write(Change("add_items", [{"id": "y", "title": "Y"}])) == {"added": 1}, "it has the lock now"
    served.close()
    with Recommender.load(folder) as again:
        assert again.describe_item("y")


def test_a_new_fit_replaces_all_versions(folder, model):
    model.save(folder)
    shutil.copytree(folder, folder.with_name("other"))
    assert get_current(folder) == 2, "the same fit, byte for byte"
    changed = Recommender.load(folder.with_name("other"))
    changed.name = "another fit"
    changed.save(folder)
    assert get_current(folder) == 1
    assert list_versions(folder) == [1]
    with pytest.raises(InputError, match="no version 2"):
        find_version(folder, 2)


def test_a_refit_without_changes_is_refused(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "model")
    with pytest.raises(InputError, match="nothing was added"):
        refit(tmp_path / "model")


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("every=1h", RefitRules(3600.0)),
        ("after=10000", RefitRules(0.0, 10000)),
        ("after=5,every=1.5d", RefitRules(129600.0, 5)),
    ],
)
def test_refit_rules_are_parsed(text, rules):
    assert parse_refit(text) == rules


@pytest.mark.parametrize("text", ["", "1h", "every=1", "every=0s", "after=0", "after=x", "after=1.5", "every=-1h"])
def test_a_wrong_refit_rule_is_an_error(text):
    with pytest.raises(InputError, match="write every=1h or after=10000"):
        parse_refit(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [("90/20", "adds up to 110"), ("100", "1 shares for 2 models"), ("a/b", "no list"), ("-10/110", "0 or more")],
)
def test_a_split_that_does_not_add_up_is_an_error(text, words):
    with pytest.raises(InputError, match=words):
        parse_shares(text, ["a", "b"])


def test_a_refit_is_due_by_time_or_by_changes(folder):
    served = ServedModels([ServedModel("m", without_encoder(Recommender.load(folder)), path=folder)])
    by_count, by_time = Refitter(served, RefitRules(after=3)), Refitter(served, RefitRules(every_s=60))
    start = by_time._last_s["m"]
    assert not by_time.is_due(served.first, start + 61), "nothing changed"
    for number in range(3):
        assert not by_count.is_due(served.first, start + 1e6)
        served.write(Change("add_ratings", [{"user": "z", "item": number + 1, "rating": 5}]))
    assert by_count.is_due(served.first, start)
    assert not by_time.is_due(served.first, start + 59)
    assert by_time.is_due(served.first, start + 61)
    assert served.first.replace(1) == 1
    assert served.first.new_lines == 3, "a rollback is not undone at once: version 2 learnt the rest"
    served.first.refit_error = "no disk"
    assert not by_count.is_due(served.first, start), "a refit that failed waits before it is tried again"
    served.close()


def test_a_refit_that_fails_leaves_the_model_in_use(folder):
    served = ServedModels([ServedModel("m", Recommender.load(folder), path=folder.with_name("gone"))])
    Refitter(served, RefitRules(after=1)).refit(served.first)
    assert served.first.version == 2
    assert "gone" in served.first.describe()["refit_error"]
    served.close()


@pytest.fixture
def two(folder, saved, tmp_path):
    shutil.copytree(saved, tmp_path / "b")
    models = [
        ServedModel(name, without_encoder(Recommender.load(path)), path=path)
        for name, path in (("a", folder), ("b", tmp_path / "b"))
    ]
    served = ServedModels(models, [90, 10], tmp_path / "log.jsonl")
    yield served
    served.close()


def test_a_user_always_gets_the_same_model(two):
    names = [two.choose({"user": f"u{n}"}).name for n in range(2000)]
    assert names == [two.choose({"user": f"u{n}", "k": "3"}).name for n in range(2000)]
    assert abs(np.mean([name == "b" for name in names]) - 0.1) < 0.03
    assert two.choose({"user": "u1", "model": "b"}).name == "b"
    assert two.choose({}).name == "a"


def test_a_log_that_cannot_be_written_stops_no_change_and_no_list(two, monkeypatch, caplog):
    class FullDisk:
        def write(self, _line):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    two._log.close()
    monkeypatch.setattr(two, "_log", FullDisk())
    for item in ("one", "two"):
        change = two.submit(Change("add_items", [{"id": item, "title": item}]))
        assert change.result(timeout=60) == {"added": 1}
    two.note_list(two.first, "u1", [1, 2])
    assert [record.message.count("No space left") for record in caplog.records] == [1], "said once"


def test_every_model_takes_a_change_and_the_first_one_refuses(two):
    assert two.write(Change("add_items", [{"id": "new", "title": "New"}])) == {"added": 1}
    assert all(m.snapshot.describe_item("new")["title"] == "New" for m in two.models.values())
    other = two.find("b")
    assert other.write(Change("add_items", [{"id": "half", "title": "Half"}])) == {"added": 1}
    assert two.write(Change("add_items", [{"id": "half", "title": "Whole"}])) == {"added": 1}, "sent again"
    assert other.snapshot.describe_item("half")["title"] == "Whole"
    assert isinstance(two.write(Change("add_items", [{"id": "half", "title": "X"}])), Conflict)
    assert other.snapshot.describe_item("half")["title"] == "Whole"


def test_lists_and_the_likes_that_follow_are_counted_and_logged(two, tmp_path):
    with run_in_background(create_app(two)) as url, httpx.Client(base_url=url) as client:
        answer = client.get("/api/recommend", params={"user": 1, "k": 3, "model": "b"})
        item = answer.json()[0]["item"]
        assert answer.headers["x-ridgeline-model"] == "b"
        client.post("/api/ratings", json={"ratings": [{"user": 1, "item": item, "rating": 5}]})
        models = client.get("/api/models").json()["models"]
        assert (models["b"]["lists"], models["b"]["hits"], models["a"]["hits"]) == (1, 1, 0)
        assert models["a"]["versions"] == [1, 2]
        assert client.post("/api/models/a/rollback", json={"version": 1}).json() == {"model": "a", "version": 1}
        assert client.get("/api/health").json()["version"] == 1
        assert client.post("/api/models/zz/rollback", json={"version": 1}).status_code == 404
        for body in ({"version": 7}, {"version": "1"}, {}):
            assert client.post("/api/models/a/rollback", json=body).status_code == 400
    lines = [json.loads(line) for line in Path(tmp_path / "log.jsonl").read_text().splitlines()]
    assert (lines[0]["model"], lines[0]["version"], lines[0]["items"][0]) == ("b", 1, item)
    assert (lines[1]["op"], lines[1]["item"]) == ("rating", str(item))


@pytest.mark.slow  # two hundred clients
def test_no_request_of_two_hundred_clients_fails_while_models_are_swapped(folder):
    served = ServedModels([ServedModel("m", without_encoder(Recommender.load(folder)), path=folder)])
    stop, failed, versions = threading.Event(), [], set()

    def ask(number, url):
        with httpx.Client(base_url=url, timeout=60) as client:
            while not stop.is_set():
                user = number % 200 + 1
                answer = client.get("/api/recommend", params={"user": user, "k": 5})
                if answer.status_code != 200:
                    failed.append((answer.status_code, answer.text[:100]))
                if number % 20 == 0:
                    added = client.post("/api/ratings", json={"ratings": [{"user": user, "item": 3, "rating": 4}]})
                    if added.status_code != 201:
                        failed.append((added.status_code, added.text[:100]))

    with run_in_background(create_app(served)) as url:
        threads = [threading.Thread(target=ask, args=(n, url)) for n in range(200)]
        for thread in threads:
            thread.start()
        for version in (1, 2, 1, 2):
            while served.first.requests < 200 * (1 + len(versions)):
                time.sleep(0.05)
            versions.add((len(versions), served.first.replace(version)))
        stop.set()
        for thread in threads:
            thread.join(120)
    served.close()
    assert not failed
    assert [version for _, version in sorted(versions)] == [1, 2, 1, 2]
    with Recommender.load(folder) as again:
        assert all(3 in [r["item"] for r in again.list_ratings(user)] for user in range(1, 200, 20))
