"""The tokenizer of a model folder: native where it is BERT's, the `tokenizers` library for all others.

    tokenizer = load_tokenizer("all-MiniLM-L6-v2")
    tokens = tokenizer.encode(["a text", "another"], max_tokens=256)

Both give the same tokens as `tokenizers`; tests/embed/test_tokenizer.py holds the native one to it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ridgeline.embed.hugging_face import HuggingFaceTokenizer
from ridgeline.embed.tokens import Tokens
from ridgeline.embed.wordpiece import NativeTokenizer, recognise
from ridgeline.errors import InputError

# Classes whose vocab.txt means BERT's tokenizer; others keep something else in a file of that name.
BERT_CLASSES = ("Bert", "DistilBert", "Electra", "MobileBert", "ConvBert", "LayoutLM", "Retribert", "SqueezeBert")
ROLES = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}


class Tokenizer(Protocol):
    """What both kinds can do."""

    @property
    def native(self) -> bool:
        """Whether the native loops do the work."""

    @property
    def why(self) -> str:
        """Why not, in half a sentence; empty if native."""

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest number of a token."""

    @property
    def special(self) -> Mapping[str, int]:
        """Special tokens and their numbers."""

    @property
    def pad_id(self) -> int:
        """The number to fill up with."""

    def encode(self, texts: Iterable[str], max_tokens: int | None = None) -> Tokens:
        """Tokens of every text, special ones included, at most `max_tokens` for each."""


def load_tokenizer(folder: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of `tokenizer.json`, or of `vocab.txt` with `tokenizer_config.json`."""
    folder = Path(folder)
    if (folder / "tokenizer.json").is_file():
        path = folder / "tokenizer.json"
        description = _json(path)
    elif (folder / "vocab.txt").is_file():
        path = folder / "vocab.txt"
        config = folder / "tokenizer_config.json"
        description = bert(_lines(path), _json(config) if config.is_file() else {}, path)
    else:
        raise InputError(f"{folder} has no tokenizer: there is neither tokenizer.json nor vocab.txt.")
    parts = recognise(description)
    if isinstance(parts, str):
        return HuggingFaceTokenizer(description, why=parts, path=path)
    return NativeTokenizer(parts)


def bert(tokens: list[str], config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """What tokenizer.json would hold for a vocabulary of lines."""
    kind = str(config.get("tokenizer_class") or "BertTokenizer").removesuffix("Fast").removesuffix("Tokenizer")
    if kind not in BERT_CLASSES:
        raise InputError(f"{path} belongs to a {kind}Tokenizer; its folder needs a tokenizer.json.")
    names = {role: _content(config.get(role), usual) for role, usual in ROLES.items()}
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
            "single": [_special(ends[0]), {"Sequence": {"id": "A", "type_id": 0}}, _special(ends[1])],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
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


def _special(token: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": token, "type_id": 0}}


def _content(given: Any, usual: str) -> str:
    if isinstance(given, Mapping):
        given = given.get("content")
    return usual if given is None else str(given)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} holds a {type(value).__name__}, not an object.")
    return value


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # not splitlines: a token may be another line separator
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8: {error}.") from error
    return lines[:-1] if lines[-1] == "" else lines
