"""Load of many clients on `ridgeline serve`: texts per second, latencies, CPU time, and whether every answer is right.

    python benchmarks/serve_load.py [MODEL] [--device cuda] [--workers 1,4,4x1,8@4] [--clients 64] [--out FILE]

About 15 seconds for each number of workers; 4x1 is four servers of one process, 8@4 is eight workers and four engines.
MODEL is a folder or a name (default: RIDGELINE_MODEL, else all-MiniLM-L6-v2). The clients are raw sockets in a few
processes of this machine, with requests that were built before: they cost little CPU time, which is in the table beside
that of the server. `load` is a closed loop of all clients, each with its own connection; `one` is one client with one
text a request. A part of the answers is decoded and compared with what the library gives for the same texts.
`in process` is one call of `Embedder.encode`, before and after.

The last part sends requests of one to 32 texts, cancels one in twenty, reloads the model three times meanwhile and ends
the server by SIGTERM while requests are in progress. It compares every answer.
"""

from __future__ import annotations

import argparse
import base64
import json
import multiprocessing
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

START_S = 180.0
CALM_S = 0.5  # after the warm-up
RELOADS = 3
COMPARED = 16  # one answer in so many is decoded and compared
WORDS = """
a the of in night day city house river old young king queen war love story film road island winter summer woman
man child doctor detective train ship star moon garden letter secret return last first long quiet dark light
family friend stranger journey voice dream
""".split()  # noqa: SIM905  shorter than a list
LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


@dataclass(frozen=True)
class Task:
    """What one process of clients does.

    requests  the bytes of each request, head and body
    rows      the rows of `vectors` that answer each request
    count     of all requests, or None: until `seconds` have passed
    cancelled share of the requests whose client leaves at once
    seed      of the order of the requests
    """

    port: int
    clients: int
    requests: list[bytes]
    rows: list[list[int]]
    vectors: Any
    seconds: float = 0.0
    count: int | None = None
    cancelled: float = 0.0
    compared: int = COMPARED
    may_end: bool = False  # the server ends meanwhile: it may refuse requests
    seed: int = 0


