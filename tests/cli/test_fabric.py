"""`ridgeline fabric` from the outside: what it prints, and how it leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ridgeline.cli import app, main

run = CliRunner().invoke


def test_show_draws_rounds_and_a_picture(tmp_path):
    told = run(app, ["fabric", "show", "ring", "--ranks", "3"])
    assert told.exit_code == 0
    assert "0→1:2+" in told.output
    file = tmp_path / "ring.svg"
    assert run(app, ["fabric", "show", "tree", "-n", "5", "-o", str(file)]).exit_code == 0
    assert file.read_text().count("marker-end") == sum(len(r.source) for r in _tree(5).rounds())


def _tree(ranks):
    from ridgeline import fabric

    return fabric.schedule("all_reduce", "tree", ranks=ranks)


def test_prove_says_what_is_wrong_with_a_schedule_of_ones_own(tmp_path):
    good = run(app, ["fabric", "prove", "rabenseifner", "-n", "6"])
    assert good.exit_code == 0
    assert good.output.startswith("proved: all_reduce rabenseifner over 6 ranks")
    made = json.loads(run(app, ["fabric", "show", "ring", "-n", "3", "--json"]).output)
    del made["programs"][1][-1]
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(made))
    told = run(app, ["fabric", "prove", str(file), "--json"])
    assert told.exit_code == 1
    assert json.loads(told.output)["proved"] is False
    assert json.loads(told.output)["rank"] in (0, 1)


def test_predict_marks_everything_as_predicted():
    told = json.loads(run(app, ["fabric", "predict", "--bytes", "1KiB,1GiB", "--json"]).output)
    assert {one["kind"] for one in told} == {"predicted"}
    assert {one["nbytes"] for one in told} == {1 << 10, 1 << 30}
    steps = json.loads(run(app, ["fabric", "predict", "--training", "resnet-50", "-n", "64", "--json"]).output)
    assert [one["ranks"] for one in steps] == [8, 16, 32, 64]
    assert all(0 < one["efficiency"] <= 1 for one in steps)


def test_doctor_gives_a_cure_for_what_is_off():
    told = run(app, ["fabric", "doctor", "--json"])
    found = json.loads(told.output)
    assert {"CPUs", "memfd", "/dev/shm", "CMA (process_vm_readv)"} <= {one["what"] for one in found}
    assert all(one["ok"] or one["cure"] for one in found)
    assert told.exit_code == (0 if all(one["ok"] for one in found) else 1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["show", "rign"], "did you mean 'ring'"),
        (["predict", "ring", "--bytes", "many"], "expected something like 64KiB"),
        (["predict", "ring", "--network", "dgx"], "no network 'dgx'"),
        (["predict", "--training", "resnet"], "no model 'resnet'"),
        (["show", "ring", "-o", "ring.png"], "does not end in .svg"),
        (["tune", "-n", "1"], "nothing to tell each other"),
        (["predict", "ring", "--network", "n.yaml"], "'n.yaml' cannot be read as text"),
        (["prove", "s.json"], "'s.json' cannot be read as text"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(capsys, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    for name in ("n.yaml", "s.json"):
        Path(name).write_bytes(b"\xff\xfe")
    with pytest.raises(SystemExit) as left:
        main(["fabric", *words])
    assert left.value.code == 2
    assert says in capsys.readouterr().err
