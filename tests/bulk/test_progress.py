"""Progress over all workers, what limited a job, its cost, its page and its record."""

from __future__ import annotations

import threading

import pytest
from tests.bulk.sources_made import make_source, make_texts

from ridgeline import bulk
from ridgeline.bulk import Progress
from ridgeline.bulk.job import Committer
from ridgeline.bulk.parts import Outcome, Place, Task
from ridgeline.bulk.progress import HourlyCost, Meter, find_limit
from ridgeline.bulk.target import Part
from ridgeline.errors import InputError, StoreError
from ridgeline.lab.judge import compare_records
from ridgeline.lab.record import read_records

PRICES = """
[price.box]
device = "cpu"
usd_per_hour = 3600
date = 2026-11-15
source = "a test"
"""


class Clock:
    """A time that the test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("ridgeline.bulk.progress.time.monotonic", clock)
    return clock


def finish_chunk(meter, clock, at, rows, place, **seconds):
    clock.now = 100.0 + at
    meter.add(Outcome(seconds=seconds, place=place), rows)


def test_rate_rest_and_devices_count_from_when_the_workers_were_ready(clock):
    meter = Meter(total=1000, before=200, rejects=0)
    meter.workers = 2
    first, second = Place("a", "cuda:0", 11), Place("a", "cuda:1", 12)
    finish_chunk(meter, clock, 30, 100, first, read=1.0, compute=8.0, write=1.0)  # ready after 20 s
    finish_chunk(meter, clock, 30, 100, second, read=5.0, compute=4.0, write=1.0)
    finish_chunk(meter, clock, 40, 100, first, read=1.0, compute=8.0, write=1.0)
    progress = meter.get_progress()
    assert meter.start_s == 20.0
    assert progress.rows_per_s == pytest.approx(200 / 10), "the first chunk only starts the clock"
    assert progress.left_s == pytest.approx((1000 - 200 - 300) / 20)
    assert progress.devices == {"cuda:0": pytest.approx(0.8), "cuda:1": pytest.approx(0.2)}
    assert meter.sum_stages() == {
        "read": 7.0,
        "compute": 20.0,
        "write": 3.0,
        "wait": pytest.approx(2 * 20 - 30),
    }


def test_workers_of_a_cpu_have_a_place_each_and_hosts_are_named_if_there_are_several(clock):
    meter = Meter(100, 0, 0)
    for process in (1, 2):
        finish_chunk(meter, clock, 10, 10, Place("a", "cpu", process), compute=5.0)
    assert meter.measure_devices() == {"cpu": pytest.approx(10 / (5 * 2))}
    finish_chunk(meter, clock, 10, 10, Place("b", "cpu", 1), compute=2.0)
    assert set(meter.measure_devices()) == {"a cpu", "b cpu"}


def test_the_cost_so_far_includes_earlier_runs(clock):
    meter = Meter(10, 0, 0, earlier=[{"usd": 1.25, "seconds": 9.0, "rows": 3}])
    assert meter.add_usd() == 1.25
    meter.cost = HourlyCost(7200.0, "box")
    clock.now += 2.0
    assert meter.add_usd() == pytest.approx(1.25 + 4.0)
    assert Meter(10, 0, 0).add_usd() is None


def test_steps_of_a_record_are_as_many_chunks_as_there_are_workers(clock):
    meter = Meter(100, 0, 0)
    meter.workers = 2
    for number in range(5):
        finish_chunk(meter, clock, 10 + number, 10, Place("a", "cpu", number % 2), compute=10.0)
    assert meter.list_steps() == (2, [pytest.approx(11.0), pytest.approx(2.0)]), "the fifth chunk fills no step"


@pytest.mark.parametrize(
    ("stages", "start", "word"),
    [
        ({"read": 60.0, "compute": 30.0, "wait": 1.0}, 1.0, "Reading the source took 66 %"),
        ({"compute": 80.0, "write": 10.0, "wait": 10.0}, 1.0, "The computation took 80 %"),
        ({"compute": 10.0, "write": 30.0, "wait": 20.0}, 1.0, "Writing the target took 50 %"),
        ({"compute": 10.0, "write": 3.0, "wait": 87.0}, 1.0, "Waiting for chunks took 87 %"),
        ({"compute": 90.0, "wait": 1.0}, 60.0, "took 60.0 of 100.0 s to start"),
    ],
)
def test_what_limited_a_job_is_its_longest_stage(stages, start, word):
    run = {"rows": 1, "seconds": 100.0, "start_seconds": start, "workers": 2, "stages": stages}
    assert word in find_limit(run)


def test_a_finished_job_leaves_a_page_and_a_record_that_the_lab_compares(tmp_path, settings, inline, monkeypatch):
    (tmp_path / "prices.toml").write_text(PRICES)
    monkeypatch.chdir(tmp_path)
    source = make_source(tmp_path / "in", dict(enumerate(make_texts(44))))
    seen: list[Progress] = []
    inline.stop_after = 2
    with pytest.raises(KeyboardInterrupt):
        bulk.embed(source, tmp_path / "out", price="box", **settings)
    inline.stop_after = None
    answer = bulk.embed(source, tmp_path / "out", price="box", report=seen.append, **settings)
    bulk.embed(source, tmp_path / "again", **(settings | {"chunk_rows": 2}))
    assert seen[-1].usd
    assert seen[-1].rows + seen[-1].before == 44
    job = bulk.show_job(answer["job"])
    assert [run["rows"] for run in job.runs] == [20, 24], "both runs are kept"
    page = (tmp_path / "out/_ridgeline/summary.html").read_text()
    assert "Seconds of all workers by stage" in page
    assert "by the price box" in page
    [record] = read_records(tmp_path / "again/_ridgeline").records
    assert (record.workload, record.work["unit"], record.work["items"]) == ("bulk embed", "rows", 4)
    assert compare_records([record], [record], 0.05)[0].comparison


def test_a_wrong_price_is_named_before_anything_is_written(tmp_path, settings, inline, monkeypatch):
    (tmp_path / "prices.toml").write_text(PRICES.replace('"cpu"', '"cuda"'))
    monkeypatch.chdir(tmp_path)
    source = make_source(tmp_path / "in", dict(enumerate(make_texts(4))))
    for name, message in (("box", "is for a GPU"), ("boxx", "did you mean 'box'")):
        with pytest.raises(InputError, match=message):
            bulk.embed(source, tmp_path / "out", price=name, **settings)
    assert not (tmp_path / "out").exists()


def test_commits_list_every_part_in_groups_and_an_error_stops_the_job(monkeypatch):
    class SlowTarget:
        groups: list[list[int]]

        def __init__(self):
            self.groups, self.may_go = [], threading.Event()

        def commit(self, parts):
            self.may_go.wait()
            if parts[0].chunk == 99:
                raise StoreError("the disk is full.")
            self.groups.append([part.chunk for part in parts])

    def make(chunk):
        return Task(chunk, (), ""), Outcome(Part(chunk, "a", 1, 1, ""))

    target = SlowTarget()
    with Committer(target) as committer:
        for chunk in range(5):
            committer.add(*make(chunk))
        assert committer.take_listed(wait=False) == []
        target.may_go.set()
        assert [task.chunk for task, _ in committer.take_listed(wait=True)] == [0, 1, 2, 3, 4]
        committer.add(*make(5))
    assert [chunk for group in target.groups for chunk in group] == [0, 1, 2, 3, 4, 5], "also what was added last"
    assert len(target.groups) <= 3, "what waited went into one commit"
    with pytest.raises(StoreError, match="the disk is full"):
        wait_for_commit(target, make(99))


def wait_for_commit(target, work):
    with Committer(target) as committer:
        committer.add(*work)
        committer.take_listed(wait=True)
