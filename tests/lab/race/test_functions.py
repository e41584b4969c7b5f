"""`rl.race`: functions of a script race in this process, the first is the reference."""

from __future__ import annotations

import time

import numpy as np
import pytest

import ridgeline as rl
from ridgeline.errors import InputError
from ridgeline.lab.record import read_records


def add(x):
    return float(np.sum(x))


def add_slowly(x):
    return sum(float(v) for v in x)


def race(contenders, **options):
    return rl.race(contenders, setup=lambda n=200: (np.ones(n),), budget=0.3, **options)


def test_a_faster_function_is_faster_in_every_case():
    result = race({"python": add_slowly, "numpy": add}, cases={"n": [1000, 4000]})
    rows = [row for row in result.rows if row["contender"] == "numpy"]
    assert [row["case"]["n"] for row in rows] == [1000, 4000]
    assert {row["verdict"] for row in rows} == {"FASTER"}
    assert all(row["ratio_interval"][1] < 1 for row in rows)
    assert "FASTER" in str(result)
    assert "<svg" in result._repr_html_()
    assert "<table" in result._repr_html_()


def test_another_output_is_wrong_and_has_no_time():
    rows = race({"right": add, "wrong": lambda x: 1.0}).rows
    assert rows[1]["validity"] == "WRONG"
    assert rows[1]["median_ns"] is None
    assert rows[0]["median_ns"] > 0


def test_a_name_of_a_contender_is_not_markup():
    assert "<script>" not in race({"<script>": add})._repr_html_()


@pytest.mark.parametrize(
    ("check", "validity"),
    [(False, "VALID"), (lambda out: out > 5, "WRONG"), (lambda out, first: out < first, "VALID")],
)
def test_the_rule_of_a_user_decides_what_is_right(check, validity):
    rows = race({"a": add, "b": lambda x: 1.0}, check=check).rows
    assert (rows[1]["validity"] == "WRONG") == (validity == "WRONG")


def test_a_function_that_raises_or_hangs_costs_itself_alone():
    def fail(x):
        raise KeyError("no such key")

    def hang(x):
        time.sleep(60)

    rows = race({"good": add, "fails": fail, "hangs": hang}, timeout=0.2).rows
    assert rows[0]["median_ns"] > 0
    assert "raised KeyError" in rows[1]["advice"]
    assert "did not end within 0.2 s" in rows[2]["advice"]


def test_functions_that_change_their_inputs_get_fresh_ones():
    calls = []

    def sort(x):
        calls.append(bool((np.diff(x) >= 0).all()))
        x.sort()
        return x

    rl.race({"sort": sort, "again": sort}, setup=lambda: (np.array([3.0, 1.0, 2.0]),), budget=0.1, fresh=True)
    assert calls
    assert not any(calls)


def test_a_race_has_at_least_six_executions_and_its_records_can_be_read(tmp_path):
    result = race({"a": add, "b": add}, out=tmp_path)
    record = read_records(tmp_path).records[0]
    assert len(record.race["executions"]) >= 6
    assert record.id == result.records[0].id
    assert record.reference == "a"


def test_outputs_of_other_kinds_are_compared():
    from ridgeline.lab.race.functions import is_equal

    assert is_equal({"a": [1, np.float32(2)]}, {"a": (1, 2.0)})
    assert not is_equal([1.0], [1.0, 2.0])
    assert is_equal([np.ones(2), "x"], [np.ones(2), "x"])
    assert not is_equal(None, 0.0)
    assert is_equal(np.array([np.nan]), np.array([np.nan]))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (({},), "has no functions"),
        (({"a": 3},), "cannot be called"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        rl.race(*arguments)
    with pytest.raises(InputError, match="give a list of values"):
        rl.race({"a": add}, cases={"n": 5})
    with pytest.raises(InputError, match="is no time"):
        rl.race({"a": add}, budget=0)
