"""`serve`: texts → vectors over HTTP, for many clients at once.

    ridgeline bench serve --case loop=closed,clients=32,texts=8
    ridgeline bench serve --python infinity=infinity-env/bin/python

loop    closed   each client sends its next request when it has its answer; a step is `requests` requests of each
        open     as many requests arrive at random moments, `rate` a second, whether or not others are answered; the
                 time of a step follows from the rate, so only extras["calls_ns"] tells the servers apart
texts   of a request, of `tokens` tokens each

Every contender is a server in a process of its own on loopback; the process that is timed sends the requests, and
extras["generator_cpu_ns"] is the CPU time that it takes for a step, extras["server_cpu_ns"] that of the server. On a
machine that others use, compare the CPU times.
extras["calls_ns"] has the time of each request, in the open loop from the moment when it had to be sent. "in process"
encodes the texts of a step by one call, without a server: a bound. Vectors are compared as in the workload `embed`.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ridgeline.embed import DEFAULT
from ridgeline.errors import InputError, RidgelineError
from ridgeline.lab import OURS, Case, Check, Profile, Run, Steps, Work, installed
from ridgeline.machine import Placement, now_ns
from ridgeline.workloads import _serve_peers as peers
from ridgeline.workloads._embed_texts import Ring, draw_lengths, find_words, load_model
from ridgeline.workloads.embed import workload as embed
from ridgeline.workloads.trajectory import on_device

IN_PROCESS = "in process"
START_S = 180.0  # a peer may load for long
REQUEST_S = 120.0
MAX_CALLS = 4_096
BASE: dict[str, Any] = {"loop": "closed", "clients": 32, "texts": 8, "requests": 1, "rate": 0, "tokens": 32}
BASE |= {"dtype": "float32", "model": DEFAULT}


class Serve:
    name = "serve"
    devices = ("cpu", "cuda")
    controls = (IN_PROCESS,)
    note = "The process that sends the requests shares the machine with the server; its CPU time is in the records."

    def cases(self, profile: Profile) -> Iterable[Case]:
        if not all(installed(name) for name in ("torch", "safetensors", "starlette", "uvicorn", "orjson")):
            return []
        try:
            load_model(DEFAULT)
        except InputError:  # not on this machine: `ridgeline model get` fetches it
            return []
        changes: list[tuple[str, dict[str, Any]]] = [("cpu", {}), ("cuda", {"dtype": "float16"})]
        if profile is Profile.FULL:
            for clients, texts in ((1, 1), (1, 32), (64, 32), (256, 1)):
                changes.append(("cpu", {"clients": clients, "texts": texts}))
                changes.append(("cuda", {"clients": clients, "texts": texts, "dtype": "float16"}))
            changes.append(("cpu", {"loop": "open", "texts": 1, "requests": 2, "rate": 50}))
            changes.append(("cuda", {"loop": "open", "texts": 1, "requests": 32, "rate": 2_000, "dtype": "float16"}))
        return [Case({**BASE, **change}, device) for device, change in changes]

    def work(self, case: Case) -> Work:
        return embed.work(_make_embed_case(case))

    def contenders(self, case: Case) -> Sequence[str]:
        return [OURS, IN_PROCESS, *(name for name in peers.NAMES if peers.is_available(name))]

    def missing(self, case: Case) -> dict[str, str]:
        return {name: peers.HINTS[name] for name in peers.NAMES if not peers.is_available(name)}

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        device, model = on_device(case, place), load_model(case["model"])
        ring = Ring(find_words(case["model"]), _draw_lengths(case))
        if contender == IN_PROCESS:
            return _prepare_in_process(case, ring, device)
        command = peers.make_command(contender, model.folder, device, case["dtype"])
        server = Server(command, announces=contender == OURS)
        generator = Generator(server.port, case)
        calls: deque[int] = deque(maxlen=MAX_CALLS)
        cpu: dict[str, list[int]] = {"generator_cpu_ns": [], "server_cpu_ns": []}
        state: dict[str, Any] = {}

        def step() -> None:
            generator_ns, server_ns = time.process_time_ns(), server.read_cpu_ns()
            state["vectors"], times = generator.send(ring.sets[ring.next()][0])
            calls.extend(times)
            cpu["generator_cpu_ns"].append(time.process_time_ns() - generator_ns)
            cpu["server_cpu_ns"].append(server.read_cpu_ns() - server_ns)

        def close() -> None:
            generator.close()
            server.stop()

        settings = {"command": " ".join(command[1:]), "encoding_format": "base64"}
        if contender != OURS:
            settings["arithmetic"] = "float32" if case.device == "cpu" else case["dtype"]
        return Steps(
            step,
            lambda: {"tokens": ring.last[1], "found": state["vectors"], "least": 0.999},
            ring.rewrite,
            close,
            settings,
            lambda: {"tokens": int(ring.last[1].offsets[-1]), "calls_ns": list(calls), **cpu},
        )

    def check(self, case: Case, result: dict[str, Any]) -> Check:
        return embed.check(_make_embed_case(case), result)


def _make_embed_case(case: Case) -> Case:
    """The same texts as a case of the workload `embed`."""
    count = case["clients"] * case["requests"] * case["texts"]
    params = {"stage": "end to end", "texts": "even", "batch": count, "tokens": case["tokens"]}
    return Case({**params, "dtype": case["dtype"], "model": case["model"]}, case.device)


def _draw_lengths(case: Case) -> Any:
    if case["loop"] not in ("closed", "open"):
        raise InputError(f"loop is '{case['loop']}'; there are: closed, open.")
    if case["loop"] == "open" and case["rate"] <= 0:
        raise InputError(f"rate is {case['rate']}; give the requests per second of an open loop.")
    return draw_lengths("even", case["clients"] * case["requests"] * case["texts"], case["tokens"])


def _prepare_in_process(case: Case, ring: Ring, device: str) -> Run:
    # As `ridgeline serve` has it (cli/__init__.py): on a busy machine, torch's default costs twice the time.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    import ridgeline

    embedder = ridgeline.Embedder(case["model"], device=device, dtype=case["dtype"], prompt="")
    state: dict[str, Any] = {}
    cpu: list[int] = []

    def step() -> None:
        before_ns = time.process_time_ns()
        state["vectors"] = embedder.encode(ring.sets[ring.next()][0])
        cpu.append(time.process_time_ns() - before_ns)

    return Steps(
        step,
        lambda: {"tokens": ring.last[1], "found": state["vectors"], "least": 0.999},
        ring.rewrite,
        embedder.close,
        {"does": "the model and its tokenizer", "lacks": "HTTP, JSON and other clients"},
        lambda: {"tokens": int(ring.last[1].offsets[-1]), "server_cpu_ns": cpu},
    )


class Server:
    """A server in a process of its own.

    announces  whether it prints its address; else its command has the port as its last word
    """

    def __init__(self, command: Sequence[str], *, announces: bool) -> None:
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE if announces else subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
        )
        try:
            self.port = self._read_port() if announces else int(command[-1])
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def read_cpu_ns(self) -> int:
        """Return the CPU time of the process and its threads."""
        with open(f"/proc/{self._process.pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * (10**9 // os.sysconf("SC_CLK_TCK"))

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read_port(self) -> int:
        line = next(self._process.stdout or iter(()), "")  # "Serving on http://127.0.0.1:PORT/ …"
        if "://" not in line:
            raise RidgelineError(f"the server did not start (exit code {self._process.wait()}).")
        return int(line.split("://")[1].split("/")[0].rsplit(":", 1)[1])

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._process.poll() is None:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_S)
                _ask(connection, ["a first text"])
            except (OSError, http.client.HTTPException, RidgelineError):
                time.sleep(0.1)
            else:
                return
            finally:
                connection.close()
        raise RidgelineError(f"the server was not ready within {START_S:.0f} s (exit code {self._process.poll()}).")


class Generator:
    """Sends the requests of a step; its connections stay open."""

    def __init__(self, port: int, case: Case) -> None:
        self._case, self._random = case, np.random.default_rng()
        count = case["clients"] * (case["requests"] if case["loop"] == "open" else 1)
        self._connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_S) for _ in range(count)]

    def send(self, texts: list[str]) -> tuple[Any, list[int]]:
        """Return the vectors of the texts, and the nanoseconds of each request."""
        size = self._case["texts"]
        parts = [texts[first : first + size] for first in range(0, len(texts), size)]
        answers: list[Any] = [None] * len(parts)
        times = [0] * len(parts)
        errors: list[BaseException] = []
        each = len(parts) // len(self._connections)
        gaps = self._random.exponential(1, len(parts)) if self._case["loop"] == "open" else np.zeros(len(parts))
        due_s = np.cumsum(gaps) / max(1e-9, self._case["rate"]) if self._case["loop"] == "open" else gaps
        start_ns = now_ns()

        def run_client(number: int) -> None:
            try:
                for part in range(number * each, (number + 1) * each):
                    sent_ns = start_ns + round(1e9 * due_s[part]) if self._case["loop"] == "open" else now_ns()
                    time.sleep(max(0, sent_ns - now_ns()) / 1e9)
                    answers[part] = _ask(self._connections[number], parts[part])
                    times[part] = now_ns() - sent_ns
            except BaseException as error:
                errors.append(error)

        clients = [threading.Thread(target=run_client, args=(n,)) for n in range(len(self._connections))]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        if errors:
            raise RidgelineError(f"a request failed: {errors[0]}") from errors[0]
        return np.concatenate(answers), times

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


def _ask(connection: http.client.HTTPConnection, texts: list[str]) -> Any:
    """Send one request as an OpenAI client does; return float32 [texts, dim]."""
    body = json.dumps({"model": "bench", "input": texts, "encoding_format": "base64"}).encode()
    try:
        answer = _send(connection, body)
    except (BrokenPipeError, ConnectionResetError, http.client.RemoteDisconnected):  # closed since the last request
        connection.close()
        answer = _send(connection, body)
    content = answer.read()
    if answer.status != 200:
        raise RidgelineError(f"status {answer.status}: {content[:200].decode(errors='replace')}")
    rows = sorted(json.loads(content)["data"], key=lambda row: row["index"])
    return np.array([np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in rows])


def _send(connection: http.client.HTTPConnection, body: bytes) -> http.client.HTTPResponse:
    connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
    return connection.getresponse()


workload = Serve()
