"""Record files: what was written is read back, what is damaged is named.

python -m pytest tests/lab/test_record.py
"""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.lab.conftest import make_record

from ridgeline.errors import InputError
from ridgeline.lab.record import record as records


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(
    st.dictionaries(st.text(min_size=1, max_size=8), st.lists(st.floats(1, 1e12), max_size=20), min_size=1, max_size=4)
)
def test_a_record_survives_its_journey(tmp_path_factory, times):
    folder = tmp_path_factory.mktemp("records")
    made = make_record(times)
    records.append(folder, made)
    back = records.read(folder).records[0]
    assert json.dumps(records.to_json(back)) == json.dumps(records.to_json(made))
    assert (back.key, back.subject) == (made.key, made.subject)


def test_a_torn_last_line_is_left_out_and_said(tmp_path, record):
    records.append(tmp_path, record({"ridgeline": [1.0] * 6}))
    file = tmp_path / records.FILE
    file.write_text(file.read_text() + '{"torn": ')
    found = records.read(file)
    assert len(found.records) == 1
    assert "torn" in found.warning


def test_damage_in_the_middle_names_the_line(tmp_path, record):
    for _ in range(3):
        records.append(tmp_path, record({"ridgeline": [1.0] * 6}))
    file = tmp_path / records.FILE
    lines = file.read_text().splitlines()
    lines[1] = lines[1][:40]
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match="line 2"):
        records.read(file)


@pytest.mark.parametrize(
    ("line", "says"),
    [({"schema": 99}, "schema 99"), ({"hello": 1}, "schema None"), ({"schema": 1}, "line 1 is no record")],
)
def test_a_foreign_file_is_refused_by_line(tmp_path, line, says):
    file = tmp_path / "other.jsonl"
    file.write_text(json.dumps(line) + "\n")
    with pytest.raises(InputError, match=says):
        records.read(file)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"contenders": [{"contender": "peer", "samples_ns": [1.0, 0.0], "turn_overhead_ns": []}]}, "peer has a time"),
        ({"machine": {"cpu": "x"}}, "its machine lacks fingerprint"),
        ({"code": []}, "its code lacks commit"),
        ({"contenders": 3}, "is no record"),
    ],
)
def test_a_record_that_lacks_what_readers_count_on_is_refused_when_read(tmp_path, record, change, says):
    line = {**records.to_json(record({"ridgeline": [1.0] * 6})), **change}
    (tmp_path / records.FILE).write_text(json.dumps(line) + "\n")
    with pytest.raises(InputError, match=says):
        records.read(tmp_path)


def test_a_missing_file_says_what_is_wanted(tmp_path):
    with pytest.raises(InputError, match="no records at"):
        records.read(tmp_path)


def test_the_key_changes_with_case_machine_code_and_place_but_not_with_time(record):
    made = record({"ridgeline": [1.0] * 6})
    same = record({"ridgeline": [2.0] * 6}, time="2027-01-01T00:00:00+00:00")
    assert made.key == same.key
    for change in (
        {"case": {**made.case, "n": 9}},
        {"machine": {**made.machine, "fingerprint": "another"}},
        {"code": {**made.code, "tree": "another"}},
        {"placement": ({"node": 1, "cpus": [0], "memory": "bind", "gpu": None},)},
        {"workload": "other"},
        {"plan": {"cold": True}},
    ):
        assert record({"ridgeline": [1.0] * 6}, **change).key != made.key, change
