"""Records over time: series by machine and case, steps with the commit that changed them, the page.

python -m pytest tests/lab/test_history.py
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from ridgeline.errors import InputError
from ridgeline.lab.judge.history import changed, history
from ridgeline.lab.record import record as records
from ridgeline.lab.record.folders import gather
from ridgeline.lab.report import history as history_page

HOSTILE = "<img src=x onerror=alert(1)>{{7*7}}"


def runs(record, times, *, peer=None, weather=None, seed=0, **changes):
    """One record a day, each with twelve turns; a commit is its day's number, repeated."""
    rng = random.Random(seed)
    made = []
    for day, time in enumerate(times):
        storm = weather[day] if weather else 1.0
        lanes = {"ridgeline": [time * storm * rng.lognormvariate(0, 0.01) for _ in range(12)]}
        if peer:
            lanes["peer"] = [peer * storm * rng.lognormvariate(0, 0.01) for _ in range(12)]
        one = record(lanes, **changes)
        when = (datetime.fromisoformat("2026-01-01T00:00:00+00:00") + timedelta(days=day)).isoformat()
        made.append(replace(one, time=when, code={**one.code, "commit": f"{day:02d}" * 20}))
    return made


STEPPED = [1000.0] * 8 + [1200.0] * 6


def test_a_step_names_the_commit_that_made_it(record):
    made = runs(record, STEPPED)
    shuffled = random.Random(3).sample(made, len(made))
    (found,) = history(shuffled)
    (step,) = found.steps
    assert found.word == "SLOWER"
    assert (step.before.id, step.after.id) == (made[7].id, made[8].id)
    assert step.ratio.value == pytest.approx(1.2, rel=0.02)
    assert step.ratio.low <= 1.2 <= step.ratio.high
    assert step.changed[0] == "commit 0707070 → 0808080"
    said = " ".join(history_page.sentences(found))
    assert f"git log {made[7].code['commit'][:12]}..{made[8].code['commit'][:12]}" in said
    assert "slower" in said
    assert "--against" in said


def test_a_speed_up_and_a_level_series_have_their_words(record):
    assert history(runs(record, STEPPED[::-1]))[0].word == "FASTER"
    assert history(runs(record, [1000.0] * 14))[0].word == "STEADY"
    drifting = history(runs(record, [1000 * 1.02**i for i in range(16)]))[0]
    assert drifting.word == "DRIFTING"
    assert drifting.drift == pytest.approx(0.02, rel=0.1)


def test_shared_peers_take_the_weather_out(record):
    """The machine became 40 % slower for a week; the code did not."""
    weather = [1.0] * 6 + [1.4] * 8
    (calm,) = history(runs(record, [1000.0] * 14, peer=2000.0, weather=weather))
    assert calm.word == "STEADY"
    assert calm.peers == ("peer",)
    assert calm.basis == "time relative to peer"
    (exposed,) = history(runs(record, [1000.0] * 14, weather=weather))
    assert exposed.word == "SLOWER"
    assert "weather included" in exposed.basis


def test_peers_with_other_libraries_are_no_measure(record):
    made = runs(record, [1000.0] * 12, peer=2000.0)
    made[-1] = replace(made[-1], code={**made[-1].code, "libraries": {"torch": "9"}})
    assert history(made)[0].peers == ()


def test_machines_and_cases_are_never_mixed(record):
    made = runs(record, [1000.0] * 10)
    other = [replace(r, id=f"{i:032d}", machine={**r.machine, "fingerprint": "x"}) for i, r in enumerate(made[:4])]
    case = runs(record, [5000.0] * 3, case={"n": 9, "device": "cpu", "ranks": 1})
    found = history(made + other + case)
    assert sorted(len(s.moments) for s in found) == [3, 4, 10]
    assert all(not s.steps for s in found)


