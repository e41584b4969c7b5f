"""What a log record costs from OTLP/HTTP into the ledger, in microseconds of CPU time, and how long clients wait.

    python benchmarks/audit_otlp.py [--records 200000] [--personal] [--scored] [--rate 14000]
    python benchmarks/audit_otlp.py --stages

Starts `ridgeline audit watch --otlp` (with --no-score, unless --scored) and a process that sends protobuf requests of
512 records (the SDK's batch) over a few connections. The CPU time of both is read apart, so the client's share does not
count, and another load on the machine matters little. With --rate the client sends so many records per second and the
waits for its answers are reported; without, it sends as fast as it gets answers. At the end the log must verify and
hold every record once. `--stages` measures each step alone, in this process. About a minute on two idle cores.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import platform
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ridgeline.audit import Ledger
from ridgeline.audit.ledger.event import encode
from ridgeline.audit.sources.otlp import PROTOBUF, parse_logs
from ridgeline.audit.watch import redact
from ridgeline.audit.watch.internal_events import mark_foreign

TOKEN = "benchmark-token-0123456789"  # noqa: S105
AT_ONCE = 512  # records of one request
WARM = 40  # requests before the measured ones
CONNECTIONS = 4
FRESH = 100  # with --scored, one record in so many has a new sentence
_WORDS = ("alpha", "amber", "birch", "cedar", "delta", "ember", "flint", "grove", "hazel", "ivory", "jade", "kelp")


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def pair(key: str, value: bytes) -> bytes:
    return field(1, key) + field(2, value)


def make_text(number: int) -> str:
    return f"invoice {number} was sent to the customer"


def make_fresh_text(number: int) -> str:
    """Return a sentence of its own: any two differ in two words, so that neither is a value in a known sentence."""
    words, check = list[str](), 0
    for _ in range(6):
        number, rest = divmod(number, len(_WORDS))
        words.append(_WORDS[rest])
        check += rest
    return f"{' '.join(words)} {_WORDS[check % len(_WORDS)]} happened"


def make_request(first: int, fresh: bool = False) -> bytes:
    """Return an ExportLogsServiceRequest like that of a web service: text, severity, user, request id, path, status."""
    resource = b"".join(
        field(1, pair(key, field(1, text))) for key, text in (("service.name", "billing"), ("host.name", "host1"))
    )
    records = []
    for i in range(first, first + AT_ONCE):
        words = {"enduser.id": f"user{i % 97}", "request.id": f"{i:032x}", "url.path": f"/invoice/{i % 1013}"}
        records.append(
            struct.pack("<BQ", 1 << 3 | 1, 1_700_000_000_000_000_000 + i)
            + field(2, 9)
            + field(3, "INFO")
            + field(5, field(1, make_fresh_text(i // FRESH) if fresh and i % FRESH == 0 else make_text(i)))
            + b"".join(field(6, pair(key, field(1, text))) for key, text in words.items())
            + field(6, pair("http.response.status_code", field(3, 200)))
        )
    scope = field(1, field(1, "billing.web"))
    return field(1, field(1, resource) + field(2, scope + b"".join(field(2, record) for record in records)))


def read_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


class Client:
    """Sends requests over a few connections, in a process of its own."""

    def __init__(self, port: int, rate: float | None) -> None:
        self._port, self._interval_s = port, AT_ONCE / rate if rate else 0.0
        self.failed = list[str]()
        self.waits_ms = list[float]()

    def send_all(self, bodies: list[bytes]) -> None:
        start_s = time.perf_counter()
        lines = [threading.Thread(target=self._send, args=(bodies, k, start_s)) for k in range(CONNECTIONS)]
        for line in lines:
            line.start()
        for line in lines:
            line.join()

    def _send(self, bodies: list[bytes], first: int, start_s: float) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        headers = {"content-type": "application/x-protobuf", "authorization": f"Bearer {TOKEN}"}
        for number in range(first, len(bodies), CONNECTIONS):
            due_s = start_s + number * self._interval_s
            time.sleep(max(0.0, due_s - time.perf_counter()))
            sent_s = due_s if self._interval_s else time.perf_counter()  # a late request has waited, too
            while True:
                connection.request("POST", "/v1/logs", bodies[number], headers)
                answer = connection.getresponse()
                answer.read()
                if answer.status not in (429, 503):
                    break
                time.sleep(0.05)
            self.waits_ms.append((time.perf_counter() - sent_s) * 1e3)
            if answer.status != 200:
                self.failed.append(f"status {answer.status}")
        connection.close()


def run_client(pipe: Connection, port: int, requests: int, fresh: bool, rate: float | None) -> None:
    """Make the requests; send the first ones when told, then the others; answer with what that took."""
    bodies = [make_request(k * AT_ONCE, fresh) for k in range(WARM + requests)]
    for part, speed in ((bodies[:WARM], None), (bodies[WARM:], rate)):
        pipe.send("ready")
        pipe.recv()
        client, cpu_s = Client(port, speed), time.process_time()
        client.send_all(part)
        pipe.send((client.failed, client.waits_ms, time.process_time() - cpu_s))


def measure(folder: Path, records: int, personal: bool, scored: bool, rate: float | None) -> dict[str, Any]:
    log = folder / "log"
    Ledger.create(log, origin="example.test/otlp").close()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["audit", "watch", str(log), "--otlp", f"127.0.0.1:{port}", "-q", *([] if scored else ["--no-score"])]
    words += ["--personal", "actor", "--subject", "actor"] if personal else []
    requests = max(1, records // AT_ONCE)
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    client = context.Process(target=run_client, args=(other, port, requests, scored, rate), daemon=True)
    client.start()
    watcher = subprocess.Popen(
        [sys.executable, "-m", "ridgeline", *words],
        env={**os.environ, "RIDGELINE_AUDIT_TOKEN": TOKEN},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    status = log.with_name("log.private") / "watch" / "status.json"

    def settle(count: int) -> None:
        while scored and watcher.poll() is None:  # until all is scored
            try:
                if json.loads(status.read_text())["scored"] >= count:
                    return
            except (OSError, ValueError, KeyError):
                pass
            time.sleep(0.1)

    def send(count: int) -> tuple[list[float], float]:
        pipe.recv()
        pipe.send("go")
        failed, waits_ms, client_s = pipe.recv()
        if failed:
            raise SystemExit(f"{len(failed)} requests failed: {failed[0]}")
        settle(count)
        return waits_ms, client_s

    try:
        while watcher.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        send(WARM * AT_ONCE)
        time.sleep(2.0)  # the tiles of the first requests are written
        cpu_s, start_s = read_cpu_s(watcher.pid), time.perf_counter()
        waits_ms, client_s = send((WARM + requests) * AT_ONCE)
        wall_s, cpu_s, peak = time.perf_counter() - start_s, read_cpu_s(watcher.pid) - cpu_s, read_peak_mib(watcher.pid)
        last = json.loads(status.read_text()) if scored else {}
    finally:
        watcher.terminate()
        watcher.wait(120)
    with Ledger.open(log) as ledger:
        report = ledger.verify()
        events = [event for event in ledger.entries() if not event["action"].startswith("ridgeline.")]
    seen = {event["attributes"]["request.id"] for event in events}
    whole = report.ok and len(events) == len(seen) == (WARM + requests) * AT_ONCE
    sent = requests * AT_ONCE
    words_of = {
        "scored": scored,
        "personal_fields_encrypted": personal,
        "records": sent,
        "bytes_each": round(len(make_request(0)) / AT_ONCE),
        "each_once_and_verified": whole,
        "cpu_us_per_record": round(cpu_s / sent * 1e6, 1),
        "records_per_cpu_s": round(sent / cpu_s),
        "records_per_s": round(sent / wall_s),
        "client_cpu_us_per_record": round(client_s / sent * 1e6, 1),
        "answer_p50_ms": round(statistics.median(waits_ms), 1),
        "answer_p99_ms": round(statistics.quantiles(waits_ms, n=100)[98], 1),
        "peak_mib": round(peak),
    }
    if scored:
        words_of |= {f"score_{name}_ms": round(last[f"wait_{name}_s"] * 1e3, 1) for name in ("p50", "p99")}
    if not whole:
        print(json.dumps(words_of))
        raise SystemExit("not every record is in the log once")
    return words_of


def measure_stages(folder: Path, repeats: int = 40) -> dict[str, float]:
    """Return the CPU microseconds of each step per record, each the median of many requests."""
    bodies = [make_request(k * AT_ONCE) for k in range(repeats)]
    took: dict[str, list[float]] = {}

    def time_step(name: str, step: Callable[[], Any]) -> Any:
        start_s = time.process_time()
        result = step()
        took.setdefault(name, []).append((time.process_time() - start_s) / AT_ONCE * 1e6)
        return result

    with Ledger.create(folder / "log", origin="example.test/otlp") as ledger:
        for body in bodies:
            events = time_step("parse", lambda body=body: list(parse_logs(body, PROTOBUF)))
            plain = time_step("redact", lambda events=events: [mark_foreign(redact.event(e)) for e in events])
            encoded = time_step("encode", lambda plain=plain: encode(plain))
            time_step("append", lambda encoded=encoded: ledger.append(encoded))
    return {name: round(statistics.median(values), 2) for name, values in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--personal", action="store_true", help="encrypt the actor of each record")
    parser.add_argument("--scored", action="store_true", help="score them; one in a hundred has a new sentence")
    parser.add_argument("--rate", type=float, help="records per second (default: as fast as they are answered)")
    parser.add_argument("--stages", action="store_true", help="measure each step alone")
    parser.add_argument("--folder", type=Path, default=None)
    args = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    folder = Path(tempfile.mkdtemp(dir=args.folder))
    try:
        if args.stages:
            print(json.dumps(measure_stages(folder)))
        else:
            print(json.dumps(measure(folder, args.records, args.personal, args.scored, args.rate)))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
