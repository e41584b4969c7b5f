"""`bulk embed` from the plan to the manifest: nothing lost, nothing doubled, the same bytes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import settings as options
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.bulk.dies import Dies
from tests.bulk.sources_made import make_source, make_table, make_texts, read_parts, read_rows

import ridgeline.bulk.job as job
from ridgeline import Embedder, bulk
from ridgeline.bulk.embedding import _convert, _find_unfit
from ridgeline.bulk.engines import Death, LocalEngine, choose_devices, spread_workers
from ridgeline.bulk.ray_engine import check_reachable
from ridgeline.errors import InputError, Locked, StoreError
from ridgeline.store import lock

ROWS = dict(enumerate(make_texts(44)))


def test_every_row_gets_the_vector_of_its_text_whatever_the_format(tmp_path, settings, inline, model):
    answer = bulk.embed(make_source(tmp_path / "in", ROWS), tmp_path / "out", **settings)
    assert (answer["rows"], answer["computed"], answer["rejects"], answer["chunks"]) == (44, 44, 0, 5)
    assert read_rows(tmp_path / "out") == ROWS
    table = arrow.concat_tables([parquet.read_table(f) for f in sorted((tmp_path / "out").glob("part-*.parquet"))])
    assert table["id"].to_pylist() == list(ROWS), "the order of the source"
    with Embedder(model, device="cpu", dtype="float32") as embedder:
        expected = embedder.encode(list(ROWS.values()))
    np.testing.assert_allclose(np.array(table["vector"].to_pylist()), expected, atol=1e-6)


def test_an_interrupted_job_goes_on_where_it_stood_and_gives_the_same_bytes(tmp_path, settings, inline):
    source = make_source(tmp_path / "in", ROWS)
    bulk.embed(source, tmp_path / "whole", **settings)
    for stop_after in (1, 2):
        inline.stop_after = stop_after
        with pytest.raises(KeyboardInterrupt):
            bulk.embed(source, tmp_path / "out", **settings)
        assert not (tmp_path / "out/_ridgeline/manifest.json").exists()
    [job] = [job for job in bulk.list_jobs() if job.target.endswith("out")]
    assert (job.state, job.done, job.chunks) == ("stopped", 3, 5)
    inline.stop_after = None
    answer = bulk.resume(job.job)
    assert (answer["rows"], answer["computed"], answer["reused"]) == (44, 14, 30)
    assert read_parts(tmp_path / "out") == read_parts(tmp_path / "whole")
    assert bulk.show_job(job.job).state == "done"
    assert bulk.embed(source, tmp_path / "out", **settings)["computed"] == 0


def test_a_part_without_a_commit_does_not_count(tmp_path, settings, inline):
    source = make_source(tmp_path / "in", ROWS)
    bulk.embed(source, tmp_path / "whole", **settings)
    inline.stop_after = 2
    with pytest.raises(KeyboardInterrupt):
        bulk.embed(source, tmp_path / "out", **settings)
    (tmp_path / "out/part-000003-0000000000000000.parquet").write_bytes(b"half")
    commits = sorted((tmp_path / "out/_ridgeline/commits").glob("*.json"))
    lost = sum(part["rows"] for part in json.loads(commits[-1].read_bytes())["parts"])
    commits[-1].unlink()
    inline.stop_after = None
    assert bulk.embed(source, tmp_path / "out", **settings)["computed"] == 24 + lost
    assert read_parts(tmp_path / "out") == read_parts(tmp_path / "whole")


def test_bad_rows_go_to_the_rejects_with_their_reason(tmp_path, settings, inline):
    lines = [json.dumps({"id": i, "title": text}) for i, text in ROWS.items()]
    lines[3] = '{"id": 3, "title": null}'
    lines[17] = '{"id": 17, "title": "cut'
    lines[30] = '{"id": 30, "title": 5}'
    lines[31] = '{"id": 31, "title": "\\ud800"}'
    lines[32] = "[1]"
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    answer = bulk.embed(tmp_path / "in.jsonl", tmp_path / "out", **settings)
    assert (answer["rows"], answer["rejects"]) == (39, 5)
    found = [
        json.loads(line)
        for file in sorted((tmp_path / "out/rejects").glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    assert [reject["row"] for reject in found] == [3, 17, 30, 31, 32]
    assert all(reject["source"].endswith("in.jsonl") and reject["reason"] for reject in found)
    assert read_rows(tmp_path / "out") == {i: t for i, t in ROWS.items() if i not in (3, 17, 30, 31, 32)}


def test_too_many_rejects_stop_the_job_and_a_higher_limit_goes_on(tmp_path, settings, inline):
    lines = [json.dumps({"id": i, "title": text if i % 20 != 15 else None}) for i, text in ROWS.items()]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=r"2 rejects are more than --max-rejects 1.*row 15: 'title' is null"):
        bulk.embed(tmp_path / "in.jsonl", tmp_path / "out", max_rejects=1, **settings)
    assert not read_parts(tmp_path / "out")
    answer = bulk.embed(tmp_path / "in.jsonl", tmp_path / "out", max_rejects=2, **settings)
    assert (answer["rows"], answer["rejects"]) == (42, 2)
    assert answer["computed"] <= 4, "the last chunk may have been done before the limit was seen"
    assert len(read_rows(tmp_path / "out")) == 42
    before = read_parts(tmp_path / "out")
    with pytest.raises(InputError, match="is complete with 2 rejects, more than --max-rejects 1; it stays as it is"):
        bulk.embed(tmp_path / "in.jsonl", tmp_path / "out", max_rejects=1, **settings)
    assert read_parts(tmp_path / "out") == before
    assert bulk.embed(tmp_path / "in.jsonl", tmp_path / "out", max_rejects=2, **settings)["computed"] == 0


def test_a_resumed_job_has_the_options_of_its_last_call(tmp_path, settings, inline):
    lines = [json.dumps({"id": i, "title": text if i % 10 else None}) for i, text in ROWS.items()]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match="more than --max-rejects 0"):
        bulk.embed(tmp_path / "in.jsonl", tmp_path / "out", max_rejects=0, **settings)
    inline.stop_after = 1
    with pytest.raises(KeyboardInterrupt):
        bulk.embed(tmp_path / "in.jsonl", tmp_path / "out", max_rejects=9, **settings)
    inline.stop_after = None
    [stopped] = bulk.list_jobs()
    assert bulk.resume(stopped.job)["rejects"] == 5


def test_a_job_counts_its_truncated_texts_without_a_warning(tmp_path, settings, inline, recwarn):
    long = "the red cat " * 30
    rows = {i: long if i % 4 == 0 else text for i, text in ROWS.items()}
    assert bulk.embed(make_source(tmp_path / "in", rows), tmp_path / "out", **settings)["truncated"] == 11
    assert not recwarn.list
    assert bulk.embed(tmp_path / "in", tmp_path / "out", **settings)["truncated"] == 0, "nothing is computed"
    lines = [json.dumps({"id": i, "title": t}) for i, t in enumerate([long, "a dog", "", "a \udcff cat", long])]
    (tmp_path / "bad.jsonl").write_text("\n".join(lines) + "\n")
    answer = bulk.embed(tmp_path / "bad.jsonl", tmp_path / "bad", **settings)
    assert answer["truncated"] == 2, "texts that are encoded again beside a bad one count once"
    assert answer["rejects"] == 1


@pytest.mark.parametrize(
    ("name", "change", "refused"),
    [
        ("a.parquet", "other rows", True),
        ("a.parquet", "gone", True),
        ("a.jsonl", "other rows", True),
        ("a.jsonl", "gone", True),
        ("a.jsonl", "grown", False),
    ],
)
def test_a_source_that_changes_while_a_job_reads_it_stops_the_job(tmp_path, settings, inline, name, change, refused):
    source, texts = tmp_path / name, make_texts(44)

    def write(texts) -> None:
        table = make_table(range(len(texts)), texts)
        if name.endswith(".parquet"):
            parquet.write_table(table, source, compression="none", use_dictionary=False, write_statistics=False)
        else:
            source.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))

    write(texts)
    size = source.stat().st_size
    inline.stop_after = 2
    with pytest.raises(KeyboardInterrupt):
        bulk.embed(source, tmp_path / "out", **settings)

    def alter(*_) -> None:
        if change == "gone":
            source.unlink(missing_ok=True)
        else:
            write([*texts, "one more"] if change == "grown" else [text[::-1] for text in texts])
            assert change == "grown" or source.stat().st_size == size

    inline.stop_after = None
    if refused:
        with pytest.raises(StoreError, match=f"{name} (changed since the job started|or its folder is not there)"):
            bulk.embed(source, tmp_path / "out", report=alter, **settings)
    else:
        assert bulk.embed(source, tmp_path / "out", report=alter, **settings)["rows"] == 44
        assert read_rows(tmp_path / "out") == dict(enumerate(texts))


def test_a_job_chooses_its_devices_once(tmp_path, settings, inline, monkeypatch):
    calls = []
    monkeypatch.setattr(job, "choose_devices", lambda text: calls.append(text) or ["cpu"])
    bulk.embed(make_source(tmp_path / "in", ROWS), tmp_path / "out", **settings)
    assert calls == ["cpu"]


def test_an_increment_computes_what_changed_and_equals_a_whole_run(tmp_path, settings, inline):
    source = tmp_path / "in"
    make_source(source, ROWS)
    bulk.embed(source, tmp_path / "out", **settings)
    changed = {i: text for i, text in ROWS.items() if i not in (7, 30)} | {12: "a new text", 90: "an added one"}
    make_source(source, changed)
    with pytest.raises(InputError, match="--incremental"):
        bulk.embed(source, tmp_path / "out", **settings)
    inline.stop_after = 1
    with pytest.raises(KeyboardInterrupt):
        bulk.embed(source, tmp_path / "out", incremental=True, **settings)
    inline.stop_after = None
    answer = bulk.embed(source, tmp_path / "out", incremental=True, **settings)
    assert (answer["rows"], answer["removed"]) == (43, 2)
    bulk.embed(source, tmp_path / "whole", **settings)
    assert read_rows(tmp_path / "out") == changed
    assert read_parts(tmp_path / "out").keys() == read_parts(tmp_path / "whole").keys()
    assert read_parts(tmp_path / "out") == read_parts(tmp_path / "whole")
    assert bulk.embed(source, tmp_path / "out", incremental=True, **settings)["computed"] == 0


def test_an_increment_counts_reused_and_computed_rows(tmp_path, settings, inline):
    make_source(tmp_path / "in", ROWS)
    bulk.embed(tmp_path / "in", tmp_path / "out", **settings)
    make_source(tmp_path / "in", ROWS | {12: "a new text"})
    answer = bulk.embed(tmp_path / "in", tmp_path / "out", incremental=True, **settings)
    assert (answer["computed"], answer["reused"], answer["removed"]) == (1, 43, 0)


def test_a_target_of_another_job_is_refused_and_left_alone(tmp_path, settings, inline):
    source = make_source(tmp_path / "in", ROWS)
    bulk.embed(source, tmp_path / "out", **settings)
    before = read_parts(tmp_path / "out")
    with pytest.raises(InputError, match="max_tokens is null there, 4 here"):
        bulk.embed(source, tmp_path / "out", max_tokens=4, **settings)
    assert read_parts(tmp_path / "out") == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep")
    with pytest.raises(InputError, match=r"notes\.txt"):
        bulk.embed(source, tmp_path / "mine", **settings)


def test_a_second_driver_is_refused_and_the_first_is_named(tmp_path, settings, inline):
    source = make_source(tmp_path / "in", ROWS)
    bulk.embed(source, tmp_path / "out", **settings)
    with lock(tmp_path / "out/_ridgeline/lock"), pytest.raises(Locked, match=f"process {os.getpid()} on"):
        bulk.embed(source, tmp_path / "out", **settings)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (arrow.table({"id": [7], "name": ["x"]}), "1.parquet' has no column 'title'"),
        (arrow.table({"id": ["7"], "title": ["x"]}), "1.parquet' has column 'id' as string, .* as int64"),
        (arrow.table({"id": [7], "title": [3]}), "1.parquet' has column 'title' as int64, .* as string"),
    ],
)
def test_a_file_that_differs_is_named_and_nothing_is_written(tmp_path, settings, inline, table, message):
    (tmp_path / "in").mkdir()
    parquet.write_table(make_table([1], ["x"]), tmp_path / "in/0.parquet")
    parquet.write_table(table, tmp_path / "in/1.parquet")
    with pytest.raises(InputError, match=message):
        bulk.embed(tmp_path / "in", tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"format": "orc"}, "did you mean|There are: parquet"),
        ({"engine": "spark"}, "There are: local, ray"),
        ({"chunk_rows": 0}, "--chunk-rows is 0"),
        ({"incremental": True, "key": None}, "--incremental needs --key"),
        ({"device": "cuda:77"}, "cuda:77"),
        ({"address": "auto"}, "--engine ray"),
        ({"column": "nope"}, "no column 'nope'|no column in"),
        ({"vectors": "float16", "format": "delta"}, "Delta table has no float16"),
    ],
)
def test_bad_options_are_one_sentence(tmp_path, settings, inline, more, message):
    make_source(tmp_path / "in", ROWS)
    with pytest.raises(InputError, match=message):
        bulk.embed(tmp_path / "in", tmp_path / "out", **(settings | more))
    assert not (tmp_path / "out").exists()


def test_a_job_that_ends_before_its_first_part_leaves_no_target(tmp_path, settings, inline, monkeypatch):
    source = make_source(tmp_path / "in", ROWS)

    def fail(*_: object) -> None:
        raise InputError("no cluster answers")

    monkeypatch.setattr(inline, "__enter__", fail)
    with pytest.raises(InputError, match="no cluster answers"):
        bulk.embed(source, tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_a_ray_cluster_that_does_not_listen_is_named_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        for name in (address, f"ray://{address}"):
            with pytest.raises(InputError, match=f"no Ray cluster answers at '{name}'.*; check the address"):
                check_reachable(name)
        free.listen()
        check_reachable(address)
    check_reachable("auto")
    check_reachable(None)


def test_a_target_that_is_a_file_is_refused(tmp_path, settings, inline):
    source = make_source(tmp_path / "in", ROWS)
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InputError, match="out' is a file; give a folder"):
        bulk.embed(source, tmp_path / "out", **settings)
    assert (tmp_path / "out").read_text() == "mine"


def test_a_source_without_rows_leaves_no_target(tmp_path, settings, inline):
    parquet.write_table(make_table([], []), tmp_path / "in.parquet")
    with pytest.raises(InputError, match=r"the source has no rows: '.*in\.parquet' is empty"):
        bulk.embed(tmp_path / "in.parquet", tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_vectors_can_be_stored_in_float16(tmp_path, settings, inline):
    make_source(tmp_path / "in", ROWS)
    bulk.embed(tmp_path / "in", tmp_path / "out", vectors="float16", **settings)
    [first, *_] = sorted((tmp_path / "out").glob("part-*.parquet"))
    assert parquet.read_schema(first).field("vector").type.value_type == arrow.float16()


def test_the_target_of_a_job_is_a_source(tmp_path, settings, inline):
    make_source(tmp_path / "in", ROWS)
    bulk.embed(tmp_path / "in", tmp_path / "out", **settings)
    answer = bulk.embed(tmp_path / "out", tmp_path / "again", **settings)
    assert answer["rows"] == 44
    assert read_rows(tmp_path / "again") == ROWS


def test_clean_forgets_finished_jobs_and_empties_a_stopped_one(tmp_path, settings, inline):
    source = make_source(tmp_path / "in", ROWS)
    bulk.embed(source, tmp_path / "done", **settings)
    inline.stop_after = 1
    with pytest.raises(KeyboardInterrupt):
        bulk.embed(source, tmp_path / "half", **settings)
    assert [job.state for job in bulk.list_jobs()].count("stopped") == 1
    [removed] = bulk.clean()
    assert len(bulk.list_jobs()) == 1
    assert read_rows(tmp_path / "done") == ROWS
    assert removed != bulk.list_jobs()[0].job
    bulk.clean(bulk.list_jobs()[0].job)
    assert not read_parts(tmp_path / "half")
    with pytest.raises(InputError, match="no job"):
        bulk.show_job("embed-none")


class DiesOf:
    """A worker that is ended by one row."""

    def __init__(self, factory, row):
        self.factory, self.row = factory, row

    def __call__(self, device):
        run, row = self.factory(device), self.row

        def die(task):
            batch = run._reader.read(task.spans)
            low, high = task.probe or (0, len(batch.rows))
            skipped = {reject.row for reject in task.skip}
            if row in set(batch.numbers[low:high].tolist()) - skipped:
                return Death("was killed by SIGSEGV")
            return run(task)

        die.close = run.close
        return die


def test_a_row_that_ends_its_workers_is_rejected_and_the_others_stay(tmp_path, settings, inline, monkeypatch):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"id": i, "title": t}) + "\n" for i, t in ROWS.items()))
    start = inline.__enter__

    def enter(self):
        self._factory = DiesOf(self._factory, 23)
        return start(self)

    monkeypatch.setattr(inline, "__enter__", enter)
    answer = bulk.embed(tmp_path / "in.jsonl", tmp_path / "out", **settings)
    assert (answer["rows"], answer["rejects"]) == (43, 1)
    [file] = (tmp_path / "out/rejects").glob("*.jsonl")
    reject = json.loads(file.read_text())
    assert (reject["row"], "SIGSEGV" in reject["reason"]) == (23, True)


def test_the_local_engine_returns_the_task_that_ends_its_workers():
    with LocalEngine(Dies(), ["cpu"]) as engine:
        answers = dict(engine.run(range(6)))
    assert {task: answer for task, answer in answers.items() if task != 3} == {0: 0, 1: 2, 2: 4, 4: 8, 5: 10}
    assert "exited with code 9" in answers[3].reason


KILL = """
import os, signal, sys
from pathlib import Path
import ridgeline.bulk as bulk

