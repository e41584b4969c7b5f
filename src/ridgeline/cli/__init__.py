"""The command line: one file per command, thin; every command speaks the same way.

ridgeline --help
"""

from __future__ import annotations

import io
import sys
import traceback
from typing import Annotated, Any

import typer
import typer.core

import ridgeline
from ridgeline.cli.speak import plain
from ridgeline.errors import Exit, PointedError, RidgelineError

app = typer.Typer(
    name="ridgeline",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

PANELS = {
    "embed": "Work",
    "resample": "Work",
    "streams": "Work",
    "index": "Work",
    "search": "Work",
    "machine": "Measure",
    "bench": "Measure",
    "run": "Measure",
    "report": "Judge",
    "compare": "Judge",
    "history": "Judge",
    "cost": "Judge",
    "check": "Judge",
    "records": "Judge",
    "audit": "Systems",
    "recommend": "Systems",
    "fabric": "Systems",
    "model": "Manage",
}


def main(arguments: list[str] | None = None) -> None:
    """Run a command; an error of ours is one sentence and its exit code, never a traceback (but --debug)."""
    words = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in words
    words = [w for w in words if w != "--debug"]  # it means the same before and after the command
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without × and → shows ? instead of a traceback
    try:
        app(args=words, prog_name="ridgeline")
    except RidgelineError as error:
        if debug:
            traceback.print_exc()
        print(f"ridgeline: {plain(_sentence(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, SystemExit) as leaving:  # Typer turns Ctrl-C into a silent exit
        if isinstance(leaving, SystemExit) and leaving.code != Exit.INTERRUPTED:
            raise
        print("ridgeline: interrupted.", file=sys.stderr)
        sys.exit(Exit.INTERRUPTED)


def _sentence(error: RidgelineError) -> str:
    return str(error) if isinstance(error, PointedError) else " ".join(str(error).split())


def _version(asked: bool) -> None:
    if asked:
        print(f"ridgeline {ridgeline.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Fast paths for AI data, each one measured against its limit."""


def _register() -> None:
    from ridgeline.cli import (
        audit,
        bench,
        check,
        compare,
        cost,
        embed,
        fabric,
        history,
        index,
        machine,
        model,
        records,
        report,
        resample,
        run,
        scaling,
        search,
        streams,
    )
    from ridgeline.cli.recommend_more import commands as recommend

    commands: dict[str, Any] = {
        "embed": embed.embed,
        "resample": resample.resample,
        "streams": streams.streams,
        "index": index.index,
        "search": search.search,
        "machine": machine.machine,
        "bench": bench.bench,
        "report": report.report,
        "compare": compare.compare,
        "history": history.history,
        "cost": cost.cost,
        "check": check.check,
    }
    for name, command in commands.items():
        app.command(name, rich_help_panel=PANELS[name])(command)
    # Hydra's own flags (--cfg job) are not Typer's to judge.
    app.command("run", rich_help_panel=PANELS["run"], context_settings={"ignore_unknown_options": True})(run.run)
    app.add_typer(fabric.fabric, name="fabric", rich_help_panel=PANELS["fabric"])
    records.records.command("scaling")(scaling.scaling)
    app.add_typer(records.records, name="records", rich_help_panel=PANELS["records"])
    app.add_typer(audit.audit, name="audit", rich_help_panel=PANELS["audit"])
    app.add_typer(recommend, name="recommend", rich_help_panel=PANELS["recommend"])
    app.add_typer(model.model, name="model", rich_help_panel=PANELS["model"])


_register()
