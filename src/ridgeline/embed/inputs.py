"""Read texts from lists, generators and columns, check them, and split them into windows of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ridgeline.errors import InputError

WINDOW_TEXTS = 16_384  # enough for long runs of equal length, small beside a model
WINDOW_CHARACTERS = 1 << 24
FIRST_WINDOW = 2_048  # texts; small, so that the device starts early
MAX_RECORDED_TEXTS = 1024  # of one recording (cuda_graphs.py)
MAX_SHORT_TEXTS, MAX_SHORT_CHARACTERS = 4096, 300_000  # some four recordings


def split_windows(
    texts: Iterable[Any], *, first: int = FIRST_WINDOW, before: int = 0
) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the first text, texts), in order; raises InputError for a value that is not a text.

    before  texts of earlier parts, which the error counts as well
    """
    start, size, limit = 0, 0, first
    texts_in_window: list[str] = []
    for piece in _split_column(texts):
        if type(piece) is list and not texts_in_window:  # complete slices of plain strings
            offset = 0
            while offset < len(piece):
                part = piece[offset : offset + limit]
                if set(map(type, part)) != {str} or sum(map(len, part)) >= WINDOW_CHARACTERS:
                    break
                yield start, part
                start, offset, limit = start + len(part), offset + len(part), WINDOW_TEXTS
            piece = piece[offset:] if offset else piece
        for text in piece:
            if not isinstance(text, str):
                raise InputError(
                    f"text {before + start + len(texts_in_window)} is {_format_value(text)}; give strings only."
                )
            texts_in_window.append(text)
            size += len(text)
            if len(texts_in_window) >= limit or size >= WINDOW_CHARACTERS:
                yield start, texts_in_window
                start, size, limit, texts_in_window = start + len(texts_in_window), 0, WINDOW_TEXTS, []
    if texts_in_window:
        yield start, texts_in_window


def get_length(texts: Any) -> int | None:
    """Return the number of texts if it is known in advance, else None."""
    try:
        return len(texts)
    except TypeError:
        return None


def are_few(texts: Any) -> bool:
    """Whether these are so few texts that overlapping their steps gains less than recorded graphs."""
    count = get_length(texts)
    if count is None or count > MAX_SHORT_TEXTS:
        return False
    if count <= MAX_RECORDED_TEXTS:
        return True
    return (
        isinstance(texts, list | tuple)
        and set(map(type, texts)) == {str}
        and sum(map(len, texts)) <= MAX_SHORT_CHARACTERS
    )


def check_texts(texts: Any) -> None:
    """Refuse a single string, which Python treats as a list of letters, and values that are not iterable."""
    if isinstance(texts, str | bytes):
        raise InputError(f"texts is one {type(texts).__name__}; give a list of str (encode takes one str too).")
    if not isinstance(texts, Iterable):
        raise InputError(f"texts is {_format_value(texts)}; give a list, a generator or a column of strings.")
    if hasattr(texts, "columns") and hasattr(texts, "to_dict"):
        raise InputError("texts is a table; give one column of it, like table['text'].")


def _split_column(texts: Any) -> Iterator[Iterable[Any]]:
    """Convert columns to Python strings in parts: pyarrow's by chunk, pandas' and numpy's by slice."""
    if hasattr(texts, "iterchunks"):
        for chunk in texts.iterchunks():
            yield from _split_column(chunk)
    elif hasattr(texts, "to_pylist"):
        for first in range(0, len(texts), WINDOW_TEXTS):
            yield texts.slice(first, WINDOW_TEXTS).to_pylist()
    elif hasattr(texts, "tolist") and hasattr(texts, "dtype"):
        for first in range(0, len(texts), WINDOW_TEXTS):
            part = (
                texts.iloc[first : first + WINDOW_TEXTS]
                if hasattr(texts, "iloc")
                else texts[first : first + WINDOW_TEXTS]
            )
            yield part.tolist()
    else:
        yield texts


def _format_value(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:37] + '…'} ({type(value).__name__})" if value is not None else "None"


def explain_unreadable(texts: list[str], first: int, error: Exception) -> InputError:
    """Return an InputError that names the text with a lone surrogate, which the tokenizer does not name."""
    for number, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as decode_error:
            letter = text[decode_error.start]
            return InputError(f"text {first + number} holds {letter!r}, half a surrogate pair; correct or replace it.")
    return InputError(f"the tokenizer failed on texts {first} to {first + len(texts) - 1}: {error}.")
