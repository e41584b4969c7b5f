"""`ridgeline fabric launch`: ranks on several hosts by a remote shell; here the shell is one of this host."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ridgeline.errors import InputError
from ridgeline.fabric import launch_remotely

START = "import sys; from ridgeline.fabric import launch_remotely; "
HERE = "env ON={host} sh"
# One write, because ranks share a pipe and PYTHONUNBUFFERED lets `print` write word by word.
SHOW = (
    "import os; e = os.environ; words = e['ON'], e['RANK'], e['WORLD_SIZE'], e['LOCAL_RANK'], repr(e['ODD']); "
    "os.write(1, (' '.join(words) + chr(10)).encode())"
)
SUM = """
import sys, numpy as np
from ridgeline import fabric
with fabric.init() as comm:
    x = np.full(1000, comm.rank + 1.0, np.float32)
    comm.all_reduce(x)
    if comm.rank == 0:
        print(comm.size, int(x[0]))
"""


def run(hosts: list[str], ranks: int, code: str, folder: Path, **options: object) -> tuple[int, str, str]:
    """Launch in a process of its own, whose output can be read whole."""
    options |= {"folder": str(folder)}
    program = f"{START}sys.exit(launch_remotely({hosts!r}, {ranks}, [sys.executable, '-c', {code!r}], **{options!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_every_rank_has_its_host_and_number_and_only_the_first_prints(tmp_path: Path):
    odd = "a 'b' $c\n\"d\""
    code, out, err = run(["x", "y"], 2, SHOW, tmp_path, remote_shell=HERE, environment={"ODD": odd})
    assert code == 0
    assert out == f"x 0 4 0 {odd!r}\n"
    assert {f"x 1 4 1 {odd!r}", f"y 2 4 0 {odd!r}", f"y 3 4 1 {odd!r}"} <= {*err.split("\n")}


def test_the_first_exit_code_that_is_not_zero_is_the_answer_and_ends_the_others(tmp_path: Path):
    code = "import os, sys, time; sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(600)"
    start = time.monotonic()
    assert run(["x", "y"], 1, code, tmp_path, remote_shell=HERE)[0] == 7
    assert time.monotonic() - start < 100  # not the 600 s of the other rank


def test_a_launcher_that_is_killed_leaves_no_rank(tmp_path: Path):
    code = "import os, time; open(os.environ['RANK'], 'w').write(str(os.getpid())); time.sleep(600)"
    options = {"remote_shell": HERE, "folder": str(tmp_path)}
    program = f"{START}launch_remotely(['x', 'y'], 1, [sys.executable, '-c', {code!r}], **{options!r})"
    launcher = subprocess.Popen([sys.executable, "-c", program])
    files = [tmp_path / "0", tmp_path / "1"]
    end = time.monotonic() + 60
    while not all(f.exists() and f.read_text() for f in files) and time.monotonic() < end:
        time.sleep(0.02)
    pids = [int(f.read_text()) for f in files]
    launcher.kill()
    launcher.wait()
    while any(map(_is_running, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    left = [pid for pid in pids if _is_running(pid)]
    for pid in left:
        os.kill(pid, 9)
    assert not left


def _is_running(pid: int) -> bool:
    with suppress(OSError):
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


@pytest.mark.slow  # two processes load the library and meet
def test_launched_ranks_form_a_communicator(tmp_path: Path):
    shell = "env RIDGELINE_FABRIC_HOST={host} sh"
    code, out, err = run(["x", "y"], 1, SUM, tmp_path, remote_shell=shell, rendezvous="127.0.0.1:44117")
    assert (code, out) == (0, "2 3\n"), err


@pytest.mark.parametrize(
    ("hosts", "ranks", "command", "options", "message"),
    [
        ([], 1, ["true"], {}, "needs hosts"),
        (["a"], 0, ["true"], {}, "give 1 or more"),
        (["a"], 1, [], {}, "needs a command"),
        (["-oProxyCommand=x"], 1, ["true"], {}, "is no name of a host"),
        (["a"], 1, ["true"], {"remote_shell": "sh"}, "has no {host}"),
        (["a"], 1, ["true"], {"remote_shell": "absent-shell {host}"}, "cannot be started"),
    ],
)
def test_bad_input_is_one_sentence(hosts, ranks, command, options, message):
    with pytest.raises(InputError, match=message.replace("{", r"\{")):
        launch_remotely(hosts, ranks, command, **options)
