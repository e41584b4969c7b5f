"""Tokens of many texts, one after the other, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError


@dataclass(frozen=True, slots=True)
class Tokens:
    """Text i has the tokens `ids[offsets[i]:offsets[i + 1]]`.

    >>> tokens = Tokens(np.array([101, 7592, 102, 101, 102], np.int32), np.array([0, 3, 5]))
    >>> len(tokens), tokens.lengths.tolist(), tokens[0].tolist()
    (2, [3, 2], [101, 7592, 102])
    """

    ids: NDArray[np.int32]  # [tokens of all texts]
    offsets: NDArray[np.int64]  # [texts + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[np.int32]:
        """The tokens of one text, a view."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"text {index} of {len(self)}")
        index %= len(self)
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each text [texts]."""
        return np.diff(self.offsets)


def listed(texts: Any) -> Sequence[Any]:
    """The texts as a list or tuple; one bare string is not a list of letters."""
    if isinstance(texts, (list, tuple)):
        return texts
    if isinstance(texts, (str, bytes)):
        raise InputError(f"texts is one {type(texts).__name__}, {texts[:40]!r}; give a list of str.")
    try:
        return list(texts)
    except TypeError:
        raise InputError(f"texts is a {type(texts).__name__}; give a list of str.") from None


def refused(texts: Sequence[Any], index: int) -> InputError:
    """Why text `index` cannot be tokenized."""
    text = texts[index]
    if not isinstance(text, str):
        shown = repr(text)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return InputError(f"text {index} is not a str but {type(text).__name__}: {shown}.")
    at = next((k for k, c in enumerate(text) if "\ud800" <= c <= "\udfff"), 0)
    return InputError(
        f"text {index} has a lone surrogate, {text[at]!a}, at character {at}: that is not Unicode text; read its bytes "
        "again with errors='replace'."
    )


def first_refused(texts: Sequence[Any]) -> int:
    """The first text that is not a str or has a lone surrogate; -1 if all are fine."""
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            return index
        try:
            text.encode()
        except UnicodeEncodeError:
            return index
    return -1


def joined(parts: list[Tokens]) -> Tokens:
    """One after the other."""
    if len(parts) == 1:
        return parts[0]
    offsets = np.zeros(sum(len(p) for p in parts) + 1, np.int64)
    if parts:
        np.cumsum(np.concatenate([p.lengths for p in parts]), out=offsets[1:])
    return Tokens(np.concatenate([p.ids for p in parts] or [np.zeros(0, np.int32)]), offsets)
