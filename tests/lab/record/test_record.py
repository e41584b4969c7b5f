"""Record files: reading returns what was written, and names what is damaged.

python -m pytest tests/lab/record/test_record.py
"""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.lab.conftest import make_record

from ridgeline.errors import InputError
from ridgeline.lab.record import RECORDS_FILE, append_record, read_records, record_to_json


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(
    st.dictionaries(st.text(min_size=1, max_size=8), st.lists(st.floats(1, 1e12), max_size=20), min_size=1, max_size=4)
)
def test_a_record_is_read_as_it_was_written(tmp_path_factory, times):
    folder = tmp_path_factory.mktemp("records")
    written = make_record(times)
    append_record(folder, written)
    read = read_records(folder).records[0]
    assert json.dumps(record_to_json(read)) == json.dumps(record_to_json(written))
    assert (read.key, read.subject) == (written.key, written.subject)


def test_a_torn_last_line_is_left_out_with_a_warning(tmp_path, record):
    append_record(tmp_path, record({"ridgeline": [1.0] * 6}))
    file = tmp_path / RECORDS_FILE
    file.write_text(file.read_text() + '{"torn": ')
    content = read_records(file)
    assert len(content.records) == 1
    assert "torn" in content.warning


def test_damage_in_the_middle_names_the_line(tmp_path, record):
    for _ in range(3):
        append_record(tmp_path, record({"ridgeline": [1.0] * 6}))
    file = tmp_path / RECORDS_FILE
    lines = file.read_text().splitlines()
    lines[1] = lines[1][:40]
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match="line 2"):
        read_records(file)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"schema": 99}, "schema 99"),
        ({"hello": 1}, "schema None"),
        ({"schema": 1}, "line 1 is no record"),
        ({"schema": 2}, "line 1 is no record"),
    ],
)
def test_a_foreign_file_is_refused_by_line(tmp_path, line, says):
    file = tmp_path / "other.jsonl"
    file.write_text(json.dumps(line) + "\n")
    with pytest.raises(InputError, match=says):
        read_records(file)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"contenders": [{"contender": "peer", "samples_ns": [1.0, 0.0], "turn_overhead_ns": []}]}, "peer has a time"),
        ({"machine": {"cpu": "x"}}, "its machine lacks fingerprint"),
        ({"code": []}, "its code lacks commit"),
        ({"contenders": 3}, "is no record"),
    ],
)
def test_a_record_without_required_fields_is_refused(tmp_path, record, change, says):
    line = {**record_to_json(record({"ridgeline": [1.0] * 6})), **change}
    (tmp_path / RECORDS_FILE).write_text(json.dumps(line) + "\n")
    with pytest.raises(InputError, match=says):
        read_records(tmp_path)


def test_a_missing_file_is_refused_with_what_to_give(tmp_path):
    with pytest.raises(InputError, match="no records at"):
        read_records(tmp_path)


def test_the_key_changes_with_case_machine_code_and_place_but_not_with_time(record):
    first = record({"ridgeline": [1.0] * 6})
    same = record({"ridgeline": [2.0] * 6}, time="2027-01-01T00:00:00+00:00")
    assert first.key == same.key
    for change in (
        {"case": {**first.case, "n": 9}},
        {"machine": {**first.machine, "fingerprint": "another"}},
        {"code": {**first.code, "tree": "another"}},
        {"placement": ({"node": 1, "cpus": [0], "memory": "bind", "gpu": None},)},
        {"workload": "other"},
        {"plan": {"cold": True}},
    ):
        assert record({"ridgeline": [1.0] * 6}, **change).key != first.key, change
