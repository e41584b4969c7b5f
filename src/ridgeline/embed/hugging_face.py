"""Tokenizers without native loops: the `tokenizers` library, in batches, on all CPUs and without the GIL."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from ridgeline.embed.tokens import Tokens, as_text_list, find_invalid_text, make_text_error
from ridgeline.errors import InputError, MissingExtra

DIRECTIONS = {"Left": "left", "Right": "right"}


class HuggingFaceTokenizer:
    """Texts → tokens by `tokenizers`, which releases the GIL: tokenize ahead of the device in another thread."""

    native = False

    def __init__(self, description: Mapping[str, Any], *, why: str, path: Path) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtra(f"The tokenizer of {path} is not native ({why}): it", "embed") from None
        self.why = why
        try:
            self._tokenizer = Tokenizer.from_str(json.dumps(description))
        except Exception as error:  # the library raises plain Exception
            raise InputError(f"{path} is no tokenizer that this release of tokenizers knows: {error}.") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._direction = DIRECTIONS[(description.get("truncation") or {}).get("direction", "Right")]
        self._frame = self._tokenizer.num_special_tokens_to_add(False)
        self._limit: int | None = None
        self._lock = Lock()  # the limit is state of the tokenizer
        added = self._tokenizer.get_added_tokens_decoder()
        self.special: Mapping[str, int] = {
            str(token.content): number for number, token in added.items() if token.special
        }
        self.pad_id = self._pad(description)
        self.vocabulary_size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())

    def encode(self, texts: Iterable[str], max_tokens: int | None = None) -> Tokens:
        text_list = as_text_list(texts)
        if max_tokens is not None and max_tokens < self._frame:
            raise InputError(f"max_tokens is {max_tokens}, but the special tokens around a text are {self._frame}.")
        invalid = find_invalid_text(text_list)
        if invalid >= 0:
            raise make_text_error(text_list, invalid)
        with self._lock:
            if max_tokens != self._limit:
                if max_tokens is None:
                    self._tokenizer.no_truncation()
                else:
                    self._tokenizer.enable_truncation(max_tokens, direction=self._direction)
                self._limit = max_tokens
            rows = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(text_list)]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return Tokens(np.fromiter(chain.from_iterable(rows), np.int32, int(offsets[-1])), offsets)

    def _pad(self, description: Mapping[str, Any]) -> int:
        padding = description.get("padding")
        if padding:
            return int(padding["pad_id"])
        for name in ("[PAD]", "<pad>"):
            number = self._tokenizer.token_to_id(name)
            if number is not None:
                return int(number)
        return 0
