"""BERT's tokenizer on the native loops: what of a tokenizer.json they can do, and the doing."""

from __future__ import annotations

import os
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgeline.embed.tokens import Tokens, listed, refused
from ridgeline.errors import InputError
from ridgeline.native import WordPiece

PIPELINE = {"added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"}
KNOWN = {"version", "truncation", "padding", *PIPELINE}
NORMALIZER = {"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"}
MODEL = {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"}
LONGEST_WORD = 100_000
MOST_TOKENS = 4_000_000


@dataclass(frozen=True)
class Parts:
    """A tokenizer.json that is BERT's, in the words of the native tokenizer."""

    tokens: list[str]  # by number; "" where there is none
    unknown: int
    before: list[int]
    after: list[int]
    added: list[tuple[str, int]]
    special: dict[str, int]
    pad: int
    clean_text: bool
    handle_chinese_chars: bool
    strip_accents: bool
    lowercase: bool
    max_word: int


class NativeTokenizer:
    """Texts → tokens by native/wordpiece_loops.cpp, on all CPUs this process may use."""

    native = True
    why = ""

    def __init__(self, parts: Parts) -> None:
        self.special: Mapping[str, int] = parts.special
        self.pad_id = parts.pad
        self.vocabulary_size = max(len(parts.tokens), 1 + max((number for _, number in parts.added), default=0))
        self._frame = len(parts.before) + len(parts.after)
        self._wordpiece = WordPiece(
            parts.tokens,
            parts.unknown,
            parts.before,
            parts.after,
            parts.added,
            clean_text=parts.clean_text,
            handle_chinese_chars=parts.handle_chinese_chars,
            strip_accents=parts.strip_accents,
            lowercase=parts.lowercase,
            max_word=parts.max_word,
        )

    def encode(self, texts: Iterable[str], max_tokens: int | None = None, threads: int | None = None) -> Tokens:
        given = texts if type(texts) is list else listed(texts)
        limit = -1 if max_tokens is None else enough(max_tokens, self._frame)
        if threads is None:
            threads = len(os.sched_getaffinity(0)) if len(given) > 1 else 1
        offsets = np.empty(len(given) + 1, np.int64)
        ids, at = self._wordpiece.encode(given, offsets, limit, threads)
        if at >= 0:
            raise refused(given, at)
        return Tokens(ids, offsets)


def enough(max_tokens: int, frame: int) -> int:
    if max_tokens < frame:
        raise InputError(f"max_tokens is {max_tokens}, but the special tokens around a text are {frame}.")
    return max_tokens


def recognise(description: Mapping[str, Any]) -> Parts | str:
    """The parts, or in half a sentence why the native tokenizer cannot give what `tokenizers` would."""
    try:
        return _parts(description)
    except _Other as why:
        return str(why)
    except (KeyError, IndexError, TypeError, AttributeError) as error:  # `tokenizers` has the words for what is wrong
        return f"it is not laid out as a tokenizer is ({type(error).__name__}: {error})"


class _Other(Exception):
    """Not BERT's."""


def _need(holds: object, otherwise: str) -> None:
    if not holds:
        raise _Other(otherwise)


def _parts(description: Mapping[str, Any]) -> Parts:
    _need(set(description) <= KNOWN, f"it has a part {', '.join(sorted(set(description) - KNOWN))}")
    model, normalizer = _part(description, "model"), _part(description, "normalizer")
    _need(model.get("type") == "WordPiece", f"its model is {model.get('type')}")
    _need(set(model) == MODEL, "its model has other settings than BERT's")
    _need(normalizer.get("type") == "BertNormalizer", f"its normalizer is {normalizer.get('type')}")
    _need(set(normalizer) == NORMALIZER, "its normalizer has other settings than BERT's")
    _need(
        _part(description, "pre_tokenizer") == {"type": "BertPreTokenizer"},
        f"its pre-tokenizer is {_part(description, 'pre_tokenizer').get('type')}",
    )
    truncation = description.get("truncation") or {}
    _need(truncation.get("direction", "Right") == "Right", "it cuts texts on the left")

    options = {key: normalizer[key] for key in ("clean_text", "handle_chinese_chars", "lowercase")}
    strip = normalizer["strip_accents"]
    strip = options["lowercase"] if strip is None else strip
    _need(all(type(value) is bool for value in (*options.values(), strip)), "its normalizer has odd settings")

    vocabulary, prefix, longest = model["vocab"], model["continuing_subword_prefix"], model["max_input_chars_per_word"]
    _need(prefix == "##", f"its pieces begin with {prefix!r}")
    _need(type(longest) is int and 1 <= longest <= LONGEST_WORD, f"its longest word has {longest} characters")
    tokens = _by_number(vocabulary)
    _need(model["unk_token"] in vocabulary, "its unknown token is not in the vocabulary")
    added = _added(description.get("added_tokens") or [], vocabulary)
    before, after = _frame(description.get("post_processor"))
    numbers = (*before, *after, *(number for _, number in added))
    _need(all(type(n) is int and 0 <= n < 2**31 for n in numbers), "its special tokens have odd numbers")
    padding = description.get("padding") or {}
    pad = padding.get("pad_id", vocabulary.get("[PAD]", 0))
    special = {one["content"]: one["id"] for one in description.get("added_tokens") or [] if one.get("special")}
    return Parts(
        tokens, vocabulary[model["unk_token"]], before, after, added, special, pad,
        strip_accents=strip, max_word=longest, **options,
    )  # fmt: skip


def _part(description: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = description.get(name)
    return part if isinstance(part, Mapping) else {"type": None}


def _by_number(vocabulary: Any) -> list[str]:
    _need(isinstance(vocabulary, Mapping) and vocabulary, "its vocabulary is not a table")
    numbers = vocabulary.values()
    _need(all(type(n) is int and n >= 0 for n in numbers), "its vocabulary has odd numbers")
    _need(max(numbers) < 2 * len(vocabulary) + 1000, "its vocabulary has large holes")
    _need(max(numbers) < MOST_TOKENS, "its vocabulary is very large")
    _need(len(set(numbers)) == len(vocabulary), "two of its tokens share a number")
    try:
        "".join(vocabulary).encode()
    except UnicodeEncodeError:
        raise _Other("its vocabulary is not Unicode text") from None
    tokens = [""] * (max(numbers) + 1)
    for token, number in vocabulary.items():
        tokens[number] = token
    return tokens


def _added(added: list[dict[str, Any]], vocabulary: Mapping[str, int]) -> list[tuple[str, int]]:
    """Added tokens are found in the raw text; those that ask for more than that are not for the native loops."""
    found: dict[str, int] = {}
    beyond = len(vocabulary)
    for one in added:
        content, number = one["content"], one["id"]
        plain = not any(one.get(key, True) for key in ("single_word", "lstrip", "rstrip", "normalized"))
        _need(plain, f"its added token {content!r} is matched in a special way")
        _need(content[:1] and content[0] in string.punctuation, f"its added token {content!r} begins like a word")
        if content not in vocabulary:
            _need(number == beyond, f"its added token {content!r} has an unexpected number")
            beyond += 1
        _need(vocabulary.get(content, number) == number, f"its added token {content!r} has two numbers")
        _need(content not in found, f"its added token {content!r} is there twice")
        found[content] = number
    return list(found.items())


def _frame(processor: Any) -> tuple[list[int], list[int]]:
    """Numbers put before and after every text."""
    if processor is None:
        return [], []
    kind = processor.get("type")
    if kind == "BertProcessing":
        return [processor["cls"][1]], [processor["sep"][1]]
    _need(kind == "TemplateProcessing", f"its post-processor is {kind}")
    ends: tuple[list[int], list[int]] = ([], [])
    inside = False
    for step in processor["single"]:
        if "Sequence" in step:
            _need(step["Sequence"]["id"] == "A" and not inside, "its template is not one text")
            inside = True
        else:
            ends[inside].extend(processor["special_tokens"][step["SpecialToken"]["id"]]["ids"])
    _need(inside, "its template has no text")
    return ends
