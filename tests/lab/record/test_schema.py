"""The schema of records: fields of a wrong type are refused by line or do no harm; older schemas are upgraded.

python -m pytest tests/lab/record/test_schema.py
"""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from tests.lab.sample_records import (
    make_dtypes,
    make_experiment,
    make_frontier,
    make_race,
    make_stages,
    move_to_gpu,
)

from ridgeline.cli import tables
from ridgeline.errors import InputError, RidgelineError
from ridgeline.lab.judge import analysis_to_json, build_history, compare_records, list_services, plan_capacity
from ridgeline.lab.record import SCHEMA, Record, read_records, record_to_json, upgrade
from ridgeline.lab.record.record import _parse
from ridgeline.lab.report import write_report
from ridgeline.lab.report.history import build_history_page

REAL = Path(__file__).parents[3] / "benchmarks" / "records"
REPORTED = ("x", -1, 0)  # a report takes long
WRONG = ("x", [], {}, -1, 0, None, True)
IDLE = {"load_average": 0.1, "quota_throttled": 0, "thermal_events": 1}
HOT = {**IDLE, "gpu": {"throttle_reasons": ["power cap"]}}


def to_line(record: Record) -> dict:
    return json.loads(json.dumps(record_to_json(record)))


def make_full_line() -> dict:
    """Make one line with all fields that readers use."""
    line = to_line(move_to_gpu(make_stages()))
    line["conditions"] = {"before": IDLE, "after": HOT}
    line["race"]["executions"] = [8, 8]
    line["contenders"][0]["extras"] |= {f"steps_{name}_ns": 5 for name in ("wall", "user", "system", "queued")}
    line["contenders"][1]["settings"] = {"does": "reading", "lacks": "writing", "arithmetic": "float32"}
    line["contenders"][1]["check"]["quality"] = {"recall": 0.9}
    line["code"]["libraries"] = {"numpy": "2"}
    return {**line, "missing": {"absent": "peers"}, "controls": ["peer"], "note": "a note"}


