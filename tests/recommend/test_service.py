"""The REST service and its page: every path works, and wrong requests get one sentence.

python -m pytest tests/recommend/test_service.py
"""

from __future__ import annotations

import shutil
import threading
import time

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.recommend import Recommender, RequestRates
from ridgeline.recommend.http_service import MAX_RESULTS, create_app
from ridgeline.recommend.recommender import Options, parse_years
from ridgeline.web import run_in_background


@pytest.fixture(scope="module")
def url(model):
    with run_in_background(create_app(model)) as address:
        yield address


@pytest.fixture
def client(url):
    with httpx.Client(base_url=url) as http:
        yield http


def wait_until_ready(client):
    end = time.monotonic() + 60
    while (answer := client.get("/api/health")).status_code != 200:
        assert time.monotonic() < end
        time.sleep(0.01)
    return answer


def test_every_path_of_the_description_answers(client, model):
    assert wait_until_ready(client).json() == {"status": "ok", "model": "model", "version": 1}
    stats = client.get("/api/stats").json()
    assert (stats["users"], stats["items"]) == (240, len(model.catalogue))
    want = [a.to_json() for a in model.recommend(3, Options(4))]
    assert client.get("/api/recommend", params={"user": 3, "k": 4}).json() == want
    similar = client.get("/api/similar", params={"title": "alien"}).json()
    assert similar == client.get("/api/similar", params={"item": 1}).json()
    assert len(client.get("/api/search", params={"q": "a shark", "genre": "Horror", "year": "1970-1979"}).json()) > 0
    new = client.post("/api/new", json={"liked": ["Alien"], "items": [2], "k": 3}).json()
    assert new == [a.to_json() for a in model.new(["Alien", "Aliens"], "", Options(3))]
    text = client.post("/api/new", json={"liked": ["Alien"], "text": "snow", "text_weight": 0.9, "k": 3}).json()
    assert text == [a.to_json() for a in model.new(["Alien"], "snow", Options(3), text_weight=0.9)]
    batch = client.post("/api/batch", json={"users": [1, 2], "k": 3}).json()
    assert [r["item"] for r in batch["2"]] == [a.item for a in model.recommend(2, Options(3))]
    described = client.get("/openapi.json").json()
    assert {"/api/search", "/api/recommend", "/api/similar", "/api/batch", "/api/stats"} <= set(described["paths"])


def test_it_is_ready_once_a_first_search_was_answered(model, monkeypatch):
    started, release, search = threading.Event(), threading.Event(), model.search

    def slow_search(text, *options):
        started.set()
        assert release.wait(60)
        return search(text, *options)

    monkeypatch.setattr(model, "search", slow_search)
    token = "correct-horse-battery-staple"
    with run_in_background(create_app(model, token=token)) as url, httpx.Client(base_url=url) as client:
        assert started.wait(60)
        before = client.get("/api/health")
        assert (before.status_code, before.json()) == (503, {"status": "starting"})
        assert client.get("/api/stats").status_code == 401
        answer = client.get("/api/recommend", params={"user": 3}, headers={"authorization": f"Bearer {token}"})
        assert answer.status_code == 200, "what needs no encoder is answered meanwhile"
        release.set()
        assert wait_until_ready(client).json() == {"status": "ok", "model": "model", "version": 1}


def test_a_model_whose_texts_cannot_be_searched_is_ready_for_the_rest(model, monkeypatch, caplog):
    def fail(text, *options):
        raise InputError("the encoder is not on this machine; fetch it.")

    monkeypatch.setattr(model, "search", fail)
    with run_in_background(create_app(model)) as url, httpx.Client(base_url=url) as client:
        wait_until_ready(client)
    assert "the encoder is not on this machine" in caplog.text


