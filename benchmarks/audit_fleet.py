"""One collector and a thousand hosts: what `ridgeline audit collect` needs for each event, and whether it keeps up.

    python benchmarks/audit_fleet.py [--hosts 1000] [--events 10] [--seconds 60]

Starts the collector as a process of its own. This process plays the hosts: each has a key and a connection by TLS, and
sends frames with its new events, a signed checkpoint and the proofs, as `audit forward` does, a second apart or what
the collector asks for. All frames are made before the start. CPU time, memory, descriptors and threads of the collector
come from /proc, so another load on the machine matters little for them; the waits for answers are those of this
machine. At the end one host offers another past, one has been silent, and every copy is verified. Duration: about three
minutes with the default values.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.audit import Signer, new_signer
from ridgeline.audit.fleet import channel, examine_fleet, read_alerts_of_fleet
from ridgeline.audit.fleet.collector import FRAMES_PER_S
from ridgeline.audit.ledger import merkle
from ridgeline.audit.ledger.checkpoint import Verifier, parse_verifier, sign_checkpoint
from ridgeline.audit.ledger.event import encode
from ridgeline.native import merkle_root

SILENT_S = 20.0
START_NS = 1_700_000_000_000_000_000


@dataclass
class Host:
    """A simulated host: its key, its leaf hashes, and the frames that it will send."""

    number: int
    signer: Signer
    hashes: list[bytes] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    waits_ms: list[float] = field(default_factory=list)
    late: int = 0  # frames that were due before the answer to the one before them

    def node(self, level: int, index: int) -> bytes:
        return merkle_root(b"".join(self.hashes[index << level : (index + 1) << level]))

    def make_frame(self, count: int, words: str = "session opened") -> tuple[bytes, int]:
        """Append events; return the frame that sends them, and the size of the log after it."""
        first = len(self.hashes)
        encoded = encode(
            [
                {
                    "time": START_NS + (first + k) * 100_000_000,
                    "source": "journal",
                    "actor": f"user{(first + k) % 7}",
                    "action": "journal.sshd",
                    "subject": "ssh.service",
                    "attributes": {
                        "message": f"{words} for user{k} from 10.0.{self.number % 250}.{k}",
                        "pid": first + k,
                    },
                }
                for k in range(count)
            ]
        )
        self.hashes += [encoded.hashes[k * 32 : (k + 1) * 32] for k in range(count)]
        size = first + count
        root = merkle.root(size, self.node)
        checkpoint = sign_checkpoint(self.signer.name, size, root, self.signer)
        proof = merkle.consistency_path(first, size, self.node)
        header = {
            "checkpoint": str(checkpoint),
            "proof": [base64.b64encode(word).decode() for word in proof],
            "first": first,
            "count": count,
            "path": [],
        }
        return channel.pack_frame(header, encoded.entries), size

    def prepare(self, frames: int, events: int) -> None:
        for _ in range(frames):
            frame, size = self.make_frame(events)
            self.frames.append(frame)
            self.sizes.append(size)

    async def connect(
        self, port: int, collector: Verifier
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, channel.Header]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=channel.make_client_context())
        hello, _ = await channel.read_frame(reader)
        text = channel.format_proof_of_key(str(hello["nonce"]), collector, self.signer.verifier)
        proof = base64.b64encode(self.signer.sign(text).body).decode()
        header = {"ridgeline": channel.VERSION, "key": str(self.signer.verifier), "signature": proof}
        writer.write(channel.pack_frame(header))
        answer, _ = await channel.read_frame(reader)
        return reader, writer, answer

    async def send(self, port: int, collector: Verifier, start: asyncio.Event, share: float, pause: float) -> None:
        """Send the frames, each `pause` seconds after the one before, from `share` of a pause on."""
        reader, writer, _ = await self.connect(port, collector)
        await start.wait()
        start_s = time.perf_counter() + share * pause
        for number, (frame, size) in enumerate(zip(self.frames, self.sizes, strict=True)):
            left_s = start_s + number * pause - time.perf_counter()
            if left_s > 0:
                await asyncio.sleep(left_s)
            elif number:
                self.late += 1
            sent_s = time.perf_counter()
            writer.write(frame)
            answer, _ = await channel.read_frame(reader)
            self.waits_ms.append((time.perf_counter() - sent_s) * 1e3)
            if answer.get("size") != size:
                raise SystemExit(f"{self.signer.name}: {answer} instead of size {size}")
        writer.close()


@dataclass
class Usage:
    """What a process has used, from /proc."""

    cpu_s: float
    peak_mib: float
    descriptors: int
    threads: int

    @classmethod
    def read(cls, pid: int) -> Usage:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        return cls(
            (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
            int(peak[1]) / 1024 if peak else 0.0,
            len(os.listdir(f"/proc/{pid}/fd")),
            int(fields[17]),
        )


def start_collector(fleet: Path, trusted: Path) -> tuple[subprocess.Popen[str], int, Verifier]:
    words = ["audit", "collect", str(fleet), "--listen", "127.0.0.1:0", "--trust", str(trusted)]
    process = subprocess.Popen(
        [sys.executable, "-m", "ridgeline", *words, "--silent-after", str(SILENT_S)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None  # noqa: S101
    line = process.stdout.readline()
    port = int(re.findall(r":(\d+) ", line)[0])
    return process, port, parse_verifier(re.findall(r"\S+\+[0-9a-f]{8}\+\S+", process.stdout.readline())[0])


async def run(
    hosts: list[Host], pid: int, port: int, collector: Verifier, pause: float, warm_s: float
) -> tuple[Usage, Usage, float]:
    """Let all hosts send; return the usage after `warm_s` seconds and at the end, and the seconds between."""
    start = asyncio.Event()
    tasks = [asyncio.create_task(h.send(port, collector, start, k / len(hosts), pause)) for k, h in enumerate(hosts)]
    while len(os.listdir(f"/proc/{pid}/fd")) < len(hosts):  # all are connected
        await asyncio.sleep(0.2)
    await asyncio.sleep(3.0)
    start.set()
    await asyncio.sleep(warm_s)
    before, before_s = Usage.read(pid), time.perf_counter()
    await asyncio.gather(*tasks)
    seconds, after = time.perf_counter() - before_s, Usage.read(pid)
    return before, after, seconds


async def offer_another_past(host: Host, port: int, collector: Verifier) -> str:
    """Offer a log of the same key and size with other entries; return what the collector refuses it as."""
    liar = Host(host.number, host.signer)
    frame, _ = liar.make_frame(len(host.hashes) + 1, "nothing happened")
    reader, writer, _ = await host.connect(port, collector)
    writer.write(frame)
    answer, _ = await channel.read_frame(reader)
    writer.close()
    return str(answer.get("refused"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--events", type=int, default=10, help="events of each host per second")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--folder", type=Path, default=None)
    args = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    folder, pause = Path(tempfile.mkdtemp(dir=args.folder)), max(1.0, args.hosts / FRAMES_PER_S)
    warm, frames = max(1, round(5 / pause)), round(args.seconds / pause)
    events = round(args.events * pause)  # of one frame
    hosts = [Host(k, new_signer(f"host{k}.test/audit")) for k in range(args.hosts)]
    for host in hosts:
        host.prepare(warm + frames, events)
    silent = Host(args.hosts, new_signer("silent.test/audit"))
    keys = [str(host.signer.verifier) for host in (*hosts, silent)]
    (folder / "keys").write_text("\n".join(keys) + "\n")
    fleet = folder / "fleet"
    process, port, collector = start_collector(fleet, folder / "keys")
    own_s = time.process_time()
    try:
        before, after, seconds = asyncio.run(run(hosts, process.pid, port, collector, pause, warm * pause))
        own_s = time.process_time() - own_s
        refused = asyncio.run(offer_another_past(hosts[7], port, collector))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    taken = args.hosts * frames * events
    cpu_s = after.cpu_s - before.cpu_s
    waits = [wait for host in hosts for wait in host.waits_ms[warm:]]
    alerts = [(alert["fired"][0], alert["origin"]) for alert in read_alerts_of_fleet(fleet)]
    reports = examine_fleet(fleet)
    expected = (warm + frames) * events
    complete = sum(r.ok and r.checkpoint is not None and r.checkpoint.size == expected for _, r in reports)
    words = {
        "hosts": args.hosts,
        "pause_s": pause,
        "events_per_s": round(taken / seconds),
        "seconds": round(seconds, 1),
        "cpu_us_per_event": round(cpu_s / taken * 1e6, 1),
        "cpu_cores": round(cpu_s / seconds, 2),
        "peak_mib": round(after.peak_mib),
        "descriptors": before.descriptors,
        "threads": before.threads,
        "wait_p50_ms": round(statistics.median(waits), 1),
        "wait_p99_ms": round(statistics.quantiles(waits, n=100)[98], 1),
        "late_frames": sum(host.late for host in hosts),
        "cpu_s_of_the_hosts": round(own_s, 1),
        "copies_complete_and_verified": complete,
        "refused": refused,
        "alerts": Counter(kind for kind, _ in alerts),
    }
    print(json.dumps(words))
    shutil.rmtree(folder)
    named = {("rewritten", hosts[7].signer.name), ("silent", silent.signer.name)}
    if complete != args.hosts or refused != "rewritten" or not named <= set(alerts):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
