"""The commands cost, records scaling and history.

python -m pytest tests/lab/judge/test_commands.py
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ridgeline.lab.record import append_record, record_to_json


def move_to(one, name: str, gpus: tuple[str, ...] = (), **changes):
    machine = {**one.machine, "fingerprint": name, "cpu": name, "gpus": [{"name": g, "node": None} for g in gpus]}
    return replace(one, machine=machine, **changes)


@pytest.fixture
def priced(record, tmp_path):
    """Write a path on a CPU and on a GPU that is forty times as fast, and a price book for both."""
    (tmp_path / "runs").mkdir()
    for device, ns, gpus in (("cpu", 40e6, ()), ("cuda", 1e6, ("NVIDIA H200",))):
        one = record({"ridgeline": [ns] * 8}, case={"batch": 8, "device": device, "ranks": 1}, workload="embed")
        append_record(tmp_path / "runs", move_to(one, f"the {device}", gpus))
    (tmp_path / "prices.toml").write_text(
        '[price.small]\ndevice = "cpu"\ncpu = "the cpu"\nusd_per_hour = 0.5\ndate = 2026-11-01\nsource = "us"\n'
        '[price.large]\ndevice = "cuda"\ngpu = "H200"\nusd_per_hour = 3.6\ndate = 2026-11-01\nsource = "us"\n'
    )
    return tmp_path / "runs"


def test_cost_answers_with_plans_dollars_and_break_even(run_command, priced):
    code, out, err = run_command("cost", "--workload", "embed", "--rate", "1e6/day", "--records", priced, "--json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    cpu, gpu = answer["plans"]
    assert cpu["busy_units"] == pytest.approx(1e6 / 86400 / 200)
    assert gpu["usd_per_million_full"] == pytest.approx(3.6 / 3600 / 8000 * 1e6)
    even = answer["break_even"][0]
    assert even["gpu_never_dearer_above_per_s"] == pytest.approx(7 * 200 * 0.7), "eight CPUs cost more than the GPU"


def test_cost_answers_in_sentences(run_command, priced):
    code, out, _ = run_command("cost", "--workload", "embed", "--rate", "1e6/day", "--records", priced)
    assert code == 0
    assert "needs 0.0579 of a machine" in out
    assert "#2 against #1: the GPU does not cost more above 980/s" in out
    many = run_command("cost", "--workload", "embed", "--rate", "1000/s", "--records", priced)[1]
    assert "1000/s needs 5 machines, all of their time; 8 machines would be 62.50% busy" in many


def test_a_list_price_and_a_missing_price_are_noted(run_command, priced, tmp_path):
    (tmp_path / "prices.toml").unlink()
    code, out, err = run_command("cost", "--workload", "embed", "--rate", "9/s", "--records", priced)
    assert code == 0
    assert "hf-aws-h200-x1' is a list price of 2026-10-02, not yours" in err
    assert "no price for the cpu" in err
    assert "$/M full" in out
    _, _, err = run_command("cost", "--rate", "9/s", "--records", priced, "--price", "hf-aws-intel-spr-x2")
    assert "chosen by name: it is for Sapphire Rapids, the record is from the cpu" in err


def test_cost_needs_no_records_for_plain_arithmetic(run_command):
    code, out, _ = run_command("cost", "--rate", "1e6/day", "--time", "0.5ms")
    assert code == 0
    assert "1e6/day needs 0.00579 of a GPU" in out


def test_cost_of_a_job_every_day_and_of_a_job_that_comes_once(run_command, priced):
    words = ("--items", "86400", "--time", "0.5ms", "--price", "large", "--json")
    document = json.loads(run_command("cost", *words, "--per", "day")[1])
    assert document["rate_per_s"] == pytest.approx(1.0)
    assert document["plans"][0]["job_s"] == pytest.approx(43.2)
    document = json.loads(run_command("cost", *words, "--per", "day", "--hours", "6/day", "--months", "2")[1])
    assert document["rate_per_s"] == pytest.approx(4.0), "the work of a day is done in six hours"
    (plan,) = document["plans"]
    assert plan["usd_total"] == pytest.approx(2 * plan["usd_per_month"])
    assert plan["usd_per_month"] == pytest.approx(plan["usd_per_hour"] * 6 * 30.4375)
    (job,) = json.loads(run_command("cost", *words)[1])["jobs"]
    assert job["job_s"] == pytest.approx(43.2)
    code, out, _ = run_command("cost", *words[:-1])
    assert code == 0
    assert "86,400 items, once" in out
    assert "43.2 s on one GPU" in out


def test_every_price_that_was_named_is_used(run_command, priced):
    words = ("cost", "--rate", "9/s", "--time", "1ms", "--json")
    plans = json.loads(run_command(*words, "--price", "large", "--price", "hf-aws-h200-x1")[1])["plans"]
    assert [p["price"] for p in plans] == ["large", "hf-aws-h200-x1"]
    (plan,) = json.loads(run_command(*words, "--price", "small")[1])["plans"]
    assert (plan["price"], plan["device"]) == ("small", "cpu"), "without --device the price decides"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "Give --rate"),
        (("--rate", "many"), "is no rate"),
        (("--rate", "1/s"), "run ridgeline bench"),
        (("--rate", "1/s", "--records", "nowhere"), "no records at"),
        (("--rate", "1/s", "--records", "runs", "--workload", "embde"), "did you mean 'embed'"),
        (("--rate", "1/s", "--records", "runs", "--case", "batch=9"), "no record has the case"),
        (("--rate", "1/s", "--records", "runs", "--case", "batch"), "form name=value"),
        (("--rate", "1/s", "--records", "runs", "--contender", "unknown"), "no contender 'unknown'"),
        (("--rate", "1/s", "--records", "runs", "--price", "gold"), "no price 'gold'"),
        (("--rate", "1/s", "--records", "runs", "--prices", "none.toml"), "no price book"),
        (("--rate", "1/s", "--records", "runs", "--target", "2"), "makes no plan"),
        (("--rate", "1/s", "--time", "soon"), "is no time"),
        (("--rate", "1/s", "--time", "1s", "--batch", "0"), "--batch 0"),
        (("--rate", "1/s", "--time", "1s", "--device", "tpu"), "no device 'tpu'"),
        (("--rate", "1/s", "--items", "5"), "two ways"),
        (("--per", "day"), "add --items"),
        (("--items", "-5", "--time", "1s"), "no number of items"),
        (("--items", "5", "--per", "blink", "--time", "1s"), "no period 'blink'"),
        (("--rate", "1/s", "--time", "1s", "--hours", "30/day"), "more than there are"),
        (("--rate", "1/s", "--time", "1s", "--months", "0"), "no length of time"),
        (
            ("--rate", "1/s", "--time", "1s", "--device", "cpu", "--price", "large"),
            "is for a GPU, and the work runs on",
        ),
    ],
)
def test_cost_refuses_in_one_sentence(run_command, priced, words, message):
    code, out, err = run_command("cost", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_the_price_book_can_be_listed(run_command, priced):
    code, out, _ = run_command("cost", "--show-prices", "--json")
    names = [p["name"] for p in json.loads(out)]
    assert code == 0
    assert names[:2] == ["small", "large"]
    assert "hf-aws-h200-x1" in names
    assert "small" in run_command("cost", "--show-prices")[1]


@pytest.fixture
def ranked(record, tmp_path):
    (tmp_path / "ranked").mkdir()
    for ranks in (1, 2, 4, 8):
        one = record({"ridgeline": [1e6 * (0.1 + 0.9 / ranks)] * 8}, case={"n": 5, "device": "cpu", "ranks": ranks})
        append_record(tmp_path / "ranked", one)
    return tmp_path / "ranked"


def test_scaling_marks_predictions(run_command, ranked):
    code, out, _ = run_command("records", "scaling", ranked, "--at", "4", "--at", "64")
    assert code == 0
    assert "strong scaling" in " ".join(out.split())  # a long machine name wraps the line
    assert "serial 0.1" in out
    assert "n = 64: 8.77 × (14%)" in out
    assert out.count("PREDICTED") == 2, "one per law for n = 64; n = 4 is measured"
    family = json.loads(run_command("records", "scaling", ranked, "--at", "64", "--json")[1])["families"][0]
    assert family["laws"]["amdahl"]["at"][0]["predicted"] is True
    assert family["laws"]["amdahl"]["held_out_error"] == pytest.approx(0, abs=1e-6)


def test_scaling_refuses_a_parameter_without_a_sweep(run_command, ranked):
    code, _, err = run_command("records", "scaling", ranked, "--over", "writers")
    assert code == 2
    assert "'writers'" in err


@pytest.fixture
def stepped(record, tmp_path):
    (tmp_path / "days").mkdir()
    for day in range(14):
        times = [1e6 * (1.2 if day >= 8 else 1.0) * (1 + 0.002 * ((day * 7 + i * 5) % 9)) for i in range(12)]
        one = record({"ridgeline": times}, time=f"2026-01-{day + 1:02d}T00:00:00+00:00")
        append_record(tmp_path / "days", replace(one, code={**one.code, "commit": f"{day:02d}" * 20}))
    return tmp_path / "days"


def test_history_names_the_step_and_writes_its_page(run_command, stepped, tmp_path):
    code, out, err = run_command("history", stepped, "-o", "history.html")
    assert (code, err) == (0, "")
    assert "SLOWER" in out
    assert "commit 0707070 → 0808080" in out
    assert "level 2" in (tmp_path / "history.html").read_text()
    answer = json.loads(run_command("history", stepped, "--json")[1])
    (series,) = answer["series"]
    assert series["steps"][0]["after"]["commit"] == "08" * 20
    assert series["steps"][0]["direction"] == "slower"


def test_history_groups_machines_and_names_files_that_it_leaves_out(run_command, stepped, record):
    append_record(stepped, move_to(record({"ridgeline": [1e6] * 8}), "another"))
    (stepped / "old.jsonl").write_text('{"schema": 99}\n')
    code, out, err = run_command("history", stepped)
    assert code == 1
    assert "2 kinds of machine" in out
    assert "left out: " in err
    assert "schema 99" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("empty",), "holds no .jsonl"),
        (("nowhere",), "there are no records at"),
        (("days", "--workload", "mede"), "did you mean 'made'"),
        (("days", "--alpha", "0"), "--alpha 0"),
        (("days", "-o", "page.pdf"), ".html"),
        (("days/old.jsonl",), "schema 99"),
    ],
)
def test_history_refuses_in_one_sentence_and_writes_nothing(run_command, stepped, tmp_path, words, message):
    (tmp_path / "empty").mkdir()
    if "old" in words[0]:
        (stepped / "old.jsonl").write_text('{"schema": 99}\n')
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run_command("history", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert sorted(tmp_path.rglob("*")) == before


EVIL = "\x1b]0;evil\x07"


@pytest.mark.parametrize(
    "words",
    [
        ("records", "show"),
        ("records", "ls"),
        ("history",),
        ("compare", "evil.jsonl"),
        ("cost", "--workload", f"made{EVIL}[red]", "--rate", "9/s", "--records"),
    ],
    ids=lambda w: w[-1],
)
def test_text_of_a_record_cannot_control_the_terminal(run_command, record, tmp_path, words):
    gpu = {"name": f"GPU {EVIL}", "node": None, "memory_bytes": 1, "link": None}
    harmless = record({"ridgeline": [100.0 + n % 3 for n in range(20)], f"peer{EVIL}": [200.0] * 20, "slow": [1.0]})
    evil = {
        "workload": f"made{EVIL}[red]",
        "command": f"ridgeline bench{EVIL}",
        "note": f"note{EVIL}",
        "time": f"2026-01-01T00:00:00+00:00{EVIL if words[0] == 'records' else ''}",
        "id": f"1234{EVIL}",
        "case": {**harmless.case, f"n{EVIL}": EVIL},
        "work": {**harmless.work, "unit": f"rows{EVIL}"},
        "code": {**harmless.code, "commit": f"c{EVIL}", "libraries": {"numpy": EVIL}},
        "machine": {**harmless.machine, "cpu": f"cpu{EVIL}", "gpus": [gpu]},
        "race": {**harmless.race, "ended": EVIL},
    }
    (tmp_path / "evil.jsonl").write_text(json.dumps(record_to_json(replace(harmless, **evil))) + "\n")
    code, out, err = run_command(*words, "evil.jsonl")
    assert code == 0, err
    assert "\\x1b]0;evil\\x07" in out.replace("\n", "")
    assert "\x1b" not in out + err
    assert "\x07" not in out + err
