"""`ridgeline machine`: its picture, its JSON, its plans and its ceilings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.machine.trees import GiB, Recording, memory_of_hmat

from ridgeline.cli import main
from ridgeline.cli.machine import draw_machine
from ridgeline.machine import Ceiling, Cpu, Gpu, Nic, Node, Topology, ceiling_cpu, ceilings, topology


@pytest.fixture
def run_machine(capsys: pytest.CaptureFixture[str]):
    """Runs the command in this process: (exit code, stdout, stderr)."""

    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["machine", *map(str, words)])
        out, err = capsys.readouterr()
        return left.value.code or 0, out, err

    return run


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two nodes of two cores, a GPU on node 1, a GPU of unknown node, a network card on node 0."""
    recording = Recording(tmp_path / "tree").grid(2, 2, 2).cpuinfo("model name : Two Socket CPU\n")
    recording.pci("0000:41:00.0", 0x030200, 0x10DE, device=0x2330, node=1, cpus=range(4, 8), link=("32.0 GT/s", 16))
    recording.pci("0000:81:00.0", 0x030200, 0x10DE, device=0x2331, node=-1, cpus=range(8))
    recording.pci("0000:05:00.0", 0x020000, 0x15B3, node=0).port("net", "eth0", "0000:05:00.0", {"speed": "25000"})
    return recording.root


@pytest.fixture
def fake_ceilings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    calls: list[int] = []

    def measure(computer, progress):
        calls.append(1)
        progress("something")
        return [
            Ceiling("copy", 20.0, 18.0, "GB/s", bytes=1 << 20, threads=1),
            Ceiling("copy", 9.0, 8.0, "GB/s", bytes=1 << 27, threads=1),
            Ceiling("matmul", 300.0, 290.0, "GFLOP/s", threads=2, dtype="float32", how="numpy"),
        ]

    monkeypatch.setattr(ceiling_cpu, "measure_cpu", measure)
    return calls


def test_the_json_has_the_promised_shape(run_machine, tree: Path):
    code, out, _ = run_machine("--root", tree, "--json")
    document = json.loads(out)
    assert code == 0
    assert set(document) >= {"nodes", "cpus", "caches", "gpus", "nics", "limits", "model", "fingerprint", "notes"}
    assert document["nodes"][1] == {
        "id": 1,
        "cpus": [4, 5, 6, 7],
        "memory_bytes": 4 * GiB * 1024,
        "distances": {"0": 21, "1": 10},
        "nearest_cpus": [],
    }
    assert set(document["cpus"][0]) == {"id", "node", "core", "package", "usable"}
    assert set(document["caches"][0]) == {"level", "bytes", "cpus"}
    assert set(document["gpus"][0]) == {"index", "uuid", "name", "pci", "node", "cpus", "memory_bytes", "link"}
    assert document["nics"] == [{"name": "eth0", "pci": "0000:05:00.0", "node": 0, "speed": 25_000}]
    assert [g["node"] for g in document["gpus"]] == [1, None]
    assert "plan" not in document
    assert "ceilings" not in document


def test_the_json_of_this_machine_has_its_usable_cpus(run_machine):
    code, out, _ = run_machine("--json")
    document = json.loads(out)
    usable = {c["id"] for c in document["cpus"] if c["usable"]}
    assert (code, usable) == (0, os.sched_getaffinity(0))


def test_the_drawing_shows_nodes_with_their_devices_and_distances(run_machine, tree: Path):
    code, out, _ = run_machine("--root", tree)
    assert code == 0
    for words in (
        "Two Socket CPU",
        "8 of 8 CPUs usable",
        "node 0",
        "node 1",
        "CPUs 4-7",
        "2 cores, 2 threads each",
        "NVIDIA 2330",
        "PCIe 5.0 x16",
        "eth0",
        "25 Gbit/s",
        "node unknown",
        "21",
        "note: GPU 1 (0000:81:00.0): its node is unknown",
    ):
        assert words in out, words


def test_a_name_with_brackets_is_printed_unchanged(capsys: pytest.CaptureFixture[str]):
    from ridgeline.cli.output import stdout

    gpu = Gpu(0, None, "Board [red]", "0000:01:00.0", 0, (), None, None)
    computer = Topology(
        (Node(0, (0,), 0),), (Cpu(0, 0, 0, 0, True),), (), (gpu,), (Nic("e[0]", None, 0, None),), model="[bold]"
    )
    stdout().print(draw_machine(computer))
    out = capsys.readouterr().out
    assert "Board [red]" in out
    assert "e[0]" in out
    assert "[bold]" in out


def test_cpus_without_a_node_are_drawn(run_machine, tmp_path: Path):
    from tests.machine.trees import node0_offline

    node0_offline(tmp_path / "tree")
    assert "CPUs 0" in run_machine("--root", tmp_path / "tree")[1]


def test_memory_without_cpus_is_drawn_with_its_nearest_cpus(run_machine, tmp_path: Path):
    memory_of_hmat(tmp_path / "tree")
    assert "no CPUs; nearest CPUs 2-3" in run_machine("--root", tmp_path / "tree")[1]


