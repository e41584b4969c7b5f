"""How often does the lab see a difference that is not there, and how often does it find one that is?

    python benchmarks/lab_rates.py simulate > benchmarks/records/lab-rates-simulated.txt
    python benchmarks/lab_rates.py real --runs 20 > benchmarks/records/NAME-lab-rates.txt

Simulated: the races run through the lab's own rounds, stop rules, records and judge; only the times are drawn. Their
noise is that of committed records, round by round, in blocks, because neighbouring rounds are similar. Every start of
processes adds a factor of 1 % (standard deviation), and three of ten starts a step of 3 % that hits one of the two.
Quiet: noise below 1 % (median deviation of the log ratio). Shared: races of two versions of one code on machines that
others use, 1.4 to 28 %. Mixed: races of different codes, from 0.5 to 49 %.

Real: equal contenders (A/A), and contenders that do 5 % more, beside whatever runs on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ridgeline.lab import Case
from ridgeline.lab.judge import Comparison, analyse_record, compare_versions, turn_medians
from ridgeline.lab.race import OWN_PLAN, OwnRace, bisection
from ridgeline.lab.race.confirmation import START_S, OpenCase, confirm_cases
from ridgeline.lab.race.endpoints import HTTP_MARGIN, ROUNDS
from ridgeline.lab.race.functions import EXECUTIONS as FUNCTION_EXECUTIONS
from ridgeline.lab.race.functions import FUNCTION_MARGIN
from ridgeline.lab.race.measure import Lane, Plan, Race
from ridgeline.lab.race.own_race import OWN_MARGIN, race_case
from ridgeline.lab.race.process import ContenderSpec
from ridgeline.lab.race.repository import SUITE_MARGIN
from ridgeline.lab.record import read_records
from ridgeline.machine import topology

RECORDS = Path(__file__).parent / "records"
FILES = ("neoverse-n1-bench", "neoverse-n1-ledger", "h200-lab", "h200-host-lab")
VERSIONS = ("cascade-lake-fabric-against", "h200-house-against", "h200-host-fabric-against")  # two versions of one code
QUIET = 0.01
BLOCK, LUCK, DRIFT = 6, 0.01, 0.03
STEPS = (1.0, 1.03, 1.05, 1.10)
COMMAND_ROUNDS = 200  # 20 s for two commands of 50 ms
minutes_of_commits = 4.0


def load_noises(names: Sequence[str]) -> list[list[float]]:
    """Return the log ratios of contenders of committed records, round by round, without their median."""
    noises = []
    for name in names:
        for record in read_records(RECORDS / f"{name}.jsonl").records:
            ours, *others = (turn_medians(r.samples_ns, r.samples_per_turn) for r in record.contenders)
            for other in others:
                if len(other) == len(ours) >= 24:
                    logs = [math.log(a / b) for a, b in zip(other, ours, strict=True)]
                    noises.append([x - statistics.median(logs) for x in logs])
    return noises


def draw_noise(noise: Sequence[float], rounds: int, rng: random.Random) -> list[float]:
    out: list[float] = []
    sign = rng.choice((1, -1))
    while len(out) < rounds:
        start = rng.randrange(len(noise))
        out += [sign * noise[(start + k) % len(noise)] for k in range(BLOCK)]
    return out[:rounds]


def draw_start(noise: Sequence[float], rounds: int, rng: random.Random, ratio: float) -> list[float]:
    """Return the ratios of the rounds of one start of two processes."""
    shift = math.log(ratio) + rng.gauss(0, LUCK)
    step, size = (rng.randrange(rounds), rng.gauss(0, DRIFT)) if rng.random() < 0.3 else (rounds, 0.0)
    return [math.exp(x + shift + (size if n >= step else 0)) for n, x in enumerate(draw_noise(noise, rounds, rng))]


class DrawnGroup:
    """A contender whose times are drawn beforehand."""

    ranks, fresh = 1, False

    def __init__(self, times: Sequence[float]) -> None:
        self._times = iter(times)

    def do(self, what: str, timeout_s: float, per_rank: Any = None, **order: Any) -> list[dict[str, Any]]:
        check = {"ok": True, "error": None, "quality": {}, "note": ""}
        answers: dict[str, dict[str, Any]] = {
            "prepare": {
                "sample_ns": 10**7, "calls_per_sample": 1, "settings": {}, "placed": {"cpus": [0]}, "check": check,
            },
            "check": {"check": check},
            "extras": {"extras": {}},
            "close": {},
        }  # fmt: skip
        if what == "turn":
            ns = next(self._times)
            return [{"samples_ns": [ns], "turn_ns": ns}]
        return [answers[what]]

    def kill(self) -> None: ...


def simulate_rounds(
    noise: Sequence[float], rng: random.Random, ratio: float, rounds: int, margin: float, plan: Plan
) -> Comparison:
    """Race commands or endpoints: one record, compared round by round. Every run of a command is a new process."""
    level, base = 0.0, []
    for _ in range(rounds):  # the load that both share
        level = 0.9 * level + rng.gauss(0, 0.02)
        base.append(2e7 * math.exp(level) * (rng.uniform(1.2, 2.5) if rng.random() < 0.03 else 1))
    ratios = [ratio * math.exp(x) for x in draw_noise(noise, rounds, rng)]
    times = {"a": base, "b": [b * r for b, r in zip(base, ratios, strict=True)]}

    @contextlib.contextmanager
    def start(_: Case) -> Iterator[Mapping[str, Any]]:
        yield {name: DrawnGroup(values) for name, values in times.items()}

    race = OwnRace("drawn", ("a", "b"), start, margin=margin)
    plan = replace(plan, most_rounds=rounds, least_rounds=min(plan.least_rounds, rounds))
    record = race_case(race, Case({}, "cpu"), plan, MACHINE, 1e9)
    return analyse_record(record)[1].comparison or Comparison.UNCLEAR


def simulate_commands(noise: Sequence[float], rng: random.Random, ratio: float) -> Comparison:
    return simulate_rounds(noise, rng, ratio, COMMAND_ROUNDS, OWN_MARGIN, OWN_PLAN)


def simulate_http(noise: Sequence[float], rng: random.Random, ratio: float) -> Comparison:
    return simulate_rounds(noise, rng, ratio, ROUNDS, HTTP_MARGIN, replace(OWN_PLAN, target=0.0))


def simulate_functions(noise: Sequence[float], rng: random.Random, ratio: float) -> Comparison:
    starts = [draw_start(noise, 12, rng, ratio) for _ in range(FUNCTION_EXECUTIONS)]
    ratios = [r for rounds in starts for r in rounds]
    return compare_versions(ratios, [1.0] * len(ratios), [12] * len(starts), FUNCTION_MARGIN)[1]


def simulate_commits(noise: Sequence[float], rng: random.Random, ratio: float) -> Comparison:
    """A first race, then repeats with fresh processes by the rules of `bench --against`."""
    first = draw_start(noise, min(400, 3 * len(noise)), rng, ratio)
    lanes = [Lane(ContenderSpec(name, name), check={"ok": True}) for name in ("ours", "theirs")]
    lanes[0].samples_ns, lanes[1].samples_ns = [1.0] * len(first), list(first)
    race = Race(None, lanes, [len(first)], "budget", {}, Plan(versions=True), START_S)  # type: ignore[arg-type]
    now = 0.0

    def repeat(case: OpenCase, rounds: int | None) -> None:
        nonlocal now
        drawn = draw_start(noise, rounds or 24, rng, ratio)
        case.race.lanes[0].samples_ns += [1.0] * len(drawn)
        case.race.lanes[1].samples_ns += drawn
        case.race.executions.append(len(drawn))
        now += START_S + len(drawn) / 10

    case = OpenCase(None, race, False, START_S, SUITE_MARGIN)  # type: ignore[arg-type]
    (done,) = confirm_cases([case], 60 * minutes_of_commits, repeat, lambda: now)
    ours, peer = done.race.lanes
    return compare_versions(peer.turn_medians(), ours.turn_medians(), done.race.executions, SUITE_MARGIN)[1]


def simulate_bisect(noise: Sequence[float], rng: random.Random, ratio: float, commits: int = 16) -> str:
    """Search a step among commits, by the races of `ridgeline bisect` on drawn times; return what it found."""
    slow = rng.randrange(1, commits)
    clock = SimpleNamespace(now=0.0)

    def measure(reference: str, case: Any, specs: Sequence[ContenderSpec], **_: Any) -> Race:
        lanes = [Lane(spec, check={"ok": True}) for spec in specs]
        race = Race(None, lanes, [], "budget", {}, Plan(versions=True), 1.0)  # type: ignore[arg-type]
        repeat(race)
        return race

    def repeat(race: Race, *_: Any, **__: Any) -> None:
        factors = [ratio if int(lane.spec.name) >= slow else 1.0 for lane in race.lanes]
        drawn = draw_start(noise, 12, rng, factors[1] / factors[0])
        race.lanes[0].samples_ns += [1.0] * len(drawn)
        race.lanes[1].samples_ns += drawn
        race.executions.append(len(drawn))
        clock.now += 2 * START_S

    saved = bisection.measure_case, bisection.repeat_execution, bisection.time, bisection.ProcessPool
    bisection.measure_case, bisection.repeat_execution = measure, repeat  # type: ignore[assignment]
    bisection.time = SimpleNamespace(monotonic=lambda: clock.now)  # type: ignore[assignment]
    bisection.ProcessPool = contextlib.nullcontext  # type: ignore[misc,assignment]
    try:
        specs = [ContenderSpec(str(i), "x") for i in range(commits)]
        search = bisection.Search(
            "drawn", Plan(versions=True), MACHINE, budget_s=1800.0, margin=SUITE_MARGIN, commits=commits
        )
        first = search.compare_ends(Case({}), specs[0], specs[-1], 1)
        if first.low <= 1 or first.value <= 1 + SUITE_MARGIN:
            return "not slower"
        index, steps = search.narrow(Case({}), specs[0], first.value, lambda i: contextlib.nullcontext(specs[i]))
    finally:
        bisection.measure_case, bisection.repeat_execution, bisection.time, bisection.ProcessPool = saved  # type: ignore[misc]
    right = "right" if index == slow else "wrong"
    return right if all(step.certain for step in steps) else f"{right}, not certain"


MACHINE = topology()
SIMULATIONS: dict[str, Callable[[Sequence[float], random.Random, float], Any]] = {
    "commands": simulate_commands,
    "functions": simulate_functions,
    "http": simulate_http,
    "commits": simulate_commits,
    "bisect": simulate_bisect,
}


def simulate(trials: int, names: Sequence[str], only: Sequence[str]) -> None:
    noises = load_noises(FILES)
    pools = {
        "quiet": [n for n in noises if statistics.median(map(abs, n)) < QUIET],
        "shared": load_noises(VERSIONS),
        "mixed": noises,
    }
    only = only or list(pools)
    sizes = ", ".join(f"{name} {len(pool)}" for name, pool in pools.items())
    print(f"simulated, with the noise of races of committed records: {sizes}")
    for name in names:
        for pool, choices in pools.items():
            for ratio in STEPS if pool in only else ():
                if name == "bisect" and ratio == 1.0:
                    continue
                rng = random.Random(f"{name} {pool} {ratio}")  # noqa: S311
                count = 2 * trials if ratio == 1.0 else trials
                noises_in_turn = (choices[k % len(choices)] for k in range(count))  # few have most of the errors
                found = Counter(str(SIMULATIONS[name](noise, rng, ratio)) for noise in noises_in_turn)
                what = "A/A" if ratio == 1.0 else f"{ratio - 1:.0%} slower"
                words = ", ".join(f"{value} {number}" for value, number in sorted(found.items()))
                print(f"{name:<10} {pool:<7} {what:<11} of {count}: {words}", flush=True)


# --- real runs


def run_ridgeline(folder: Path, *words: str, env: Mapping[str, str] | None = None) -> tuple[int, Any]:
    command = [sys.executable, "-m", "ridgeline", *words]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, **(env or {})}, timeout=900
    )
    try:
        return done.returncode, json.loads(done.stdout)
    except ValueError:
        return done.returncode, None


def read_verdict(answer: Any) -> str:
    return str(answer["cases"][0]["contenders"][1]["verdict"]) if answer else "no answer"


def race_commands(folder: Path, ratio: float, number: int) -> str:
    loops = [20_000, round(20_000 * ratio)]
    words: list[str] = []
    for loop in loops:
        words += ["--", "sh", "-c", f"i=0; while [ $i -lt {loop} ]; do i=$((i+1)); done"]
    out = str(folder / f"c{number}-{ratio}")
    return read_verdict(run_ridgeline(folder, "bench", "--json", "-q", "--budget", "10s", "--out", out, *words)[1])


def race_functions(folder: Path, ratio: float, number: int) -> str:
    (folder / "f.py").write_text(
        "import ridgeline as rl, sys\n"
        "def work(n):\n    s = 0\n    for v in range(n): s += v\n    return 1\n"
        f"r = rl.race({{'a': lambda: work(round(20000 * 1.0)), 'b': lambda: work(round(20000 * {ratio}))}}, budget=8)\n"
        "print(r.rows[1]['verdict'])\n"
    )
    return subprocess.run([sys.executable, "f.py"], cwd=folder, capture_output=True, text=True).stdout.strip()


def race_http(folder: Path, ratio: float, number: int) -> str:
    servers = [serve(0.010), serve(0.010 * ratio)]
    urls = [f"http://127.0.0.1:{s.server_address[1]}/" for s in servers]
    out = str(folder / f"h{number}-{ratio}")
    words = ["bench", "--http", *urls, "--rate", "40", "--budget", "10s", "--json", "-q", "--out", out]
    try:
        return read_verdict(run_ridgeline(folder, *words)[1])
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def serve(seconds: float) -> Any:
    """Start a server whose answer takes this long."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            time.sleep(seconds)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


