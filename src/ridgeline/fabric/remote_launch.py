"""Start the ranks of a job on several hosts by a remote shell, for hosts without mpirun, torchrun or Slurm.

    launch_remotely(["node1", "node2"], 4, ["ridgeline", "fabric", "tune", "--hosts"])

Each rank gets a remote shell of its own, which reads a short script from its standard input: so the secret of the job
is in no command line, and one way of quoting serves `ssh {host} sh`, `srun -w {host} sh` and `ip netns exec {host} sh`.
The input stays open while the rank runs. When the launcher ends, it closes, and the script ends the rank.
"""

from __future__ import annotations

import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ridgeline.errors import InputError

REMOTE_SHELL = "ssh -o BatchMode=yes {host} sh"
PORT = 4400
GRACE_S = 10.0  # after the first failure the other ranks have this long to end by themselves
END_S = 5.0
CHECK_EVERY_S = 0.05
# The braces make the shell read all of it before it starts the rank; what follows on its input is the launcher's end.
SCRIPT = """{{
{settings}
cd {folder} 2>/dev/null
exec 3<&0
{command} </dev/null 3<&- &
rank=$!
{{ cat <&3 >/dev/null; kill $rank; }} 2>/dev/null &
watch=$!
wait $rank
code=$?
kill $watch 2>/dev/null
exit $code
}}
"""


def launch_remotely(
    hosts: Sequence[str],
    ranks: int,
    command: Sequence[str],
    *,
    remote_shell: str | None = None,
    rendezvous: str | None = None,
    environment: Mapping[str, str] | None = None,
    folder: str = ".",
) -> int:
    """Run a command once for each rank; return 0, or the exit code of the first rank that failed.

    hosts         names of the hosts; rank 0 is on the first
    ranks         on each host
    remote_shell  command that starts a shell on {host} (default: ssh)
    rendezvous    host:port where rank 0 listens (default: the first host, port 4400)
    environment   further variables of every rank
    folder        where the ranks run, if that folder is there

    Standard output is that of rank 0; what other ranks print goes to standard error.
    """
    remote_shell = remote_shell or REMOTE_SHELL
    _check(hosts, ranks, command, remote_shell)
    first = hosts[0].rpartition("@")[2]
    common = {
        **(environment or {}),
        "WORLD_SIZE": str(len(hosts) * ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "RIDGELINE_FABRIC_RENDEZVOUS": rendezvous or f"{first}:{PORT}",
        "RIDGELINE_FABRIC_SECRET": secrets.token_hex(16),
    }
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(len(hosts) * ranks):
            settings = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank % ranks)}
            words = [word.replace("{host}", hosts[rank // ranks]) for word in shlex.split(remote_shell)]
            processes.append(_start(words, _write_script(settings, command, folder), is_first=rank == 0))
        return _wait(processes)
    finally:
        _end(processes)


def _check(hosts: Sequence[str], ranks: int, command: Sequence[str], remote_shell: str) -> None:
    if not hosts or not all(hosts):
        raise InputError("a job needs hosts: give their names, separated by commas.")
    if ranks < 1:
        raise InputError(f"{ranks} ranks on each host are none; give 1 or more.")
    if not command:
        raise InputError("a job needs a command, after --.")
    if any(host.startswith("-") for host in hosts):
        raise InputError(f"'{next(h for h in hosts if h.startswith('-'))}' is no name of a host.")
    if "{host}" not in remote_shell:
        raise InputError(f"the remote shell '{remote_shell}' has no {{host}}, so all ranks would start here.")


def _write_script(settings: Mapping[str, str], command: Sequence[str], folder: str) -> bytes:
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in settings.items())
    return SCRIPT.format(settings=exports, folder=shlex.quote(folder), command=shlex.join(command)).encode()


def _start(words: Sequence[str], script: bytes, *, is_first: bool) -> subprocess.Popen[bytes]:
    try:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=None if is_first else sys.stderr.fileno())
    except OSError as error:
        raise InputError(f"the remote shell '{words[0]}' cannot be started: {error.strerror}.") from None
    assert process.stdin is not None  # noqa: S101  a pipe
    with suppress(BrokenPipeError):  # a shell that ended at once has an exit code
        process.stdin.write(script)
        process.stdin.flush()
    return process


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Return when all ranks have ended, or some time after the first failure."""
    failure, end = 0, float("inf")
    while None in (codes := [process.poll() for process in processes]) and time.monotonic() < end:
        failed = next((code for code in codes if code), 0)
        if failed and not failure:
            failure, end = failed, time.monotonic() + GRACE_S
        time.sleep(CHECK_EVERY_S)
    failure = failure or next((p.returncode for p in processes if p.returncode), 0)
    return failure if failure >= 0 else 128 - failure


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()  # the script ends its rank
    for process in processes:
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
