"""The page at / in a real browser."""

from __future__ import annotations

import pytest
from tests.axe import faults
from tests.embed import tiny
from tests.serve.conftest import TEXTS, run_server

pytestmark = pytest.mark.browser

TOKEN = "correct-horse-battery-staple"


@pytest.fixture
def tab(chromium):
    context = chromium.new_context()
    tab, problems = context.new_page(), []
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("console", lambda message: problems.append(message.text) if "400" not in message.text else None)
    yield tab
    assert problems == []
    context.close()


@pytest.mark.parametrize("width", [1200, 380])
def test_a_text_shows_its_neighbours_and_the_time(client, tab, width):
    tab.set_viewport_size({"width": width, "height": 800})
    tab.goto(str(client.base_url))
    tab.fill("#query", TEXTS[4])
    tab.keyboard.press("Enter")
    tab.wait_for_selector("#results li")
    best = client.post("/v1/search", json={"index": "films", "input": TEXTS[4]}).json()["results"][0]
    assert tab.locator("#results li").all_inner_texts() == [f"row {r['id']}, score {r['score']:.3f}" for r in best]
    assert " ms" in tab.inner_text("#time")
    assert "mini" in tab.inner_text("table")
    assert faults(tab) == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_an_error_is_shown_and_goes_away(client, tab):
    tab.goto(str(client.base_url))
    tab.click("#ask button")
    tab.wait_for_selector("#error:visible")
    assert "empty string" in tab.inner_text("#error")
    assert tab.locator("#results li").count() == 0
    tab.fill("#query", "<img src=x onerror=alert(1)>")
    tab.click("#ask button")
    tab.wait_for_selector("#results li")
    assert not tab.is_visible("#error")


def test_without_an_index_it_shows_the_vector_and_a_token_opens_it_once(folder, tab, tmp_path):
    second = tiny.make(tmp_path / "second", dense="Tanh")
    with run_server([folder, second], token=TOKEN) as (client, _):
        tab.goto(f"{client.base_url}/?token={TOKEN}")
        assert TOKEN not in tab.url
        tab.select_option("#model", "second")
        tab.fill("#query", "the red cat")
        tab.click("#ask button")
        tab.wait_for_selector("#results .vector")
        assert "(12 numbers, 5 tokens)" in tab.inner_text("#results")


def test_without_an_embedder_there_is_nothing_to_type(index_folder, tab):
    with run_server([], [index_folder]) as (client, _):
        tab.goto(str(client.base_url))
        assert tab.locator("#query").count() == 0
        assert "no model that encodes" in tab.inner_text("main")
        assert faults(tab) == []
