"""Run torch's own tests of torch.distributed (its `distributed_test`) with a back end:

    python tests/fabric/torch_suite.py BACKEND RANKS [NAMES...]

Prints a JSON object: test → "passed", "skipped", or the last error of each rank. Each test has new ranks. They are
forked from this process, which has imported torch already, so that a test takes a second instead of many.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import traceback
import types
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

LIMIT_S = 120.0
PREFIX = "test_"
NAMES_BACK_ENDS = "test_accumulate_gradients"  # these tests make a model for back ends that they know by name only


def main(backend: str, ranks: int, names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        suite, module = load_suite(folder, backend, ranks)
        names = names or [name for name in dir(suite) if name.startswith(PREFIX)]
        print(json.dumps({name: run_test(suite, module, Path(folder), backend, ranks, name) for name in names}))


def load_suite(folder: str, backend: str, ranks: int) -> tuple[Any, Any]:
    """Import the tests as for gloo, then let them use the back end."""
    for name in ("barrier", "test_dir", "init_dir"):
        Path(folder, name).mkdir()
    os.environ |= {
        "BACKEND": "gloo",
        "WORLD_SIZE": str(ranks),
        "TEMP_DIR": folder,
        "INIT_METHOD": f"file://{folder}/second_group",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "OMP_NUM_THREADS": "1",
    }
    # torch's tests import this package, but distributed_test does not use it.
    expecttest: Any = types.ModuleType("expecttest")
    expecttest.TestCase = unittest.TestCase
    sys.modules["expecttest"] = expecttest
    import torch.testing._internal.distributed.distributed_test as module

    import ridgeline.fabric.torch  # noqa: F401

    module.torch.set_num_threads(1)
    for feature in ("ddp", "subgroup"):
        module.DistTestCases.backend_feature[feature].add(backend)

    class Suite(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore[name-defined, misc]
        pass

    return Suite, module


def run_test(suite: Any, module: Any, folder: Path, backend: str, ranks: int, name: str) -> str:
    for file in (
        *folder.glob("barrier/*"),
        *folder.glob("test_dir/*"),
        folder / "first_group",
        folder / "second_group",
    ):
        file.unlink(missing_ok=True)
    module.BACKEND = "gloo" if name.startswith(NAMES_BACK_ENDS) else backend
    if is_skipped(suite, name):
        return "skipped"
    pids: list[int] = []
    for rank in range(ranks):
        if (pid := os.fork()) == 0:
            run_rank(suite, module, folder, backend, ranks, name, rank)
        pids.append(pid)
    running, deadline = set(pids), time.monotonic() + LIMIT_S
    while running and time.monotonic() < deadline:
        running -= {pid for pid in running if os.waitpid(pid, os.WNOHANG)[0]}
        time.sleep(0.005)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    outcomes = [read_outcome(folder / f"rank{rank}") for rank in range(ranks)]
    print(name, *set(outcomes), file=sys.stderr, flush=True)
    if set(outcomes) <= {"passed", "skipped"}:  # some tests need only a part of the ranks
        return "passed" if "passed" in outcomes else "skipped"
    return " | ".join(outcomes)


def is_skipped(suite: Any, name: str) -> bool:
    """Whether the test skips itself before it uses a group, as most do without GPUs: then it needs no ranks."""
    if (pid := os.fork()) == 0:
        code = 1
        try:
            signal.alarm(10)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            getattr(suite(name), name)()  # without a group: fails if it is not skipped
        except (SystemExit, unittest.SkipTest):
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def run_rank(suite: Any, module: Any, folder: Path, backend: str, ranks: int, name: str, rank: int) -> None:
    """In the process of a rank; never returns. The outcome is the last line of the file of the rank."""
    log = os.open(folder / f"rank{rank}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    outcome = "passed"
    try:
        test = suite(name)
        test.rank, test.file_name = rank, str(folder / "first_group")
        timeout = timedelta(seconds=module.CUSTOM_PG_TIMEOUT.get(name, module.default_pg_timeout))
        module.dist.init_process_group(
            backend, init_method=test.init_method, world_size=ranks, rank=rank, timeout=timeout
        )
        test._barrier()
        getattr(test, name)()
        test._barrier()
        module.dist.destroy_process_group()
    except (SystemExit, unittest.SkipTest):  # how these tests say that they are skipped
        outcome = "skipped"
    except BaseException as error:
        traceback.print_exc()
        outcome = f"{type(error).__name__}: {error}".replace("\n", " ")
    print("\n" + outcome, flush=True)
    os._exit(0)


def read_outcome(file: Path) -> str:
    lines = [line for line in file.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "ended without a word"


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
