"""`ridgeline serve` beside infinity-emb and a plain FastAPI server on a CPU: texts per second, latency, CPU time.

    python benchmarks/serve_peers.py FOLDER --plain ENV/bin/python --infinity ENV/bin/python [--onnx FOLDER,FOLDER]

All servers are started first and stay; then each has a turn of `--seconds` in each of `--rounds` rounds, in another
order every time. `32 tokens`: `--clients` with eight texts of 32 tokens a request, base64. `mixed`: titles of 5 to 12
tokens and, for every fourth text, a paragraph of 60 to 220. `one`: one client with one text of 32 tokens. The clients
are raw sockets of this process. `in process` is a process that calls `Embedder.encode` with the 256 texts of 32 such
requests, and with one text. The table has medians over the rounds; `CPU of ours` is the median over rounds of the
peer's CPU time (of the server alone, for a text) by that of ours in float32; `wall` is that of the times by the clock.
Cosines are those with the vectors of `Embedder` in float32. --onnx has folders with an ONNX file, for infinity's engine
`optimum`. infinity's cache of vectors is off: the requests repeat.
"""

from __future__ import annotations

import argparse
import base64
import json
import multiprocessing
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from serve_load import WORDS, Outcome, Task, run_clients

SRC = Path(__file__).parents[1] / "src"
TEXTS, REQUESTS = 8, 64
OURS = "ridgeline float32"
IN_PROCESS = "in process"
START_S = 300.0
START = time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--plain", help="a Python with fastapi, uvicorn and sentence-transformers")
    parser.add_argument("--infinity", help="a Python with infinity-emb[torch,server]")
    parser.add_argument("--onnx", default="", help="NAME=FOLDER,… with ONNX files for infinity")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--most-seconds", type=float, default=300.0, help="no round begins after this time")
    parser.add_argument(
        "--only", default="", help="beginnings of names of contenders, with semicolons; ours always runs"
    )
    parser.add_argument("--kinds", default="32 tokens,mixed,one")
    options = parser.parse_args()
    kinds = {kind: make_requests(kind) for kind in options.kinds.split(",")}
    vectors = encode(options.model, kinds)
    contenders: dict[str, Any] = {}
    if not options.only or IN_PROCESS in options.only:
        contenders[IN_PROCESS] = InProcess(options.model, kinds, options.clients)
    commands = make_commands(options)
    for name, (command, environment) in commands.items():
        if name == OURS or not options.only or any(name.startswith(w) for w in options.only.split(";")):
            contenders[name] = Server(name, command, environment)
    try:
        for contender in list(contenders.values()):
            contender.wait_until_ready()
        print(f"{len(contenders)} contenders are ready", file=sys.stderr, flush=True)
        results = race(contenders, kinds, options)
        cosines = {name: c.check(kinds, vectors) for name, c in contenders.items() if isinstance(c, Server)}
    finally:
        for contender in contenders.values():
            contender.stop()
    show(results, cosines, kinds)


def make_commands(options: Any) -> dict[str, tuple[list[str], dict[str, str]]]:
    serve = [sys.executable, "-m", "ridgeline", "serve", f"m={options.model}", "--device", "cpu", "--port", "PORT"]
    serve += ["--max-queue", "100000"]
    commands: dict[str, tuple[list[str], dict[str, str]]] = {
        OURS: ([*serve, "--dtype", "float32"], {}),
        "ridgeline int8": ([*serve, "--dtype", "int8"], {}),
    }
    if options.plain:
        plain = [options.plain, "-m", "ridgeline.workloads._serve_peers", str(options.model), "cpu", "float32", "PORT"]
        path = {"PYTHONPATH": str(SRC)}
        commands["plain"] = (plain, path)
        commands["plain, one call at a time"] = ([*plain, "1"], path)
    if options.infinity:
        infinity = [options.infinity, "-m", "infinity_emb.cli", "v2", "--served-model-name", "m", "--device", "cpu"]
        infinity += [
            "--url-prefix",
            "/v1",
            "--port",
            "PORT",
            "--no-vector-disk-cache",
            "--no-model-warmup",
            "--model-id",
        ]
        commands["infinity"] = ([*infinity, str(options.model)], {})
        tuned = ["--dtype", "float32", "--batch-size", "128", "--no-bettertransformer", "--no-compile"]
        commands["infinity, batch 128, not compiled"] = ([*infinity, str(options.model), *tuned], {})
        for word in filter(None, options.onnx.split(",")):
            name, _, folder = word.partition("=")
            command = [*infinity, ".", "--engine", "optimum", "--batch-size", "128"]
            commands[f"infinity optimum {name}"] = (command, {"PWD": folder})
    return commands


