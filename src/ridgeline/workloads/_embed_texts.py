"""Texts with an exact number of tokens: words of one token each, drawn again at every turn."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.embed import Config, Tokens, find_model, load_tokenizer, read_config
from ridgeline.errors import InputError

# Titles with year and genres: a log-normal distribution with their mean of 21 tokens.
MOVIE_LENGTHS = {"mean": 20.1, "sigma": 0.3, "least": 8, "most": 96}
RING_TOKENS = 1 << 17  # drawn at a time, so that each step of a turn has other texts
MAX_RING_SETS = 64
MIN_RING_SETS = 2


@dataclass(frozen=True, eq=False)  # one object per folder, used as a key
class Model:
    """A model folder, and what the arithmetic needs of it."""

    folder: Path
    config: Config
    inner: int  # width of the MLP
    parameters: int  # that every text needs: layers and positions, not the vocabulary

    def limit(self, tokens: int) -> int:
        """The token limit: that of the model, or all its positions if a case needs more."""
        limit = self.config.max_tokens
        return limit if tokens <= limit else self.config.positions - self.config.first_position


@lru_cache(maxsize=4)
def load_model(name: str) -> Model:
    local_model = find_model(name, verify=False)
    config = read_config(local_model.folder)
    inner = int(json.loads((config.folder / "config.json").read_text(encoding="utf-8")).get("intermediate_size", 3072))
    layer = 4 * config.hidden**2 + 2 * config.hidden * inner + 9 * config.hidden + inner
    return Model(local_model.folder, config, inner, config.layers * layer)


def count_flops(model: Model, lengths: NDArray[np.int64]) -> int:
    """Multiply-adds of all linear layers and both products of attention, twice each; every token counts once."""
    hidden, inner = model.config.hidden, model.inner
    tokens, squares = int(lengths.sum()), int((lengths**2).sum())
    return model.config.layers * (tokens * (8 * hidden**2 + 4 * hidden * inner) + 4 * squares * hidden)


def draw_lengths(texts: str, batch: int, tokens: int) -> NDArray[np.int64]:
    """Tokens of each text of a case, the same at every turn.

    >>> draw_lengths("even", 3, 32).tolist()
    [32, 32, 32]
    >>> round(float(draw_lengths("movies", 62_423, 32).mean()), 1)
    21.0
    """
    if texts == "even":
        return np.full(batch, tokens, np.int64)
    if texts != "movies":
        raise InputError(f"texts is '{texts}'; there are: even, movies.")
    shape = MOVIE_LENGTHS
    lengths = np.random.default_rng(25).lognormal(np.log(shape["mean"]), shape["sigma"], batch)
    return np.clip(np.rint(lengths), shape["least"], shape["most"]).astype(np.int64)


@dataclass(frozen=True)
class Words:
    """Words that are one token each, their token numbers, and the tokens around a text."""

    words: NDArray[Any]  # of str
    ids: NDArray[np.int32]
    before: int
    after: int

    @property
    def mean_bytes(self) -> float:
        return sum(map(len, self.words.tolist())) / len(self.words)

    def draw(self, lengths: NDArray[np.int64], random: np.random.Generator) -> tuple[list[str], Tokens]:
        """A text of each length, in random order, and its tokens."""
        lengths = random.permutation(lengths)
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        word_numbers = random.integers(len(self.words), size=int(offsets[-1]))
        ids = self.ids[word_numbers]
        ids[offsets[:-1]], ids[offsets[1:] - 1] = self.before, self.after
        words = self.words[word_numbers].tolist()
        bounds = offsets.tolist()
        texts = [" ".join(words[a + 1 : b - 1]) for a, b in pairwise(bounds)]
        return texts, Tokens(ids, offsets)


@lru_cache(maxsize=4)
def find_words(name: str) -> Words:
    """All words of the vocabulary that the tokenizer encodes as one token between two special ones."""
    model = load_model(name)
    folder = model.config.folder
    tokenizer = load_tokenizer(folder if (folder / "tokenizer.json").exists() else model.folder)
    candidates = list(
        dict.fromkeys(w for w in _read_vocabulary(folder, model.folder) if w.isascii() and w.isalpha() and w.islower())
    )
    tokens = tokenizer.encode(candidates)
    single = np.flatnonzero(tokens.lengths == 3)
    unknown = {number for name, number in tokenizer.special.items() if "unk" in name.lower()}
    starts = tokens.offsets[single]
    ids = tokens.ids[starts + 1]
    keep = ~np.isin(ids, list(unknown))
    if not keep.any():
        raise InputError(
            f"the tokenizer of '{name}' has no words of one token; this workload cannot make texts for it."
        )
    first = int(starts[0])
    words = np.array(candidates, object)[single][keep]
    return Words(words, ids[keep], int(tokens.ids[first]), int(tokens.ids[first + 2]))


def _read_vocabulary(*folders: Path) -> list[str]:
    for folder in folders:
        if (folder / "tokenizer.json").exists():
            vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
            entries = vocabulary if isinstance(vocabulary, dict) else [entry[0] for entry in vocabulary]
            return [str(entry).lstrip("▁Ġ") for entry in entries]
        if (folder / "vocab.txt").exists():
            return (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    return []


class Ring:
    """Some sets of texts, drawn together; every step takes the next one."""

    def __init__(self, words: Words, lengths: NDArray[np.int64]) -> None:
        self._words, self._lengths = words, lengths
        self._count = int(np.clip(RING_TOKENS // max(1, int(lengths.sum())), MIN_RING_SETS, MAX_RING_SETS))
        self._random = np.random.default_rng()
        self._at = 0
        self.sets: list[tuple[list[str], Tokens]] = []
        self.rewrite()

    def rewrite(self) -> None:
        self.sets = [self._words.draw(self._lengths, self._random) for _ in range(self._count)]

    def next(self) -> int:
        """The number of the next set."""
        self._at = (self._at + 1) % self._count
        return self._at

    @property
    def last(self) -> tuple[list[str], Tokens]:
        return self.sets[self._at]