def test_what_changed_is_told_from_the_records(record):
    one = record({"ridgeline": [1.0] * 6})
    code, machine = dict(one.code), dict(one.machine)
    assert changed(one, one) == ()
    other = replace(
        one,
        code={**code, "libraries": {"torch": "2.13"}, "python": "3.12", "tree": "u", "dirty": True},
        machine={**machine, "kernel": "7"},
    )
    told = changed(one, other)
    assert told[0] == "local changes on commit ccccccc+"
    assert "torch none → 2.13" in told
    assert "python 3 → 3.12" in told
    assert any(t.startswith("kernel") for t in told)
    made = [replace(r, code=dict(code)) for r in runs(record, STEPPED)]
    said = " ".join(history_page.sentences(history(made)[0]))
    assert "nothing that is recorded changed" in said


def test_a_short_series_claims_no_step_but_says_how_the_last_one_did(record):
    (found,) = history(runs(record, [1000.0, 1000.0, 1500.0]))
    assert found.word == "TOO FEW"
    assert found.steps == ()
    assert found.recent.comparison == "SLOWER"
    assert "3 of the 10 records" in " ".join(history_page.sentences(found))


def test_a_wrong_record_is_counted_and_not_drawn(record):
    made = runs(record, [1000.0] * 5)
    wrong = record({"ridgeline": [1.0] * 8}, checks={"ridgeline": {"ok": False, "error": 1.0}})
    (found,) = history([*made, wrong])
    assert (len(found.moments), len(found.without)) == (5, 1)
    assert history([wrong]) == []


def test_a_record_without_a_time_of_day_is_refused(record):
    with pytest.raises(InputError, match="which is none"):
        history([record({"ridgeline": [1.0] * 6}, time="yesterday")])


def folder(tmp_path, made):
    for i, one in enumerate(made):
        (tmp_path / f"run{i % 3}").mkdir(exist_ok=True)
        records.append(tmp_path / f"run{i % 3}", one)
    return tmp_path


def test_a_folder_is_searched_through_and_copies_count_once(tmp_path, record):
    made = runs(record, [1000.0] * 6)
    folder(tmp_path, made)
    (tmp_path / "copy.jsonl").write_text((tmp_path / "run0" / records.FILE).read_text())
    found = gather(tmp_path)
    assert {r.id for r in found.records} == {r.id for r in made}
    assert len(found.records) == 6
    assert found.machines == 1


def test_a_file_of_another_schema_is_refused_and_the_others_count(tmp_path, record):
    folder(tmp_path, runs(record, [1000.0] * 3))
    (tmp_path / "old.jsonl").write_text(json.dumps({"schema": 99}) + "\n")
    (tmp_path / "binary.jsonl").write_bytes(bytes(range(256)))
    found = gather(tmp_path)
    assert len(found.records) == 3
    assert len(found.refused) == 2
    assert any("schema 99, this version reads 1" in r for r in found.refused)


@pytest.mark.parametrize("held", [None, "empty.jsonl", "old.jsonl"])
def test_a_folder_without_records_is_said(tmp_path, held):
    if held:
        (tmp_path / held).write_text("" if held == "empty.jsonl" else '{"schema": 99}\n')
    with pytest.raises(InputError, match="holds no"):
        gather(tmp_path)
    with pytest.raises(InputError, match="there are no records at"):
        gather(tmp_path / "nowhere")


def test_the_page_shows_levels_and_hostile_names_as_text(record):
    made = runs(record, STEPPED, workload=HOSTILE, command=HOSTILE)
    page = history_page.build(history(made), ["a file & its <sentence>"])
    assert "<img" not in page
    assert "&lt;img" in page
    assert "level 2" in page
    assert "a file &amp; its &lt;sentence&gt;" in page
    assert 'src="http' not in page


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("width", [400, 1600])
def test_the_page_draws_in_a_browser_without_a_word_on_the_console(chromium, record, width):
    trouble: list[str] = []
    context = chromium.new_context(viewport={"width": width, "height": 900})
    tab = context.new_page()
    tab.on("console", lambda message: trouble.append(message.text))
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.set_content(history_page.build(history(runs(record, STEPPED, workload=HOSTILE))))
    drawn = tab.evaluate("""() => [...document.querySelectorAll("figure.chart > svg")]
        .filter((s) => s.getBoundingClientRect().width > 0).length""")
    fits = tab.evaluate("() => document.documentElement.scrollWidth") <= width
    context.close()
    assert drawn >= 1
    assert fits
    assert trouble == []
