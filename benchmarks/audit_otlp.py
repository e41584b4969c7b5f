"""How many log records per second of CPU time go from OTLP/HTTP into the ledger, without scores.

    python benchmarks/audit_otlp.py --records 200000 [--personal]

Starts `ridgeline audit watch --otlp --no-score`, sends protobuf requests of 512 records (the SDK's batch) over a few
connections, and reads the CPU time of the watcher from /proc. So another load on the machine matters little. At the end
the log must verify and hold every record once. Prints one line per figure; duration: about a minute on two idle cores.
"""

from __future__ import annotations

import argparse
import http.client
import os
import platform
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from ridgeline.audit import Ledger

TOKEN = "benchmark-token-0123456789"  # noqa: S105
AT_ONCE = 512  # records of one request
WARM = 20  # requests before the measured ones
CONNECTIONS = 4


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


def make_request(first: int) -> bytes:
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
            + field(5, field(1, f"invoice {i} was sent to the customer"))
            + b"".join(field(6, pair(key, field(1, text))) for key, text in words.items())
            + field(6, pair("http.response.status_code", field(3, 200)))
        )
    scope = field(1, field(1, "billing.web"))
    return field(1, field(1, resource) + field(2, scope + b"".join(field(2, record) for record in records)))


def read_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def send(port: int, bodies: list[bytes], failed: list[str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"content-type": "application/x-protobuf", "authorization": f"Bearer {TOKEN}"}
    for body in bodies:
        while True:
            connection.request("POST", "/v1/logs", body, headers)
            answer = connection.getresponse()
            answer.read()
            if answer.status not in (429, 503):
                break
            time.sleep(0.05)
        if answer.status != 200:
            failed.append(f"status {answer.status}")
    connection.close()


def send_all(port: int, bodies: list[bytes]) -> None:
    failed: list[str] = []
    threads = [threading.Thread(target=send, args=(port, bodies[k::CONNECTIONS], failed)) for k in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise SystemExit(f"{len(failed)} requests failed: {failed[0]}")


def measure(folder: Path, records: int, personal: bool) -> None:
    log = folder / "log"
    Ledger.create(log, origin="example.test/otlp").close()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["audit", "watch", str(log), "--otlp", f"127.0.0.1:{port}", "--no-score", "-q"]
    words += ["--personal", "actor", "--subject", "actor"] if personal else []
    watcher = subprocess.Popen(
        [sys.executable, "-m", "ridgeline", *words],
        env={**os.environ, "RIDGELINE_AUDIT_TOKEN": TOKEN},
        stderr=subprocess.DEVNULL,
    )
    try:
        while watcher.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        requests = records // AT_ONCE
        bodies = [make_request(k * AT_ONCE) for k in range(WARM + requests)]
        send_all(port, bodies[:WARM])
        cpu_s, start_s = read_cpu_s(watcher.pid), time.perf_counter()
        send_all(port, bodies[WARM:])
        wall_s, cpu_s = time.perf_counter() - start_s, read_cpu_s(watcher.pid) - cpu_s
    finally:
        watcher.terminate()
        watcher.wait(60)
    sent = requests * AT_ONCE
    with Ledger.open(log) as ledger:
        report = ledger.verify()
        seen = {
            event["attributes"]["request.id"]
            for event in ledger.entries()
            if not event["action"].startswith("ridgeline.")
        }
        size = ledger.size
    whole = report.ok and len(seen) == sent + WARM * AT_ONCE
    print(f"personal fields encrypted: {personal}")
    print(f"records: {sent}, each {len(bodies[0]) / AT_ONCE:.0f} bytes of protobuf; the log has {size} entries")
    print(f"each recorded once, verified: {whole}")
    print(f"records per second of CPU time: {sent / cpu_s:.0f}")
    print(f"records per second beside its client on this machine, which had other work: {sent / wall_s:.0f}")
    if not whole:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--folder", type=Path, default=None)
    args = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    for personal in (False, True):
        folder = Path(tempfile.mkdtemp(dir=args.folder))
        try:
            measure(folder, args.records, personal)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
