"""A workload of faults: one correct contender, and others that crash, hang, refuse, print or give wrong results.

`who` names the contenders that race; everything else is as small as possible.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from pathlib import Path

from ridgeline.lab import Case, Check, Steps, Work
from ridgeline.lab.workload import Launcher
from ridgeline.machine import Placement


class Subjects:
    name = "subjects"

    def cases(self, profile):
        return [Case({"who": contender, "n": 1000, "mark": ""}) for contender in ("chatty", "slow", "wrong")]

    def work(self, case):
        return Work(items=case["n"], unit="sums", flops=case["n"], bytes={"memory": 8 * case["n"]})

    def contenders(self, case):
        return ["ridgeline", *case["who"].split("+")]

    def missing(self, case):
        return {"unheard-of": "peers"}

    def launcher(self, case, contender, interpreter):
        """Start `launched…` by a fake mpirun, whose path is the parameter `mark`."""
        if not contender.startswith("launched"):
            return None
        return Launcher((case["mark"], "-n", str(case.ranks)), "FAKE_RANK", (("TUNED", "yes"),))

    def prepare(self, case: Case, contender: str, place: Placement):
        state = {"offset": 0, "sum": 0, "steps": 0}
        if contender == "refuse":
            raise RuntimeError("this peer wants\nanother version of [/lib]")
        mark = Path(case["mark"]) if contender == "luck" else None
        is_first = mark is not None and not mark.exists()  # only the first process of this contender is slow
        if mark is not None:
            mark.touch()
        child = os.fork() if contender == "parent" else None
        if child == 0:
            time.sleep(3600)  # keeps the pipes open after its parent has ended

        def reset():
            state["offset"] += 1

        def step():
            state["steps"] += 1
            if contender == "launched dies" and os.environ["FAKE_RANK"] == "1" and state["steps"] > 200:
                os.kill(os.getpid(), signal.SIGKILL)
            if contender == "launched hangs" and os.environ["FAKE_RANK"] == "1" and state["steps"] > 200:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(3600)
            if contender == "crash" and state["steps"] > 200:
                print("last words", file=sys.stderr, flush=True)
                os._exit(7)
            if contender == "killed" and state["steps"] > 200:
                os.kill(os.getpid(), signal.SIGKILL)
            if contender == "hang" and state["steps"] > 200:
                time.sleep(3600)
            if contender == "raises" and state["steps"] > 200:
                raise ValueError("no more")
            if contender == "intruder" and state["steps"] == 200:
                os.write(int(sys.argv[2]), b"hello\n")
            if contender == "parent" and state["offset"] > 3:
                os._exit(9)
            if contender == "chatty":
                print("{not json}")
            repeats = 5 if contender == "slow" or is_first else 1
            for _ in range(repeats):
                state["sum"] = sum(range(state["offset"], state["offset"] + case["n"]))

        def result():
            wrong = contender == "wrong" or (contender == "late" and state["offset"] > 5)
            return state["offset"], -1 if contender == "nan" else state["sum"] + wrong

        settings = {
            "rank": os.environ.get("RANK"),
            "tuned": os.environ.get("TUNED"),
            "prefix": sys.prefix,
            "start": place.cpus,
            "child": child,
        }
        return Steps(step, result, reset, settings=settings, extras=lambda: {"steps": state["steps"]})

    def check(self, case, result):
        offset, total = result
        if case["who"] == "nan" and total < 0:
            return Check(ok=False, error=math.nan, quality={"recall": math.inf})
        expected = sum(range(offset, offset + case["n"]))
        exact = total == expected
        return Check(ok=exact, error=float(abs(total - expected)), quality={"exact": float(exact)})


workload = Subjects()