def test_a_plan_lists_one_placement_per_rank(run_machine, tree: Path):
    document = json.loads(run_machine("--root", tree, "--json", "--plan", 2, "--per", "node")[1])
    assert document["plan"] == [
        {"node": 0, "cpus": [0, 1, 2, 3], "memory": "local", "gpu": None},
        {"node": 1, "cpus": [4, 5, 6, 7], "memory": "local", "gpu": None},
    ]
    by_gpu = json.loads(run_machine("--root", tree, "--json", "--plan", 2)[1])
    assert [p["gpu"] for p in by_gpu["plan"]] == [0, 1]
    code, out, _ = run_machine("--root", tree, "--plan", 4, "--per", "core")
    assert code == 0
    assert "Plan" in out
    assert "4,5" in out.replace("4-5", "4,5")


def test_without_gpus_a_plan_goes_by_nodes(run_machine, tmp_path: Path):
    Recording(tmp_path / "bare").grid(2, 2)
    document = json.loads(run_machine("--root", tmp_path / "bare", "--json", "--plan", 2)[1])
    assert [p["node"] for p in document["plan"]] == [0, 1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--root", "/nowhere/at/all"], "there is no folder '/nowhere/at/all'"),
        (["--plan", "0"], "cannot plan 0 ranks"),
        (["--plan", "1", "--per", "socket"], "cannot plan per 'socket'; there are: gpu, node, core."),
        (["--per", "core"], "add --plan RANKS"),
        (["--plan", "100000", "--per", "core"], "100000 ranks are too many"),
        (["--ceilings", "--device", "tpu"], "there is no device 'tpu'"),
        (["--ceilings", "--device", "cuda:77"], "there is no GPU 77"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(run_machine, words: list[str], sentence: str):
    code, out, err = run_machine(*words)
    assert (code, out) == (2, "")
    assert err.startswith("ridgeline: ")
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_ceilings_of_a_recorded_machine_are_refused(run_machine, tree: Path, fake_ceilings: list[int]):
    code, _, err = run_machine("--root", tree, "--ceilings")
    assert code == 2
    assert "--ceilings measures this machine" in err
    assert not fake_ceilings


def test_ceilings_are_measured_once_and_again_with_fresh(run_machine, fake_ceilings: list[int]):
    document = json.loads(run_machine("--ceilings", "--device", "cpu", "--json")[1])
    assert document["ceilings"]["cpu"][0] == {
        "kind": "copy", "value": 20.0, "median": 18.0, "unit": "GB/s", "bytes": 1 << 20, "threads": 1,
    }  # fmt: skip
    code, out, _ = run_machine("--ceilings", "--device", "cpu")
    assert code == 0
    assert "Ceilings of cpu" in out
    assert "300.0 GFLOP/s" in out
    assert "128 MiB" in out
    assert len(fake_ceilings) == 1
    run_machine("--fresh", "--device", "cpu")
    assert len(fake_ceilings) == 2


def test_help_shows_examples(run_machine):
    code, out, _ = run_machine("--help")
    assert code == 0
    assert "Examples" in out
    assert "ridgeline machine --plan 8 --per core" in out
    for option in ("--json", "--ceilings", "--fresh", "--root", "--plan", "--per", "--device"):
        assert option in out


def test_an_interrupted_measurement_exits_with_130_and_writes_no_cache(tmp_path: Path):
    command = [sys.executable, "-m", "ridgeline", "machine", "--ceilings", "--fresh", "--device", "cpu"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # The native loops are loaded when the measurement starts; before that, SIGINT would hit the start of Python.
    deadline = time.monotonic() + 30
    while "ridgeline/native" not in Path(f"/proc/{process.pid}/maps").read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert err == "ridgeline: interrupted.\n"
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_a_reader_that_closes_the_pipe_gets_no_traceback():
    command = f"{sys.executable} -m ridgeline machine --json | head -c 1"
    process = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert process.stderr == ""


def test_a_terminal_without_box_characters_gets_ascii():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "ridgeline", "machine", "--plan", "1", "--per", "core"]
    process = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (process.returncode, process.stderr) == (0, "")
    assert "Plan" in process.stdout


def test_the_library_reads_the_cache_of_the_command(run_machine, fake_ceilings: list[int]):
    run_machine("--ceilings", "--device", "cpu")
    assert ceilings("cpu", on=topology()).measured[0].value == 20.0
    assert len(fake_ceilings) == 1


def test_a_plan_is_printed_as_lines_to_paste(run_machine, tree):
    code, out, _ = run_machine("--root", tree, "--plan", 2, "--per", "node", "--as", "numactl", "--", "python", "a.py")
    assert code == 0
    assert "RANK=1 numactl --physcpubind=4-7 --localalloc python a.py &" in out.splitlines()
    assert "python train.py" in run_machine("--root", tree, "--plan", 2, "--per", "node", "--as", "slurm")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--as", "numactl"], "add --plan RANKS"),
        (["--plan", "2", "--as", "numactl", "--json"], "without --json"),
        (["--plan", "2", "--per", "node", "--as", "bash"], "no launcher 'bash'"),
        (["a.py"], "'a.py' is no option"),
    ],
)
def test_lines_to_paste_need_a_plan_and_a_known_launcher(run_machine, tree, words, message):
    code, _, err = run_machine("--root", tree, *words)
    assert code == 2
    assert message in err
