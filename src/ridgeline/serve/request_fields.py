"""Read the JSON bodies of requests. Every field is checked; an unknown one is an error that names the known ones."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.serve.api_errors import ApiError, bad_request

MAX_TEXTS = 2048  # of one request, as OpenAI has it
MAX_RESULTS = 1000  # of one query
MAX_TIMEOUT_S = 3600.0
_NUMBERS = frozenset({int, float})  # bool is not among them
_SCALARS = frozenset({str, int, float, bool, type(None)})


def parse_json(body: bytes) -> dict[str, Any]:
    """Return the object in a body."""
    import orjson

    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the body is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise bad_request('the body must be an object, like {"input": "a text"}.')
    return value


def check_encoding(value: str | None) -> None:
    """Refuse a compressed body, by its Content-Encoding header."""
    if value is not None and value.lower() != "identity":
        raise ApiError(415, "the body is compressed (Content-Encoding); send it as it is.")


def check_fields(body: dict[str, Any], required: Collection[str], optional: Collection[str]) -> None:
    """Refuse a body that lacks a field or has an unknown one."""
    for name in required:
        if body.get(name) is None:
            raise bad_request(f"the field '{name}' is missing.", name)
    for name in body:
        if name not in required and name not in optional:
            known = ", ".join([*required, *optional])
            raise bad_request(f"the field '{_shorten(name)}' is unknown; there are: {known}.")


def get_string(body: dict[str, Any], name: str, default: str = "") -> str:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise bad_request(f"'{name}' must be a string.", name)
    return value


def get_text(body: dict[str, Any], name: str) -> str:
    """Return a string that is not empty."""
    text = get_string(body, name)
    if not text:
        raise bad_request(f"'{name}' is an empty string.", name)
    return text


def get_object(body: dict[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"'{name}' must be an object.", name)
    return value


def get_flag(body: dict[str, Any], name: str, default: bool = False) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise bad_request(f"'{name}' must be true or false.", name)
    return value


def get_integer(body: dict[str, Any], name: str, default: int | None, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise bad_request(f"'{name}' must be a whole number from {low} to {high}.", name)
    return value


def get_texts(body: dict[str, Any], name: str) -> list[str]:
    """Return a string or a list of strings as a list; refuse empty strings."""
    value = body[name]
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise bad_request(f"'{name}' must be a string or a list of strings.", name)
    _check_count(texts, name)
    empty = next((i for i, text in enumerate(texts) if not text), None)
    if empty is not None:
        raise bad_request(f"'{name}' {empty} is an empty string; leave it out.", name)
    return texts


def get_documents(body: dict[str, Any], name: str) -> list[str]:
    """Return the texts of documents: strings, or objects with a text, as Cohere has it."""
    value = body[name]
    if isinstance(value, list):
        value = [document.get("text") if isinstance(document, dict) else document for document in value]
    return get_texts({name: value}, name)


def get_input(body: dict[str, Any], name: str = "input") -> list[str] | list[list[int]]:
    """Return texts, or token ids: a string, a list of strings, a list of ids, a list of lists of ids."""
    value = body[name]
    if isinstance(value, list) and value and all(type(i) is int for i in value):
        return [value]
    if isinstance(value, list) and value and all(isinstance(row, list) for row in value):
        _check_count(value, name)
        if not all(type(i) is int for row in value for i in row):
            raise bad_request(f"'{name}' must hold token ids, which are whole numbers.", name)
        return value
    return get_texts(body, name)


def get_vectors(body: dict[str, Any], name: str, dim: int | None) -> NDArray[np.float32]:
    """Return float32 [n, dim]."""
    value = body[name]
    if not isinstance(value, list):
        raise bad_request(f"'{name}' must be a list of vectors.", name)
    rows = [value] if value and _NUMBERS.issuperset(map(type, value)) else value
    _check_count(rows, name)
    for number, row in enumerate(rows):
        if not isinstance(row, list) or not _NUMBERS.issuperset(map(type, row)):
            raise bad_request(f"'{name}' {number} must be a list of numbers.", name)
        if dim is not None and len(row) != dim:
            raise bad_request(f"'{name}' {number} has {len(row)} components; the index has {dim}.", name)
    try:
        with np.errstate(over="ignore"):
            vectors = np.asarray(rows, np.float32)
    except (ValueError, OverflowError):
        raise bad_request(f"'{name}' must be vectors of one length.", name) from None
    if not np.isfinite(vectors).all():
        raise bad_request(
            f"'{name}' {int(np.argwhere(~np.isfinite(vectors))[0][0])} has a number that is too large.", name
        )
    return vectors


def get_ids(body: dict[str, Any], name: str) -> NDArray[np.int64]:
    value = body[name]
    if not isinstance(value, list) or not value or not all(type(i) is int and _fits(i) for i in value):
        raise bad_request(f"'{name}' must be a list of whole numbers.", name)
    return np.asarray(value, np.int64)


def get_columns(body: dict[str, Any], name: str) -> dict[str, list[Any]] | None:
    """Return lists of strings, numbers and truth values by name."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(column, list) for column in value.values()):
        raise bad_request(f"'{name}' must be an object of lists, one value per row.", name)
    for column in value.values():
        if not _SCALARS.issuperset(map(type, column)) or any(type(x) is int and not _fits(x) for x in column):
            raise bad_request(f"'{name}' must hold strings, true, false, null and numbers up to 64 bits.", name)
    return value


def parse_timeout(value: str | None) -> float | None:
    """Return the seconds of an X-Request-Timeout header."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MAX_TIMEOUT_S:
        raise bad_request(f"X-Request-Timeout must be a number of seconds up to {MAX_TIMEOUT_S:g}.")
    return seconds


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**63


def _check_count(values: Sequence[Any], name: str) -> None:
    if not values:
        raise bad_request(f"'{name}' is empty; give one at least.", name)
    if len(values) > MAX_TEXTS:
        raise bad_request(f"'{name}' has {len(values)} entries; send at most {MAX_TEXTS} at once.", name)


def _shorten(name: str) -> str:
    return name if len(name) <= 40 and name.isprintable() else "…"
