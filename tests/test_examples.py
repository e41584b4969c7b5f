"""The examples run unchanged and print correct results.

python -m pytest tests/test_examples.py
"""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_basic_resampling():
    output = run("resample_basic.py")
    assert "(200, 7) at 200 uneven stamps → (103, 7) at 50 Hz" in output
    known = [int(n) for n in re.search(r"known targets per trajectory: \[(.*?)\]", output)[1].split(", ")]
    assert (
        0 < known[2] < known[0] < known[1] < 30
    )  # shorter trajectories have fewer targets, and the stall is not interpolated
    assert "gear [0, 0, 0, 0, 0, 1, 1, 1]" in output


@pytest.mark.slow
def test_training_through_a_dataloader_learns():
    pytest.importorskip("torch")
    output = run("resample_dataloader.py")
    assert "216 items of 12 trajectories from memory, 7 columns" in output
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", output)]
    assert len(losses) == 3
    assert losses[2] < losses[0] / 2


@pytest.mark.slow
@pytest.mark.ranks
def test_scaling_prints_a_table_that_adds_up():
    pytest.importorskip("torch")
    rows = re.findall(r"^ +(\d+) +([\d,]+) +([\d.]+) +(\d+)%$", run("resample_scaling.py"), re.MULTILINE)
    assert rows[0][0] == "1"
    assert rows[0][2:] == ("1.00", "100")
    first = int(rows[0][1].replace(",", ""))
    for processes, rate, speedup, efficiency in rows:
        assert int(rate.replace(",", "")) > 0
        assert float(speedup) == pytest.approx(int(rate.replace(",", "")) / first, abs=0.011)
        assert float(efficiency) / 100 == pytest.approx(float(speedup) / int(processes), abs=0.011)


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("hosts", ["1", "2"])
def test_training_goes_on_with_the_right_gradients_after_a_rank_is_killed(hosts):
    torch = pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "fabric_survive.py"), hosts], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    example = runpy.run_path(str(EXAMPLES / "fabric_survive.py"))
    network = example["make_network"]()
    optimizer = torch.optim.SGD(network.parameters(), lr=example["RATE"])
    for step in range(example["STEPS"]):
        ranks = 4 if step < example["KILLED_AT"] else 3
        optimizer.zero_grad()
        for rank in range(ranks):  # the mean of the gradients of all ranks
            x, y = example["make_batch"](step, rank)
            (torch.nn.functional.mse_loss(network(x), y) / ranks).backward()
        optimizer.step()
    norm = torch.cat([p.detach().flatten() for p in network.parameters()]).norm().item()
    rows = re.findall(r"rank (\d): 4, then 3 ranks; loss \S+; .weights. (\S+)", done.stdout)
    assert [rank for rank, _ in rows] == ["0", "1", "2"]
    assert all(abs(float(text) - norm) < 2e-5 for _, text in rows), (rows, norm)
    assert "rank 3: its process was killed by SIGKILL" in done.stdout
