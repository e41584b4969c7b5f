"""The command line: one file per command, thin; every command speaks the same way.

ridgeline --help
"""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core
import typer.main

import ridgeline
from ridgeline.cli.speak import plain
from ridgeline.errors import Exit, PointedError, RidgelineError, StoreError

# Each command's home and panel. It is imported when it is asked for, so that one command does not wait for all.
COMMANDS = {
    "embed": ("embed:embed", "Work"),
    "resample": ("resample:resample", "Work"),
    "streams": ("streams:streams", "Work"),
    "index": ("index:index", "Work"),
    "search": ("search:search", "Work"),
    "machine": ("machine:machine", "Measure"),
    "bench": ("bench:bench", "Measure"),
    "run": ("run:run", "Measure"),
    "report": ("report:report", "Judge"),
    "compare": ("compare:compare", "Judge"),
    "history": ("history:history", "Judge"),
    "cost": ("cost:cost", "Judge"),
    "check": ("check:check", "Judge"),
    "records": ("records:records", "Judge"),
    "audit": ("audit:audit", "Systems"),
    "recommend": ("recommend_more:commands", "Systems"),
    "fabric": ("fabric:fabric", "Systems"),
    "model": ("model:model", "Manage"),
}
# These work beside others on a machine. A thread of torch's that waits for its partner turns in circles for
# milliseconds; where the partner's core is busy with something else, one text took 66 ms so and takes 19 if it soon
# sleeps (13 against 12 on an idle machine). What measures is left alone, and so is who has set it.
PATIENT = ("embed", "index", "search", "audit", "recommend")
SPINS = "10000"
CONTEXTS = {"run": {"ignore_unknown_options": True}}  # Hydra's own flags (--cfg job) are not Typer's to judge


class Commands(typer.core.TyperGroup):
    """The commands there are; each is made by Typer when it is first asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = command(cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS:  # Typer suggests the nearest of those it has
            self.commands.update({name: command(name) for name in COMMANDS if name not in self.commands})
        return super().resolve_command(ctx, args)


SETTINGS: dict[str, Any] = {
    "no_args_is_help": True,
    "add_completion": False,
    "rich_markup_mode": "rich",
    "pretty_exceptions_enable": False,
}
app = typer.Typer(
    name="ridgeline",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    **SETTINGS,
)


def command(name: str) -> Any:
    """One command (or group of them) as Typer makes it."""
    if name in PATIENT:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # before torch is imported, which reads it once
    home, panel = COMMANDS[name]
    module, _, attribute = home.partition(":")
    found = getattr(import_module(f"ridgeline.cli.{module}"), attribute)
    alone = typer.Typer(**SETTINGS)
    alone.callback()(lambda: None)  # so that it is a group, even of one
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name, rich_help_panel=panel)
    else:
        alone.command(name, rich_help_panel=panel, context_settings=CONTEXTS.get(name))(found)
    group: Any = typer.main.get_command(alone)
    return group.commands[name]


def main(arguments: list[str] | None = None) -> None:
    """Run a command; an error of ours is one sentence and its exit code, never a traceback (but --debug)."""
    words = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in words
    words = [w for w in words if w != "--debug"]  # it means the same before and after the command
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without × and → shows ? instead of a traceback
    try:
        _run(words)
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


def _run(words: list[str]) -> None:
    """All of an answer is written when this is left, or it is an error."""
    try:
        try:
            app(args=words, prog_name="ridgeline")
        finally:
            sys.stdout.flush()
    except OSError as error:
        from ridgeline.store import NO_ROOM

        if error.errno not in {*NO_ROOM, errno.EPIPE}:
            raise
        with suppress(OSError, ValueError):  # what is left in the buffer needs a place to go
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:  # who reads has seen enough
            sys.exit(Exit.FINDINGS)
        raise StoreError(f"the answer could not be written: {error.strerror}; make room, or write elsewhere.") from None


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