@settings(max_examples=40, deadline=None)
@given(rate=st.sampled_from([0.5, 1.0, 3.0, 20.0]), gaps=st.lists(st.floats(0, 2), min_size=1, max_size=60))
def test_a_client_gets_its_rate_and_one_second_ahead(rate, gaps):
    rates, now, allowed = RequestRates(rate), 100.0, 0
    for gap in gaps:
        now += gap
        wait_s = rates.take("a", now)
        allowed += not wait_s
        assert allowed <= max(1.0, rate) + rate * (now - 100.0 - gaps[0]) + 1e-6
        if wait_s:
            assert not rates.take("a", now + wait_s + 1e-6), "it may ask again after this time"
            allowed, now = allowed + 1, now + wait_s + 1e-6
    assert not rates.take("b", now), "another client does not wait"


def test_a_client_that_sends_too_many_requests_gets_429(model):
    with run_in_background(create_app(model, rate=0.01)) as url, httpx.Client(base_url=url) as client:
        answers = [client.get("/api/recommend", params={"user": 3}) for _ in range(3)]
        assert client.get("/api/health").status_code in (200, 503), "no limit for health"
    assert [answer.status_code for answer in answers] == [200, 429, 429]
    assert 1 <= int(answers[1].headers["retry-after"]) <= 100
    assert "more than 0.01 requests per second" in answers[1].json()["error"]
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InputError, match="above 0"):
            RequestRates(wrong)


