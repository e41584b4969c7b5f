"""A campaign: which steps a machine allows, what they cost, and that a stopped campaign goes on."""

from __future__ import annotations

import json
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from tests.lab.conftest import make_record
from tests.machine.trees import GiB, Recording

from ridgeline.cli import main
from ridgeline.cli.machine import _make_json
from ridgeline.errors import InputError
from ridgeline.lab.campaign import Facts, find_hourly_price, plan_campaign, read_facts, read_states, run_campaign
from ridgeline.lab.judge import load_prices
from ridgeline.lab.record import read_records, record_to_json
from ridgeline.machine import topology
from ridgeline.workloads import load_campaign

HOSTS = tuple(f"node{i}" for i in range(4))
EIGHT = Facts(("NVIDIA H100 80GB HBM3",) * 8, (0, 1), 2, 2000.0, 96, "Xeon", 192, recorded=True, hosts=HOSTS)
STEPS = """
[[step]]
name = "first"
command = ["{out}", "--json"]
minutes = 6
[[step]]
name = "pairs"
each = "ranks"
needs = ["gpus>=2"]
command = ["{each}", "{gpus}", "{budget}"]
minutes = 10
minutes_per_gpu = 1
"""
# Writes a record and an answer; fails for the step "bad" as long as the file "broken" is beside the campaign.
PROGRAM = """
import json, pathlib, sys
print(json.dumps(sys.argv[1:]))
here = pathlib.Path.cwd()
if (here.parents[1] / "broken").exists() and here.name == "bad":
    print("ridgeline: the disk is full.", file=sys.stderr)
    sys.exit(2)
(here / "records.jsonl").write_text((here.parents[2] / (here.name + ".jsonl")).read_text())
"""


def names(steps, state: str = "to do") -> list[str]:
    return [step.name for step in steps if step.state == state]


def test_a_machine_of_eight_gpus_can_do_every_step_but_that_of_missing_data(tmp_path: Path):
    steps = plan_campaign(load_campaign(), EIGHT, out=tmp_path)
    assert names(steps, "not possible here") == ["recommend-25m"]
    assert {"nccl-2", "nccl-4", "nccl-8", "numa-bound-0", "numa-bound-1", "numa-study"} <= set(names(steps))
    assert all(step.minutes > 0 and step.why and step.settles for step in steps)


def test_hosts_are_steps_of_two_and_four_with_a_rank_for_each_gpu_and_cost_as_many_machines(tmp_path: Path):
    steps = {s.name: s for s in plan_campaign(load_campaign(), EIGHT, out=tmp_path)}
    assert {"hosts-tcp-2", "hosts-tcp-4", "hosts-ucx-2", "hosts-ucx-4"} <= set(steps)
    words = steps["hosts-tcp-4"].command
    assert words[words.index("--hosts") + 1] == "node0,node1,node2,node3"
    assert words[words.index("--ranks") + 1] == "8"
    assert steps["hosts-tcp-4"].to_json(80.0)["usd"] == pytest.approx(4 * 80.0 * 6 / 60)
    alone = plan_campaign(load_campaign(), replace(EIGHT, hosts=()), out=tmp_path)
    (tcp,) = [s for s in alone if s.name == "hosts-tcp"]
    assert "--hosts" in tcp.reason


def test_a_machine_without_gpus_can_do_only_what_needs_none(tmp_path: Path):
    steps = plan_campaign(load_campaign(), Facts(memory_gb=8, cores=2), out=tmp_path)
    assert names(steps) == ["machine", "cpu-workloads"]
    assert all(step.reason for step in steps if step.state == "not possible here")


