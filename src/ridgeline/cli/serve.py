"""`ridgeline serve`: embeddings, reranking and search over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.placement import Place, stay_near

TOKEN = "RIDGELINE_SERVE_TOKEN"  # noqa: S105


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME[,ALIAS]=]MODEL",
            help="Folders or names of models; clients may use every name (default: all-MiniLM-L6-v2).",
        ),
    ] = None,
    index: Annotated[
        list[str] | None,
        typer.Option("--index", metavar="[NAME=]DIR", help="A folder of `ridgeline index`; can be repeated."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on (default: 127.0.0.1, this machine only).")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one (default: 8000).")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"Ask clients for the token in this file, which is created if it is missing (default: {TOKEN}).",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            help="auto, cpu, cuda or cuda:N. Several, as cuda:0,cuda:1 or cuda:all, have a process with the models "
            "each; a GPU can be named more than once.",
        ),
    ] = "auto",
    dtype: Annotated[
        str, typer.Option(help="Type of the arithmetic: auto, float32, bfloat16, float16, int8 (default: auto).")
    ] = "auto",
    max_batch_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens per batch (default: 4096 on a CPU, 65536 on a GPU).")
    ] = None,
    max_queue: Annotated[
        int, typer.Option(metavar="N", help="Requests without an answer, per model; more get 429 (default: 1024).")
    ] = 1024,
    batch_invariant: Annotated[
        bool,
        typer.Option(
            "--batch-invariant/--any-bits",
            help="Give a text the same bits in every batch, or compute faster on a GPU, with last bits that depend "
            "on the batch (default: the same bits).",
        ),
    ] = True,
    workers: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Processes for HTTP, JSON and tokenizing, beside one for the models; 1: one process for all "
            "(default: 1).",
        ),
    ] = 1,
    watch: Annotated[
        bool, typer.Option("--watch", help="Load a model or an index again when its folder changes.")
    ] = False,
    place: Place = True,
) -> None:
    """Serve embeddings, reranking and search over HTTP.

    The clients of OpenAI (/v1/embeddings), Text Embeddings Inference (/embed, /rerank) and Cohere (/v1/rerank) work
    unmodified. SIGTERM answers what was accepted and exits with 0.

    [dim]Examples:[/]

      ridgeline serve

      ridgeline serve mini=models/all-MiniLM-L6-v2 --index films=films.index --port 9000

      ridgeline serve models/bge-m3 --device cuda --host 0.0.0.0 --token-file token
    """
    from ridgeline.cli.tokens import find_token
    from ridgeline.embed import DEFAULT
    from ridgeline.machine import parse_devices
    from ridgeline.serve import serve as run

    token, _ = find_token(token_file, TOKEN)
    devices = set(parse_devices(device) if "," in device or device == "cuda:all" else [device])
    with stay_near(min(devices), place and len(devices) == 1, quiet=False):
        run(
            models or ([] if index else [DEFAULT]),
            indexes=index or (),
            host=host,
            port=port,
            token=token,
            device=device,
            dtype=dtype,
            max_batch_tokens=max_batch_tokens,
            max_queue=max_queue,
            batch_invariant=batch_invariant,
            workers=workers,
            watch=watch,
            announce=lambda line: print(line, flush=True),
        )
