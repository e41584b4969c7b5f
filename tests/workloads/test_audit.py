"""The audit workload: every contender is correct, waits are measured under load, a lost score is noticed."""

from __future__ import annotations

import json
import time

import pytest
from tests.audit.watch.watching import encode, run_command
from tests.workloads.limits import find_limit

from ridgeline.audit.watch.capacity import RATES, forecast
from ridgeline.audit.watch.scorer import ENCODING
from ridgeline.errors import InputError
from ridgeline.lab import Case, Profile
from ridgeline.lab.race import load_workload
from ridgeline.machine import Placement
from ridgeline.workloads import _audit_engine as engine
from ridgeline.workloads import get_reference
from ridgeline.workloads.audit import BASE, EVERY, OURS

workload = load_workload(get_reference("audit"))


@pytest.fixture(autouse=True)
def work_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RIDGELINE_DISK", str(tmp_path))
    monkeypatch.setattr(engine, "make_encoder", lambda model, device: encode)
    monkeypatch.setattr("ridgeline.audit.watch.meaning.make_encoder", lambda model, device: encode)
    return tmp_path


def make_case(**change):
    return Case({**BASE, "events": 200, **change}, "cpu")


@pytest.mark.parametrize("contender", [OURS, EVERY])
def test_every_event_is_recorded_and_scored_and_nothing_is_left_behind(work_folder, contender):
    case = make_case()
    assert contender in workload.contenders(case)
    run = workload.prepare(case, contender, Placement())
    for _ in range(2):
        run.reset()
        run.step()
        assert workload.check(case, run.result()).ok
    assert run.settings
    run.close()
    assert not list(work_folder.iterdir())


@pytest.mark.slow
def test_its_stages_are_clocked_and_name_what_limits_it(work_folder, monkeypatch):
    def slow(texts):
        time.sleep(0.2)
        return encode(texts)

    names = {"recording events", "scoring", "indexing", "recording scores", ENCODING}
    for encoding in (encode, slow):
        monkeypatch.setattr(
            "ridgeline.audit.watch.meaning.make_encoder", lambda model, device, encode_slowly=encoding: encode_slowly
        )
        run = workload.prepare(make_case(fresh=50), OURS, Placement())
        result = find_limit(workload, make_case(fresh=50), run)
        assert set(result.stages) == names
        assert 0.5 < sum(result.stages.values()) < 1.2, "all of a step but waits and wakings"
        assert result.limit, result.measure
        assert result.limit.startswith(ENCODING) == (encoding is slow)
        run.close()
    peer = workload.prepare(make_case(), EVERY, Placement())
    peer.step()
    assert "stages_ns" not in peer.extras()
    peer.close()


def test_waits_are_measured_at_a_share_of_the_capacity(work_folder):
    run = workload.prepare(make_case(stage="load"), OURS, Placement())
    run.reset()
    run.step()
    result = run.extras()
    assert result["load_per_s"] == pytest.approx(0.7 * result["capacity_per_s"])
    assert 0 < result["wait_p50_ms"] <= result["wait_p99_ms"]
    assert workload.check(make_case(stage="load"), run.result()).ok
    run.close()


def test_an_event_that_was_not_scored_is_seen(work_folder):
    run = workload.prepare(make_case(), EVERY, Placement())
    run.reset()
    run.step()
    result_function = run.result
    assert workload.check(make_case(), result_function()).ok
    lost = engine.EveryEvent.send
    try:
        engine.EveryEvent.send = lambda self, events: (lost(self, events[:-1]), setattr(self, "given", self.given + 1))
        run.reset()
        run.step()
    finally:
        engine.EveryEvent.send = lost
    assert not workload.check(make_case(), result_function()).ok
    run.close()


def test_so_many_of_a_thousand_sentences_are_fresh():
    from ridgeline.audit.anomaly.sentences import describe_event
    from ridgeline.audit.anomaly.template import mask

    lines = engine.Lines(60, 10, seed=1)
    known = {mask(describe_event(event)) for event in lines.take(5_000)}
    seen = [mask(describe_event(event)) for event in lines.take(5_000)]
    assert 0.004 < sum(text not in known for text in seen) / len(seen) < 0.018
    assert len(json.dumps(lines.take(1)[0])) < 400


def test_a_fresh_sentence_is_always_a_new_template():
    from ridgeline.audit.anomaly.sentences import describe_event
    from ridgeline.audit.anomaly.template import Miner

    lines, miner = engine.Lines(60, 100, seed=1), Miner()
    new = [sum(miner.learn(describe_event(event)).new for event in lines.take(3_000)) for _ in range(4)]
    assert all(200 < count < 450 for count in new), new


def test_a_gpu_gets_cases_of_its_own():
    result = [case for case in workload.cases(Profile.FULL) if case.device == "cuda"]
    assert {case["stage"] for case in result} == {"stream", "load"}
    assert any(case["events"] >= 10_000 and case["fresh"] == 10 for case in result)


def test_cases_have_work_and_mistakes_are_errors():
    for case in workload.cases(Profile.FULL):
        assert workload.work(case).items == case["events"]
    with pytest.raises(InputError, match="there are"):
        workload.contenders(make_case(stage="sing"))


def test_a_forecast_has_the_right_arithmetic():
    by_rate = {f.what: f for f in forecast(1_000.0)}
    assert by_rate["10,000 per hour"].rate == pytest.approx(10_000 / 3600)
    assert by_rate["1 M per day"].utilisation == pytest.approx(1e6 / 86_400 / 1_000)
    assert by_rate["1 M per hour"].utilisation == pytest.approx(0.2777, abs=1e-3)
    over = forecast(100.0, {"x": 150.0})[0]
    assert (over.utilisation, over.wait_s, over.backlog_per_hour) == (1.5, None, 50 * 3600)
    assert set(RATES) == set(by_rate)
    with pytest.raises(InputError, match="above 0"):
        forecast(0.0)


def test_the_command_shows_the_forecast(capsys):
    code, out, _ = run_command(capsys, "audit", "capacity", 100, "--rate", 1_000_000, "--json")
    (row,) = json.loads(out)
    assert (code, row["wait_s"], round(row["backlog_per_hour"])) == (0, None, 640_000)
    assert "27.778%" in run_command(capsys, "audit", "capacity", 1000)[1]
    for words in (("0",), ("inf",), ("100", "--rate", "-1"), ("100", "--rate", "inf")):
        assert run_command(capsys, "audit", "capacity", *words)[0] == 2


@pytest.mark.parametrize("stage", ["stream", "load"])
def test_no_event_is_sent_twice(work_folder, stage, monkeypatch):
    """Else the sentences of a timed step would be known from the step that warmed it up."""
    seen: list[str] = []
    send = engine.Ours.send

    def note_events(self, events):
        seen.extend(event["attributes"]["message"] for event in events if "happened" in event["attributes"]["message"])
        send(self, events)

    monkeypatch.setattr(engine.Ours, "send", note_events)
    run = workload.prepare(make_case(stage=stage, events=40, fresh=500), OURS, Placement())
    try:
        run.reset()
        for _ in range(3):
            run.step()
    finally:
        run.close()
    sentences = [message.partition(" on node")[0] for message in seen]
    assert len(sentences) > 40
    assert len(set(sentences)) == len(sentences)