@pytest.mark.parametrize("nodes", [1, 2, 8])
def test_a_recorded_tree_of_eight_gpus_is_planned(tmp_path: Path, nodes: int):
    """Two GPUs on each of eight nodes (NPS4), four on each of two, or all on one."""
    tree = Recording(tmp_path / "tree").grid(nodes, 16 // nodes).memory(512 * GiB)
    for i in range(8):
        tree.pci(f"0000:{i + 1:02x}:00.0", 0x030200, 0x10DE, device=0x2330, node=i * nodes // 8)
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(_make_json(topology(tree.root), None, [])))
    facts = read_facts(file, {})
    assert (len(facts.gpus), facts.nodes, facts.gpu_nodes) == (8, tuple(range(nodes)), nodes)
    steps = plan_campaign(load_campaign(), facts, out=tmp_path)
    assert "nccl-8" in names(steps)
    assert len([n for n in names(steps) if n.startswith("numa-bound")]) == (nodes if nodes > 1 else 0)
    steps = plan_campaign(load_campaign(), replace(facts, hosts=HOSTS), out=tmp_path)  # four of them
    (tcp,) = [step for step in steps if step.name == "hosts-tcp-4"]
    assert (tcp.hosts, tcp.command[tcp.command.index("--ranks") + 1]) == (4, "8")


def test_hours_and_dollars_follow_from_minutes_and_the_price_of_all_gpus(tmp_path: Path):
    (_, two, _, eight) = plan_campaign(STEPS, EIGHT, out=tmp_path)
    assert two.minutes == 18
    assert eight.command == ("8", "8", f"{round(0.8 * 18 * 60)}s")
    hourly, source = find_hourly_price(load_prices(), EIGHT)
    assert hourly == pytest.approx(8 * 10.0)
    assert "h100" in source
    assert two.to_json(hourly)["usd"] == pytest.approx(24.0)
    assert find_hourly_price(load_prices(), Facts(("Unheard-of",)))[0] is None


def test_every_command_of_the_campaign_is_one_that_the_command_line_takes(tmp_path: Path):
    from ridgeline.cli import load_command

    facts = Facts(EIGHT.gpus, (0, 1), 2, 2000, 96, data={"movielens-25m": str(tmp_path)}, hosts=HOSTS)
    for step in plan_campaign(load_campaign(), facts, out=tmp_path):
        command, words = load_command(step.command[0]), list(step.command[1:])
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context(step.name, words).close()
        assert not any("{" in word.replace("{host}", "") for word in words), step.command


@pytest.fixture
def campaign(tmp_path: Path):
    """Run steps of that name with a program that writes one record each."""
    for name in ("good", "bad"):
        record = replace(make_record({"ridgeline": [100.0] * 8, "peer": [200.0] * 8}), id=name * 8)
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(record_to_json(record)) + "\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    text = "".join(f'[[step]]\nname = "{n}"\ncommand = ["{n}", "--json"]\nminutes = 1\n' for n in ("good", "bad"))
    out, started = tmp_path / "out", []

    def run():
        steps = plan_campaign(text, Facts(), out=out, done=read_states(out))
        return run_campaign(
            steps,
            out,
            program=(sys.executable, str(tmp_path / "program.py")),
            on_start=lambda step: started.append(step.name),
        )

    return run, out, started


def test_a_campaign_keeps_what_it_has_and_repeats_what_failed(campaign):
    run, out, started = campaign
    out.mkdir()
    (out / "campaign.json").write_text('{"steps": {}}')
    (out / "broken").touch()
    result = run()
    assert [(s.name, s.state) for s in result.steps] == [("good", "done"), ("bad", "failed")]
    assert "the disk is full" in result.steps[1].reason
    assert result.records == 1
    (out / "broken").unlink()
    result = run()
    assert started == ["good", "bad", "bad"], "a step that is done does not run again"
    assert {s.state for s in result.steps} == {"done"}
    assert {r.id for r in read_records(out / "records.jsonl").records} == {"good" * 8, "bad" * 8}
    assert json.loads((out / "steps/good/answer.json").read_text()) == ["good", "--json"]
    with tarfile.open(result.archive) as tar:
        assert {"out/records.jsonl", "out/report.html", "out/campaign.json", "out/steps/bad/log.txt"} <= set(
            tar.getnames()
        )


def test_records_merge_takes_the_folder_of_a_campaign_in(campaign, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run, out, _ = campaign
    run()
    with pytest.raises(SystemExit) as left:
        main(["records", "merge", str(out), "-o", str(tmp_path / "all")])
    assert not left.value.code
    assert len(read_records(tmp_path / "all/records.jsonl").records) == 2


def test_a_folder_of_other_files_is_refused_and_stays_as_it_is(campaign):
    run, out, started = campaign
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="other files"):
        run()
    assert [p.name for p in out.iterdir()] == ["thesis.txt"]
    assert not started


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--topology", "t.json"], "--dry-run"),
        (["--dry-run", "--topology", "absent.json"], "cannot be read"),
        (["--dry-run", "--data", "movielens-25m"], "NAME=FOLDER"),
        (["--dry-run", "--hosts", "a,,b"], "names a host twice or not at all"),
        (["--dry-run", "--hosts", "a,b", "--shell", "ssh a"], "has no {host}"),
        (["--dry-run", "wormhole"], "there is no step 'wormhole'"),
        (["--dry-run", "--max-usd", "5", "--topology", "bad.json"], "machine --json"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], message: str, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text('{"gpus": 3}')
    with pytest.raises(SystemExit) as left:
        main(["campaign", *words])
    assert left.value.code == 2
    assert message in capsys.readouterr().err


def test_a_sum_of_money_leaves_the_least_valuable_steps_out(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.json").write_text(_eight_gpus())
    with pytest.raises(SystemExit):
        main(["campaign", "--dry-run", "--topology", "m.json", "--max-usd", "30", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert 0 < answer["usd"] <= 30
    assert answer["steps"][0]["name"] == "machine"
    assert "gpu-workloads" not in {s["name"] for s in answer["steps"]}


def _eight_gpus() -> str:
    gpus = [{"index": i, "name": "NVIDIA H100 80GB HBM3", "node": 0} for i in range(8)]
    node = {"id": 0, "cpus": [0, 1], "memory_bytes": 1 << 40}
    return json.dumps({"gpus": gpus, "nodes": [node], "cpus": [{"id": i, "package": 0, "core": i} for i in (0, 1)]})
