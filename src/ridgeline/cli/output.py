"""Options that all commands share, and how commands write: JSON and tables to stdout, progress and notes to stderr."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

Json = Annotated[bool, typer.Option("--json", help="Write the answer as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only the answer.")]
RemoteShell = Annotated[
    str | None,
    typer.Option(
        "--shell",
        metavar="LINE",
        help="Starts a shell on {host} (default: 'ssh -o BatchMode=yes {host} sh'; also 'srun -w {host} -n1 sh').",
    ),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]

# Control characters except tab and newline, and the characters that change the direction of text.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def print_json(answer: Any) -> None:
    """Write `answer` to stdout as JSON; NaN and infinity become null."""
    try:
        text = json.dumps(answer, indent=2, default=str, allow_nan=False)
    except ValueError:  # JSON has no NaN and no infinity
        text = json.dumps(_replace_non_finite(answer), indent=2, default=str)
    sys.stdout.write(text + "\n")


def _replace_non_finite(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {key: _replace_non_finite(value) for key, value in answer.items()}
    if isinstance(answer, list | tuple):
        return [_replace_non_finite(value) for value in answer]
    return None if isinstance(answer, float) and not math.isfinite(answer) else answer


def print_line(sentence: str, console: Console | None = None) -> None:
    """Write one line (default: to stdout) as it is and without line breaks, so that a path stays in one piece."""
    (console or stdout()).print(escape_control(sentence), markup=False, emoji=False, highlight=False, soft_wrap=True)


def escape_control(text: str) -> str:
    """Escape control characters: text from events, files and records must not control the terminal."""
    return _CONTROL.sub(lambda c: c[0].encode("unicode_escape").decode(), text)


def print_note(sentence: str | None) -> None:
    """Write a note about the answer to stderr; None writes nothing."""
    if sentence:
        print_line(f"note: {sentence}", stderr())


def stdout() -> Console:
    """Return the console for answers. A pipe has no width: it gets 128 columns, enough for all tables."""
    console = Console()
    return console if console.is_terminal else Console(width=128)


def stderr() -> Console:
    """Return the console for progress, notes and errors."""
    return Console(stderr=True)


@contextmanager
def status(title: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner on stderr; the function that it yields changes the text. Without a terminal it shows nothing."""
    console = stderr()
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(title) as spinner:
        yield lambda activity: spinner.update(f"{title}: {activity}")
