"""`ridgeline fabric`: its output and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ridgeline.cli import app, main

run = CliRunner().invoke


def test_show_draws_rounds_and_a_picture(tmp_path):
    result = run(app, ["fabric", "show", "ring", "--ranks", "3"])
    assert result.exit_code == 0
    assert "0→1:2+" in result.output
    file = tmp_path / "ring.svg"
    assert run(app, ["fabric", "show", "tree", "-n", "5", "-o", str(file)]).exit_code == 0
    assert file.read_text().count("marker-end") == sum(len(r.source) for r in _make_tree(5).rounds())


def _make_tree(ranks):
    from ridgeline import fabric

    return fabric.schedule("all_reduce", "tree", ranks=ranks)


def test_prove_reports_what_is_wrong_with_a_custom_schedule(tmp_path):
    good = run(app, ["fabric", "prove", "rabenseifner", "-n", "6"])
    assert good.exit_code == 0
    assert good.output.startswith("proved: all_reduce rabenseifner over 6 ranks")
    document = json.loads(run(app, ["fabric", "show", "ring", "-n", "3", "--json"]).output)
    del document["programs"][1][-1]
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(document))
    result = run(app, ["fabric", "prove", str(file), "--json"])
    assert result.exit_code == 1
    assert json.loads(result.output)["proved"] is False
    assert json.loads(result.output)["rank"] in (0, 1)


def test_predict_uses_every_adapter_unless_told_otherwise(tmp_path):
    def predict(*words):
        result = run(app, ["fabric", "predict", *words, "--ranks", "16", "--bytes", "1GiB", "--json"])
        return json.loads(result.output)[0]

    eight, one = predict("ring"), predict("ring", "--channels", "1")
    assert (eight["channels"], one["channels"]) == (8, 1)
    assert eight["busbw"] > 6 * one["busbw"]
    file = tmp_path / "mine.json"
    shown = run(app, ["fabric", "show", "ring", "-n", "16", "--nodes", "2", "--channels", "8", "--json"])
    file.write_text(shown.output)
    assert run(app, ["fabric", "prove", str(file)]).exit_code == 0
    assert predict(str(file))["channels"] == 8


def test_predict_marks_everything_as_predicted():
    predictions = json.loads(run(app, ["fabric", "predict", "--bytes", "1KiB,1GiB", "--json"]).output)
    assert {entry["kind"] for entry in predictions} == {"predicted"}
    assert {entry["nbytes"] for entry in predictions} == {1 << 10, 1 << 30}
    steps = json.loads(run(app, ["fabric", "predict", "--training", "resnet-50", "-n", "64", "--json"]).output)
    assert [entry["ranks"] for entry in steps] == [8, 16, 32, 64]
    assert all(0 < entry["efficiency"] <= 1 for entry in steps)


def test_doctor_names_a_cure_for_every_failed_check():
    result = run(app, ["fabric", "doctor", "--json"])
    findings = json.loads(result.output)
    assert {"CPUs", "memfd", "/dev/shm", "CMA (process_vm_readv)"} <= {entry["what"] for entry in findings}
    assert all(entry["ok"] or entry["cure"] for entry in findings)
    assert result.exit_code == (0 if all(entry["ok"] for entry in findings) else 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "rign"], "did you mean 'ring'"),
        (["predict", "ring", "--bytes", "many"], "expected something like 64KiB"),
        (["predict", "ring", "--network", "dgx"], "no network 'dgx'"),
        (["predict", "--training", "resnet"], "no model 'resnet'"),
        (["show", "ring", "-o", "ring.png"], "does not end in .svg"),
        (["tune", "-n", "1"], "do not communicate"),
        (["predict", "ring", "--network", "n.yaml"], "'n.yaml' cannot be read as text"),
        (["prove", "s.json"], "'s.json' cannot be read as text"),
        (["predict", "tree", "--channels", "2"], "channels is 2 for tree"),
        (["prove", "no.json"], "there is no file 'no.json'"),
        (["prove", "t.json"], "'t.json' holds no schedule: chunks is '1'; give a whole number."),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    for name in ("n.yaml", "s.json"):
        Path(name).write_bytes(b"\xff\xfe")
    document = {"op": "all_reduce", "algorithm": "mine", "ranks": 1, "chunks": "1", "nodes": 1, "root": 0}
    Path("t.json").write_text(json.dumps({**document, "programs": [[]]}))
    with pytest.raises(SystemExit) as exit_info:
        main(["fabric", *words])
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err
