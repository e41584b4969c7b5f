"""Records whose fields are there but of the wrong kind: refused by line when read, or harmless; never a traceback.

python -m pytest tests/lab/test_shape.py
"""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from tests.lab.made import frontier, on_gpu, race, staged, studied, types

from ridgeline.cli import tables
from ridgeline.errors import InputError, RidgelineError
from ridgeline.lab.judge import analyse, compare, cost, history
from ridgeline.lab.record import record as records
from ridgeline.lab.report import history as history_page
from ridgeline.lab.report import page as report_page
from ridgeline.lab.report import report
from ridgeline.lab.report import text as report_text

REAL = Path(__file__).parents[2] / "benchmarks" / "records"
PAGED = ("x", -1, 0)  # a report takes its time
WRONG = ("x", [], {}, -1, 0, None, True)
CALM = {"load_average": 0.1, "quota_throttled": 0, "thermal_events": 1}
HOT = {**CALM, "gpu": {"throttle_reasons": ["power cap"]}}


def as_line(made: records.Record) -> dict:
    return json.loads(json.dumps(records.to_json(made)))


def whole() -> dict:
    """One line with all that a reader looks at."""
    line = as_line(on_gpu(staged()))
    line["weather"] = {"before": CALM, "after": HOT}
    line["race"]["heats"] = [8, 8]
    line["contenders"][0]["extras"] |= {f"steps_{name}_ns": 5 for name in ("wall", "user", "system", "queued")}
    line["contenders"][1]["settings"] = {"does": "reading", "lacks": "writing", "arithmetic": "float32"}
    line["contenders"][1]["check"]["quality"] = {"recall": 0.9}
    line["code"]["libraries"] = {"numpy": "2"}
    return {**line, "missing": {"absent": "peers"}, "controls": ["peer"], "note": "a note"}


def spots(value, at=()):
    """Every field, and of a list its first item."""
    if at:
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for name, inner in items:
        yield from spots(inner, (*at, name))


def changed(line: dict, at: tuple, value: object) -> dict:
    made = copy.deepcopy(line)
    inner = made
    for name in at[:-1]:
        inner = inner[name]
    inner[at[-1]] = value
    return made


def mutants(line: dict):
    for at in spots(line):
        for value in WRONG:
            yield at, value, changed(line, at, value)


def parsed(line: dict) -> records.Record | None:
    try:
        return records._parse(Path("made.jsonl"), 1, line)
    except InputError:
        return None


def look(held: list[records.Record], other: records.Record, page: bool = True) -> None:
    """What records ls, show and export, compare, history, cost and report make of them."""
    paper = Console(file=io.StringIO(), width=120)
    for made in held:
        paper.print(tables.listing([made]), *tables.races([made]), tables.facts(made))
        json.dumps([analyse.to_json(made), records.to_json(made)], default=str)
    told = [
        lambda: compare.changes([other], held),
        lambda: history_page.build(history.history(held)),
        lambda: [cost.plan(s, 5.0).to_json() for s in cost.services(held)[0]],
        lambda: _report(held) if page else None,
    ]
    for one in told:
        try:
            one()
        except RidgelineError:
            continue


def _report(held: list[records.Record]) -> None:
    chapters = report.chapters(held)
    report_page.build(chapters)
    report_text.markdown(chapters)
    report_text.to_json(chapters)


def test_every_field_of_the_wrong_kind_is_refused_or_harmless():
    line = whole()
    good = parsed(line)
    assert good is not None
    look([good], good)
    refused = 0
    for at, value, wrong in mutants(line):
        made = parsed(wrong)
        refused += made is None
        if made is not None:
            try:
                look([made], good, page=value in PAGED)
            except Exception as error:
                raise AssertionError(f"{at} = {value!r}") from error
    assert refused > 300


@pytest.mark.parametrize("family", [studied, frontier, types])
def test_one_such_record_among_others_is_refused_or_harmless(family):
    lines = [as_line(made) for made in family()]
    others = [made for line in lines[1:] if (made := parsed(line)) is not None]
    assert len(others) == len(lines) - 1
    parts = ("case", "work", "placement", "plan")
    for at, value, wrong in mutants({name: lines[0][name] for name in parts}):
        made = parsed({**lines[0], **wrong})
        if made is not None and value in PAGED:
            try:
                _report([made, *others])
            except RidgelineError:
                continue
            except Exception as error:
                raise AssertionError(f"{at} = {value!r}") from error


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        (("weather", "before"), "x", "its weather.before is 'x', not a table."),
        (("contenders", 0, "samples_per_turn"), "x", "its contenders[0].samples_per_turn is 'x', not a whole number"),
        (("work", "items"), [], "its work.items is [], not a number from 0 up."),
        (("case", "n"), {"a": 1}, "its case.n is {'a': 1}, not a number, a text, true or false."),
        (("contenders", 1, "check"), {}, "its contenders[1].check.ok is not there."),
        (("machine", "gpus"), [{"name": "x" * 99, "node": "y" * 99}], "machine.gpus[0].node is 'yyyyyyyy"),
    ],
)
@pytest.mark.parametrize(
    "command", [("records", "ls"), ("records", "show"), ("records", "export"), ("history",), ("report",)]
)
def test_commands_name_the_line_and_the_field(say, tmp_path, command, at, value, says):
    lines = [as_line(race("made", {"n": 8}, 1e3, {"peer": 2e3})) for _ in range(2)]
    lines[1] = changed(lines[1], at, value)
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, out, err = say(*command, "runs.jsonl")
    assert (code, out) == (2, "")
    assert "'runs.jsonl' line 2 is no record: " in err
    assert says in err


def test_the_records_of_this_repository_have_the_shape():
    for file in REAL.glob("*.jsonl"):
        if '"schema"' in file.read_text()[:2000]:
            assert records.read(file).records
