"""The options every command shares, and the two ways to answer: JSON on stdout, progress on stderr."""

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

Json = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the answer.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]


# Control characters but tab and newline, and those that turn the direction of writing.
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def print_json(answer: Any) -> None:
    try:
        text = json.dumps(answer, indent=2, default=str, allow_nan=False)
    except ValueError:  # JSON has no word for what is no number
        text = json.dumps(_finite(answer), indent=2, default=str)
    sys.stdout.write(text + "\n")


def _finite(answer: Any) -> Any:
    """The same with null for numbers that are none."""
    if isinstance(answer, dict):
        return {key: _finite(value) for key, value in answer.items()}
    if isinstance(answer, list | tuple):
        return [_finite(value) for value in answer]
    return None if isinstance(answer, float) and not math.isfinite(answer) else answer


def tell(sentence: str, console: Console | None = None) -> None:
    """A line as it is: names are not markup, and a path stays in one piece."""
    (console or stdout()).print(plain(sentence), markup=False, highlight=False, soft_wrap=True)


def plain(text: str) -> str:
    """Text that cannot steer a terminal: what others wrote into an event or a file name may be anything."""
    return _STEERING.sub(lambda c: c[0].encode("unicode_escape").decode(), text)


def note(sentence: str | None) -> None:
    """What the answer leaves out, on stderr."""
    if sentence:
        tell(f"note: {sentence}", stderr())


def stdout() -> Console:
    """Where answers go; a pipe has no width of its own, so it gets one that holds our tables."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def stderr() -> Console:
    return Console(stderr=True)


@contextmanager
def status(title: str) -> Iterator[Callable[[str], None]]:
    """A spinner on stderr that says what is being done; silent where stderr is no terminal."""
    console = stderr()
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(title) as spinner:
        yield lambda what: spinner.update(f"{title}: {what}")
