"""Tokens of pairs of texts, as a cross-encoder reads them.

BERT's tokenizer runs natively on both sides, which are then cut and joined with NumPy; every other tokenizer is asked
for the pair itself. Both give the same tokens as `tokenizers`: if a pair is too long, its longer side is cut.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.embed.tokenizer import Tokenizer, read_description
from ridgeline.embed.tokens import Tokens, find_invalid_text, make_text_error
from ridgeline.embed.wordpiece import NativeTokenizer, parse_bert_tokenizer
from ridgeline.errors import InputError, MissingExtra


class PairTokenizer:
    """Pairs of texts → tokens, at most `max_tokens` each.

    second_ids  added to the ids of the second side (its token type): the size of the vocabulary, or 0
    lower       convert texts to lower case, except special tokens in them
    """

    def __init__(self, folder: Path, max_tokens: int, second_ids: int, *, lower: bool = False) -> None:
        description, path = read_description(folder, lower=lower)
        self.max_tokens, self._second_ids = max_tokens, second_ids
        parts = parse_bert_tokenizer(description)
        ends = None if isinstance(parts, str) else _find_bert_ends(description)
        self._native = None if isinstance(parts, str) or ends is None else NativeTokenizer(parts)
        self._ends = ends or (0, 0)  # [CLS] and [SEP]
        self._library: Any = None
        self.special_tokens = 3
        if self._native is None:
            self._library = _load_library(description, path)
            self.special_tokens = int(self._library.num_special_tokens_to_add(True))
            if max_tokens < self.special_tokens + 2:
                raise InputError(
                    f"max_tokens is {max_tokens}; a pair needs {self.special_tokens} special tokens and two more."
                )
            self._direction = "left" if (description.get("truncation") or {}).get("direction") == "Left" else "right"
            self._library.no_padding()
            self._limit_library()
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())

    def copy(self, max_tokens: int) -> PairTokenizer:
        """Return the same tokenizer with another limit."""
        other = deepcopy(self)
        other.max_tokens = max_tokens
        if other._library is not None:
            other._limit_library()
        return other

    def _limit_library(self) -> None:
        self._library.enable_truncation(self.max_tokens, strategy="longest_first", direction=self._direction)

    @property
    def native(self) -> bool:
        """Whether native loops do the work."""
        return self._native is not None

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest token number."""
        tokenizer: Tokenizer | None = self._native
        if tokenizer is not None:
            return tokenizer.vocabulary_size
        return 1 + max(self._library.get_vocab(with_added_tokens=True).values(), default=-1)

    def encode(self, firsts: Sequence[str], seconds: Sequence[str]) -> Tokens:
        """Return the tokens of each pair."""
        if self._native is not None:
            return self._join(self._native, firsts, seconds)
        for texts in (firsts, seconds):
            invalid = find_invalid_text(texts)
            if invalid >= 0:
                raise make_text_error(texts, invalid)
        with self._lock:
            rows = self._library.encode_batch_fast(list(zip(firsts, seconds, strict=True)))
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        ids = np.fromiter(chain.from_iterable(row.ids for row in rows), np.int32, int(offsets[-1]))
        if self._second_ids:
            ids += np.int32(self._second_ids) * np.fromiter(
                chain.from_iterable(row.type_ids for row in rows), np.int32, len(ids)
            )
        return Tokens(ids, offsets)

    def _join(self, tokenizer: NativeTokenizer, firsts: Sequence[str], seconds: Sequence[str]) -> Tokens:
        count = len(firsts)
        same = count > 1 and all(text is firsts[0] for text in firsts)  # one query with many documents
        left = tokenizer.encode([firsts[0]] if same else list(firsts), self.max_tokens)
        right = tokenizer.encode(list(seconds), self.max_tokens)
        left_starts = left.offsets[:-1] + 1  # after the special token
        left_lengths = left.lengths - 2
        if same:
            left_starts, left_lengths = np.repeat(left_starts, count), np.repeat(left_lengths, count)
        right_lengths = right.lengths - 2
        limit = self.max_tokens - self.special_tokens
        tied = np.flatnonzero((left_lengths > limit) & (right_lengths > limit))
        if len(tied) and limit % 2:  # the longer side gets one token more, so count what was cut
            left_lengths, right_lengths = left_lengths.copy(), right_lengths.copy()
            left_lengths[tied] = tokenizer.encode([firsts[int(i)] for i in tied]).lengths - 2
            right_lengths[tied] = tokenizer.encode([seconds[int(i)] for i in tied]).lengths - 2
        first, second = cut_longer(left_lengths, right_lengths, limit)
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(first + second + 3, out=offsets[1:])
        classify, separate = self._ends
        ids = np.empty(int(offsets[-1]), np.int32)
        begins = offsets[:-1]
        ids[begins] = classify
        ids[begins + 1 + first] = separate
        ids[offsets[1:] - 1] = separate + self._second_ids
        ids[_make_ranges(begins + 1, first)] = left.ids[_make_ranges(left_starts, first)]
        ids[_make_ranges(begins + 2 + first, second)] = (
            right.ids[_make_ranges(right.offsets[:-1] + 1, second)] + self._second_ids
        )
        return Tokens(ids, offsets)


