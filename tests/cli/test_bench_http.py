"""`ridgeline bench --http`: endpoints race in an open loop."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ridgeline.cli import main
from ridgeline.lab.race.endpoints import Endpoint, HttpOptions


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        with server.stalled:
            server.seen += 1
            if server.seen == server.stall_at:
                time.sleep(0.5)
        status = 404 if self.path == "/none" else 200
        self.send_response(status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *words):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.stalled, server.seen, server.stall_at = threading.Lock(), 0, 0
        server.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def bench(capfd, tmp_path):
    def run(*words: object) -> tuple[int, list[dict], str]:
        with pytest.raises(SystemExit) as exit_info:
            main(["bench", "--http", "--json", "-q", "--out", str(tmp_path), *map(str, words)])
        out, err = capfd.readouterr()
        return exit_info.value.code or 0, json.loads(out)["cases"][0]["contenders"] if out else [], err

    return run


def test_two_addresses_race_with_percentiles(bench, server):
    code, rows, _ = bench(server.url + "/a", server.url + "/b", "--rate", 100, "--budget", "1s")
    assert code == 0
    assert [row["contender"] for row in rows] == [server.url + "/a", server.url + "/b"]
    assert rows[1]["verdict"] in ("SAME", "UNCLEAR", "FASTER", "SLOWER")
    for row in rows:
        assert 0 < row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"]
        assert row["requests"] > 0
        assert row["rate_per_s"] > 0


def test_the_rate_is_kept_from_turn_to_turn(bench, server):
    _, rows, _ = bench(server.url + "/a", server.url + "/b", "--rate", 50, "--budget", "2s")
    assert all(0 < row["rate_per_s"] <= 50.5 for row in rows)  # turns of one request do not follow each other faster


def test_where_requests_overlap_a_turn_is_as_long_as_four_latencies(server, monkeypatch):
    url = server.url + "/a"
    options = HttpOptions(rate=200, turn_s=0.005)
    turn: list[Endpoint] = []
    turn += [Endpoint(url, options, turn), Endpoint(url, options, turn)]
    monkeypatch.setattr(Endpoint, "_ask_once", lambda _: time.sleep(0.03) or (200, "OK"))
    for endpoint in turn:
        endpoint.do("prepare", 5)
    turn[0].do("turn", 5)
    assert turn[0].do("extras", 5)[0]["extras"]["latencies_ms"][23:]  # 0.12 s of requests every 5 ms
    for endpoint in turn:
        endpoint.kill()


def test_every_request_that_was_due_during_a_stall_counts(bench, server, tmp_path):
    server.stall_at = 20
    _, rows, _ = bench(server.url, "--rate", 100, "--budget", "1s")
    record = json.loads((tmp_path / "records.jsonl").read_text())
    slow = [ms for ms in record["contenders"][0]["extras"]["latencies_ms"] if ms >= 250]
    assert len(slow) >= 10  # of the 25 that were due in the first half of the stall
    assert rows[0]["p99.9_ms"] >= 400


def test_an_address_that_fails_costs_itself_alone(bench, server):
    code, rows, _ = bench(server.url, server.url + "/none", "http://127.0.0.1:1/", "--rate", 100, "--budget", "0.5s")
    assert code == 1
    assert rows[0]["median_ns"] > 0
    assert "answers 404" in rows[1]["advice"]
    assert "does not answer" in rows[2]["advice"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "has no address"),
        (("ftp://x/",), "is no http or https address"),
        (("http://x/", "--rate", 0), "is no rate"),
        (("http://x/", "--header", "none"), "is not of the form"),
        (("http://x/", "--sh", "true"), "has no meaning for --http"),
    ],
)
def test_bad_input_is_one_sentence(bench, words, sentence):
    code, rows, err = bench(*words)
    assert (code, rows) == (2, [])
    assert sentence in " ".join(err.split())
