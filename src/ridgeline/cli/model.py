"""`ridgeline model`: the models on this machine, and fetching one."""

from __future__ import annotations

from typing import Annotated

import typer

from ridgeline.cli.speak import Json, Quiet, note, print_json, tell

model = typer.Typer(no_args_is_help=True, help="Models for embedding: get one, list those that are here.")


@model.command("get")
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="all-MiniLM-L6-v2, or ORG/MODEL of the hub.")],
    revision: Annotated[
        str | None, typer.Option(metavar="COMMIT", help="That revision; known models have a pinned one.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fetch a model into the local Hugging Face cache; known ones at a pinned revision, verified by SHA-256."""
    from ridgeline.embed import fetch_model

    found = fetch_model(name, revision, (lambda _: None) if quiet or as_json else note)
    if as_json:
        print_json({"name": name, "folder": str(found.folder)})
    else:
        tell(f"{name} → {found.folder}")


@model.command("ls")
def ls(as_json: Json = False) -> None:
    """List the models on this machine that can be named; any folder can be given by its path."""
    from ridgeline.embed import present

    found = present()
    if as_json:
        print_json([{"name": f.name, "where": f.where, "folder": str(f.folder)} for f in found])
        return
    if not found:
        tell("no models here; ridgeline model get all-MiniLM-L6-v2 fetches the default.")
    for f in found:
        tell(f"{f.name}  {f.where}  {f.folder}")
