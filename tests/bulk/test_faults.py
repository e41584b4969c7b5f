"""Faults of real parts: an object store with 503, cut and slow answers, a dead node of a Ray cluster, killed drivers.

python -m pytest -m slow tests/bulk/test_faults.py    # needs ridgeline[bulk-test]
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.bulk.sources_made import make_source, make_texts, read_parts, read_rows
from tests.draws import choose_draws

from ridgeline import bulk

pytestmark = pytest.mark.slow  # servers and clusters start

ROWS = dict(enumerate(make_texts(400)))
KILLS = 2
WAIT_S = 300.0


def find_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen) -> None:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    pytest.fail(f"nothing listens on port {port}")


def find_children(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
        except (OSError, ValueError):
            continue
    children = list(parents.get(pid, []))
    for child in children:
        children += parents.get(child, [])
    return children


def kill(process: subprocess.Popen) -> None:
    """End a process and all its descendants, so that nothing can tidy up."""
    for pid in [process.pid, *find_children(process.pid)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
    process.wait(30)
    if process.stderr is not None:
        process.stderr.close()


def start_embed(source, out, model, *more, env=None) -> subprocess.Popen:
    options = ["--column", "title", "--key", "id", "--chunk-rows", "10", "--device", "cpu", "--dtype", "float32"]
    command = [sys.executable, "-m", "ridgeline", "bulk", "embed", str(source), "-o", str(out), "--model", model]
    return subprocess.Popen(
        [*command, *options, "--json", *more], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def whole(tmp_path, settings, inline):
    source = make_source(tmp_path / "in", ROWS)
    bulk.embed(source, tmp_path / "whole", **settings)
    assert read_rows(tmp_path / "whole") == ROWS
    return source


class FaultyProxy(BaseHTTPRequestHandler):
    """Stands before an object store: some answers are 503, cut, or slow."""

    protocol_version = "HTTP/1.1"
    random = random.Random(5)
    faults = 0
    port = 0

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        draw = self.random.random()
        if draw < 0.10:
            FaultyProxy.faults += 1
            text = b"<Error><Code>SlowDown</Code><Message>slow</Message></Error>"
            self.send_response(503)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text if self.command != "HEAD" else b"")
            return
        if draw < 0.12:
            time.sleep(0.3)
        upstream = HTTPConnection("127.0.0.1", self.port, timeout=30)
        left_out = ("connection", "transfer-encoding", "expect")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in left_out}
        upstream.request(self.command, self.path, body, headers)
        response = upstream.getresponse()
        data = response.read()
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("content-length", *left_out):
                self.send_header(name, value)
        length = response.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        if 0.12 <= draw < 0.17 and len(data) > 500:
            FaultyProxy.faults += 1
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.wfile.write(data)
        upstream.close()

    def answer_quietly(self) -> None:
        try:
            self.answer()
        except OSError:
            self.close_connection = True

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:  # a killed client
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer_quietly

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def store(monkeypatch):
    """A bucket `bulk` behind the proxy, and a client that reaches it without faults."""
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("moto.server")
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    for name, value in {**keys, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    port = find_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for_port(port, server)
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}")
    client.create_bucket(Bucket="bulk")
    FaultyProxy.port, FaultyProxy.faults = port, 0
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), FaultyProxy)
    proxy.daemon_threads = True
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.server_address[1]}")
    yield client
    proxy.shutdown()
    proxy.server_close()
    kill(server)


def read_objects(client, prefix: str) -> dict[str, bytes]:
    listed = client.list_objects_v2(Bucket="bulk", Prefix=prefix).get("Contents", [])
    keys = [entry["Key"] for entry in listed]
    return {key.rpartition("/")[2]: client.get_object(Bucket="bulk", Key=key)["Body"].read() for key in keys}


def test_a_faulty_object_store_and_killed_drivers_change_no_byte(tmp_path, model, whole, store):
    for file in whole.iterdir():
        store.put_object(Bucket="bulk", Key=f"in/{file.name}", Body=file.read_bytes())
    killed = 0
    for number in range(KILLS + 1):
        process = start_embed("s3://bulk/in", "s3://bulk/out", model)
        commits = "out/_ridgeline/commits/"
        end = time.monotonic() + WAIT_S
        while number < KILLS and process.poll() is None and time.monotonic() < end:
            if len(read_objects(store, commits)) >= 8 * (number + 1):
                break
            time.sleep(0.1)
        if number < KILLS:
            killed += process.poll() is None
            kill(process)
        else:
            _, errors = process.communicate(timeout=WAIT_S)
            assert process.returncode == 0, errors
    assert killed
    assert FaultyProxy.faults > 10
    assert read_objects(store, "out/part-") == read_parts(tmp_path / "whole")


def start_raylet(*options: str, env: dict[str, str]) -> subprocess.Popen:
    code = "import sys; from ray.scripts.scripts import main; sys.exit(main())"
    fixed = ["--block", "--disable-usage-stats", "--num-cpus", "1", "--object-store-memory", str(150 << 20)]
    command = [sys.executable, "-c", code, "start", *fixed, *options]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture
def cluster():
    """The environment and address of a Ray cluster of one node, and a function that starts another node."""
    pytest.importorskip("ray")
    token = secrets.token_hex(32)
    env = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_USAGE_STATS_ENABLED": "0"}
    env |= {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "3"}
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # its sockets need a short path
    port = find_port()
    address = f"127.0.0.1:{port}"
    head_options = ("--head", "--port", str(port), "--include-dashboard", "false", "--temp-dir", str(folder))
    nodes = [start_raylet(*head_options, env=env)]

    def add_node() -> subprocess.Popen:
        nodes.append(start_raylet("--address", address, env=env))
        time.sleep(10)
        return nodes[-1]

    try:
        wait_for_port(port, nodes[0])
        time.sleep(3)
        yield env, address, add_node
    finally:
        for node in nodes:
            kill(node)
        shutil.rmtree(folder, ignore_errors=True)


def wait_for_parts(out: Path, count: int, process: subprocess.Popen) -> None:
    end = time.monotonic() + WAIT_S
    while process.poll() is None and time.monotonic() < end:
        if out.exists() and len(read_parts(out)) >= count:
            return
        time.sleep(0.05)


def test_a_dead_node_of_a_ray_cluster_and_a_dead_driver_change_no_byte(tmp_path, model, whole, cluster):
    env, address, add_node = cluster
    out, second = tmp_path / "out", None
    for step in ("node", "driver", "end"):
        second = second or add_node()
        start = len(read_parts(out)) if out.exists() else 0
        process = start_embed(whole, out, model, "--engine", "ray", "--address", address, env=env)
        if step != "end":
            wait_for_parts(out, start + 8, process)
        if step == "node":
            kill(second)
            second = None
            time.sleep(2)
            kill(process)
        elif step == "driver":
            kill(process)
        else:
            _, errors = process.communicate(timeout=WAIT_S)
            assert process.returncode == 0, errors
            assert env["RAY_AUTH_TOKEN"] not in errors
    assert read_parts(out) == read_parts(tmp_path / "whole")


def test_a_job_goes_on_by_itself_when_a_node_dies_at_any_moment(tmp_path, model, whole, cluster):
    """One job for each run; of two nodes one dies after a number of parts that differs from run to run."""
    env, address, add_node = cluster
    wanted = read_parts(tmp_path / "whole")
    runs, killed = choose_draws(quick=2, all=20), 0
    for number in range(runs):
        second, out = add_node(), tmp_path / f"out{number}"
        process = start_embed(whole, out, model, "--engine", "ray", "--address", address, env=env)
        wait_for_parts(out, random.Random(number).randrange(1, len(ROWS) // 10 // 2), process)
        killed += process.poll() is None
        kill(second)
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, (number, errors)
        assert read_parts(out) == wanted, number
    assert killed >= 0.75 * runs, "jobs ended before the node did"


def test_a_wrong_token_of_a_ray_cluster_is_one_sentence(tmp_path, model, whole, cluster):
    env, address, _ = cluster
    for wrong in ({"RAY_AUTH_TOKEN": secrets.token_hex(32)}, {"RAY_AUTH_MODE": "disabled"}):
        process = start_embed(whole, tmp_path / "out", model, "--engine", "ray", "--address", address, env=env | wrong)
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 2
        assert f"the Ray cluster at '{address}' refuses the token; set RAY_AUTH_MODE=token" in " ".join(errors.split())
        assert (env | wrong)["RAY_AUTH_TOKEN"] not in errors
    assert not (tmp_path / "out").exists()


OWN_CLUSTER = """
import os, sys
from ridgeline.bulk.ray_engine import RayEngine

class Factory:
    target = sys.argv[1]
    def __call__(self, device):
        return lambda task: os.getpriority(os.PRIO_PROCESS, 0)

with RayEngine(Factory(), "cpu", 1, None, None) as engine:
    print([priority for _, priority in engine.run([0, 1])])
"""


def test_workers_of_an_own_ray_cluster_have_the_priority_of_the_command(tmp_path):
    pytest.importorskip("ray")
    (tmp_path / "_ridgeline").mkdir()
    (tmp_path / "_ridgeline/job.json").touch()
    hidden = ("RAY_ADDRESS", "RAY_worker_niceness")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env |= {"HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"}
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for chosen, expected in ((None, own), ("3", own + 3)):
        more = {} if chosen is None else {"RAY_worker_niceness": chosen}
        command = [sys.executable, "-c", OWN_CLUSTER, str(tmp_path)]
        result = subprocess.run(command, env=env | more, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert result.stdout.split("\n")[-2:-1] == [str([expected] * 2)], result.stderr
        assert "Token authentication" not in result.stderr