def list_fields(value, path=()):
    """Yield the path of every field, and of the first item of a list."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for name, inner in items:
        yield from list_fields(inner, (*path, name))


def set_field(line: dict, path: tuple, value: object) -> dict:
    new = copy.deepcopy(line)
    inner = new
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return new


def list_mutants(line: dict):
    for path in list_fields(line):
        for value in WRONG:
            yield path, value, set_field(line, path, value)


def parse(line: dict) -> Record | None:
    try:
        return _parse(Path("made.jsonl"), 1, line)
    except InputError:
        return None


def use_records(records: list[Record], other: Record, folder: Path, report: bool = True) -> None:
    """Do what records ls, show and export, compare, history, cost and report do with them."""
    console = Console(file=io.StringIO(), width=120)
    for record in records:
        console.print(
            tables.build_record_list([record]), *tables.list_race_tables([record]), tables.build_record_facts(record)
        )
        json.dumps([analysis_to_json(record), record_to_json(record)], default=str)
    uses = [
        lambda: compare_records([other], records),
        lambda: build_history_page(build_history(records)),
        lambda: [plan_capacity(s, 5.0).to_json() for s in list_services(records)[0]],
        lambda: write_report(records, folder) if report else None,
    ]
    for use in uses:
        try:
            use()
        except RidgelineError:
            continue


def test_a_race_in_which_no_contender_ran_is_a_record():
    line = make_full_line()
    line["race"] |= {"rounds": 0, "executions": [0]}
    record = parse(line)
    assert record is not None
    assert record.race["executions"] == [0]


@pytest.mark.slow
def test_every_field_of_a_wrong_type_is_refused_or_harmless(tmp_path):
    line = make_full_line()
    good = parse(line)
    assert good is not None
    use_records([good], good, tmp_path)
    refused = 0
    for path, value, wrong in list_mutants(line):
        record = parse(wrong)
        refused += record is None
        if record is not None:
            try:
                use_records([record], good, tmp_path, report=value in REPORTED)
            except Exception as error:
                raise AssertionError(f"{path} = {value!r}") from error
    assert refused > 300


@pytest.mark.slow
@pytest.mark.parametrize("family", [make_experiment, make_frontier, make_dtypes])
def test_one_such_record_among_others_is_refused_or_harmless(family, tmp_path):
    lines = [to_line(record) for record in family()]
    others = [record for line in lines[1:] if (record := parse(line)) is not None]
    assert len(others) == len(lines) - 1
    parts = ("case", "work", "placement", "plan")
    for path, value, wrong in list_mutants({name: lines[0][name] for name in parts}):
        record = parse({**lines[0], **wrong})
        if record is not None and value in REPORTED:
            try:
                write_report([record, *others], tmp_path)
            except RidgelineError:
                continue
            except Exception as error:
                raise AssertionError(f"{path} = {value!r}") from error


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("conditions", "before"), "x", "its conditions.before is 'x', not a table."),
        (("contenders", 0, "samples_per_turn"), "x", "its contenders[0].samples_per_turn is 'x', not a whole number"),
        (("work", "items"), [], "its work.items is [], not a number from 0 up."),
        (("case", "n"), {"a": 1}, "its case.n is {'a': 1}, not a number, a text, true or false."),
        (("contenders", 1, "check"), {}, "its contenders[1].check.ok is missing."),
        (("machine", "gpus"), [{"name": "x" * 99, "node": "y" * 99}], "machine.gpus[0].node is 'yyyyyyyy"),
    ],
)
@pytest.mark.parametrize(
    "command", [("records", "ls"), ("records", "show"), ("records", "export"), ("history",), ("report",)]
)
def test_commands_name_the_line_and_the_field(run_command, tmp_path, command, path, value, message):
    lines = [to_line(make_race("made", {"n": 8}, 1e3, {"peer": 2e3})) for _ in range(2)]
    lines[1] = set_field(lines[1], path, value)
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, out, err = run_command(*command, "runs.jsonl")
    assert (code, out) == (2, "")
    assert "'runs.jsonl' line 2 is no record: " in err
    assert message in err


def test_the_records_of_this_repository_have_the_schema():
    for file in REAL.glob("*.jsonl"):
        if '"schema"' in file.read_text()[:2000]:
            assert read_records(file).records


def downgrade(line: dict) -> dict:
    """Write a line of schema 2 with the keys of schema 1."""
    old = {**line, "schema": 1, "weather": line["conditions"]}
    del old["conditions"]
    old["race"] = {{"executions": "heats"}.get(name, name): value for name, value in line["race"].items()}
    old["plan"] = {{"placement": "stand"}.get(name, name): value for name, value in line["plan"].items()}
    return old


@pytest.mark.parametrize("make", [make_full_line, lambda: to_line(make_experiment()[0])])
def test_a_record_of_schema_1_is_read_like_the_same_record_of_schema_2(tmp_path, make):
    line = make()
    old = downgrade(line)
    assert ("weather" in old, "conditions" in old) == (True, False)
    for name, content in (("old.jsonl", old), ("new.jsonl", line)):
        (tmp_path / name).write_text(json.dumps(content) + "\n")
    before, after = (read_records(tmp_path / name).records[0] for name in ("old.jsonl", "new.jsonl"))
    assert before == after
    assert before.schema == SCHEMA == 2
    assert (before.key, before.subject) == (after.key, after.subject)


def test_schema_1_and_schema_2_may_be_in_one_file(tmp_path):
    line = make_full_line()
    (tmp_path / "both.jsonl").write_text("".join(json.dumps(x) + "\n" for x in (downgrade(line), line)))
    assert len({r.key for r in read_records(tmp_path / "both.jsonl").records}) == 1


def test_the_old_words_for_the_end_of_a_race_are_upgraded():
    line = downgrade(make_full_line())
    line["race"]["ended"] = "nobody left"
    assert upgrade(line)["race"]["ended"] == "no contender left"
    assert line["race"]["ended"] == "nobody left", "the line itself does not change"


def test_a_line_of_another_schema_is_not_changed():
    line = {"schema": 99, "weather": 1}
    assert upgrade(line) == line
