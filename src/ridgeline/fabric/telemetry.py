"""What a rank is doing, for others: metrics over HTTP in the format of Prometheus, and a trace of its calls.

    RIDGELINE_FABRIC_METRICS=:9400        http://<address of the rank>:9400/metrics; the second rank of a host has 9401
    RIDGELINE_FABRIC_TRACE=trace          trace-0.json of rank 0, which chrome://tracing and Perfetto show

The metrics are those of the communicator that `init`, `join`, `shrink` or `grow` returned last.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.errors import InputError, MissingExtra
from ridgeline.fabric.failure_messages import OPS
from ridgeline.fabric.hosts import Address
from ridgeline.native import NetworkCollective

if TYPE_CHECKING:
    from ridgeline.fabric.communicator import Communicator

PREFIX = "ridgeline_fabric"


def list_metrics_addresses(comm: Communicator) -> list[str]:
    """host:port of the metrics of each rank, as the setting of this rank has it; empty: none."""
    host, _, port = comm.config.metrics.rpartition(":")
    if not port:
        return []
    membership = comm._world.membership
    counts: dict[str, int] = {}
    addresses = []
    for rank in comm._world_ranks:
        if membership is None:
            host_address = host or "127.0.0.1"
        else:
            host_address = host or membership.members[rank].address.rpartition(":")[0].strip("[]")
        host_address = "127.0.0.1" if host_address.startswith("@") else host_address
        number = counts.setdefault(host_address, 0)
        counts[host_address] += 1
        addresses.append(str(Address(host_address, int(port) + number)))
    return addresses


class _Exporter:
    """Serves the metrics of the current communicator."""

    def __init__(self, comm: Communicator) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError:
            raise MissingExtra("RIDGELINE_FABRIC_METRICS", "serve") from None
        self.comm = comm
        registry = CollectorRegistry()
        registry.register(self)
        address = list_metrics_addresses(comm)[comm.rank]
        host, _, port = address.rpartition(":")
        try:
            self._server, self._thread = start_http_server(int(port), host.strip("[]"), registry)
        except OSError as error:
            raise InputError(
                f"the metrics cannot be served at {address} ({error.strerror}); choose another port."
            ) from None

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def describe(self) -> list[Any]:
        return []  # names are known only when ranks have made calls

    def collect(self) -> Iterator[Any]:
        """The metrics, at the moment when they are asked for."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        comm = self.comm
        stats, me = comm.stats(), str(comm.rank)
        pair = ["rank", "peer"]
        families = {
            "bytes": CounterMetricFamily(
                f"{PREFIX}_bytes", "Bytes sent to and received from a rank.", labels=[*pair, "op"]
            ),
            "calls": CounterMetricFamily(f"{PREFIX}_calls", "Calls.", labels=[*pair, "op"]),
            "seconds": CounterMetricFamily(f"{PREFIX}_seconds", "Time in calls.", labels=[*pair, "op"]),
        }
        waiting = CounterMetricFamily(
            f"{PREFIX}_waiting_seconds", "Time that this rank waited for a rank.", labels=pair
        )
        again = CounterMetricFamily(f"{PREFIX}_retransmissions", "Packets sent again.", labels=[*pair, "transport"])
        rtt = GaugeMetricFamily(f"{PREFIX}_rtt_seconds", "Round-trip time.", labels=pair)
        for peer, row in stats["peers"].items():
            labels = [me, str(peer)]
            for op, usage in row["ops"].items():
                families["bytes"].add_metric([*labels, op], usage["sent"] + usage["received"])
                families["calls"].add_metric([*labels, op], usage["calls"])
                families["seconds"].add_metric([*labels, op], usage["seconds"])
            waiting.add_metric(labels, row["waiting"])
            again.add_metric([*labels, row["transport"]], row["retransmissions"])
            if row["rtt"] is not None:
                rtt.add_metric(labels, row["rtt"])
        strangers = CounterMetricFamily(f"{PREFIX}_strangers", "Connections that were dropped.", labels=["rank"])
        strangers.add_metric([me], stats["strangers"])
        call = GaugeMetricFamily(
            f"{PREFIX}_call", "Number of the call in progress.", labels=["rank", "op", "waits_for"]
        )
        op, number, waits_for = read_call(comm)
        if op:
            call.add_metric([me, op, waits_for], number)
        ranks = GaugeMetricFamily(f"{PREFIX}_rank", "The ranks and their metrics.", labels=["rank", "metrics"])
        for rank, address in enumerate(list_metrics_addresses(comm)):
            ranks.add_metric([str(rank), address], 1)
        yield from (*families.values(), waiting, again, rtt, strangers, call, ranks)


def read_call(comm: Communicator) -> tuple[str, int, str]:
    """(operation, number, rank that it waits for) of the call in progress; ("", 0, "") between calls."""
    engine: Any = comm._engine
    if not isinstance(engine, NetworkCollective) or not (value := engine.current_call):
        return "", 0, ""
    rank = engine.waits_for(comm.rank)
    return OPS[(value & 255) - 1], value >> 8, str(rank) if rank >= 0 else ""


_lock = threading.Lock()
_current: list[_Exporter] = []


def publish_metrics(comm: Communicator) -> None:
    """Serve the metrics of this communicator from now on, if the settings say so."""
    if not comm.config.metrics:
        return
    with _lock:
        if _current:
            _current[0].comm = comm
        else:
            _current.append(_Exporter(comm))


def withdraw_metrics(comm: Communicator) -> None:
    """End the server, if it serves this communicator."""
    with _lock:
        if _current and _current[0].comm is comm:
            _current.pop().close()


class Trace:
    """Writes one line for each call: an array of events in the format of chrome://tracing, without its end."""

    def __init__(self, path: str, rank: int) -> None:
        name = Path(f"{path}-{rank}.json")
        try:
            self._file = name.open("a", buffering=1, encoding="utf-8")
        except OSError as error:
            raise InputError(f"the trace {name} cannot be written ({error.strerror}).") from None
        if self._file.tell() == 0:
            self._file.write("[\n")
        self._rank = rank

    def measure(self, name: str, read: Callable[[], tuple[int, int]], call: Callable[[], int]) -> int:
        """Run a call; `read` returns its bytes and the nanoseconds of waiting so far."""
        before, start = read(), time.time_ns()
        try:
            code = call()
        finally:
            nbytes, waited = (b - a for a, b in zip(before, read(), strict=True))
            event = {
                "name": name,
                "ph": "X",
                "ts": start / 1e3,
                "dur": (time.time_ns() - start) / 1e3,
                "pid": self._rank,
                "tid": threading.get_native_id(),
                "args": {"bytes": nbytes, "waited_us": waited / 1e3},
            }
            with suppress(ValueError):  # closed by another thread
                self._file.write(json.dumps(event) + ",\n")
        return code

    def close(self) -> None:
        self._file.close()
