"""Texts from whatever holds them: lists, generators, columns; checked, and in pieces of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ridgeline.errors import InputError

TEXTS = 16_384  # per window: enough for long runs of equal length, small beside any model
CHARACTERS = 1 << 24
FIRST = 2_048  # the first window is small, so that the device starts early
FEW = 512  # texts, at most, whose launches are recorded on a GPU (few.py)


def windows(texts: Iterable[Any], *, first: int = FIRST) -> Iterator[tuple[int, list[str]]]:
    """(number of the first text, texts), in order; a text that is none is an error with its number."""
    start, size, limit = 0, 0, first
    held: list[str] = []
    for piece in _pieces(texts):
        if type(piece) is list and not held:  # whole slices, as long as they are plain
            here = 0
            while here < len(piece):
                part = piece[here : here + limit]
                if set(map(type, part)) != {str} or sum(map(len, part)) >= CHARACTERS:
                    break
                yield start, part
                start, here, limit = start + len(part), here + len(part), TEXTS
            piece = piece[here:] if here else piece
        for text in piece:
            if not isinstance(text, str):
                raise InputError(f"text {start + len(held)} is {_shown(text)}; give strings only.")
            held.append(text)
            size += len(text)
            if len(held) >= limit or size >= CHARACTERS:
                yield start, held
                start, size, limit, held = start + len(held), 0, TEXTS, []
    if held:
        yield start, held


def length_of(texts: Any) -> int | None:
    """How many there are, if that can be known beforehand."""
    try:
        return len(texts)
    except TypeError:
        return None


def refuse_one(texts: Any) -> None:
    """A single string is a list of letters to Python, and never meant as such."""
    if isinstance(texts, str | bytes):
        raise InputError(f"texts is one {type(texts).__name__}; give a list, or use encode_one for a single text.")
    if not isinstance(texts, Iterable):
        raise InputError(f"texts is {_shown(texts)}; give a list, a generator or a column of strings.")
    if hasattr(texts, "columns") and hasattr(texts, "to_dict"):
        raise InputError("texts is a table; give one column of it, like table['text'].")


def _pieces(texts: Any) -> Iterator[Iterable[Any]]:
    """Columns turn into Python strings piece by piece; pyarrow's by chunk, pandas' and numpy's by slice."""
    if hasattr(texts, "iterchunks"):
        for chunk in texts.iterchunks():
            yield from _pieces(chunk)
    elif hasattr(texts, "to_pylist"):
        for first in range(0, len(texts), TEXTS):
            yield texts.slice(first, TEXTS).to_pylist()
    elif hasattr(texts, "tolist") and hasattr(texts, "dtype"):
        for first in range(0, len(texts), TEXTS):
            part = texts.iloc[first : first + TEXTS] if hasattr(texts, "iloc") else texts[first : first + TEXTS]
            yield part.tolist()
    else:
        yield texts


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:37] + '…'} ({type(value).__name__})" if value is not None else "None"


def unreadable(texts: list[str], first: int, error: Exception) -> InputError:
    """Half a surrogate pair is a Python string but no text; the tokenizer cannot say which one it was."""
    for number, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as why:
            letter = text[why.start]
            return InputError(f"text {first + number} holds {letter!r}, half a surrogate pair; mend or replace it.")
    return InputError(f"the tokenizer failed on texts {first} to {first + len(texts) - 1}: {error}.")
