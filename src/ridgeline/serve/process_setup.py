"""What the processes of a server have in common: times, limits of the system, warnings."""

from __future__ import annotations

import resource
import warnings
from contextlib import suppress

MAX_CONNECTIONS = 4096
KEEP_ALIVE_S = 75.0  # longer than clients keep a connection: they meet no closed one
DRAIN_S = 60.0  # after SIGTERM, for the requests in progress
# A thread that waits for the interpreter takes it from another after this time (Python's default: 5 ms, in which a
# small batch is computed).
SWITCH_S = 0.0005


def ignore_cut_texts() -> None:
    """Hide the warning that a text was cut: clients ask for it."""
    warnings.filterwarnings("ignore", message=r".* the limit of \d+ tokens; what lies beyond")


def raise_file_limit() -> None:
    """Allow as many open files as the system lets this user have: connections get a quarter of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    requested = 4 * MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else min(hard, 4 * MAX_CONNECTIONS)
    if soft != resource.RLIM_INFINITY and soft < requested:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (requested, hard))
