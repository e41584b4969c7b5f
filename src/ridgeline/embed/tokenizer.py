"""Load the tokenizer of a model folder: native where its parts are known, else the `tokenizers` library.

    tokenizer = load_tokenizer("all-MiniLM-L6-v2")
    tokens = tokenizer.encode(["a text", "another"], max_tokens=256)

Both give the same tokens as `tokenizers`, which tests/embed/test_tokenizer.py checks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ridgeline.embed.hugging_face import HuggingFaceTokenizer
from ridgeline.embed.subword import load_subword
from ridgeline.embed.tokens import Tokens
from ridgeline.embed.wordpiece import NativeTokenizer, parse_bert_tokenizer
from ridgeline.errors import InputError

# Classes whose vocab.txt belongs to BERT's tokenizer; in others the file has another meaning.
BERT_CLASSES = ("Bert", "DistilBert", "Electra", "MobileBert", "ConvBert", "LayoutLM", "Retribert", "SqueezeBert")
ROLES = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}


class Tokenizer(Protocol):
    """The interface of both kinds of tokenizer."""

    @property
    def native(self) -> bool:
        """Whether native loops do the work."""

    @property
    def why(self) -> str:
        """The reason if not native, as half a sentence; empty if native."""

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest token number."""

    @property
    def special(self) -> Mapping[str, int]:
        """Special tokens and their numbers."""

    @property
    def pad_id(self) -> int:
        """The number of the padding token."""

    def encode(self, texts: Iterable[str], max_tokens: int | None = None) -> Tokens:
        """Return the tokens of every text with special tokens, at most `max_tokens` for each."""


def load_tokenizer(folder: str | os.PathLike[str], *, special_tokens: bool = True, lower: bool = False) -> Tokenizer:
    """Load the tokenizer from `tokenizer.json`, or from `vocab.txt` and `tokenizer_config.json`.

    special_tokens  put special tokens around a text, as the folder says
    lower           convert texts to lower case, except special tokens in them ([MASK])

    Raises InputError if the folder has neither, or they cannot be read.
    """
    description, path = read_description(Path(folder), lower=lower)
    if not special_tokens:
        description["post_processor"] = None
    tokenizer = load_native(description)
    return HuggingFaceTokenizer(description, why=tokenizer, path=path) if isinstance(tokenizer, str) else tokenizer


def load_native(description: Mapping[str, Any]) -> Tokenizer | str:
    """Return the native tokenizer of a tokenizer.json, or half a sentence that says why there is none."""
    parts = parse_bert_tokenizer(description)
    return load_subword(description) if isinstance(parts, str) else NativeTokenizer(parts)


def read_description(folder: Path, *, lower: bool = False) -> tuple[dict[str, Any], Path]:
    """Return the content of tokenizer.json, or what corresponds to vocab.txt, and the file.

    lower  with a normalizer that converts texts to lower case
    """
    if (folder / "tokenizer.json").is_file():
        path = folder / "tokenizer.json"
        description = _read_json(path)
    elif (folder / "vocab.txt").is_file():
        path = folder / "vocab.txt"
        config = folder / "tokenizer_config.json"
        description = describe_bert(_read_lines(path), _read_json(config) if config.is_file() else {}, path)
    else:
        raise InputError(f"{folder} has no tokenizer: there is neither tokenizer.json nor vocab.txt.")
    if lower:
        description["normalizer"] = add_lowercase(description.get("normalizer"))
    return description, path


def add_lowercase(normalizer: Any) -> dict[str, Any]:
    """Return a normalizer that converts to lower case first, in the simplest form with that result.

    >>> add_lowercase({"type": "NFC"})
    {'type': 'Sequence', 'normalizers': [{'type': 'Lowercase'}, {'type': 'NFC'}]}
    """
    steps = [] if normalizer is None else [normalizer]
    if steps and steps[0].get("type") == "Sequence":
        steps = list(steps[0].get("normalizers", []))
    if steps and any(step.get("type") == "Lowercase" for step in steps):
        return dict(normalizer)
    if len(steps) == 1 and steps[0].get("type") == "BertNormalizer" and steps[0].get("strip_accents") is not True:
        accents = {"strip_accents": False} if steps[0].get("lowercase") is False else {}  # they stay
        return {**steps[0], "lowercase": True, **accents}  # native loops know this form
    return {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *steps]} if steps else {"type": "Lowercase"}


def describe_bert(tokens: list[str], config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the tokenizer.json that corresponds to a vocabulary of lines."""
    kind = str(config.get("tokenizer_class") or "BertTokenizer").removesuffix("Fast").removesuffix("Tokenizer")
    if kind not in BERT_CLASSES:
        raise InputError(f"{path} belongs to a {kind}Tokenizer; its folder needs a tokenizer.json.")
    names = {role: _get_content(config.get(role), default) for role, default in ROLES.items()}
    vocabulary = {token: number for number, token in enumerate(tokens)}
    for role in ("unk_token", "cls_token", "sep_token"):
        if names[role] not in vocabulary:
            raise InputError(f"{path} lacks the token {names[role]!r} ({role}).")
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = sorted({vocabulary[t]: t for t in names.values() if t in vocabulary}.items())
    ends = [names["cls_token"], names["sep_token"]]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": token, **plain} for number, token in special],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": bool(config.get("tokenize_chinese_chars", True)),
            "strip_accents": config.get("strip_accents"),
            "lowercase": bool(config.get("do_lower_case", True)),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_describe_special(ends[0]), {"Sequence": {"id": "A", "type_id": 0}}, _describe_special(ends[1])],
            "pair": [
                _describe_special(ends[0]),
                {"Sequence": {"id": "A", "type_id": 0}},
                _describe_special(ends[1]),
                {"Sequence": {"id": "B", "type_id": 1}},
                _describe_special(ends[1], 1),
            ],
            "special_tokens": {t: {"id": t, "ids": [vocabulary[t]], "tokens": [t]} for t in ends},
        },
        "decoder": None,
        "model": {
            "type": "WordPiece",
            "unk_token": names["unk_token"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }


def _describe_special(token: str, token_type: int = 0) -> dict[str, Any]:
    return {"SpecialToken": {"id": token, "type_id": token_type}}


def _get_content(value: Any, default: str) -> str:
    if isinstance(value, Mapping):
        value = value.get("content")
    return default if value is None else str(value)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} holds a {type(value).__name__}, not an object.")
    return value


def _read_lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # not splitlines: a token can be a line separator
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8: {error}.") from error
    return lines[:-1] if lines[-1] == "" else lines
