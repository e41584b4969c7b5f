"""The fabric workloads: cases that fit the machine, detection of wrong results, a complete race of collectives."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from ridgeline.cli import app
from ridgeline.errors import InputError
from ridgeline.lab import Case, Profile
from ridgeline.lab.race import load_workload
from ridgeline.workloads import _fabric_ranks, get_reference, list_workloads

WORKLOADS = ("allreduce", "allgather", "broadcast", "p2p")


@pytest.mark.parametrize("name", WORKLOADS)
def test_cases_have_ranks_and_fit_memory(name):
    assert name in list_workloads()
    workload = load_workload(get_reference(name))
    for profile in Profile:
        cases = list(workload.cases(profile))
        assert any(case.device == "cpu" for case in cases)
        assert all(case.ranks >= 2 for case in cases if case.device == "cpu")
        assert all(workload.work(case).items == case["bytes"] for case in cases)


def test_on_gpus_nccl_is_the_peer_and_each_rank_needs_one(monkeypatch):
    workload = load_workload(get_reference("allreduce"))
    monkeypatch.setattr(_fabric_ranks, "topology", lambda: SimpleNamespace(gpus=("H200", "H200")))
    case = Case({"bytes": 1024, "dtype": "float32"}, "cuda", 2)
    assert workload.contenders(case) == ["ridgeline", "torch NCCL", "memcpy"]
    assert workload.contenders(replace(case, ranks=1)) == ["ridgeline", "torch NCCL", "memcpy"]
    with pytest.raises(InputError, match="3 ranks need a GPU each, there are 2"):
        workload.contenders(replace(case, ranks=3))


@pytest.mark.gpu
def test_a_race_on_one_gpu_ends_with_right_answers(tmp_path):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    words = ["bench", "allreduce", "--device", "cuda", "--ranks", "1", "--case", "bytes=8192", "--budget", "2s"]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    (record,) = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [lane["contender"] for lane in record["contenders"]] == ["ridgeline", "torch NCCL", "memcpy"]
    assert all(lane["check"]["ok"] and lane["samples_ns"] for lane in record["contenders"])


def _make_result(values, rank=0, alone=False):
    return {"values": values, "turn": 5, "rank": rank, "size": len(values), "alone": alone}


def test_a_wrong_element_is_detected():
    case = Case({"bytes": 16, "dtype": "float32"}, "cpu", 2)
    reduce, gather = load_workload(get_reference("allreduce")), load_workload(get_reference("allgather"))
    assert reduce.check(case, _make_result([11.0] * 4)).ok  # (0 + 5) + (1 + 5)
    assert not reduce.check(case, _make_result([11.0, 11.0, 10.0, 11.0])).ok
    assert gather.check(case, _make_result([5.0, 5.0, 6.0, 6.0])).ok
    assert gather.check(case, _make_result([5.0, 6.0, 6.0, 6.0])).error == 1
    assert load_workload(get_reference("broadcast")).check(case, _make_result([5.0] * 4, rank=1)).ok
    assert not load_workload(get_reference("p2p")).check(case, _make_result([6.0] * 4, rank=1)).ok


@pytest.mark.slow
@pytest.mark.ranks
def test_a_race_of_collectives_ends_with_right_answers(tmp_path):
    words = ["bench", "allreduce", "--ranks", "2", "--case", "bytes=8192", "--budget", "2s", "--json"]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert records
    text = json.dumps(records)
    assert '"ridgeline registered"' in text
    assert '"WRONG"' not in text
    columns = CliRunner().invoke(app, ["fabric", "columns", str(tmp_path), "--json"])
    rows = {row["contender"]: row for row in json.loads(columns.output)}
    ours = rows["ridgeline"]
    assert (ours["size"], ours["count"], ours["ranks"], ours["#wrong"]) == (8192, 2048, 2, 0)
    assert ours["algbw"] == pytest.approx(8192 / ours["time µs"] / 1e3)
    assert ours["busbw"] == pytest.approx(ours["algbw"])  # 2 (n − 1) / n of two ranks
    assert 0 < ours["cores"] <= 2.5
    assert "busbw" in CliRunner().invoke(app, ["fabric", "columns", str(tmp_path)]).output


def test_columns_of_a_file_without_collectives_are_refused(tmp_path):
    (tmp_path / "records.jsonl").write_text("")
    result = CliRunner().invoke(app, ["fabric", "columns", str(tmp_path)])
    assert result.exit_code == 2 or "no collectives" in str(result.exception)
