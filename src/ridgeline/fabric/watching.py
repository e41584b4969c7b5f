"""Read the metrics of all ranks of a job: `ridgeline fabric watch`."""

from __future__ import annotations

import re
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ridgeline.errors import InputError

TIMEOUT_S = 3.0
_SAMPLE = re.compile(r"^ridgeline_fabric_(\w+?)(_total)?\{([^}]*)\} (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass
class RankReading:
    """The metrics of one rank at one moment."""

    rank: int
    at: float  # seconds
    bytes: dict[int, float] = field(default_factory=dict)  # by peer
    waiting: dict[int, float] = field(default_factory=dict)
    rtt: dict[int, float] = field(default_factory=dict)
    retransmissions: float = 0.0
    call: str = ""  # in progress
    waits_for: int | None = None


def read_metrics(address: str) -> tuple[RankReading, dict[int, str]]:
    """The metrics of the rank at host:port, and the addresses of all ranks; raises InputError."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=TIMEOUT_S) as answer:
            text = answer.read(1 << 24).decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        raise InputError(f"no metrics at {address} ({error}); start ranks with RIDGELINE_FABRIC_METRICS.") from None
    return parse_metrics(text, address, time.monotonic())


def parse_metrics(text: str, address: str, at: float) -> tuple[RankReading, dict[int, str]]:
    reading, ranks = RankReading(-1, at), {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        name, labels = match[1], dict(_LABEL.findall(match[3]))
        try:
            value, rank = float(match[4]), int(labels["rank"])
            peer = int(labels["peer"]) if "peer" in labels else -1
        except (KeyError, ValueError):
            continue
        if name == "rank":
            ranks[rank] = labels.get("metrics", "")
            continue
        reading.rank = rank
        if name == "bytes":
            reading.bytes[peer] = reading.bytes.get(peer, 0.0) + value
        elif name == "waiting_seconds":
            reading.waiting[peer] = value
        elif name == "rtt_seconds":
            reading.rtt[peer] = value
        elif name == "retransmissions":
            reading.retransmissions += value
        elif name == "call":
            reading.call = f"{labels.get('op', '')} #{value:.0f}"
            reading.waits_for = int(labels["waits_for"]) if labels.get("waits_for") else None
    if not ranks:
        raise InputError(f"{address} serves no metrics of fabric; give the address of a rank.")
    return reading, ranks


class Watcher:
    """Compares what the ranks say now with what they said before."""

    def __init__(self, address: str) -> None:
        _, self._addresses = read_metrics(address)
        self._before: dict[int, RankReading] = {}

    def read(self) -> dict[str, Any]:
        """A row for each rank, the slowest rank and the slowest link; rates are since the last reading."""
        with ThreadPoolExecutor(min(32, len(self._addresses))) as pool:
            readings = dict(pool.map(self._read_rank, self._addresses.items()))
        rows: list[dict[str, Any]] = []
        for rank, reading in sorted(readings.items()):
            before = self._before.get(rank)
            if reading is None:
                rows.append({"rank": rank, "state": "no answer"})
                continue
            seconds = reading.at - before.at if before else 0.0
            rate, waiting = 0.0, {}
            if before and seconds:
                rate = (sum(reading.bytes.values()) - sum(before.bytes.values())) / seconds
                waiting = {p: (w - before.waiting.get(p, 0.0)) / seconds for p, w in reading.waiting.items()}
            rows.append(
                {
                    "rank": rank,
                    "state": reading.call or "between calls",
                    "bytes_per_s": rate,
                    "waiting": waiting,  # share of the time, by rank
                    "waits_for": reading.waits_for,
                    "rtt": reading.rtt,
                    "retransmissions": reading.retransmissions,
                }
            )
        self._before = {rank: reading for rank, reading in readings.items() if reading is not None}
        links: dict[tuple[int, int], float] = {
            (row["rank"], p): rtt for row in rows for p, rtt in row.get("rtt", {}).items()
        }
        waited_for: dict[int, float] = {}
        for row in rows:
            for peer, share in row.get("waiting", {}).items():
                waited_for[peer] = waited_for.get(peer, 0.0) + share
        slowest_link = max(links, key=lambda pair: links[pair], default=None)
        slowest = max(waited_for, key=lambda r: waited_for[r], default=None)
        return {
            "ranks": rows,
            "slowest_rank": slowest if slowest is not None and waited_for[slowest] > 0 else None,
            "slowest_link": list(slowest_link) if slowest_link else None,
        }

    def _read_rank(self, item: tuple[int, str]) -> tuple[int, RankReading | None]:
        rank, address = item
        try:
            return rank, read_metrics(address)[0]
        except InputError:
            return rank, None
