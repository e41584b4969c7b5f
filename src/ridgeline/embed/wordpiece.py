"""BERT's tokenizer on native loops: check that a tokenizer.json is BERT's, and tokenize."""

from __future__ import annotations

import os
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgeline.embed.tokens import Tokens, as_text_list, make_text_error
from ridgeline.errors import InputError
from ridgeline.native import WordPiece

PIPELINE = {"added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"}
KNOWN = {"version", "truncation", "padding", *PIPELINE}
NORMALIZER = {"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"}
MODEL = {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"}
MAX_WORD = 100_000
MAX_TOKENS = 4_000_000


@dataclass(frozen=True)
class WordPieceConfig:
    """The settings of BERT's tokenizer for the native loops."""

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
    """Texts → tokens by native loops, on all CPUs that this process may use."""

    native = True
    why = ""

    def __init__(self, parts: WordPieceConfig) -> None:
        self.special: Mapping[str, int] = parts.special
        self.pad_id = parts.pad
        self.vocabulary_size = max(len(parts.tokens), 1 + max((number for _, number in parts.added), default=0))
        self._frame = len(parts.before) + len(parts.after)
        self._parts = parts
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

    def __reduce__(self) -> tuple[type[NativeTokenizer], tuple[WordPieceConfig]]:
        return NativeTokenizer, (self._parts,)

    def encode(self, texts: Iterable[str], max_tokens: int | None = None, threads: int | None = None) -> Tokens:
        text_list = texts if type(texts) is list else as_text_list(texts)
        limit = -1 if max_tokens is None else check_max_tokens(max_tokens, self._frame)
        if threads is None:
            threads = len(os.sched_getaffinity(0)) if len(text_list) > 1 else 1
        offsets = np.empty(len(text_list) + 1, np.int64)
        ids, invalid = self._wordpiece.encode(text_list, offsets, limit, threads)
        if invalid >= 0:
            raise make_text_error(text_list, invalid)
        return Tokens(ids, offsets)


def check_max_tokens(max_tokens: int, frame: int) -> int:
    if max_tokens < frame:
        raise InputError(f"max_tokens is {max_tokens}, but the special tokens around a text are {frame}.")
    return max_tokens


def parse_bert_tokenizer(description: Mapping[str, Any]) -> WordPieceConfig | str:
    """Return the settings, or half a sentence that says why the native tokenizer cannot do what `tokenizers` does."""
    try:
        return _parse_parts(description)
    except NotSupported as why:
        return str(why)
    except (KeyError, IndexError, TypeError, AttributeError) as error:  # `tokenizers` explains what is wrong
        return f"it is not laid out as a tokenizer is ({type(error).__name__}: {error})"


class NotSupported(Exception):
    """Native loops cannot do what the tokenizer does; the message is half a sentence."""


def require(condition: object, reason: str) -> None:
    if not condition:
        raise NotSupported(reason)


def _parse_parts(description: Mapping[str, Any]) -> WordPieceConfig:
    require(set(description) <= KNOWN, f"it has a part {', '.join(sorted(set(description) - KNOWN))}")
    model, normalizer = _get_part(description, "model"), _get_part(description, "normalizer")
    require(model.get("type") == "WordPiece", f"its model is {model.get('type')}")
    require(set(model) == MODEL, "its model has other settings than BERT's")
    require(normalizer.get("type") == "BertNormalizer", f"its normalizer is {normalizer.get('type')}")
    require(set(normalizer) == NORMALIZER, "its normalizer has other settings than BERT's")
    require(
        _get_part(description, "pre_tokenizer") == {"type": "BertPreTokenizer"},
        f"its pre-tokenizer is {_get_part(description, 'pre_tokenizer').get('type')}",
    )
    truncation = description.get("truncation") or {}
    require(truncation.get("direction", "Right") == "Right", "it cuts texts on the left")

    options = {key: normalizer[key] for key in ("clean_text", "handle_chinese_chars", "lowercase")}
    strip = normalizer["strip_accents"]
    strip = options["lowercase"] if strip is None else strip
    require(all(type(value) is bool for value in (*options.values(), strip)), "its normalizer has odd settings")

    vocabulary, prefix, longest = model["vocab"], model["continuing_subword_prefix"], model["max_input_chars_per_word"]
    require(prefix == "##", f"its pieces begin with {prefix!r}")
    require(type(longest) is int and 1 <= longest <= MAX_WORD, f"its longest word has {longest} characters")
    tokens = order_tokens(vocabulary)
    require(model["unk_token"] in vocabulary, "its unknown token is not in the vocabulary")
    added = _parse_added_tokens(description.get("added_tokens") or [], vocabulary)
    before, after = parse_template(description.get("post_processor"))
    numbers = (*before, *after, *(number for _, number in added))
    require(all(type(n) is int and 0 <= n < 2**31 for n in numbers), "its special tokens have odd numbers")
    padding = description.get("padding") or {}
    pad = padding.get("pad_id", vocabulary.get("[PAD]", 0))
    special = {token["content"]: token["id"] for token in description.get("added_tokens") or [] if token.get("special")}
    return WordPieceConfig(
        tokens, vocabulary[model["unk_token"]], before, after, added, special, pad,
        strip_accents=strip, max_word=longest, **options,
    )  # fmt: skip


def _get_part(description: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = description.get(name)
    return part if isinstance(part, Mapping) else {"type": None}


def order_tokens(vocabulary: Any) -> list[str]:
    require(isinstance(vocabulary, Mapping) and vocabulary, "its vocabulary is not a table")
    numbers = vocabulary.values()
    require(all(type(n) is int and n >= 0 for n in numbers), "its vocabulary has odd numbers")
    require(max(numbers) < 2 * len(vocabulary) + 1000, "its vocabulary has large holes")
    require(max(numbers) < MAX_TOKENS, "its vocabulary is very large")
    require(len(set(numbers)) == len(vocabulary), "two of its tokens share a number")
    try:
        "".join(vocabulary).encode()
    except UnicodeEncodeError:
        raise NotSupported("its vocabulary is not Unicode text") from None
    tokens = [""] * (max(numbers) + 1)
    for token, number in vocabulary.items():
        tokens[number] = token
    return tokens


def _parse_added_tokens(added: list[dict[str, Any]], vocabulary: Mapping[str, int]) -> list[tuple[str, int]]:
    """Added tokens are matched in the raw text; the native loops support only tokens without further options."""
    numbers: dict[str, int] = {}
    next_number = len(vocabulary)
    for token in added:
        content, number = token["content"], token["id"]
        plain = not any(token.get(key, True) for key in ("single_word", "lstrip", "rstrip", "normalized"))
        require(plain, f"its added token {content!r} is matched in a special way")
        require(content[:1] and content[0] in string.punctuation, f"its added token {content!r} begins like a word")
        if content not in vocabulary:
            require(number == next_number, f"its added token {content!r} has an unexpected number")
            next_number += 1
        require(vocabulary.get(content, number) == number, f"its added token {content!r} has two numbers")
        require(content not in numbers, f"its added token {content!r} is there twice")
        numbers[content] = number
    return list(numbers.items())


def parse_template(processor: Any) -> tuple[list[int], list[int]]:
    """Return the token numbers before and after every text."""
    if processor is None:
        return [], []
    kind = processor.get("type")
    if kind == "BertProcessing":
        return [processor["cls"][1]], [processor["sep"][1]]
    require(kind == "TemplateProcessing", f"its post-processor is {kind}")
    ends: tuple[list[int], list[int]] = ([], [])
    inside = False
    for step in processor["single"]:
        if "Sequence" in step:
            require(step["Sequence"]["id"] == "A" and not inside, "its template is not one text")
            inside = True
        else:
            ends[inside].extend(processor["special_tokens"][step["SpecialToken"]["id"]]["ids"])
    require(inside, "its template has no text")
    return ends
