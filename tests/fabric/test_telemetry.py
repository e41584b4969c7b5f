"""Metrics, the table of `fabric watch`, and the trace."""

from __future__ import annotations

import json
import random
import socket

import pytest
from tests.fabric import ranks_network as jobs
from typer.testing import CliRunner

from ridgeline import fabric
from ridgeline.cli import app
from ridgeline.errors import InputError
from ridgeline.fabric.watching import parse_metrics

pytestmark = pytest.mark.ranks


def find_ports() -> int:
    """The first of two free ports that the kernel gives to nobody by itself."""
    while True:
        port = random.randrange(12_000, 30_000)
        try:
            for number in (port, port + 1):
                with socket.create_server(("127.0.0.1", number)):
                    pass
        except OSError:
            continue
        return port


def test_the_metrics_of_all_ranks_are_read_through_one_of_them(tmp_path):
    pytest.importorskip("prometheus_client")
    port = find_ports()
    config = fabric.FabricConfig(metrics=f"127.0.0.1:{port}", trace=str(tmp_path / "trace"))
    text, first, second = fabric.spawn(jobs.read_own_metrics, 2, args=(port,), hosts=2, config=config, timeout=60)[0]
    assert f'ridgeline_fabric_rank{{metrics="127.0.0.1:{port + 1}",rank="1"}} 1.0' in text
    reading, _ = parse_metrics(text, "", 0.0)
    assert reading.rank == 0
    assert reading.bytes[1] >= 10 * 2 * 400_000
    assert [row["rank"] for row in first["ranks"]] == [0, 1]
    assert all(row["bytes_per_s"] == 0 for row in first["ranks"])
    assert all(row["bytes_per_s"] > 0 for row in second["ranks"])
    assert second["slowest_link"] in ([0, 1], [1, 0])
    for rank in range(2):
        lines = (tmp_path / f"trace-{rank}.json").read_text()
        events = json.loads(lines.rstrip().rstrip(",") + "]")
        sums = [event for event in events if event["name"] == "all_reduce"]
        assert len(sums) == 20
        assert all(event["args"]["bytes"] == 400_000 and event["dur"] > 0 and event["pid"] == rank for event in sums)


def test_a_reading_names_the_rank_that_the_others_wait_for():
    text = (
        'ridgeline_fabric_waiting_seconds_total{peer="2",rank="0"} 1.5\n'
        'ridgeline_fabric_call{op="all_reduce",rank="0",waits_for="2"} 7.0\n'
        'ridgeline_fabric_rank{metrics="h:1",rank="0"} 1.0\n'
        "something_else 3\n"
    )
    reading, ranks = parse_metrics(text, "h:1", 0.0)
    assert (reading.call, reading.waits_for, reading.waiting, ranks) == ("all_reduce #7", 2, {2: 1.5}, {0: "h:1"})
    with pytest.raises(InputError, match="serves no metrics of fabric"):
        parse_metrics("up 1", "h:1", 0.0)


def test_watch_names_an_address_without_metrics():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    result = CliRunner().invoke(app, ["fabric", "watch", f"127.0.0.1:{port}"])
    assert isinstance(result.exception, InputError)
    assert f"no metrics at 127.0.0.1:{port}" in str(result.exception)


def test_wrong_settings_of_the_metrics_are_refused(tmp_path):
    with pytest.raises(InputError, match="metrics is"):
        fabric.FabricConfig(metrics="9400")
    trace = fabric.FabricConfig(trace=str(tmp_path / "none" / "trace"))
    with pytest.raises(fabric.RankError, match="cannot be written"):
        fabric.spawn(jobs.get_stats, 1, config=trace)