SUITE = """import mine
class Total:
    params = [4000]
    param_names = ['n']
    def setup(self, n): self.x = list(range(n))
    def time_sum(self, n): mine.total(self.x)
"""


def write_repository(folder: Path, extra: Sequence[float]) -> list[str]:
    """Write a repository with one commit for each share of additional work, and return their hashes."""
    folder.mkdir(parents=True)

    def git(*words: str) -> str:
        words = ("git", "-c", "user.name=a", "-c", "user.email=a@example.test", *words)
        return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "-q")
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks/__init__.py").write_text("")
    (folder / "benchmarks/bench_total.py").write_text(SUITE)
    (folder / "asv.conf.json").write_text(
        '{"version": 1, "project": "mine", "repo": ".", "benchmark_dir": "benchmarks"}'
    )
    hashes = []
    for i, share in enumerate(extra):
        (folder / "mine.py").write_text(
            f"# version {i}\ndef total(x):\n    s = 0\n    for v in x: s += v\n"
            f"    for v in range(round(len(x) * {share})): s += v\n    return s\n"
        )
        git("add", "-A")
        git("commit", "-qm", f"Change {i}")
        hashes.append(git("rev-parse", "HEAD"))
    return hashes


def race_commits(folder: Path, ratio: float, number: int) -> str:
    repository = folder / f"r{number}-{ratio}"
    first = write_repository(repository, [0.0, ratio - 1])[0]
    out = str(folder / f"o{number}")
    words = ["bench", "benchmarks", "--against", first, "--json", "-q", "--budget", "40s", "--out", out]
    _, answer = run_ridgeline(repository, *words, env={"PYTHONPATH": str(repository)})
    verdict = read_verdict(answer)  # about the commit, relative to the working tree
    return {"FASTER": "SLOWER", "SLOWER": "FASTER"}.get(verdict, verdict)