def cut_longer(
    first: NDArray[np.int64], second: NDArray[np.int64], limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the lengths of both sides after cutting the longer one so that both have at most `limit` tokens.

    As `longest_first` of `tokenizers`: if the shorter side has more than half, both get half.

    >>> [n.tolist() for n in cut_longer(np.array([2, 9, 9]), np.array([3, 4, 8]), 10)]
    [[2, 6, 5], [3, 4, 5]]
    """
    short, long = np.minimum(first, second), np.maximum(first, second)
    fitting = np.where(short > limit, short, np.maximum(short, limit - short))
    both = short + fitting > limit
    new_short = np.where(both, limit // 2, short)
    new_long = np.where(both, limit // 2 + limit % 2, fitting)
    swapped = first > second
    too_long = short + long > limit
    new_first = np.where(too_long, np.where(swapped, new_long, new_short), first)
    new_second = np.where(too_long, np.where(swapped, new_short, new_long), second)
    return np.minimum(new_first, first), np.minimum(new_second, second)


def _make_ranges(begins: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return begins[0], begins[0] + 1, …: `counts[0]` of them, and so on."""
    return np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))


def _find_bert_ends(description: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the numbers of [CLS] and [SEP] if pairs are [CLS] A [SEP] B [SEP] with types 0 and 1; else None."""
    processor = description.get("post_processor") or {}
    if processor.get("type") == "BertProcessing":
        return int(processor["cls"][1]), int(processor["sep"][1])
    steps: list[Any] = []
    special: list[tuple[int, ...]] = []
    for step in processor.get("pair") or []:
        if "Sequence" in step:
            steps.append(f"{step['Sequence']['id']}{step['Sequence']['type_id']}")
        else:
            numbers = processor["special_tokens"][step["SpecialToken"]["id"]]["ids"]
            steps.append((tuple(numbers), step["SpecialToken"]["type_id"]))
            special.append(tuple(numbers))
    if len(special) != 3 or any(len(numbers) != 1 for numbers in special):
        return None
    classify, separate, last = special
    expected = [(classify, 0), "A0", (separate, 0), "B1", (separate, 1)]
    return (int(classify[0]), int(separate[0])) if steps == expected and separate == last else None


def _load_library(description: Mapping[str, Any], path: Path) -> Any:
    try:
        from tokenizers import Tokenizer as LibraryTokenizer
    except ImportError:
        raise MissingExtra(f"tokenizing pairs with {path}", "embed") from None
    try:
        return LibraryTokenizer.from_str(json.dumps(description))
    except Exception as error:  # the library raises plain Exception
        raise InputError(f"{path} is no tokenizer that this release of tokenizers knows: {error}.") from error
