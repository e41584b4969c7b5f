"""Start the server, from Python or from the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from ridgeline import web
from ridgeline.machine import parse_devices
from ridgeline.serve.app import create_app
from ridgeline.serve.catalog import MAX_QUEUE, Settings
from ridgeline.serve.process_setup import (
    DRAIN_S,
    KEEP_ALIVE_S,
    MAX_CONNECTIONS,
    SWITCH_S,
    ignore_cut_texts,
    raise_file_limit,
)
from ridgeline.serve.service import Service


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
    batch_invariant: bool = True,
    workers: int = 1,
    watch: bool = False,
    announce: Callable[[str], object] = print,
) -> None:
    """Serve models and indexes until Ctrl-C or SIGTERM; what was accepted is answered first.

    models            folders or names of models, each with names of its own on request: "NAME=FOLDER",
                      "NAME,ALIAS=FOLDER"
    indexes           folders of `ridgeline index`, likewise
    host, port        the address; port 0 takes a free one. An address other than loopback requires a token.
    token             clients send it as "Authorization: Bearer TOKEN"
    max_batch_tokens  tokens of a batch (default: 4,096 on a CPU, 65,536 on a GPU)
    batch_invariant   the same bits for a text in every batch, where the device can promise it
    max_queue         requests without an answer, for one model; more get 429
    device            auto, cpu, cuda or cuda:N; several with commas, or cuda:all, have an engine each: a process with
                      models of its own. A GPU that is named several times has several engines.
    workers           processes that do HTTP, JSON and tokenizing, beside one that has the models; 1: a single process
                      does everything
    watch             load a model or an index again when its folder changes
    announce          called with a line that has the address

    Raises InputError if a model or an index cannot be loaded, or the address cannot be used.
    """
    names = [models] if isinstance(models, str) else list(models)
    folders = [indexes] if isinstance(indexes, str) else list(indexes)
    web.check_address(host, port, token)
    settings = Settings(device, dtype, max_batch_tokens, max_queue, batch_invariant)
    devices = parse_devices(device) if "," in device or device == "cuda:all" else [device]
    if workers != 1 or len(devices) > 1:
        from ridgeline.serve.supervisor import run

        more: dict[str, Any] = {"host": host, "port": port, "token": token, "watch": watch, "announce": announce}
        run(workers, names, folders, settings, devices, **more)
        return
    ignore_cut_texts()
    service = Service(names, folders, settings)
    raise_file_limit()
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