def main():
    source, out, model, kill_worker, kill_driver = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
    killed = []
    def report(progress):
        if progress.rows >= kill_worker and not killed:
            killed.append(True)
            me = os.getpid()
            for status in Path("/proc").glob("[0-9]*/stat"):
                try:
                    if int(status.read_text().rpartition(")")[2].split()[1]) == me:
                        os.kill(int(status.parent.name), signal.SIGKILL)
                except (OSError, ValueError):
                    pass
        if progress.rows >= kill_driver:
            os.kill(os.getpid(), signal.SIGKILL)
    bulk.embed(source, out, column="title", key="id", chunk_rows=10, device="cpu", dtype="float32", model=model,
               report=report)

if __name__ == "__main__":
    main()
"""


def kill_and_resume(tmp_path: Path, model: str, times: int, source: Path) -> Path:
    (tmp_path / "kill.py").write_text(KILL)
    out = tmp_path / "killed"
    command = [sys.executable, str(tmp_path / "kill.py"), str(source), str(out), model]
    for number in range(times):
        ended = subprocess.run([*command, str(10), str(10 + 10 * (number % 2))], capture_output=True, timeout=300)
        assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-500:]
    return out


def test_worker_and_driver_killed_twice_resume_to_the_same_bytes(tmp_path, settings, inline, model):
    source = make_source(tmp_path / "in", dict(enumerate(make_texts(100))))
    bulk.embed(source, tmp_path / "whole", **settings)
    out = kill_and_resume(tmp_path, model, 2, source)
    answer = bulk.embed(source, out, **settings)
    assert 0 < answer["computed"] < 100
    assert read_parts(out) == read_parts(tmp_path / "whole")


@pytest.mark.slow
def test_a_driver_killed_twenty_times_loses_and_doubles_nothing(tmp_path, settings, inline, model):
    rows = dict(enumerate(make_texts(800)))
    source = make_source(tmp_path / "in", rows)
    bulk.embed(source, tmp_path / "whole", **settings)
    out = kill_and_resume(tmp_path, model, 20, source)
    bulk.embed(source, out, **settings)
    assert read_rows(out) == rows
    assert read_parts(out) == read_parts(tmp_path / "whole")


def test_stored_vectors_have_no_statistics_and_titles_have(tmp_path, settings, inline):
    make_source(tmp_path / "in", ROWS)
    bulk.embed(tmp_path / "in", tmp_path / "out", **settings)
    [first, *_] = sorted((tmp_path / "out").glob("part-*.parquet"))
    group = parquet.ParquetFile(first).metadata.row_group(0)
    columns = {(c := group.column(k)).path_in_schema.partition(".")[0]: c for k in range(group.num_columns)}
    assert columns["vector"].statistics is None
    assert columns["id"].statistics.min is not None


@given(arrays(np.float32, (5, 3), elements=st.floats(width=32)))
@options(deadline=None)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_vectors_are_converted_and_refused_as_numpy_would(vectors):
    half = vectors.astype(np.float16)
    finite, fits = np.isfinite(vectors).all(1), (np.abs(vectors) <= 65504).all(1)
    unfit = _find_unfit(vectors, "float16")
    assert sorted(unfit) == np.flatnonzero(~(finite & fits)).tolist()
    assert {row for row, reason in unfit.items() if "not finite" in reason} == set(np.flatnonzero(~finite))
    assert sorted(_find_unfit(vectors, "float32")) == np.flatnonzero(~finite).tolist()
    converted = _convert(vectors, "float16")
    np.testing.assert_array_equal(converted, half)
    np.testing.assert_array_equal(np.signbit(converted)[~np.isnan(half)], np.signbit(half)[~np.isnan(half)])


@pytest.mark.parametrize(
    ("devices", "cores", "count"),
    [(["cuda:0"], 2, 2), (["cuda:0"], 12, 6), (["cuda:0", "cuda:1"], 16, 8), (["cuda:0"], 96, 8)],
)
def test_the_cores_of_a_gpu_decide_how_many_workers_it_has(devices, cores, count, monkeypatch):
    cpus = [SimpleNamespace(usable=number < cores, node=0) for number in range(cores + 3)]
    monkeypatch.setattr("ridgeline.bulk.engines.topology", lambda: SimpleNamespace(cpus=cpus))
    workers = spread_workers(devices, None)
    assert (len(workers), workers.count(devices[-1])) == (count, count // len(devices))
    assert spread_workers(devices, 3)[:2] == (devices * 2)[:2]


@pytest.mark.parametrize(
    ("text", "gpus", "devices"),
    [
        ("auto", 2, ["cuda:0", "cuda:1"]),
        ("auto", 0, ["cpu"]),
        ("cuda:all", 2, ["cuda:0", "cuda:1"]),
        ("cuda", 1, ["cuda"]),
        ("cuda:1, cuda:0", 2, ["cuda:1", "cuda:0"]),
        ("cpu", 0, ["cpu"]),
    ],
)
def test_the_driver_chooses_devices_without_torch(text, gpus, devices, monkeypatch):
    machine = SimpleNamespace(gpus=[SimpleNamespace(index=number) for number in range(gpus)])
    monkeypatch.setattr("ridgeline.bulk.engines.topology", lambda: machine)
    monkeypatch.setattr("ridgeline.bulk.engines.has_cuda_build", lambda: True)
    monkeypatch.setattr("ridgeline.bulk.engines.parse_devices", lambda text: pytest.fail("it would import torch"))
    assert choose_devices(text) == devices
    monkeypatch.setattr("ridgeline.bulk.engines.has_cuda_build", lambda: False)
    assert choose_devices("auto") == ["cpu"]


@pytest.mark.parametrize("text", ["cuda:2", "gpu", "", "cuda:0,cuda:0"])
def test_devices_that_are_not_there_are_refused(text, monkeypatch):
    machine = SimpleNamespace(gpus=[SimpleNamespace(index=0), SimpleNamespace(index=1)])
    monkeypatch.setattr("ridgeline.bulk.engines.topology", lambda: machine)
    monkeypatch.setattr("ridgeline.bulk.engines.has_cuda_build", lambda: True)
    with pytest.raises(InputError):
        choose_devices(text)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_a_ray_cluster_can_have_an_ipv6_address():
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        check_reachable(f"ray://[::1]:{server.getsockname()[1]}")
