"""Start the server, from Python or from the command line."""

from __future__ import annotations

import resource
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress

from ridgeline import web
from ridgeline.serve.app import MAX_CONNECTIONS, create_app
from ridgeline.serve.service import MAX_QUEUE, Service, Settings

KEEP_ALIVE_S = 75.0  # longer than clients keep a connection: they meet no closed one
DRAIN_S = 60.0  # after SIGTERM, for the requests in progress
# A thread that waits for the interpreter takes it from another after this time (Python's default: 5 ms, in which a
# small batch is computed).
SWITCH_S = 0.0005


def serve(
    models: str | Sequence[str] = (),
    *,
    indexes: str | Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    max_batch_tokens: int | None = None,
    max_queue: int = MAX_QUEUE,
    watch: bool = False,
    announce: Callable[[str], object] = print,
) -> None:
    """Serve models and indexes until Ctrl-C or SIGTERM; what was accepted is answered first.

    models            folders or names of models, each with its own name on request: "NAME=FOLDER"
    indexes           folders of `ridgeline index`, likewise
    host, port        the address; port 0 takes a free one. An address other than loopback requires a token.
    token             clients send it as "Authorization: Bearer TOKEN"
    max_batch_tokens  tokens of a batch (default: 4,096 on a CPU, 65,536 on a GPU)
    max_queue         requests without an answer, for one model; more get 429
    watch             load a model or an index again when its folder changes
    announce          called with a line that has the address

    Raises InputError if a model or an index cannot be loaded, or the address cannot be used.
    """
    warnings.filterwarnings("ignore", message=r".* the limit of \d+ tokens; what lies beyond")  # clients asked for it
    names = [models] if isinstance(models, str) else list(models)
    folders = [indexes] if isinstance(indexes, str) else list(indexes)
    web.check_address(host, port, token)
    service = Service(names, folders, Settings(device, dtype, max_batch_tokens, max_queue))
    _raise_file_limit()
    sys.setswitchinterval(SWITCH_S)
    web.serve(
        create_app(service, token=token, watch=watch),
        host=host,
        port=port,
        announce=announce,
        drain_s=DRAIN_S,
        max_connections=MAX_CONNECTIONS,
        keep_alive_s=KEEP_ALIVE_S,
    )


def _raise_file_limit() -> None:
    """Allow as many open files as the system lets this user have: connections get a quarter of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    requested = 4 * MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else min(hard, 4 * MAX_CONNECTIONS)
    if soft != resource.RLIM_INFINITY and soft < requested:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (requested, hard))
