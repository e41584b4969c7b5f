"""Results of other benchmark tools as records, and records of several folders together."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import pytest
from tests.lab.conftest import make_record

from ridgeline.errors import InputError
from ridgeline.lab.judge import Validity, analyse_record, compare_records
from ridgeline.lab.record import append_record, import_results, merge_records, read_records
from ridgeline.lab.report import write_report


def write(path, body):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return path


def make_google(scale=1.0):
    runs = [
        {"name": "BM_Copy/64/threads:2", "run_type": kind, "real_time": t, "time_unit": "us"}
        for kind, t in [("iteration", scale * (5 + i % 3 * 0.01)) for i in range(12)] + [("aggregate", 99.0)]
    ]  # fmt: skip
    return {"context": {"date": "2026-01-01T00:00:00+00:00", "host_name": "h", "num_cpus": 2}, "benchmarks": runs}


def test_a_google_benchmark_that_failed_is_incomplete_and_says_why(tmp_path):
    body = make_google()
    error = {"name": "BM_Bad", "error_occurred": True, "error_message": "no device", "real_time": 0.0}
    once = {"name": "BM_Once", "run_type": "iteration", "real_time": 3.0, "time_unit": "ns"}
    body["benchmarks"] += [error, once]
    rows = {r.workload: analyse_record(r)[0].assessment for r in import_results(write(tmp_path / "g.json", body))}
    assert rows["BM_Copy"].validity is Validity.VALID
    assert (rows["BM_Bad"].validity, rows["BM_Bad"].advice) == (Validity.INCOMPLETE, "it failed: no device")
    assert "one repetition, and a verdict needs 6" in rows["BM_Once"].advice


def test_google_benchmark_repetitions_are_turns_and_two_files_compare(tmp_path):
    [before] = import_results(write(tmp_path / "a.json", make_google()))
    [after] = import_results(write(tmp_path / "b.json", make_google(1.2)))
    assert before.workload == "BM_Copy"
    assert before.case == {"arg0": 64, "threads": 2, "device": "cpu", "ranks": 1}
    assert before.contenders[0].samples_ns[:2] == (5000.0, 5010.0)
    assert len(before.contenders[0].samples_ns) == 12
    [change] = compare_records([before], [after])
    assert change.comparison == "SLOWER"


def test_pytest_benchmark_and_criterion_and_nvbench_are_read(tmp_path):
    stats = {"name": "test_sum[8]", "params": {"n": 8}, "stats": {"data": [1e-3] * 7}}
    body = {
        "machine_info": {"node": "h", "cpu": {"count": 4}},
        "datetime": "2026-01-01T00:00:00",
        "benchmarks": [stats],
    }
    [record] = import_results(write(tmp_path / "p.json", body))
    assert (record.workload, record.case["n"], record.contenders[0].samples_ns[0]) == ("test_sum", 8, 1e6)

    folder = tmp_path / "criterion" / "sort" / "64"
    write(folder / "new" / "sample.json", {"iters": [1.0, 2.0], "times": [10.0, 24.0]})
    write(folder / "new" / "benchmark.json", {"group_id": "sort", "value_str": "64"})
    [record] = import_results(tmp_path / "criterion")
    assert (record.workload, record.case["value"], record.contenders[0].samples_ns) == ("sort", 64, (10.0, 12.0))
    done = {
        "reason": "benchmark-complete",
        "id": "sort/64",
        "measured_values": [8.0],
        "iteration_count": [4],
        "unit": "us",
    }
    [record] = import_results(write(tmp_path / "m.json", json.dumps(done) + '\n{"reason": "group-complete"}\n'))
    assert record.contenders[0].samples_ns == (2000.0,)

    (tmp_path / "times.bin").write_bytes(struct.pack("<3f", 1e-6, 2e-6, 4e-6))
    raw = {"tag": "nv/json/bin:nv/cold/sample_times", "data": [{"name": "filename", "value": "times.bin"}]}
    state = {"device": 0, "axis_values": [{"name": "n", "value": "64"}], "summaries": [raw]}
    body = {"meta": {}, "devices": [{"name": "GPU"}], "benchmarks": [{"name": "copy", "states": [state]}]}
    [record] = import_results(write(tmp_path / "n.json", body))
    assert record.case == {"n": 64, "device": "cuda", "ranks": 1}
    assert record.contenders[0].samples_ns == pytest.approx((1000, 2000, 4000))


def test_imported_records_can_be_stored_and_reported(tmp_path):
    for record in import_results(write(tmp_path / "a.json", make_google())):
        append_record(tmp_path / "out", record) if (tmp_path / "out").mkdir() is None else None
    records = read_records(tmp_path / "out").records
    page = write_report(records, tmp_path / "out")
    assert "BM_Copy" in page.read_text()


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("no json", "is no JSON"),
        ({"benchmarks": 3}, "of no format that is known"),
        ({"context": {}, "benchmarks": []}, "holds no benchmark"),
        ({"context": {}, "benchmarks": [{"name": "x"}]}, "is damaged"),
        ({"machine_info": {}, "benchmarks": [{"name": "x", "stats": {}}]}, "has no raw times"),
    ],
)
def test_other_files_are_refused_in_one_sentence(tmp_path, body, sentence):
    with pytest.raises(InputError, match=sentence):
        import_results(write(tmp_path / "x.json", body))


def test_merged_records_are_there_once_and_unchanged(tmp_path):
    records = [make_record({"ridgeline": [1.0, 2.0]}) for _ in range(4)]
    for name, part in (("a", records[:3]), ("b", records[1:])):
        (tmp_path / name).mkdir()
        for record in part:
            append_record(tmp_path / name, record)
    assert merge_records([tmp_path / "a", tmp_path / "b"], tmp_path / "m") == (4, 4)
    assert [r.id for r in read_records(tmp_path / "m").records] == [r.id for r in records]
    lines = (tmp_path / "a" / "records.jsonl").read_text().splitlines()
    assert (tmp_path / "m" / "records.jsonl").read_text().splitlines()[:3] == lines
    assert merge_records([tmp_path / "b"], tmp_path / "m") == (4, 0)
    (tmp_path / "c").mkdir()
    append_record(tmp_path / "c", replace(records[0], note="changed"))
    with pytest.raises(InputError, match="differs from another one of that id"):
        merge_records([tmp_path / "c"], tmp_path / "m")