def test_metrics_count_requests_by_path_and_status(model):
    with run_in_background(create_app(model)) as url, httpx.Client(base_url=url) as client:
        client.get("/api/recommend", params={"user": 3})
        client.get("/api/recommend")
        client.post("/api/batch", json={"users": [1]})
        lines = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[0] != "#")
    assert lines['ridgeline_recommend_requests_total{path="/api/recommend",status="200"}'] == "1.0"
    assert lines['ridgeline_recommend_requests_total{path="/api/recommend",status="400"}'] == "1.0"
    assert lines['ridgeline_recommend_request_seconds_count{path="/api/batch"}'] == "1.0"


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/api/recommend?user=9999", None, "no user '9999'"),
        ("/api/recommend", None, "no user is given"),
        (f"/api/recommend?user=1&k={MAX_RESULTS + 1}", None, "give 1 to"),
        ("/api/recommend?user=1&k=many", None, "whole number"),
        ("/api/recommend?user=1&genre=Nope", None, "There are: "),
        ("/api/recommend?user=1&year=then", None, "span of years"),
        ("/api/search?q=", None, "text is empty"),
        ("/api/similar?item=99999", None, "no item '99999'"),
        ("/api/new", {}, "needs liked titles, items or a text"),
        ("/api/new", {"items": "1"}, "no list"),
        ("/api/new", {"text": 3}, "give a string"),
        ("/api/new", {"liked": ["Alien"], "text_weight": "1"}, "text_weight is '1'; give a number"),
        ("/api/new", {"liked": ["Alien"], "text_weight": 3}, "the text weight is 3; give 0"),
        ("/api/batch", {"users": [1] * 1001}, "up to 1,000"),
        ("/api/batch", [], 'no JSON object; send one such as {"users": [1, 2]}'),
        ("/api/items", [], 'send one such as {"items": [{"id": "x1", "title": "Alien"}]}'),
        ("/api/ratings", b"{", 'send an object such as {"ratings": [{"user": 1, "item": 2, "rating": 5}]}'),
        ("/api/ratings", {"ratings": [{"user": 1, "item": 2}]}, "by user '1' is missing; give a number"),
        ("/api/new", b'{"liked": ["Alien"], "k": 1e999}', "k is inf; give a whole number"),
        ("/api/new", {"liked": ["x" * 100_000]}, "liked has an entry of 100,000 characters; give up to 2,000"),
        ("/api/new", {"liked": ["x" * 2_000]}, "no title like 'xxx"),
        *(
            ("/api/new", b'{"liked": ["Alien"], "%s": %s}' % (name, value), "half a character, such as \\ud800")
            for name, value in {b"liked": b'["\\ud800"]', b"items": b'["\\udfff"]', b"genre": b'"a\\ud800"'}.items()
        ),
        ("/api/new", b'{"text": "\\ud800"}', "half a character"),
        ("/api/batch", b'{"users": ["\\ud800"]}', "half a character"),
    ],
)
def test_a_wrong_request_gets_one_sentence(client, path, body, message):
    if isinstance(body, bytes):
        answer = client.post(path, content=body)
    else:
        answer = client.get(path) if body is None else client.post(path, json=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_years_are_parsed_in_every_notation():
    assert [parse_years(w) for w in (None, "1999", "1980-1989", "2000-", "-1960")] == [
        None,
        (1999, 1999),
        (1980, 1989),
        (2000, 9999),
        (1, 1960),
    ]


@pytest.mark.browser
def test_the_page_updates_recommendations_after_clicks(url, chromium):
    from playwright.sync_api import expect

    page = chromium.new_page()
    trouble = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.goto(url)
    page.fill("#query", "a spaceship")
    page.click("#search button")
    page.wait_for_selector("#hits li")
    assert page.locator("#recommended li").count() == 0
    page.locator("#hits li button").first.click()
    page.wait_for_selector("#recommended li")
    first = page.locator("#recommended li button").all_inner_texts()
    liked = page.locator("#liked li button").all_inner_texts()
    assert len(liked) == 1
    assert liked[0] not in first
    page.locator("#recommended li button").nth(3).click()
    expect(page.locator("#liked li")).to_have_count(2)
    expect(page.locator("#recommended li button")).not_to_have_text(first)
    page.fill("#query", "")
    page.click("#search button")
    page.wait_for_selector("#error:not([hidden])")
    assert "text is empty" in page.inner_text("#error")
    assert not trouble
    page.close()


@pytest.mark.browser
def test_the_page_keeps_the_ratings_of_a_person_and_changes_their_list(saved, tmp_path, chromium):
    from playwright.sync_api import expect

    shutil.copytree(saved, tmp_path / "model")
    with Recommender.load(tmp_path / "model") as own, run_in_background(create_app(own)) as address:
        page = chromium.new_page()
        page.goto(address)
        page.fill("#user", "nina")
        page.fill("#query", "a spaceship")
        page.click("#search button")
        page.locator("#hits li button").first.click()
        expect(page.locator("#liked li")).to_have_count(1)
        page.wait_for_selector("#recommended li")
        assert "because of" in page.inner_text("#recommended")
        first = page.locator("#recommended li").first.locator("button")
        disliked = first.nth(0).inner_text()
        first.nth(1).click()  # not for me
        expect(page.locator("#liked li")).to_have_count(2)
        expect(page.locator("#recommended")).not_to_contain_text(disliked)
        page.close()
    with Recommender.load(tmp_path / "model") as again:
        assert [r["rating"] for r in again.list_ratings("nina")] == [5, 1]


def test_a_reason_names_liked_items_and_what_they_have_in_common(model):
    found = model.recommend(3, Options(20))
    assert all(a.why for a in found)
    assert any(a.terms for a in found)
    for a in found:
        row = model.find_item(a.item)
        assert set(a.terms) <= {*model.catalogue.genres[row], *model.catalogue.themes[row]}


@pytest.mark.browser
def test_a_search_that_takes_long_shows_a_spinner_until_it_ends(url, chromium):
    from playwright.sync_api import expect

    page, requests = chromium.new_page(), []
    page.route("**/api/search*", lambda route: requests.append(route))
    page.goto(url)
    expect(page.locator("#waiting")).to_be_hidden()
    page.fill("#query", "a spaceship")
    page.click("#search button")
    expect(page.locator("#waiting")).to_have_text("Searching …")
    expect(page.locator("#waiting")).to_contain_text("the first search loads the text model")
    requests[0].fulfill(json=[])
    expect(page.locator("#waiting")).to_be_hidden()
    expect(page.locator("#no-hits")).to_be_visible()
    page.close()
