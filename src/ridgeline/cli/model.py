"""`ridgeline model`: list the models on this machine, and fetch one."""

from __future__ import annotations

from typing import Annotated

import typer

from ridgeline.cli.output import Json, Quiet, print_json, print_line, print_note

model = typer.Typer(no_args_is_help=True, help="Models for embedding: fetch one, list those on this machine.")


@model.command("get")
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="all-MiniLM-L6-v2, or ORG/MODEL of the hub.")],
    revision: Annotated[
        str | None,
        typer.Option(
            metavar="COMMIT",
            help="The revision to fetch (default: the pinned one of a published model, else the newest).",
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fetch a model into the local Hugging Face cache; published ones at a pinned revision, verified by SHA-256."""
    from ridgeline.embed import fetch_model

    fetched = fetch_model(name, revision, (lambda _: None) if quiet or as_json else print_note)
    if as_json:
        print_json({"name": name, "folder": str(fetched.folder)})
    else:
        print_line(f"{name} → {fetched.folder}")


@model.command("ls")
def ls(as_json: Json = False) -> None:
    """List the models on this machine that have a name; any other folder can be given by its path."""
    from ridgeline.embed import list_models

    models = list_models()
    if as_json:
        print_json([{"name": m.name, "where": m.where, "folder": str(m.folder)} for m in models])
        return
    if not models:
        print_line("there are no models on this machine; ridgeline model get all-MiniLM-L6-v2 fetches the default.")
    for m in models:
        print_line(f"{m.name}  {m.where}  {m.folder}")