def make_texts(kind: str) -> list[str]:
    draw = random.Random(kind)  # noqa: S311  the same every time

    def make(words: int) -> str:
        return " ".join(draw.choices(WORDS, k=words))

    if kind == "mixed":
        return [make(draw.randint(58, 218) if i % 4 == 3 else draw.randint(3, 10)) for i in range(REQUESTS * TEXTS)]
    return [make(30) for _ in range(REQUESTS * (1 if kind == "one" else TEXTS))]


def make_requests(kind: str) -> list[list[str]]:
    texts, size = make_texts(kind), 1 if kind == "one" else TEXTS
    return [texts[i : i + size] for i in range(0, len(texts), size)]


def build_request(texts: list[str]) -> bytes:
    body = json.dumps({"model": "m", "input": texts, "encoding_format": "base64"}).encode()
    head = "POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def encode(model: Path, kinds: dict[str, list[list[str]]]) -> dict[str, Any]:
    import ridgeline

    with ridgeline.Embedder(model, device="cpu", dtype="float32") as embedder:
        return {kind: [embedder.encode(texts) for texts in requests] for kind, requests in kinds.items()}


class InProcess:
    """`Embedder.encode` in a process of its own, which is idle between turns."""

    def __init__(self, model: Path, kinds: dict[str, list[list[str]]], clients: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=run_in_process, args=(str(model), kinds, clients, other))
        self._process.start()

    def wait_until_ready(self) -> None:
        self._pipe.recv()

    def measure(self, kind: str, requests: list[list[str]], seconds: float, clients: int) -> dict[str, float]:
        self._pipe.send((kind, seconds))
        result: dict[str, float] = self._pipe.recv()
        return result

    def stop(self) -> None:
        self._process.terminate()
        self._process.join()


def run_in_process(model: str, kinds: dict[str, list[list[str]]], clients: int, pipe: Any) -> None:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as `ridgeline serve` has it
    import ridgeline

    embedder = ridgeline.Embedder(model, device="cpu", dtype="float32", batch_invariant=True)
    calls = {
        kind: [requests[i % len(requests)] for i in range(REQUESTS)]
        if kind == "one"
        else [list(chain(*requests[i : i + clients])) for i in range(0, len(requests), clients)]
        for kind, requests in kinds.items()
    }
    for texts in calls.values():
        embedder.encode(texts[0])
    pipe.send("ready")
    while True:
        kind, seconds = pipe.recv()
        times, texts, number = [], 0, 0
        start_s, cpu_s = time.perf_counter(), time.process_time()
        while (before_s := time.perf_counter()) < start_s + seconds:
            call = calls[kind][number % len(calls[kind])]
            embedder.encode(call)
            times.append(time.perf_counter() - before_s)
            texts, number = texts + len(call), number + 1
        wall_s = time.perf_counter() - start_s
        cpu = (time.process_time() - cpu_s) / texts
        pipe.send({"texts_per_s": texts / wall_s, "p50_ms": 1e3 * statistics.median(times), "cpu_ms": 1e3 * cpu})


