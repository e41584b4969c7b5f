"""`ridgeline recommend sizing`: lines through measurements, with their errors.

python -m pytest tests/cli/test_recommend_sizing.py
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.conftest import make_record

from ridgeline.cli import main
from ridgeline.cli.recommend_sizing import fit_time_line
from ridgeline.errors import InputError
from ridgeline.lab.record import record_to_json

CASE = {"task": "embed", "users": 1, "likes": 1, "dim": 384, "k": 10, "data": "made", "device": "cpu", "ranks": 1}


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 10), st.floats(1e-6, 1), st.lists(st.integers(1, 10**6), min_size=3, max_size=6, unique=True))
def test_a_straight_line_is_recovered(base, each, texts):
    line = fit_time_line(texts, [base + each * n for n in texts])
    for n in texts:
        assert line.at(n) == pytest.approx(base + each * n, rel=1e-3, abs=1e-6)


def test_a_curve_has_an_error_and_two_sizes_are_too_few():
    assert fit_time_line([1_000, 2_000, 4_000], [1.0, 2.0, 6.0]).off == pytest.approx(1 / 3)
    assert fit_time_line([100, 200, 400], [3.0, 1.0, 0.5]).base >= 0
    with pytest.raises(InputError, match="a prediction needs 3 sizes and has 2"):
        fit_time_line([5, 9, 9], [1.0, 2.0, 2.0])


def write_records(path, sizes, batch=0):
    lines = []
    for items in sizes:
        record = make_record(
            {"ridgeline": [(1.0 + 0.01 * items) * 1e9] * 9},
            workload="recommend",
            case={**CASE, "items": items, "batch": batch},
            checks={"ridgeline": {"ok": True, "error": 0.0, "quality": {"lowest cosine": 0.99999}, "note": ""}},
            work={"items": items, "unit": "texts", "flops": 0, "bytes": {}, "launches": 1, "dtype": "float32"},
        )
        lane = replace(record.contenders[0], extras={"load_ns": 2_000_000_000, "peak_host_bytes": 5 << 20})
        lines.append(json.dumps(record_to_json(replace(record, contenders=(lane,)))))
    with path.open("a") as file:
        file.write("\n".join(lines) + "\n")
    return path


def run_sizing(capsys, *words) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as leaving:
        main(["recommend", "sizing", *map(str, words)])
    out = capsys.readouterr()
    return int(leaving.value.code or 0), out.out, out.err


def test_millions_are_predicted_from_what_was_measured(capsys, tmp_path):
    path = write_records(write_records(tmp_path / "r.jsonl", (100, 200, 400)), (200,), batch=32)
    code, out, _ = run_sizing(capsys, path, "--json")
    (one,) = json.loads(out)
    assert code == 0
    assert [(m["texts"], m["batch"]) for m in one["measured"]] == [(100, None), (200, None), (200, 32), (400, None)]
    first = one["measured"][0]
    assert (first["load_seconds"], first["peak_bytes"], first["lowest_cosine"]) == (2.0, 5 << 20, 0.99999)
    assert first["texts_per_s"] == pytest.approx(50)
    assert [p["seconds"] for p in one["predicted"]] == pytest.approx([1e4 + 1, 1e5 + 1, 1e6 + 1], rel=1e-4)
    assert one["predicted"][0]["vector_bytes"] == 4 * 384 * 1_000_000
    code, out, _ = run_sizing(capsys, path)
    assert "predicted: 2.78 h ± 0%" in out


def test_too_few_sizes_are_reported_and_missing_records_are_an_error(capsys, tmp_path):
    code, out, err = run_sizing(capsys, write_records(tmp_path / "r.jsonl", (100, 200)))
    assert code == 0
    assert "predicted" not in out
    assert "a prediction needs 3 sizes and has 2" in err
    (tmp_path / "empty.jsonl").write_text("")
    code, _, err = run_sizing(capsys, tmp_path / "empty.jsonl")
    assert code == 2
    assert "holds no record of task=embed" in err


def test_after_a_short_bench_the_records_of_the_encoder_are_shown(capsys, tmp_path):
    """With little time a bench measures one case of each workload: of recommend a task without texts."""
    encoder = {"stage": "end to end", "texts": "even", "batch": 32, "tokens": 32, "device": "cpu", "ranks": 1}
    records = [
        make_record({"ridgeline": [1e9] * 9}, workload="recommend", case={**CASE, "task": "semantic", "items": 9}),
        make_record(
            {"ridgeline": [2e9] * 9},
            workload="embed",
            case=encoder,
            work={"items": 32, "unit": "texts", "flops": 0, "bytes": {}, "launches": 1, "dtype": "float32"},
        ),
    ]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(record_to_json(r)) + "\n" for r in records))
    code, out, err = run_sizing(capsys, tmp_path, "--json")
    (one,) = json.loads(out)
    assert code == 0
    assert [(m["texts"], m["batch"], m["tokens"]) for m in one["measured"]] == [(32, 32, 32)]
    assert one["predicted"] == []
    assert "ridgeline bench recommend --profile full measures catalogues" in err
    assert "16.0" in run_sizing(capsys, tmp_path)[1]
