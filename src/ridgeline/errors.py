"""The errors of the house and the exit codes of its commands.

An error message is one sentence for the person at the terminal: it names the file, row or value that is
wrong and the cure. The command line prints it without a traceback and leaves with `error.exit_code`.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum


class Exit(IntEnum):
    """One table for every command."""

    OK = 0
    FINDINGS = 1  # findings, or only partly done
    BAD_INPUT = 2
    SLOWER = 3
    UNCLEAR = 4
    NOT_COMPARABLE = 5
    INTERRUPTED = 130


class RidgelineError(Exception):
    """Anything the user can mend; `str(error)` is the sentence to show."""

    exit_code: Exit = Exit.BAD_INPUT


class InputError(RidgelineError):
    """A file, row, value or option is not what it must be."""


class PointedError(InputError):
    """A mistake in a text the user wrote: below the sentence stand the text and a caret at the place."""


class MissingExtra(RidgelineError):
    """A part needs a library that an optional extra brings."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part: pip install 'ridgeline[{extra}]'.")
        self.extra = extra


class PlacementError(RidgelineError):
    """CPUs or memory could not be bound where they were asked to be."""


class StoreError(RidgelineError):
    """A stored file is missing, damaged, locked, or could not be written."""


class Locked(StoreError):
    """Another process works on it now."""


class BatchError(RidgelineError):
    """One batch of a stream failed: `index` says which, the cause is chained."""

    def __init__(self, index: int, what: str) -> None:
        super().__init__(f"batch {index}: {what}.")
        self.index = index


class ChunkError(RidgelineError):
    """One chunk of a pool failed: `index` says which; `kind` and `trace` are the original error's, as text."""

    def __init__(self, index: int, what: str, kind: str = "", trace: str = "") -> None:
        super().__init__(f"chunk {index}: {what}.")
        self.index, self.kind, self.trace = index, kind, trace
        if trace:
            self.add_note(f"In the worker:\n{trace}")


class WorkerError(RidgelineError):
    """A worker of a pool could not be started."""


class Unverified(RidgelineError):
    """What was to be verified is not what it claims to be; `kind` says how, in one word or two."""

    exit_code = Exit.FINDINGS

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


class FabricError(RidgelineError):
    """A collective, or its schedule, went wrong; the sentence names rank, operation and sequence number."""


class NotComparable(RidgelineError):
    """Two things were asked to be compared that have nothing in common."""

    exit_code = Exit.NOT_COMPARABLE


def unknown(kind: str, name: object, known: Iterable[object]) -> InputError:
    """The error for a name that is not there, with the nearest names that are.

    >>> str(unknown("workload", "cpoy", ["copy", "matmul"]))
    "there is no workload 'cpoy'; did you mean 'copy'? There are: copy, matmul."
    """
    names = [str(k) for k in known]
    near = get_close_matches(str(name), names, n=3)
    hint = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else "."
    listed = f" There are: {', '.join(names)}." if names else " There are none here."
    return InputError(f"there is no {kind} '{name}'{hint}{listed}")
