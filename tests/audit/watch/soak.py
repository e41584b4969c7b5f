"""Everything goes wrong at once for minutes: every line and every acknowledged request is recorded exactly once.

    python -m tests.audit.watch.soak [--minutes 30] [--seed 5] [--folder /var/tmp]

A watcher follows a file of lines and receives events by HTTP, while the file is rotated, and strangers hold
connections open or send nonsense. In random order and at random moments the watcher is killed, its disk is full (this
needs root: the disk is a small tmpfs), it has no descriptors left, and its clock jumps by hours; some kills come
while the disk is full or descriptors are missing. At the end the log must verify, hold each line once and in order,
hold each acknowledged request once, and have an alert for every outage. Prints one JSON object; exits with 1 if
something is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ridgeline.audit import Ledger

TOKEN = "soak-token-0123456789"
DESCRIPTORS = 256
DISK_MB = 1_000
ALERT_S = 60.0  # an outage must be alerted within this time
STRANGERS = 150
FAULTS = ("kill", "kill", "kill", "kill", "full disk", "no descriptors", "clock")  # of one round, in random order
NONSENSE = (b"POST /events HTTP/1.1\r\nhost: x", b"\x00\xff nonsense\r\n\r\n", b"")
WATCHER = """
import mmap, struct, sys, time
with open(sys.argv[1], "rb") as file:
    clock = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