def run_bisect(folder: Path, ratio: float, number: int) -> str:
    """Plant a step at a random place among ten commits."""
    rng = random.Random(f"{ratio} {number}")  # noqa: S311
    slow = rng.randrange(1, 10)
    repository = folder / f"b{number}-{ratio}"
    hashes = write_repository(repository, [0.0 if i < slow else ratio - 1 for i in range(10)])
    words = ["bisect", "benchmarks", "--good", hashes[0], "--bad", hashes[-1], "--json", "-q", "--budget", "240s"]
    code, answer = run_ridgeline(repository, *words, env={"PYTHONPATH": str(repository)})
    if answer is None:
        return f"exit {code}"
    return ("right" if answer["commit"] == hashes[slow] else "wrong") + ("" if answer["certain"] else ", not certain")


REAL = {
    "commands": race_commands,
    "functions": race_functions,
    "http": race_http,
    "commits": race_commits,
    "bisect": run_bisect,
}


def run_real(runs: int, names: Sequence[str], ratios: Sequence[float]) -> None:
    load = os.getloadavg()[0]
    print(f"real runs on {MACHINE.model}, {len(MACHINE.usable_cpus)} CPUs, load average {load:.1f} at the start")
    for name in names:
        for ratio in ratios:
            if name == "bisect" and ratio == 1.0:
                continue
            with tempfile.TemporaryDirectory() as folder:
                found = Counter(REAL[name](Path(folder), ratio, number) for number in range(runs))
            what = "A/A" if ratio == 1.0 else f"{ratio - 1:.0%} more work"
            words = ", ".join(f"{value} {number}" for value, number in sorted(found.items()))
            print(f"{name:<10} {what:<13} of {runs}: {words}; load average {os.getloadavg()[0]:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["simulate", "real"])
    parser.add_argument("names", nargs="*", help="commands functions http commits bisect (default: all)")
    parser.add_argument("--minutes", type=float, default=4.0, help="simulated time for one case of two commits")
    parser.add_argument("--trials", type=int, default=100, help="simulated races of each kind; A/A: twice as many")
    parser.add_argument("--pools", nargs="*", default=[], help="quiet shared mixed (default: all)")
    parser.add_argument("--runs", type=int, default=20, help="real runs of each kind")
    parser.add_argument("--ratios", type=float, nargs="*", default=[1.0, 1.05], help="work of the second contender")
    options = parser.parse_args()
    global minutes_of_commits
    minutes_of_commits = options.minutes
    if options.mode == "simulate":
        simulate(options.trials, options.names or list(SIMULATIONS), options.pools)
    else:
        run_real(options.runs, options.names or list(REAL), options.ratios)


if __name__ == "__main__":
    main()
