"""What all readers share: fields of a topic become streams, and what is left out is said."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import unknown
from ridgeline.trajectory.guess import groups
from ridgeline.trajectory.stream import Stream, indexed
from ridgeline.trajectory.timeline import Array

WIDEST = 256  # columns of one field; images and point clouds are wider, and are no trajectories


def _silent(_: str) -> None:
    pass


@dataclass(frozen=True)
class Ask:
    """What a reader cannot know from the file alone."""

    fps: float | None = None  # for recordings without stamps
    clock: str | None = None  # the time column of a table
    unit: str | None = None  # of that column: ns, us, ms, s
    say: Callable[[str], None] = field(default=_silent, compare=False)  # where notes go


def streams_of(topic: str, times: Array, fields: Mapping[str, Array], episode: str = "") -> list[Stream]:
    """One stream per quantity of a topic; `fields` are arrays [S] or [S, D] under their own names."""
    found = []
    for name, members in groups(fields):
        parts = [fields[m] for m in members]
        bundles = [(name, members)] if len(parts) == 1 or _alike(parts) else [(m, (m,)) for m in members]
        for title, names in bundles:
            values = fields[names[0]] if len(names) == 1 else np.stack([fields[n] for n in names], axis=1)
            labels = names if values.ndim == 2 and len(names) > 1 else ()
            found.append(
                Stream(
                    _joined(topic, title),
                    times,
                    values,
                    columns=tuple(_joined(topic, n) for n in labels)
                    or (indexed(_joined(topic, title), values.shape[1]) if values.ndim == 2 else ()),
                    episode=episode,
                )
            )
    return found


def opening(path: Path, count: int) -> bytes:
    """The first bytes of a file; nothing of a folder."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(count)


def chosen(known: Iterable[str], words: Sequence[str] | None, path: object) -> set[str]:
    """The topics that must be read so that every word can be answered; a word that means none is an error."""
    topics = list(known)
    if not words:
        return set(topics)
    out: set[str] = set()
    for word in words:
        hits = {t for t in topics if _means(word, t)}
        if not hits:
            raise unknown(f"topic in '{path}'", word, topics)
        out |= hits
    return out


def chosen_columns(known: Iterable[str], words: Sequence[str] | None) -> set[str]:
    """The columns that must be read so that every word can be answered; of one quantity always all.

    >>> sorted(chosen_columns(["pos_x", "pos_y", "b"], ["pos"])), sorted(chosen_columns(["a[0]", "a[1]"], ["a[1]"]))
    (['pos_x', 'pos_y'], ['a[0]', 'a[1]'])
    """
    names = list(known)
    if not words:
        return set(names)
    parts = [m for n, m in groups(names) if any(_means(word, label) for word in words for label in (n, *m))]
    return {name for members in parts for name in members}


def meant(streams: Iterable[Stream], word: str) -> set[str]:
    """The names of the streams that a word means, by their own name or by that of a column; none is no error."""
    return {s.name for s in streams if any(_is(word, label) for label in (s.name, *s.columns))}


def numeric(values: Sequence[Any] | Array) -> Array | None:
    """Values of one field as [S] or [S, D] numbers; None where they are something else or change their shape."""
    try:
        found = np.asarray(values)
    except ValueError:  # rows of different lengths
        return None
    if found.dtype.kind not in "fiub" or found.ndim > 3 or (found.ndim > 1 and not found.size):
        return None
    flat: Array = found.reshape(len(found), -1) if found.ndim > 1 else found
    return None if flat.ndim == 2 and flat.shape[1] > WIDEST else flat


def said(ask: Ask, topic: str, names: Sequence[str]) -> None:
    """Name the fields that were left out."""
    if names:
        rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
        where = f"{topic}: " if topic else ""
        ask.say(f"{where}left out, not numeric or too wide: {', '.join(names[:5])}{rest}.")


def _alike(parts: Sequence[Array]) -> bool:
    """One type; or floats beside integers, as text gives them when a column happens to hold 0 and 1 only."""
    kinds = {p.dtype for p in parts}
    mixed = {k.kind for k in kinds}
    return all(p.ndim == 1 for p in parts) and (len(kinds) == 1 or ("f" in mixed and "b" not in mixed))


def _is(word: str, name: str) -> bool:
    return name == word or name.startswith(f"{word}/") or fnmatch.fnmatchcase(name, word)


def _means(word: str, topic: str) -> bool:
    return word == topic or word.startswith(f"{topic}/") or topic.startswith(f"{word}/") or _fits(word, topic)


def _fits(word: str, topic: str) -> bool:
    """A pattern may speak of the topic alone or of streams below it."""
    if not any(c in word for c in "*?["):
        return False
    depth = topic.count("/") + 1
    return fnmatch.fnmatchcase(topic, word) or fnmatch.fnmatchcase(topic, "/".join(word.split("/")[:depth]))


def _joined(topic: str, name: str) -> str:
    return f"{topic}/{name}" if topic else name


def reason(error: Exception) -> str:
    """What a library says of its error, in a line; some say nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")[:160]
