"""The pipeline as an experiment: work is counted exactly, placement and output are checked.

python -m pytest tests/workloads/test_experiment.py
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("hydra")
torch = pytest.importorskip("torch")

from ridgeline.errors import InputError, PlacementError  # noqa: E402
from ridgeline.lab.experiment import PointRequest, parse_arguments  # noqa: E402
from ridgeline.lab.study import study  # noqa: E402
from ridgeline.machine import Cpu, Gpu, Node, Placement, Topology, topology  # noqa: E402
from ridgeline.workloads import estimate_plan, experiment_subject, plan_experiment  # noqa: E402
from ridgeline.workloads.experiment_points import estimate_seconds, list_points  # noqa: E402
from ridgeline.workloads.experiment_settings import (  # noqa: E402
    ExperimentSettings,
    HardwareSettings,
    TestSettings,
    VitSettings,
)
from ridgeline.workloads.experiment_subject import measure  # noqa: E402
from ridgeline.workloads.vit import Vit  # noqa: E402

FOLDER = Path(__file__).parent
GB = 1 << 30
TINY = VitSettings("tiny", patch_size=8, depth=1, heads=2, dim=16)


def make_machine(gpus: int) -> Topology:
    nodes = tuple(Node(n, (2 * n, 2 * n + 1), GB, {n: 10, 1 - n: 21}) for n in range(2))
    cpus = tuple(Cpu(c, c // 2, c, c // 2, True) for c in range(4))
    cards = tuple(Gpu(g, f"GPU-{g}", "synthetic", f"0000:0{g}:00.0", g % 2, (), GB, None) for g in range(gpus))
    return Topology(nodes, cpus, (), cards, ())


def make_settings(**changes) -> ExperimentSettings:
    test = {"num_samples": 12, "batch_size": 3, "warmup_samples": 3, "memory_size_mb": 1, "tensor_shape": [3, 16, 16]}
    hardware = HardwareSettings(changes.pop("gpu_ids", None), changes.pop("numa_nodes", None))
    general = {
        name: changes.pop(name) for name in ("module", "vit_configs", "max_workers", "repeats") if name in changes
    }
    return ExperimentSettings(
        "synthetic", test=TestSettings(**{**test, **changes}), hardware=hardware, **{"vit_configs": [TINY], **general}
    )


def make_request(**changes) -> PointRequest:
    (point,) = list_points(make_settings(gpu_ids=[], **changes), machine := topology())[:1]
    cpus = tuple(sorted(set(machine.node(point.cpu_node).cpus) & set(machine.usable_cpus)))
    return PointRequest(point.params, "cpu", Placement(point.node, cpus, "bind"))


def test_every_gpu_runs_with_memory_of_every_node():
    planned = list_points(make_settings(), make_machine(gpus=2))
    assert [(p.gpu, p.cpu_node, p.node) for p in planned] == [(0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 1, 1)]
    assert {p.params["dtype"] for p in planned} == {"float16"}
    planned = list_points(make_settings(gpu_ids=[1], numa_nodes=[0]), make_machine(gpus=2))
    assert [(p.gpu, p.node) for p in planned] == [(1, 0)]


def test_gpus_that_work_together_are_one_point_with_the_work_of_all():
    alone, both = list_points(make_settings(gpu_ids=[[0], [0, 1]], numa_nodes=[0]), make_machine(gpus=2))
    assert (alone.gpus, both.gpus) == ((0,), (0, 1))
    assert (both.work.items, both.work.flops) == (2 * alone.work.items, 2 * alone.work.flops)
    assert both.work.bytes == {name: 2 * size for name, size in alone.work.bytes.items()}
    assert alone.key == list_points(make_settings(gpu_ids=[0], numa_nodes=[0]), make_machine(gpus=2))[0].key


def test_a_comma_list_of_gpu_lists_gives_points_of_gpus_that_work_together():
    words = ["experiment=quick_test", "experiment.hardware.numa_nodes=[0]"]
    plan = plan_experiment(parse_arguments([*words, "experiment.hardware.gpu_ids=[0],[0,1]"]), make_machine(gpus=2))
    assert sorted({p.gpus for p in plan.points}) == [(0,), (0, 1)]
    plan = plan_experiment(parse_arguments([*words, "experiment.hardware.gpu_ids=[0,1]"]), make_machine(gpus=2))
    assert sorted({p.gpus for p in plan.points}) == [(0,), (1,)], "one list: every GPU by itself"


def estimate(*words: str, gpus: int = 0):
    machine = make_machine(gpus)
    return estimate_plan(plan_experiment(parse_arguments(["experiment=quick_test", *words]), machine), machine)


def test_the_estimate_counts_only_points_that_this_machine_can_run_at_once():
    one, many = estimate("experiment.max_workers=1"), estimate("experiment.max_workers=64")
    assert sum(one.seconds) == pytest.approx(one.total_s)
    assert many.total_s > sum(many.seconds) / 4, "four CPUs, and points on CPUs share them"
    assert any("max_workers=64" in note and "only 4" in note for note in many.notes)
    assert estimate("experiment.hardware.max_workers=64").total_s == many.total_s
    on_gpus = estimate("experiment.max_workers=64", gpus=2)
    assert on_gpus.total_s == pytest.approx(sum(on_gpus.seconds) / 2)
    one_gpu = estimate("experiment.max_workers=64", "experiment.hardware.gpu_ids=[[0],[0,1]]", gpus=2)
    assert one_gpu.total_s == pytest.approx(sum(one_gpu.seconds)), "GPU 0 takes part in all of them"


def test_the_estimate_warns_of_points_that_the_timeout_would_stop():
    assert not estimate().notes
    (note,) = estimate("experiment.test.timeout_s=1").notes
    assert "longer than experiment.test.timeout_s" in note
    assert "a timeout of 1 s" in note


def test_without_a_gpu_the_cpus_of_every_node_compute():
    planned = list_points(make_settings(), make_machine(gpus=0))
    assert [(p.gpu, p.cpu_node, p.node) for p in planned] == [(None, 0, 0), (None, 0, 1), (None, 1, 0), (None, 1, 1)]
    assert list_points(make_settings(gpu_ids=[]), make_machine(gpus=2))[0].gpu is None
    assert {p.params["dtype"] for p in planned} == {"float32"}


def test_work_is_that_of_the_model_and_a_repeated_model_is_one_point():
    (point,) = list_points(
        make_settings(gpu_ids=[0], numa_nodes=[0], vit_configs=[TINY, TINY], output="tokens"), make_machine(1)
    )
    vit = Vit((3, 16, 16), 8, 1, 2, 16, 64, "tokens")
    assert (point.work.items, point.work.flops) == (3, vit.flops(3))
    up, down = vit.up_bytes(3, 2), vit.down_bytes(3, 2)
    assert point.work.bytes == {"pcie": up, "pcie_back": down, "memory": up + down + 2 * vit.parameters}
    assert (point.facts["parameters"], point.params["mlp_dim"]) == (vit.parameters, 64)


def test_repeats_go_round_by_round():
    planned = list_points(
        make_settings(numa_nodes=[0], repeats=2, vit_configs=[TINY, VitSettings("b", 8, 2, 2, 16)]), make_machine(0)
    )
    assert [(p.name, p.params["repeat"]) for p in planned] == [("tiny", 1), ("b", 1), ("tiny", 2), ("b", 2)]


def test_a_sweep_goes_round_by_round_and_runs_a_point_once():
    arguments = parse_arguments(
        ["experiment.repeats=2", "experiment.test.ring=1,2", "experiment.vit_configs.1.depth=4,5"]
    )
    sweep = plan_experiment(arguments, make_machine(0))
    rounds = [p.params["repeat"] for p in sweep.points]
    assert rounds == sorted(rounds)
    assert len(rounds) == 2 * 2 * 4 * 4, "repeats, rings, places, and four models: two of the six are the same"
    assert sweep.requested_points == 2 * 2 * 2 * 3 * 4


@pytest.mark.parametrize("patches_ms", [5e-3, 1e-3])  # per unit of width: the time of cuDNN, and of a matrix product
def test_both_sweeps_of_the_crossover_study_cross_inside_on_a_gpu_of_55_gigabytes_a_second(patches_ms):
    """Layers take at least 0.09 ms, and 1.5 µs per unit of width at batch 256: about the times of an H200."""
    rng, rows = random.Random(1), []
    for point in plan_experiment(
        parse_arguments(["experiment=crossover_study", "experiment.hardware.numa_nodes=[0]"]), make_machine(1)
    ).points:
        p, moved = point.params, point.work.bytes
        layers = p["depth"] * max(0.09, 0.05 + 1.5e-3 * p["dim"])
        compute = 1e-3 * (patches_ms * p["dim"] + 0.06 + layers) if p["depth"] else 15e-6
        alone = {"h2d": moved["pcie"] / 55e9, "compute": compute, "d2h": 5e-6 + moved["pcie_back"] / 55e9}
        alone = {f"{stage}_seconds": s * rng.lognormvariate(0, 0.01) for stage, s in alone.items()}
        rows.append(
            {**p, **alone, **point.facts, "success": True, "run_id": point.run_id, "device": "cuda", "gpu_id": 0,
             "numa_node": 0, "batch_seconds": 1.01 * max(alone.values()), "flops": point.work.flops,
             "h2d_bytes": moved["pcie"], "d2h_bytes": moved["pcie_back"]}
        )  # fmt: skip
    findings = study(rows).findings
    crossovers = {one["column"]: one for one in findings["Where compute overtakes transfers"]["crossovers"]}
    assert {column: one["points"] for column, one in crossovers.items()} == {"depth": 8, "dim": 9}
    for one in crossovers.values():
        assert one["inside"]
        assert one["high"] / one["low"] < 1.2
        assert one["control"] in ("", "transfer")
    assert findings["Scaling laws"]["settings"][0]["laws"][0]["held_out_error"] <= 0.15


def test_the_estimate_grows_with_the_work():
    short, long = (list_points(make_settings(num_samples=n), make_machine(0))[0] for n in (12, 120_000))
    assert 0 < estimate_seconds(short) < estimate_seconds(long)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensor_shape": [3, 17, 16]}, "17×16 is not cut evenly into patches of 8"),
        ({"tensor_shape": [3, 16]}, "channels, height and width"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"num_samples": -1}, "num_samples is -1"),
        ({"dtype": "fp8"}, "experiment.test.dtype 'fp8'.*auto, fp32"),
        ({"output": "all"}, "output 'all'"),
        ({"compile_mode": "fast"}, "compile_mode 'fast'"),
        ({"batch_size": 1000}, r"does not fit experiment.test.memory_size_mb=1"),
        ({"vit_configs": []}, "vit_configs is empty"),
        ({"vit_configs": [VitSettings(heads=5)]}, "5 heads do not share 384"),
        ({"module": "nothing"}, "package.module:factory"),
        ({"numa_nodes": [0, 0]}, "names one twice"),
        ({"gpu_ids": [0, 0]}, "names one twice"),
        ({"gpu_ids": [[0, 0]]}, "names one twice"),
        ({"gpu_ids": [[]]}, "is no list of GPUs"),
        ({"gpu_ids": "0"}, "is no list of GPUs"),
        ({"gpu_ids": [0.5]}, "is no list of GPUs"),
        ({"numa_nodes": []}, "no node to run on"),
        ({"max_workers": 0}, "max_workers is 0"),
        ({"repeats": 0}, "repeats is 0"),
    ],
)
def test_an_error_names_an_impossible_setting_with_its_value(changes, message):
    with pytest.raises(InputError, match=message):
        list_points(make_settings(**changes), make_machine(1))


@pytest.mark.parametrize(
    "changes", [{}, {"output": "tokens", "vit_configs": [VitSettings("c", 8, 0, 2, 16)]}, {"ring": 1, "num_samples": 1}]
)
def test_a_point_is_measured_and_its_output_and_memory_are_checked(changes):
    result = measure(make_request(**changes))
    batches = -(-changes.get("num_samples", 12) // 3)
    assert len(result.samples_ns) == batches
    assert min(result.samples_ns) > 0
    assert result.check["ok"], result.check
    assert set(result.extras["alone_ns"]) == {"h2d", "compute", "d2h"}
    assert min(result.extras["alone_ns"].values()) > 0
    assert set(result.extras["staging_nodes"]) <= {str(topology().memory_nodes[0])}
    for stage in ("h2d", "compute", "d2h"):
        assert all(start <= end for start, end in result.extras["timeline"][stage])
    events = [e for e in result.files["trace.json"]["traceEvents"] if e["ph"] == "X"]
    assert len(events) == 3 * (batches + 1)
    json.dumps(result.extras)


def test_devices_that_work_together_measure_rounds_of_one_batch_on_each():
    request = replace(make_request(), partners=("cpu",))
    result = measure(request)
    assert len(result.samples_ns) == 2, "12 images, 3 on each of two devices in a round"
    assert result.check["ok"], result.check
    assert result.settings["devices"] == 2
    assert set(result.extras["alone_ns"]) == {"h2d", "compute", "d2h"}


def test_a_wrong_output_of_one_of_several_devices_is_wrong(monkeypatch):
    checks = iter([{"ok": True, "error": 0.0}, {"ok": False, "error": 1.0}])
    monkeypatch.setattr(experiment_subject, "_check", lambda *_: next(checks))
    assert measure(replace(make_request(), partners=("cpu",))).check == {"ok": False, "error": 1.0}


def test_a_module_of_the_user_is_counted_and_measured(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    result = measure(make_request(module="experiment_modules:linear"))
    assert result.check["ok"]
    assert result.work["flops"] == 2 * 3 * 768 * 5
    assert result.work["bytes"]["staged_back"] == 3 * 5 * 4
    assert result.extras["columns"]["parameters"] == 768 * 5 + 5


def test_a_model_with_random_output_fails_its_check(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    assert not measure(make_request(module="experiment_modules:random_output")).check["ok"]


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("experiment_modules:nothing", "has no 'nothing'"),
        ("no_such_module:x", "cannot be imported"),
        ("experiment_modules:needs_argument", "needs 'what'"),
        ("os:sep", "is no factory"),
    ],
)
def test_an_error_names_a_module_that_cannot_be_used(monkeypatch, module, message):
    monkeypatch.syspath_prepend(str(FOLDER))
    with pytest.raises(InputError, match=message):
        measure(make_request(module=module))


def test_staging_memory_on_a_wrong_node_is_an_error(monkeypatch):
    pages = {topology().memory_nodes[0]: 3, 99: 1}
    monkeypatch.setattr(experiment_subject, "count_pages_by_node", lambda address, size: pages)
    with pytest.raises(PlacementError, match="but pages of it are on node 99"):
        measure(make_request())


ENVIRONMENT = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(FOLDER)}


def cli(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ridgeline", "run", *words]
    return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)


SMALL = (
    "experiment.vit_configs=[{name:tiny,patch_size:8,depth:1,heads:2,dim:16}]",
    "experiment.test.tensor_shape=[3,16,16]",
    "experiment.test.num_samples=20",
    "experiment.test.memory_size_mb=1",
    "experiment.hardware.gpu_ids=[]",
    "experiment.ceilings=false",
)


@pytest.mark.slow
def test_a_run_writes_rows_pages_and_records(tmp_path):
    done = cli(*SMALL, "experiment.name=small", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    folder = tmp_path / answer["folder"]
    rows = json.loads((folder / "results.json").read_text())
    assert answer["results"] == rows
    for row in rows:
        assert row["success"]
        assert row["throughput"] > 0
        assert (row["model"], row["depth"], row["image_size"], row["batch_size"]) == ("tiny", 1, 16, 10)
        assert row["compile_mode"] == ""
        assert row["h2d_bytes"] == 10 * 3 * 16 * 16 * 4
    names = {p.name for p in folder.iterdir()}
    assert names >= {"experiment_summary.json", "experiment.log", "config.yaml", "report.html", "summary.md", "runs"}
    listed = subprocess.run(
        [sys.executable, "-m", "ridgeline", "records", "ls", str(folder), "--json"], capture_output=True, text=True
    )
    assert len(json.loads(listed.stdout)["records"]) == len(rows)
    resumed = cli(*SMALL, "experiment.name=small", "experiment.resume=true", "--json", cwd=tmp_path)
    assert json.loads(resumed.stdout)["folder"] == answer["folder"]
    assert json.loads(resumed.stdout)["results"] == rows, "nothing was measured again"


@pytest.mark.slow
def test_a_hanging_and_a_crashing_model_are_failed_rows_beside_a_good_one(tmp_path):
    modules = ",".join(f"experiment_modules:{name}" for name in ("hangs", "crashes", "linear"))
    node = f"experiment.hardware.numa_nodes=[{topology().memory_nodes[0]}]"
    words = (f"experiment.module={modules}", "experiment.test.timeout_s=4,120,120", "zip=[module,timeout_s]", node)
    done = cli(*SMALL, *words, "--json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    errors = {row["model"].partition(":")[2]: row["error"] for row in answer["results"]}
    assert errors["hangs"] == "gave no answer within 4 s and was stopped"
    assert errors["crashes"].startswith("was killed by SIGABRT")
    assert errors["linear"] is None
    report = (tmp_path / answer["folder"] / "report.html").read_text()
    assert "SIGABRT" in report


def list_processes(folder: Path) -> dict[int, str]:
    """Return the processes with this working folder, with their command lines."""
    processes = {}
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if link.readlink() == folder:
                processes[int(link.parent.name)] = (link.parent / "cmdline").read_text().replace("\0", " ")
    return processes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "target"),
    [(None, "one"), ("basic", "all"), ("submitit_local", "one"), ("submitit_local", "all")],
    ids=str,
)
def test_ctrl_c_ends_all_processes_and_the_next_run_resumes(tmp_path, launcher, target):
    if launcher == "submitit_local":
        pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    file = tmp_path / "hang"
    file.touch()
    words = [
        *SMALL,
        "experiment.module=experiment_modules:linear,experiment_modules:hangs_while_file_exists",
        "experiment.name=stopped",
        "experiment.contention=true",  # no point waits for the CPUs of another
        "experiment.max_workers=2",
        f"experiment.hardware.numa_nodes=[{topology().memory_nodes[0]}]",
        *([f"hydra/launcher={launcher}"] if launcher else []),
    ]
    command = [sys.executable, "-m", "ridgeline", "run", *words]
    running = subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 240
    while not (
        any(" done" in f.read_text() for f in tmp_path.glob("outputs/*/experiment.log"))  # the record is on the disk
        and list(tmp_path.glob("outputs/*/runs/*hangs*.log"))
    ):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if target == "one":
        running.send_signal(signal.SIGINT)
    else:  # as a terminal does: to every process of the foreground group
        os.killpg(running.pid, signal.SIGINT)
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "continues from there" in stderr
    assert "Traceback" not in stderr
    deadline = time.monotonic() + 20
    while processes := list_processes(tmp_path):
        assert time.monotonic() < deadline, processes
        time.sleep(0.05)
    (folder,) = tmp_path.glob("outputs/*")
    (first,) = json.loads((folder / "results.json").read_text())
    assert (first["model"], first["success"]) == ("experiment_modules:linear", True)
    file.unlink()
    resumed = cli(*words, "--json", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    answer = json.loads(resumed.stdout)
    assert answer["folder"] == str(folder.relative_to(tmp_path)), "the run resumes in the same folder"
    assert len(answer["results"]) == 2
    assert first in answer["results"], "a finished point does not run again"


@pytest.mark.slow
def test_the_jobs_of_a_launcher_write_into_one_folder(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    nodes = f"experiment.hardware.numa_nodes=[{topology().memory_nodes[0]}]"
    done = cli(
        *SMALL, nodes, "experiment.test.batch_size=5,10", "hydra/launcher=submitit_local", "--json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert sorted(row["batch_size"] for row in answer["results"]) == [5, 10]
    assert (tmp_path / answer["folder"] / "jobs" / "1" / ".hydra" / "config.yaml").is_file()


def test_a_dry_run_lists_points_of_another_machine_and_writes_nothing(tmp_path):
    words = ("experiment=numa_study", "experiment.hardware.gpu_ids=[90,91]", "experiment.hardware.numa_nodes=[0,77]")
    done = cli(*words, "--dry-run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert len(answer["points"]) == 6 * 2 * 2
    assert answer["estimate_s"] == pytest.approx(sum(p["estimate_s"] for p in answer["points"]), rel=0.01)
    assert all("no GPU 9" in p["absent"] for p in answer["points"])
    assert not list(tmp_path.iterdir())
    refused = cli(*words, cwd=tmp_path)
    assert refused.returncode == 2
    assert "there is no GPU 90" in refused.stderr
    assert not list(tmp_path.iterdir())


def test_hydra_shows_the_configuration(tmp_path):
    done = cli("experiment=scaling_study", "experiment.vit_configs[0].depth=3", "--cfg", "job", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "depth: 3" in done.stdout
    assert cli("experiment=nothing", "--cfg", "job", cwd=tmp_path).returncode == 2
    assert not list(tmp_path.iterdir())