class Server:
    """A server in a process of its own."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        import socket

        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port: int = listener.getsockname()[1]
        self._name = name
        words = [word.replace("PORT", str(self.port)) for word in command]
        environment = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0", **environment}
        self._process = subprocess.Popen(
            words,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment},
            cwd=environment.get("PWD"),  # infinity finds ONNX files below "." only
        )

    def wait_until_ready(self) -> None:
        end_s = time.monotonic() + START_S
        while time.monotonic() < end_s and self._process.poll() is None:
            try:
                for texts in (["a first text"], ["a first text"] * TEXTS):
                    self._ask(texts)
            except (OSError, ValueError, KeyError):
                time.sleep(0.2)
            else:
                return
        sys.exit(f"{self._name} did not start (exit code {self._process.poll()}).")

    def _ask(self, texts: list[str]) -> Any:
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        body = build_request(texts).partition(b"\r\n\r\n")[2]
        connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
        rows = json.loads(connection.getresponse().read())["data"]
        connection.close()
        rows.sort(key=lambda row: row["index"])
        return np.array([np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in rows])

    def check(self, kinds: dict[str, list[list[str]]], vectors: dict[str, Any]) -> float:
        """Return the lowest cosine with the vectors of the library."""
        return min(
            float((self._ask(texts) * vectors[kind][i]).sum(axis=1).min())
            for kind, requests in kinds.items()
            for i, texts in enumerate(requests[:16])
        )

    def measure(self, kind: str, requests: list[list[str]], seconds: float, clients: int = 1) -> dict[str, float]:
        content = [build_request(texts) for texts in requests]
        rows = [list(range(len(texts))) for texts in requests]
        clients = 1 if kind == "one" else clients
        # No vectors are compared here: the generator's CPU time is to be small.
        task = Task(self.port, clients, content, rows, None, seconds=seconds, compared=1 << 40)
        send(Task(**{**vars(task), "seconds": 0.3}))
        cpu_s = self._read_cpu_s()
        outcome = send(task)
        cpu_s = self._read_cpu_s() - cpu_s
        if outcome.wrong:
            sys.exit(f"{self._name}: {outcome.wrong[0]}")
        return {
            "texts_per_s": outcome.texts / outcome.seconds,
            "p50_ms": 1e3 * statistics.median(outcome.times),
            "cpu_ms": 1e3 * cpu_s / outcome.texts,
            "client_cpu_ms": 1e3 * outcome.cpu_s / outcome.texts,
        }

    def _read_cpu_s(self) -> float:
        """Return the CPU time of the process."""
        # The clock of another process, to the nanosecond (clock_getcpuclockid): threads that have ended count, too.
        return time.clock_gettime((~self._process.pid << 3) | 2)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Here:
    """Takes the place of the barrier and the pipe of a process of clients."""

    outcome: Outcome

    def wait(self, seconds: float) -> None:
        """Do nothing: there is one process of clients."""

    def send(self, outcome: Outcome) -> None:
        self.outcome = outcome


def send(task: Task) -> Outcome:
    """Run the clients of a task in this process, which does nothing else meanwhile."""
    here = _Here()
    run_clients(task, here, here)
    return here.outcome


def race(contenders: dict[str, Any], kinds: dict[str, Any], options: Any) -> dict[str, dict[str, list[Any]]]:
    results: dict[str, dict[str, list[Any]]] = {kind: defaultdict(list) for kind in kinds}
    draw = random.Random(3)  # noqa: S311
    for number in range(options.rounds):
        if number and time.monotonic() - START > options.most_seconds:
            break
        for kind, requests in kinds.items():
            for name in draw.sample(list(contenders), len(contenders)):
                result = contenders[name].measure(kind, requests, options.seconds, options.clients)
                results[kind][name].append(result)
                values = "  ".join(f"{key} {value:.3f}" for key, value in result.items())
                print(f"round {number + 1}  {kind}  {name}  {values}", file=sys.stderr, flush=True)
    return results


def show(results: dict[str, dict[str, list[Any]]], cosines: dict[str, float], kinds: dict[str, Any]) -> None:
    flags = Path("/proc/cpuinfo").read_text()
    isa = [flag for flag in ("avx512f", "avx512_vnni", "amx_int8") if flag in flags]
    rounds = len(results[next(iter(results))][OURS])
    print(f"{rounds} rounds, {os.cpu_count()} CPUs with {', '.join(isa)}; load average {os.getloadavg()[0]:.1f}")
    for kind, by_name in results.items():
        print(f"\n{kind}")
        print("                                    texts/s   p50 ms  CPU ms/text  clients'  CPU of ours  wall  cosine")
        for name, rounds in by_name.items():
            ours = by_name[OURS]
            medians = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
            cpu = statistics.median(r["cpu_ms"] / o["cpu_ms"] for r, o in zip(rounds, ours, strict=True))
            wall = statistics.median(o["texts_per_s"] / r["texts_per_s"] for r, o in zip(rounds, ours, strict=True))
            cosine = f"{cosines[name]:.6f}" if name in cosines else ""
            print(
                f"{name:34} {medians['texts_per_s']:8.1f} {medians['p50_ms']:8.2f} {medians['cpu_ms']:12.3f} "
                f"{medians.get('client_cpu_ms', 0):9.3f} {cpu:12.2f} {wall:5.2f}  {cosine}"
            )


if __name__ == "__main__":
    main()
