"""The command line: one thin file per command; all commands share options, output and exit codes.

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
from ridgeline.cli.output import escape_control
from ridgeline.errors import Exit, PointedError, RidgelineError, StoreError

# Name -> module and attribute, panel of the help, one-line summary. The help shows these summaries, and a command's
# module is imported when the command runs, so that `ridgeline --help` imports none of them. Each summary equals the
# first line of the command's own help (tests/cli/test_commands.py).
COMMANDS = {
    "embed": ("embed:embed", "Work", "Turn texts into vectors, float32, one row per text."),
    "resample": ("resample:resample", "Work", "Resample every stream of a recording onto one clock."),
    "streams": (
        "streams:streams",
        "Work",
        "List the streams of a recording: rate, jitter, gaps, duplicates, type, and the kind that resample uses.",
    ),
    "view": ("view:view", "Work", "Write a page that shows the cameras and curves of a recording on one time axis."),
    "index": ("index:index", "Work", "Build an index: a folder that `ridgeline search` reads."),
    "search": ("search:search", "Work", "Find the nearest rows, best first."),
    "serve": ("serve:serve", "Work", "Serve embeddings, reranking and search over HTTP."),
    "bulk": ("bulk:bulk", "Work", "Jobs over datasets larger than a machine: exactly once, resumable."),
    "machine": (
        "machine:machine",
        "Measure",
        "Show nodes, caches, CPUs, memory, GPUs and network cards, and which of them are near each other.",
    ),
    "bench": (
        "bench:bench",
        "Measure",
        "Race workloads against their tuned peers; write records.jsonl and report.html.",
    ),
    "run": ("run:run", "Measure", "Run an experiment: a model's pipeline on every GPU, from every NUMA node."),
    "campaign": (
        "campaign:campaign",
        "Measure",
        "Measure what is not measured yet and this machine can measure: resumable, with an estimate beforehand.",
    ),
    "report": (
        "report:report",
        "Judge",
        "Write report.html, report.md and report.json from recorded runs, without measuring.",
    ),
    "compare": ("compare:compare", "Judge", "Compare two runs case by case: is B FASTER, SLOWER or the SAME as A?"),
    "history": ("history:history", "Judge", "Show each case over time, its steps, and what changed at each step."),
    "bisect": ("bisect:bisect", "Judge", "Find the commit that made a benchmark slower, by races in a binary search."),
    "cost": (
        "cost:cost",
        "Judge",
        "Plan a rate of work: machines, utilisation, backlog, dollars, and when a GPU pays.",
    ),
    "check": (
        "check:check",
        "Judge",
        "Check the numbers of a report: tables and statements must not contradict each other or their records.",
    ),
    "records": ("records:records", "Judge", "List, show and export recorded runs; see how they scale."),
    "audit": ("audit:audit", "Systems", "Events that cannot be rewritten: a ledger on plain files."),
    "recommend": ("recommend:recommend", "Systems", "Recommend items by ratings and by the meaning of texts."),
    "fabric": (
        "fabric:fabric",
        "Systems",
        "Collectives: show, prove, predict, tune; doctor checks this host, hosts tries several, launch starts "
        "ranks on them, watch shows ranks.",
    ),
    "model": ("model:model", "Manage", "Models for embedding: fetch one, list those on this machine."),
    "jobs": ("jobs:jobs", "Manage", "Bulk jobs of this user: list, show, resume and clean."),
}
# These commands share the machine with other programs. A waiting thread of torch spins for milliseconds before it
# sleeps. If the core of its partner is busy, one text took 66 ms; with a short spin it takes 19 ms (12 and 13 ms on an
# idle machine). Commands that measure keep the default, and so does a user who sets the variable.
SHORT_SPIN_COMMANDS = ("embed", "index", "search", "serve", "audit", "recommend", "bulk", "jobs")
SPIN_COUNT = "10000"
CONTEXT_SETTINGS = {"run": {"ignore_unknown_options": True}}  # the flags of Hydra (--cfg job) are unknown to Typer


class Commands(typer.core.TyperGroup):
    """The root group: it imports a command when the command runs, and shows its summary before that."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = load_command(cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS:  # Typer suggests similar names among `self.commands`
            self._add_summaries()
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        loaded = dict(self.commands)
        self._add_summaries()
        super().format_help(ctx, formatter)
        self.commands = loaded

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        self._add_summaries()
        return super().shell_complete(ctx, incomplete)

    def _add_summaries(self) -> None:
        for name, (_, panel, summary) in COMMANDS.items():
            if name not in self.commands:
                self.commands[name] = typer.core.TyperCommand(name, help=summary, rich_help_panel=panel)


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
    **{**SETTINGS, "add_completion": True},
)


def load_command(name: str) -> Any:
    """Import a command (or a group of commands) and return it as Typer builds it."""
    if name in SHORT_SPIN_COMMANDS:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)  # before the import of torch, which reads it once
    target, panel, _ = COMMANDS[name]
    module, _, attribute = target.partition(":")
    function = getattr(import_module(f"ridgeline.cli.{module}"), attribute)
    parent = typer.Typer(**SETTINGS)
    parent.callback()(lambda: None)  # makes it a group, even of one command
    if isinstance(function, typer.Typer):
        parent.add_typer(function, name=name, rich_help_panel=panel)
    else:
        kind = getattr(import_module(f"ridgeline.cli.{module}"), "COMMAND_CLASS", None)
        parent.command(name, cls=kind, rich_help_panel=panel, context_settings=CONTEXT_SETTINGS.get(name))(function)
    group: Any = typer.main.get_command(parent)
    return group.commands[name]


def main(arguments: list[str] | None = None) -> None:
    """Run a command. A RidgelineError prints one sentence and sets the exit code; --debug adds the traceback."""
    words = sys.argv[1:] if arguments is None else arguments
    own_words = words[: words.index("--")] if "--" in words else words  # what follows belongs to the commands of a user
    debug = "--debug" in own_words
    words = [w for w in own_words if w != "--debug"] + words[
        len(own_words) :
    ]  # allowed before and after the name of the command
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without × and → shows ? and no traceback
    try:
        _run(words)
    except RidgelineError as error:
        if debug:
            traceback.print_exc()
        print(f"ridgeline: {escape_control(_format_error(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, SystemExit) as error:  # Typer turns Ctrl-C into a silent exit
        if isinstance(error, SystemExit) and error.code != Exit.INTERRUPTED:
            raise
        print("ridgeline: interrupted.", file=sys.stderr)
        sys.exit(Exit.INTERRUPTED)


def _run(words: list[str]) -> None:
    """Run a command and flush its output; output that cannot be written is an error."""
    try:
        try:
            app(args=words, prog_name="ridgeline")
        finally:
            sys.stdout.flush()
    except OSError as error:
        from ridgeline.store import NO_SPACE

        if error.errno not in {*NO_SPACE, errno.EPIPE}:
            raise
        with suppress(OSError, ValueError):  # Python writes the rest of the buffer at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:  # the reader, for example `head`, has closed the pipe
            sys.exit(Exit.FINDINGS)
        raise StoreError(f"the answer could not be written: {error.strerror}; make room, or write elsewhere.") from None


def _format_error(error: RidgelineError) -> str:
    return str(error) if isinstance(error, PointedError) else " ".join(str(error).split())


def _print_version(requested: bool) -> None:
    if requested:
        print(f"ridgeline {ridgeline.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Fast paths for AI data, each one measured against its limit."""
