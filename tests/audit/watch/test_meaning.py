"""The meaning index: search, filters, completeness, deletion, and a kill while saving."""

from __future__ import annotations

import json
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.audit.watch.watching import BASE, encode, event, make

from ridgeline.audit import Ledger
from ridgeline.audit.watch import internal_events
from ridgeline.audit.watch.meaning import Meaning
from ridgeline.errors import InputError

WIPE = [i for i in range(600) if i % 97 == 96]


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(make(tmp_path / "log")) as log_ledger:
        log_ledger.append([event(i) for i in range(600)])
        log_ledger.append([internal_events.make_event(internal_events.GAP, "disk wipe", {"what": "disk wipe"})])
        yield log_ledger


def open_index(ledger, folder, encoder=encode, model="words"):
    return Meaning(folder, str(ledger.verifier), model, encoder)


def search_entries(meaning, ledger, text="disk wipe", k=3, **more):
    return [hit.entry for hit in meaning.search(text, k, ledger, **more)]


def test_search_finds_events_by_meaning_newest_first_and_no_internal_ones(ledger, tmp_path):
    meaning = open_index(ledger, tmp_path / "m")
    meaning.catch_up(ledger)
    assert meaning.complete == 601
    assert search_entries(meaning, ledger) == WIPE[::-1][:3]
    assert search_entries(meaning, ledger, k=6) == WIPE[::-1]
    hits = meaning.search("disk wipe", 1, ledger)
    assert hits[0].event == {**event(WIPE[-1]), "attributes": {}}
    assert hits[0].relevance > 0.5


def test_time_and_condition_choose_before_the_count_does(ledger, tmp_path):
    meaning = open_index(ledger, tmp_path / "m")
    meaning.catch_up(ledger)
    until = BASE + 300 * 10**9
    assert search_entries(meaning, ledger, k=2, until=until) == [i for i in WIPE if i < 300][::-1][:2]
    assert search_entries(meaning, ledger, k=1, where=lambda e: e["index"] == WIPE[1]) == [WIPE[1]]
    assert search_entries(meaning, ledger, since=BASE + 10**18) == []
    for words in ({"text": " "}, {"k": 0}):
        with pytest.raises(InputError):
            search_entries(meaning, ledger, **words)


def test_a_text_is_encoded_once_for_ever_and_deleting_the_index_changes_no_answer(ledger, tmp_path):
    encoded = []

    def encode_and_count(texts):
        encoded.extend(texts)
        return encode(texts)

    meaning = open_index(ledger, tmp_path / "m", encode_and_count)
    meaning.catch_up(ledger)
    want = search_entries(meaning, ledger, k=20)
    meaning.save()
    templates = [text for text in encoded if text != "disk wipe"]
    assert len(templates) == len(set(templates)) < 10
    encoded.clear()
    again = open_index(ledger, tmp_path / "m", encode_and_count)
    assert (again.complete, search_entries(again, ledger, k=20)) == (601, want)
    assert encoded == ["disk wipe"]
    shutil.rmtree(tmp_path / "m")
    anew = open_index(ledger, tmp_path / "m", encode_and_count)
    assert anew.complete == 0
    anew.catch_up(ledger)
    assert search_entries(anew, ledger, k=20) == want


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 7))
def test_an_index_saved_in_pieces_equals_one_built_at_once(tmp_path_factory, steps, torn):
    folder = tmp_path_factory.mktemp("m")
    with Ledger.open(make(folder / "log")) as ledger:
        ledger.append([event(i) for i in range(sum(steps))])
        upto = 0
        for k, step in enumerate(steps):
            upto += step
            part = open_index(ledger, folder / "parts")
            part.catch_up(ledger, upto)
            state = (folder / "parts/state.json").read_bytes() if k == torn and k else None
            part.save()
            if state is not None:  # killed before the last step of saving: the files have grown, the state has not
                (folder / "parts/state.json").write_bytes(state)
        part = open_index(ledger, folder / "parts")
        part.catch_up(ledger)
        complete = open_index(ledger, folder / "whole")
        complete.catch_up(ledger)
        assert part.stats()["complete"] == complete.stats()["complete"] == sum(steps)
        for text in ("disk wipe", "unit start web3"):
            assert search_entries(part, ledger, text, 50) == search_entries(complete, ledger, text, 50)


def test_another_model_another_log_or_a_torn_file_means_a_new_index(ledger, tmp_path):
    meaning = open_index(ledger, tmp_path / "m")
    meaning.catch_up(ledger)
    meaning.save()
    assert open_index(ledger, tmp_path / "m", model="other").complete == 0
    assert Meaning(tmp_path / "m", "another+key", "words", encode).complete == 0
    data = (tmp_path / "m/entries.i4").read_bytes()
    (tmp_path / "m/entries.i4").write_bytes(data[:100])
    assert open_index(ledger, tmp_path / "m").complete == 0
    (tmp_path / "m/entries.i4").write_bytes(data)
    assert open_index(ledger, tmp_path / "m").complete == 601
    (tmp_path / "m/state.json").write_text(json.dumps({"format": 99}))
    assert open_index(ledger, tmp_path / "m").complete == 0


def test_search_skips_pruned_entries(ledger, tmp_path):
    ledger.prune(BASE + 520 * 10**9, by="ann")
    meaning = open_index(ledger, tmp_path / "m")
    meaning.catch_up(ledger)
    all_found = search_entries(meaning, ledger, k=600)
    assert all_found[0] == WIPE[-1]
    assert sorted(all_found) == list(range(512, 600))
