"""Start the server, from Python or from the command line."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from ridgeline import web
from ridgeline.serve.app import create_app
from ridgeline.serve.service import MAX_QUEUE, Service, Settings

DRAIN_S = 60.0  # after SIGTERM, for the requests in progress


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
    max_queue         requests that wait for one model; more get 429
    watch             load a model or an index again when its folder changes
    announce          called with a line that has the address

    Raises InputError if a model or an index cannot be loaded, or the address cannot be used.
    """
    warnings.filterwarnings("ignore", message=r".* the limit of \d+ tokens; what lies beyond")  # clients asked for it
    names = [models] if isinstance(models, str) else list(models)
    folders = [indexes] if isinstance(indexes, str) else list(indexes)
    web.check_address(host, port, token)
    service = Service(names, folders, Settings(device, dtype, max_batch_tokens, max_queue))
    web.serve(create_app(service, token=token, watch=watch), host=host, port=port, announce=announce, drain_s=DRAIN_S)