real_ns = time.time_ns
time.time_ns = lambda: real_ns() + struct.unpack_from("q", clock)[0]
time.time = lambda: time.time_ns() / 1e9
from ridgeline.cli import main
sys.exit(main(sys.argv[2:]))
"""  # a watcher whose wall clock is off by the nanoseconds in a file


Watching = subprocess.Popen[bytes]


class Soak:
    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, random.Random(seed)
        self.disk, self.lines, self.clock = folder / "disk", folder / "a.log", folder / "clock"
        self.disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(self.disk)]
        self.small_disk = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
        self.log = self.disk / "log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.stop, self.mutex = threading.Event(), threading.Lock()
        self.written = self.rotations = 0
        self.acknowledged: list[str] = []
        self.faults: Counter[str] = Counter()
        self.failures: list[str] = []
        self.clock.write_bytes(bytes(8))
        self.lines.touch()
        self.run("audit", "init", str(self.log))

    def run(self, *words: str) -> str:
        command = [sys.executable, "-m", "ridgeline", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            self.failures.append(f"{' '.join(words)}: exit {done.returncode}: {done.stderr[-300:]}")
        return done.stdout

    def start(self) -> Watching:
        watch = ["audit", "watch", str(self.log), "--lines", str(self.lines), "--http", f":{self.port}"]
        with (self.folder / "alerts").open("ab") as out, (self.folder / "stderr").open("ab") as err:
            return subprocess.Popen(
                [sys.executable, "-c", WATCHER, str(self.clock), *watch, "--no-score", "--json", "-q"],
                env={**os.environ, "RIDGELINE_AUDIT_TOKEN": TOKEN},
                stdout=out,
                stderr=err,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS)),
            )

    def write_lines(self) -> None:
        """Append numbered lines whose own times jump by years; rotate the file now and then."""
        rng = random.Random(self.rng.random())
        while not self.stop.is_set():
            with self.mutex, self.lines.open("a") as file:
                for _ in range(rng.choice((1, 5, 50))):
                    day = rng.choice(("2020-01-01", "2031-05-05", "2026-11-18"))
                    file.write(f"{day}T10:00:00Z host app[1]: line {self.written}\n")
                    self.written += 1
            time.sleep(rng.choice((0.01, 0.1)))
            if rng.random() < 0.004:
                with self.mutex:
                    self.rotate()

    def rotate(self) -> None:
        """Give the file another name and make a new one; call it under the mutex."""
        self.rotations += 1
        os.rename(self.lines, f"{self.lines}.{self.rotations}")
        self.lines.touch()

    def send_requests(self) -> None:
        """Post events; one that was not acknowledged is sent again under its key."""
        while not self.stop.is_set():
            key = str(uuid.uuid4())
            body = json.dumps({"source": "soak", "action": "soak.request", "subject": key}).encode()
            headers = {"authorization": f"Bearer {TOKEN}", "idempotency-key": key}
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}/events", body, headers)
            while True:
                try:
                    with urllib.request.urlopen(request, timeout=5):
                        pass
                    with self.mutex:
                        self.acknowledged.append(key)
                    break
                except (OSError, urllib.error.URLError, ValueError):
                    if self.stop.is_set():
                        return
                    time.sleep(0.2)
            time.sleep(0.02)

    def hold_connections(self) -> None:
        rng = random.Random(self.rng.random())
        while not self.stop.is_set():
            strangers = []
            for _ in range(STRANGERS):
                stranger = socket.socket()
                stranger.settimeout(0.2)
                with suppress(OSError):
                    stranger.connect(("127.0.0.1", self.port))
                    stranger.sendall(rng.choice(NONSENSE))
                strangers.append(stranger)
            time.sleep(1)
            for stranger in strangers:
                stranger.close()

    def count_alerts(self) -> int:
        return (self.folder / "alerts").read_text().count('"kind": "outage"')

    def await_alert(self, process: Watching, fault: str, before: int, first: int | None = None) -> None:
        """Wait for an alert, or until a line from `first` on is recorded, because then there was no outage."""
        until, start = time.monotonic() + ALERT_S, Ledger.open(self.log).size if first is not None else 0
        while self.count_alerts() == before:
            if first is not None and max(read_numbers(Ledger.open(self.log).entries(start)), default=-1) >= first:
                return
            if process.poll() is not None:
                self.failures.append(f"{fault}: the watcher ended by itself with {process.returncode}")
                return
            if time.monotonic() > until:
                self.failures.append(f"{fault}: no alert in {ALERT_S:g} s")
                return
            time.sleep(0.05)

    def fill_disk(self, process: Watching) -> Watching:
        """Fill the disk until the watcher says so; then free it, or kill the watcher before."""
        if not (self.small_disk and self.is_recording(process)):
            return process
        self.faults["full disks"] += 1
        before, filler = self.count_alerts(), self.disk / "filler"
        for mode, size in (("wb", 1 << 16), ("ab", 1 << 9)):
            with suppress(OSError), filler.open(mode, buffering=0) as file:
                while True:
                    file.write(bytes(size))
        self.await_alert(process, "full disk", before)
        time.sleep(self.rng.uniform(0, 3))
        if self.rng.random() < 0.3:
            process = self.kill(process, start=False)
            filler.unlink()
            return self.start()
        filler.unlink()
        return process

    def kill(self, process: Watching, start: bool = True) -> Watching:
        self.faults["kills"] += 1
        process.kill()
        process.wait()
        return self.start() if start else process

    def exhaust_descriptors(self, process: Watching) -> Watching:
        """Leave the watcher no descriptor and rotate the file, so that it needs one."""
        if not self.is_recording(process):
            return process
        self.faults["descriptor shortages"] += 1
        before, used = self.count_alerts(), set(map(int, os.listdir(f"/proc/{process.pid}/fd")))
        free = next(number for number in range(DESCRIPTORS) if number not in used)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (free, DESCRIPTORS))
        with self.mutex:
            self.rotate()
            first = self.written
        self.await_alert(process, "no descriptors", before, first)
        if self.rng.random() < 0.3:
            return self.kill(process)
        time.sleep(self.rng.uniform(0, 3))
        with suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        return process

    def jump(self) -> None:
        self.faults["clock jumps"] += 1
        offset = self.rng.choice((-86_400, -3_600, -30, 0, 45, 7_200, 40 * 86_400)) * 10**9
        with self.clock.open("r+b") as file:  # in place: the watchers have mapped it
            file.write(offset.to_bytes(8, sys.byteorder, signed=True))

    def disturb(self, minutes: float) -> None:
        """Run rounds of faults until the time is over; a round is always finished."""
        jobs = (self.write_lines, self.send_requests, self.send_requests, self.hold_connections)
        threads = [threading.Thread(target=job, daemon=True) for job in jobs]
        process = self.start()
        self.is_recording(process)  # a file that is rotated before the first start is not this watcher's
        for thread in threads:
            thread.start()
        end = time.monotonic() + minutes * 60
        while time.monotonic() < end:
            for fault in self.rng.sample(FAULTS, len(FAULTS)):
                time.sleep(self.rng.uniform(1, 7))
                if process.poll() is not None:
                    self.failures.append(f"the watcher ended by itself with {process.returncode}")
                    process = self.start()
                elif fault == "kill":
                    process = self.kill(process)
                elif fault == "full disk":
                    process = self.fill_disk(process)
                elif fault == "no descriptors":
                    process = self.exhaust_descriptors(process)
                else:
                    self.jump()
        self.stop.set()
        for thread in threads:
            thread.join(60)
        self.is_recording(process)
        process.send_signal(signal.SIGINT)
        try:
            if process.wait(120) not in (0, 1):  # 1: there was an outage
                self.failures.append(f"the last watcher ended with {process.returncode}")
        except subprocess.TimeoutExpired:
            self.failures.append("the last watcher did not end")
            self.kill(process, start=False)

    def is_recording(self, process: Watching) -> bool:
        """Wait until the watcher answers requests: then it also reads the file."""
        until = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < until:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                probe.sendall(b"GET / HTTP/1.0\r\n\r\n")
                if probe.recv(16):
                    return True
            time.sleep(0.2)
        return False

    def report(self) -> dict[str, Any]:
        self.run("audit", "watch", str(self.log), "--lines", str(self.lines), "--no-follow", "--no-score", "-q")
        self.run("audit", "verify", str(self.log))
        keys, numbers, alerted, gaps = Counter[str](), list[int](), set[int](), list[Any]()
        down, count = set[int](), 0
        for index, event in enumerate(Ledger.open(self.log).entries()):
            count, words = count + 1, event["attributes"]
            if event["action"] == "soak.request":
                keys[event["subject"]] += 1
            elif event["action"] == "ridgeline.watch.down":
                down.add(index)
            elif event["action"] == "ridgeline.watch.alert":
                alerted.add(words["entry"])
            elif event["action"] == "ridgeline.watch.gap":
                gaps.append(words)
            else:
                numbers += read_numbers([event])
        lost = sorted(set(range(self.written)) - set(numbers))
        report = {
            **dict(sorted(self.faults.items())),
            "rotations": self.rotations,
            "small_disk": self.small_disk,
            "lines": self.written,
            "lines_lost": len(lost),
            "lines_doubled": len(numbers) - len(set(numbers)),
            "lines_in_order": numbers == sorted(numbers),
            "requests": len(self.acknowledged),
            "requests_lost": len(set(self.acknowledged) - set(keys)),
            "requests_doubled": sum(n - 1 for n in keys.values()),
            "outages": len(down),
            "outages_printed": self.count_alerts(),
            "outages_without_alert": len(down - alerted),
            "gaps": gaps[:5],
            "stderr_bytes": (self.folder / "stderr").stat().st_size,
            "entries": count,
            "first_lost": lost[:5],
            "failures": self.failures,
        }
        wrong = ("lines_lost", "lines_doubled", "requests_lost", "requests_doubled", "outages_without_alert", "gaps")
        return {**report, "ok": report["lines_in_order"] and not (self.failures or any(report[n] for n in wrong))}

    def close(self) -> None:
        if self.small_disk:
            subprocess.run(["umount", str(self.disk)], check=False)


def read_numbers(events: Iterable[dict[str, Any]]) -> Iterator[int]:
    """Yield the numbers of the events that are lines of the file."""
    for event in events:
        if event["action"] == "log.line" and (match := re.search(r"line (\d+)$", event["attributes"]["message"])):
            yield int(match[1])


def run_soak(minutes: float, seed: int, folder: Path) -> dict[str, Any]:
    place = Path(tempfile.mkdtemp(dir=folder, prefix="soak-"))
    soak = Soak(place, seed)
    try:
        soak.disturb(minutes)
        report = soak.report()
    finally:
        soak.close()
    if report["ok"]:
        shutil.rmtree(place)
    return {**report, "folder": None if report["ok"] else str(place)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"))
    arguments = parser.parse_args()
    report = run_soak(arguments.minutes, arguments.seed, arguments.folder)
    print(json.dumps(report, indent=1))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