@dataclass
class Outcome:
    """What one process of clients saw. Times are seconds."""

    times: list[float] = field(default_factory=list)
    texts: int = 0
    refused: int = 0  # connections that the ending server closed or did not take, before any byte of an answer
    cancelled: int = 0
    compared: int = 0
    unequal: int = 0  # answers whose bits differ from the library's
    difference: float = 0.0  # the largest of a component
    wrong: list[str] = field(default_factory=list)  # answers that are none
    seconds: float = 0.0
    cpu_s: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=os.environ.get("RIDGELINE_MODEL", "all-MiniLM-L6-v2"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument(
        "--workers", default="1,4,8", help="numbers of workers, one after the other; SERVERSxWORKERS@ENGINES"
    )
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--texts", type=int, default=32, help="of a request")
    parser.add_argument("--words", type=int, default=16, help="of a text, on average")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--processes", type=int, default=4, help="of the clients")
    parser.add_argument("--mixed", type=int, default=24_000, help="requests of the last part; 0 leaves it out")
    parser.add_argument("--serve", default="", help="further options of the server, in one word")
    parser.add_argument("--out", type=Path, help="also write the results to this file, as JSON lines")
    options = parser.parse_args()
    texts = make_texts(2048, options.words)
    in_process = InProcess(options, texts)
    lines = [{"what": "in process", **in_process.measure()}]
    spreads = [read_spread(word) for word in options.workers.split(",")]
    for servers, workers, engines in spreads:
        with ExitStack() as stack:
            running = [stack.enter_context(start_server(options, workers, engines)) for _ in range(servers)]
            name = {"servers": servers, "workers": workers, "engines": engines}
            lines.append({"what": "load", **name, **run_load(running, options, texts, in_process.vectors)})
            lines.append({"what": "one", **name, **run_one(running[0], texts, in_process.vectors)})
    lines.append({"what": "in process, again", **in_process.measure()})
    if options.mixed:
        _, workers, engines = spreads[-1]
        with start_server(options, workers, engines) as server:
            result = run_mixed(server, options, texts, in_process.vectors)
        lines.append({"what": "mixed", "workers": workers, "engines": engines, **result})
    if options.out is not None:
        options.out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    print(in_process.description)
    for line in lines:
        print("  ".join(f"{name} {value}" for name, value in line.items() if value != 0), flush=True)


def read_spread(word: str) -> tuple[int, int, int]:
    """Return the numbers of servers, workers and engines of SERVERSxWORKERS@ENGINES, of which two can be missing."""
    servers, _, rest = word.rpartition("x")
    workers, _, engines = rest.partition("@")
    return int(servers or 1), int(workers), int(engines or 1)


def make_texts(count: int, words: int) -> list[str]:
    """Return short texts of common words; their lengths are even around the mean."""
    draw = random.Random(1)  # noqa: S311  the same every time
    return [" ".join(draw.choices(WORDS, k=draw.randint(words // 2, words * 3 // 2))) for _ in range(count)]


class InProcess:
    """The library itself: the expected vectors, its rate and its time for one text."""

    def __init__(self, options: Any, texts: list[str]) -> None:
        import ridgeline

        self._texts = texts
        load = partial(ridgeline.Embedder, options.model, device=options.device, dtype=options.dtype)
        try:
            self._embedder = load(batch_invariant="--any-bits" not in options.serve)
        except ridgeline.InputError:  # this device cannot promise it
            self._embedder = load()
        self.vectors = self._embedder.encode(texts)
        is_gpu = self._embedder.device.startswith("cuda")
        self._many, self._calls = (texts * 16, 200) if is_gpu else (texts[:256], 30)
        tokens = np.mean(np.diff(self._embedder.tokenize(texts).offsets))
        self.description = (
            f"{self._embedder} · batch_invariant {self._embedder.batch_invariant} · {os.cpu_count()} CPUs · "
            f"{tokens:.1f} tokens per text"
        )

    def measure(self) -> dict[str, Any]:
        def measure_rate(texts: list[str]) -> float:
            times = []
            for _ in range(5):
                start_s = time.perf_counter()
                self._embedder.encode(texts)
                times.append(time.perf_counter() - start_s)
            return len(texts) / sorted(times)[2]

        one = []
        for i in range(self._calls):
            start_s = time.perf_counter()
            self._embedder.encode([self._texts[i]])
            one.append(time.perf_counter() - start_s)
        return {
            "texts_per_s": round(measure_rate(self._many)),
            "calls_of_2048_texts_per_s": round(measure_rate(self._many[: len(self._texts)])),
            "one_text_p50_ms": round(1e3 * sorted(one)[len(one) // 2], 3),
        }


@dataclass
class Server:
    process: subprocess.Popen[str]
    port: int
    engines: int

    def read_state(self) -> dict[str, float]:
        """Return the CPU time of the engine, its event loop alone and all workers together; and the batches so far."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        processes = sorted(map(int, children)) or [self.process.pid]
        engines, workers = processes[: self.engines], processes[self.engines :]
        return {
            "cpu_s_engine": sum(read_cpu_s(Path(f"/proc/{engine}/stat")) for engine in engines),
            "cpu_s_engine_loop": sum(read_cpu_s(Path(f"/proc/{engine}/task/{engine}/stat")) for engine in engines),
            "cpu_s_workers": sum(read_cpu_s(Path(f"/proc/{worker}/stat")) for worker in workers),
            "batches": self.read_metric("ridgeline_serve_batches_total"),
            "batch_s": self.read_metric("ridgeline_serve_batch_seconds_sum"),
        }

    def read_metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))


def read_cpu_s(path: Path) -> float:
    fields = path.read_text(errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def start_server(options: Any, workers: int, engines: int = 1) -> Iterator[Server]:
    command = [sys.executable, "-m", "ridgeline", "serve", f"m={options.model}", "--port", "0"]
    command += ["--device", ",".join([options.device] * engines), "--dtype", options.dtype, "--workers", str(workers)]
    command += ["--max-queue", "100000", *options.serve.split()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = next(process.stdout or iter(()), "")  # "Serving on http://127.0.0.1:PORT/ …"
        if "://" not in line:
            sys.exit(f"the server did not start (exit code {process.wait()}).")
        server = Server(process, int(line.split("://")[1].split("/")[0].rsplit(":", 1)[1]), engines)
        wait_until_ready(server)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def wait_until_ready(server: Server) -> None:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and server.process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", server.port), 10) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            if connection.recv(4096).startswith(b"HTTP/1.1 200"):
                return
        time.sleep(0.05)
    sys.exit("the server was not ready in time.")


def build_request(texts: Sequence[str]) -> bytes:
    body = json.dumps({"model": "m", "input": texts, "encoding_format": "base64"}).encode()
    head = "POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def run_load(servers: list[Server], options: Any, texts: list[str], vectors: Any) -> dict[str, Any]:
    parts = [list(range(i, i + options.texts)) for i in range(0, len(texts) - options.texts + 1, options.texts)]
    requests = [build_request([texts[i] for i in rows]) for rows in parts]
    each = max(1, options.clients // options.processes)
    processes = min(options.processes, options.clients)

    def make_tasks(seconds: float) -> list[Task]:
        return [
            Task(servers[k % len(servers)].port, each, requests, parts, vectors, seconds=seconds, seed=k)
            for k in range(processes)
        ]

    run_tasks(make_tasks(1.0))
    time.sleep(CALM_S)
    before = [server.read_state() for server in servers]
    outcomes = run_tasks(make_tasks(options.seconds))
    after = [server.read_state() for server in servers]
    changes = {name: sum(b[name] - a[name] for a, b in zip(before, after, strict=True)) for name in before[0]}
    return summarise(outcomes) | {name: round(value, 2) for name, value in changes.items()}


def run_one(server: Server, texts: list[str], vectors: Any) -> dict[str, Any]:
    rows = [[i] for i in range(64)]
    requests = [build_request([texts[i]]) for i in range(64)]
    return summarise(run_tasks([Task(server.port, 1, requests, rows, vectors, seconds=1.0)]))


def run_mixed(server: Server, options: Any, texts: list[str], vectors: Any) -> dict[str, Any]:
    draw = random.Random(2)  # noqa: S311  the same every time
    rows = [[draw.randrange(len(texts)) for _ in range(draw.choice((1, 1, 2, 5, 9, 32)))] for _ in range(512)]
    requests = [build_request([texts[i] for i in part]) for part in rows]
    each, count = max(1, options.clients // options.processes), options.mixed // options.processes
    more: dict[str, Any] = {"cancelled": 0.05, "compared": 1}
    tasks = [
        Task(server.port, each, requests, rows, vectors, count=count, seed=seed, **more)
        for seed in range(options.processes)
    ]
    start_s = time.perf_counter()
    first = run_tasks([Task(**{**vars(task), "count": count // 2}) for task in tasks])
    length_s = time.perf_counter() - start_s
    second = start_tasks(tasks)
    reload_status = [reload_model(server) for _ in range(RELOADS)]
    outcomes = [*first, *second()]
    # The end: as many requests as before are in progress when SIGTERM comes.
    last = start_tasks([Task(**{**vars(task), "count": None, "seconds": 20.0, "may_end": True}) for task in tasks])
    time.sleep(min(2.0, length_s))
    server.process.send_signal(signal.SIGTERM)
    ending = last()
    code = server.process.wait(90)
    line = summarise([*outcomes, *ending])
    for name in ("texts_per_s", "p50_ms", "p99_ms"):
        del line[name]
    at_end = sum(len(outcome.times) for outcome in ending)
    return line | {"reload_status": reload_status, "exit_code": code, "answers_while_it_ends": at_end}


def reload_model(server: Server) -> int:
    with socket.create_connection(("127.0.0.1", server.port), 60) as connection:
        head = "POST /admin/reload HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        connection.sendall(f'{head}content-length: 13\r\n\r\n{{"model":"m"}}'.encode())
        return int(connection.recv(4096)[9:12])


def summarise(outcomes: list[Outcome]) -> dict[str, Any]:
    times = np.sort(np.concatenate([outcome.times for outcome in outcomes]))
    seconds = max(outcome.seconds for outcome in outcomes)
    wrong = [sentence for outcome in outcomes for sentence in outcome.wrong]
    line = {
        "texts_per_s": round(sum(outcome.texts for outcome in outcomes) / seconds),
        "p50_ms": round(1e3 * float(np.quantile(times, 0.5)), 3),
        "p99_ms": round(1e3 * float(np.quantile(times, 0.99)), 3),
        "answers": len(times),
        "compared": sum(outcome.compared for outcome in outcomes),
        "unequal_bits": sum(outcome.unequal for outcome in outcomes),
        "largest_difference": float(max(outcome.difference for outcome in outcomes)),
        "wrong": len(wrong),
        "cancelled": sum(outcome.cancelled for outcome in outcomes),
        "refused": sum(outcome.refused for outcome in outcomes),
        "seconds": round(seconds, 2),
        "cpu_s_clients": round(sum(outcome.cpu_s for outcome in outcomes), 2),
    }
    return line | ({"first_wrong": wrong[0]} if wrong else {})


def run_tasks(tasks: list[Task]) -> list[Outcome]:
    return start_tasks(tasks)()


def start_tasks(tasks: list[Task]) -> Any:
    """Start a process for each task; return a function that waits for what they saw."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(tasks) + 1)
    pipes = [context.Pipe(False) for _ in tasks]
    processes = [
        context.Process(target=run_clients, args=(task, barrier, pipe[1]))
        for task, pipe in zip(tasks, pipes, strict=True)
    ]
    for process in processes:
        process.start()
    barrier.wait(60)

    def wait() -> list[Outcome]:
        outcomes = [pipe[0].recv() for pipe in pipes]
        for process in processes:
            process.join(60)
        return outcomes

    return wait


class Client:
    """One connection, with at most one request in progress."""

    def __init__(self, port: int) -> None:
        self.port, self.buffer = port, bytearray(1 << 20)
        self.view = memoryview(self.buffer)
        self.size = self.length = self.request = 0
        self.sent_s = 0.0
        self.connect()

    def connect(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self.port), 30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, number: int, content: bytes) -> None:
        self.request, self.size, self.length = number, 0, 0
        self.sent_s = time.perf_counter()
        self.socket.sendall(content)

    def read(self) -> bool | None:
        """Read once; True when the answer is complete, None when the connection is closed."""
        count = self.socket.recv_into(self.view[self.size :])
        if not count:
            return None
        self.size += count
        if not self.length:
            end = self.buffer.find(b"\r\n\r\n", 0, self.size)
            if end < 0:
                return False
            found = LENGTH.search(self.buffer, 0, end + 2)
            self.body = end + 4
            self.length = self.body + int(found[1]) if found else 0
        return self.size >= self.length > 0


def run_clients(task: Task, barrier: Any, pipe: Any) -> None:
    """Run the clients of one process: a closed loop over all of them."""
    draw, outcome = random.Random(task.seed), Outcome()  # noqa: S311
    poll = select.epoll()
    clients: dict[int, Client] = {}
    sent = 0

    def send(client: Client) -> None:
        nonlocal sent
        while True:
            sent += 1
            number = draw.randrange(len(task.requests))
            client.send(number, task.requests[number])
            if draw.random() >= task.cancelled:
                return
            outcome.cancelled += 1
            close(client)
            client.connect()
            add(client)

    def add(client: Client) -> None:
        clients[client.socket.fileno()] = client
        poll.register(client.socket, select.EPOLLIN)

    def close(client: Client) -> None:
        poll.unregister(client.socket)
        del clients[client.socket.fileno()]
        client.socket.close()

    for _ in range(task.clients):
        add(Client(task.port))
    barrier.wait(60)
    start_s, cpu_s = time.perf_counter(), time.process_time()
    end_s = start_s + task.seconds
    for client in list(clients.values()):
        send(client)
    while clients:
        for fd, _ in poll.poll(60):
            client = clients.get(fd)
            if client is None:
                continue
            try:
                complete = client.read()
            except ConnectionError:
                complete = None
            if complete is False:
                continue
            if complete is None:
                if client.size or not task.may_end:
                    outcome.wrong.append(f"a connection was closed after {client.size} bytes of an answer")
                else:
                    outcome.refused += 1
                close(client)
                continue
            now_s = time.perf_counter()
            take_answer(task, outcome, client, now_s)
            if (sent >= task.count) if task.count is not None else now_s > end_s:
                close(client)
                continue
            try:
                send(client)
            except OSError as error:
                if task.may_end:
                    outcome.refused += 1
                else:
                    outcome.wrong.append(f"a request could not be sent ({error})")
                close_quietly(client, close)
    outcome.seconds, outcome.cpu_s = time.perf_counter() - start_s, time.process_time() - cpu_s
    pipe.send(outcome)


def close_quietly(client: Client, close: Any) -> None:
    with suppress(OSError, KeyError, ValueError):
        close(client)


def take_answer(task: Task, outcome: Outcome, client: Client, now_s: float) -> None:
    head = bytes(client.view[:12])
    if head != b"HTTP/1.1 200":
        if head == b"HTTP/1.1 503" and task.may_end:
            outcome.refused += 1
        else:
            outcome.wrong.append(bytes(client.view[: min(client.size, 400)]).decode(errors="replace"))
        return
    outcome.times.append(now_s - client.sent_s)
    rows = task.rows[client.request]
    outcome.texts += len(rows)
    if len(outcome.times) % task.compared:
        return
    outcome.compared += 1
    data = json.loads(bytes(client.view[client.body : client.length]))["data"]
    found = np.array([np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in data])
    expected = task.vectors[rows]
    if found.shape != expected.shape or [row["index"] for row in data] != list(range(len(rows))):
        outcome.wrong.append(f"the shape is {found.shape}, not {expected.shape}")
        return
    outcome.unequal += not np.array_equal(found, expected)
    outcome.difference = max(outcome.difference, float(np.abs(found - expected).max()))
    if outcome.difference > 0.01:
        outcome.wrong.append(f"a vector differs by {outcome.difference:.3f}")


if __name__ == "__main__":
    main()
