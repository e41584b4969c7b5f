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
        return self.offsets[1:] - self.offsets[:-1]  # np.diff takes ten times as long for few texts


def as_text_list(texts: Any) -> Sequence[Any]:
    """Return texts as a list or tuple; a single string is an InputError."""
    if isinstance(texts, (list, tuple)):
        return texts
    if isinstance(texts, (str, bytes)):
        raise InputError(f"texts is one {type(texts).__name__}, {texts[:40]!r}; give a list of str.")
    try:
        return list(texts)
    except TypeError:
        raise InputError(f"texts is a {type(texts).__name__}; give a list of str.") from None


def make_text_error(texts: Sequence[Any], index: int) -> InputError:
    """Return an InputError that says why text `index` cannot be tokenized."""
    text = texts[index]
    if not isinstance(text, str):
        value = repr(text)
        value = value if len(value) <= 60 else value[:57] + "..."
        return InputError(f"text {index} is not a str but {type(text).__name__}: {value}.")
    position = next((k for k, c in enumerate(text) if "\ud800" <= c <= "\udfff"), 0)
    return InputError(
        f"text {index} has a lone surrogate, {text[position]!a}, at character {position}: that is not Unicode text; "
        "read its bytes again with errors='replace'."
    )


def find_invalid_text(texts: Sequence[Any]) -> int:
    """Return the index of the first text that is not a str or has a lone surrogate; -1 if there is none."""
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            return index
        try:
            text.encode()
        except UnicodeEncodeError:
            return index
    return -1


def drop_token(tokens: Tokens, number: int) -> Tokens:
    """Leave out one token.

    >>> drop_token(Tokens(np.array([5, 7, 5, 8], np.int32), np.array([0, 2, 4])), 5).ids.tolist()
    [7, 8]
    """
    keep = tokens.ids != number
    offsets_after = np.concatenate([[0], np.cumsum(keep)])
    return Tokens(tokens.ids[keep], offsets_after[tokens.offsets])


def join_tokens(parts: list[Tokens]) -> Tokens:
    """Concatenate tokens."""
    if len(parts) == 1:
        return parts[0]
    offsets = np.zeros(sum(len(p) for p in parts) + 1, np.int64)
    if parts:
        np.cumsum(np.concatenate([p.lengths for p in parts]), out=offsets[1:])
    return Tokens(np.concatenate([p.ids for p in parts] or [np.zeros(0, np.int32)]), offsets)
