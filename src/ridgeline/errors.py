"""The errors of Ridgeline and the exit codes of its commands.

An error message is one sentence for the user: it names the wrong file, row or value, and what to do. The command line
prints it without a traceback and exits with `error.exit_code`.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes, the same for every command."""

    OK = 0
    FINDINGS = 1  # findings, or only a part was done
    BAD_INPUT = 2
    SLOWER = 3
    UNCLEAR = 4
    NOT_COMPARABLE = 5
    INTERRUPTED = 130


class RidgelineError(Exception):
    """An error that the user can fix; `str(error)` is the message."""

    exit_code: Exit = Exit.BAD_INPUT

    def __init__(self, *message: object) -> None:
        super().__init__(*message)


class InputError(RidgelineError):
    """A file, row, value or option is invalid."""


class PointedError(InputError):
    """A mistake in a text of the user: the message shows the text with a caret below the place."""


class MissingExtra(RidgelineError):
    """A feature needs a library of an optional extra."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part: {format_install(extra)}.")
        self.extra = extra


class PlacementError(RidgelineError):
    """CPUs or memory could not be bound as requested."""


class StoreError(RidgelineError):
    """A stored file is missing, damaged, locked, or could not be written."""


class Locked(StoreError):
    """Another process holds the lock."""


class BatchError(RidgelineError):
    """One batch of a stream failed: `index` is its number, the cause is chained."""

    def __init__(self, index: int, what: str) -> None:
        super().__init__(f"batch {index}: {what}.")
        self.index = index


class ChunkError(RidgelineError):
    """One chunk of a pool failed: `index` is its number; `kind` and `trace` describe the original error as text."""

    def __init__(self, index: int, what: str, kind: str = "", trace: str = "") -> None:
        super().__init__(f"chunk {index}: {what}.")
        self.index, self.kind, self.trace = index, kind, trace
        if trace:
            self.add_note(f"In the worker:\n{trace}")


class WorkerError(RidgelineError):
    """A worker of a pool did not start."""


class Unverified(RidgelineError):
    """A verification failed; `kind` names the reason in one or two words."""

    exit_code = Exit.FINDINGS

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


class FabricError(RidgelineError):
    """A collective or its schedule failed; the message names rank, operation and sequence number."""


class NotComparable(RidgelineError):
    """Two inputs have nothing in common to compare."""

    exit_code = Exit.NOT_COMPARABLE


class CaseLeftOut(NotComparable):
    """A suite leaves this case out: its `setup` raised NotImplementedError, as asv has it."""


def unknown(kind: str, name: object, known: Iterable[object]) -> InputError:
    """Return the error for an unknown name, with the most similar known names.

    >>> str(unknown("workload", "cpoy", ["copy", "matmul"]))
    "there is no workload 'cpoy'; did you mean 'copy'? There are: copy, matmul."
    """
    names = [str(k) for k in known]
    similar = get_close_matches(str(name), names, n=3)
    hint = f"; did you mean {' or '.join(repr(n) for n in similar)}?" if similar else "."
    listed = f" There are: {', '.join(names)}." if names else " There are none here."
    return InputError(f"there is no {kind} '{name}'{hint}{listed}")


def format_install(extra: str) -> str:
    """Say how to install an optional extra. No package index has Ridgeline yet, so its sources are needed.

    >>> format_install("robot")
    "pip install '.[robot]' in the folder of Ridgeline's sources"
    """
    return f"pip install '.[{extra}]' in the folder of Ridgeline's sources"
