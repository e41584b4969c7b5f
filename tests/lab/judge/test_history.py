"""Records over time: series by machine and case, steps and their commits, the page.

python -m pytest tests/lab/judge/test_history.py
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from ridgeline.errors import InputError
from ridgeline.lab.judge import build_history
from ridgeline.lab.judge.history import list_differences
from ridgeline.lab.record import RECORDS_FILE, append_record, gather_records
from ridgeline.lab.report import describe_series
from ridgeline.lab.report.history import build_history_page

HOSTILE = "<img src=x onerror=alert(1)>{{7*7}}"


def make_runs(record, times, *, peer=None, loads=None, seed=0, **changes):
    """Make one record per day with twelve turns; the commit is the number of the day, repeated."""
    rng = random.Random(seed)
    records = []
    for day, time in enumerate(times):
        load = loads[day] if loads else 1.0
        samples = {"ridgeline": [time * load * rng.lognormvariate(0, 0.01) for _ in range(12)]}
        if peer:
            samples["peer"] = [peer * load * rng.lognormvariate(0, 0.01) for _ in range(12)]
        one = record(samples, **changes)
        when = (datetime.fromisoformat("2026-01-01T00:00:00+00:00") + timedelta(days=day)).isoformat()
        records.append(replace(one, time=when, code={**one.code, "commit": f"{day:02d}" * 20}))
    return records


WITH_STEP = [1000.0] * 8 + [1200.0] * 6


def test_a_step_names_its_commit(record):
    records = make_runs(record, WITH_STEP)
    shuffled = random.Random(3).sample(records, len(records))
    (series,) = build_history(shuffled)
    (step,) = series.steps
    assert series.verdict == "SLOWER"
    assert (step.before.id, step.after.id) == (records[7].id, records[8].id)
    assert step.ratio.value == pytest.approx(1.2, rel=0.02)
    assert step.ratio.low <= 1.2 <= step.ratio.high
    assert step.differences[0] == "commit 0707070 → 0808080"
    text = " ".join(describe_series(series))
    assert f"git log {records[7].code['commit'][:12]}..{records[8].code['commit'][:12]}" in text
    assert "slower" in text
    assert "--against" in text


def test_a_speed_up_a_level_and_a_drift_have_their_verdicts(record):
    assert build_history(make_runs(record, WITH_STEP[::-1]))[0].verdict == "FASTER"
    assert build_history(make_runs(record, [1000.0] * 14))[0].verdict == "STEADY"
    drifting = build_history(make_runs(record, [1000 * 1.02**i for i in range(16)]))[0]
    assert drifting.verdict == "DRIFTING"
    assert drifting.drift == pytest.approx(0.02, rel=0.1)


def test_shared_peers_cancel_the_load(record):
    """The machine became 40 % slower for a week; the code did not."""
    loads = [1.0] * 6 + [1.4] * 8
    (relative,) = build_history(make_runs(record, [1000.0] * 14, peer=2000.0, loads=loads))
    assert relative.verdict == "STEADY"
    assert relative.peers == ("peer",)
    assert relative.basis == "time relative to peer"
    (absolute,) = build_history(make_runs(record, [1000.0] * 14, loads=loads))
    assert absolute.verdict == "SLOWER"
    assert "load included" in absolute.basis


def test_peers_with_other_libraries_are_not_used(record):
    records = make_runs(record, [1000.0] * 12, peer=2000.0)
    records[-1] = replace(records[-1], code={**records[-1].code, "libraries": {"torch": "9"}})
    assert build_history(records)[0].peers == ()


def test_machines_and_cases_are_never_mixed(record):
    records = make_runs(record, [1000.0] * 10)
    other = [replace(r, id=f"{i:032d}", machine={**r.machine, "fingerprint": "x"}) for i, r in enumerate(records[:4])]
    case = make_runs(record, [5000.0] * 3, case={"n": 9, "device": "cpu", "ranks": 1})
    series = build_history(records + other + case)
    assert sorted(len(s.moments) for s in series) == [3, 4, 10]
    assert all(not s.steps for s in series)


def test_differences_come_from_the_records(record):
    one = record({"ridgeline": [1.0] * 6})
    code, machine = dict(one.code), dict(one.machine)
    assert list_differences(one, one) == ()
    other = replace(
        one,
        code={**code, "libraries": {"torch": "2.13"}, "python": "3.12", "tree": "u", "dirty": True},
        machine={**machine, "kernel": "7"},
    )
    differences = list_differences(one, other)
    assert differences[0] == "local changes on commit ccccccc+"
    assert "torch none → 2.13" in differences
    assert "python 3 → 3.12" in differences
    assert any(t.startswith("kernel") for t in differences)
    records = [replace(r, code=dict(code)) for r in make_runs(record, WITH_STEP)]
    text = " ".join(describe_series(build_history(records)[0]))
    assert "nothing that is recorded changed" in text


def test_a_short_series_has_no_step_but_compares_the_last_two_records(record):
    (series,) = build_history(make_runs(record, [1000.0, 1000.0, 1500.0]))
    assert series.verdict == "TOO FEW"
    assert series.steps == ()
    assert series.recent.comparison == "SLOWER"
    assert "3 of the 10 records" in " ".join(describe_series(series))


def test_a_wrong_record_is_counted_but_not_used(record):
    records = make_runs(record, [1000.0] * 5)
    wrong = record({"ridgeline": [1.0] * 8}, checks={"ridgeline": {"ok": False, "error": 1.0}})
    (series,) = build_history([*records, wrong])
    assert (len(series.moments), len(series.without)) == (5, 1)
    assert build_history([wrong]) == []


def test_a_record_without_a_valid_time_is_refused(record):
    with pytest.raises(InputError, match="which is not a time"):
        build_history([record({"ridgeline": [1.0] * 6}, time="yesterday")])


def write_folder(tmp_path, records):
    for i, one in enumerate(records):
        (tmp_path / f"run{i % 3}").mkdir(exist_ok=True)
        append_record(tmp_path / f"run{i % 3}", one)
    return tmp_path


def test_a_folder_is_searched_at_any_depth_and_copies_count_once(tmp_path, record):
    records = make_runs(record, [1000.0] * 6)
    write_folder(tmp_path, records)
    (tmp_path / "copy.jsonl").write_text((tmp_path / "run0" / RECORDS_FILE).read_text())
    series = gather_records(tmp_path)
    assert {r.id for r in series.records} == {r.id for r in records}
    assert len(series.records) == 6
    assert series.machines == 1


def test_a_file_of_another_schema_is_refused_and_the_others_count(tmp_path, record):
    write_folder(tmp_path, make_runs(record, [1000.0] * 3))
    (tmp_path / "old.jsonl").write_text(json.dumps({"schema": 99}) + "\n")
    (tmp_path / "binary.jsonl").write_bytes(bytes(range(256)))
    series = gather_records(tmp_path)
    assert len(series.records) == 3
    assert len(series.refused) == 2
    assert any("schema 99, this version reads up to 2" in r for r in series.refused)


@pytest.mark.parametrize("name", [None, "empty.jsonl", "old.jsonl"])
def test_a_folder_without_records_is_refused(tmp_path, name):
    if name:
        (tmp_path / name).write_text("" if name == "empty.jsonl" else '{"schema": 99}\n')
    with pytest.raises(InputError, match="holds no"):
        gather_records(tmp_path)
    with pytest.raises(InputError, match="there are no records at"):
        gather_records(tmp_path / "nowhere")


def test_the_page_shows_levels_and_hostile_names_as_text(record):
    records = make_runs(record, WITH_STEP, workload=HOSTILE, command=HOSTILE)
    page = build_history_page(build_history(records), ["a file & its <sentence>"])
    assert "<img" not in page
    assert "&lt;img" in page
    assert "level 2" in page
    assert "a file &amp; its &lt;sentence&gt;" in page
    assert 'src="http' not in page


@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 1600])
def test_the_page_draws_in_a_browser_without_console_messages(chromium, record, width):
    problems: list[str] = []
    context = chromium.new_context(viewport={"width": width, "height": 900})
    tab = context.new_page()
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.set_content(build_history_page(build_history(make_runs(record, WITH_STEP, workload=HOSTILE))))
    drawn = tab.evaluate("""() => [...document.querySelectorAll("figure.chart > svg")]
        .filter((s) => s.getBoundingClientRect().width > 0).length""")
    fits = tab.evaluate("() => document.documentElement.scrollWidth") <= width
    context.close()
    assert drawn >= 1
    assert fits
    assert problems == []
