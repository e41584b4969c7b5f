"""Texts of an exact number of tokens: words that are one token each, drawn anew at every turn."""

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

# Titles with year and genres: lengths of a log-normal that has their mean of 21 tokens.
MOVIE_LENGTHS = {"mean": 20.1, "sigma": 0.3, "least": 8, "most": 96}
RING_TOKENS = 1 << 17  # drawn at a time, so that no step of a turn sees the texts of another
RING_MOST = 64
RING_LEAST = 2


@dataclass(frozen=True, eq=False)  # one object per folder, so that it can be a key
class Model:
    """A model's folder, and what the arithmetic needs to know of it."""

    folder: Path
    config: Config
    inner: int  # width of the MLP
    parameters: int  # that every text needs: the layers' and one table of positions, not the vocabulary

    def limit(self, tokens: int) -> int:
        """Where texts are cut: the model's own limit, or all its positions where a case asks for more."""
        own = self.config.max_tokens
        return own if tokens <= own else self.config.positions - self.config.first_position


@lru_cache(maxsize=4)
def model_of(name: str) -> Model:
    found = find_model(name, verify=False)
    config = read_config(found.folder)
    inner = int(json.loads((config.folder / "config.json").read_text(encoding="utf-8")).get("intermediate_size", 3072))
    layer = 4 * config.hidden**2 + 2 * config.hidden * inner + 9 * config.hidden + inner
    return Model(found.folder, config, inner, config.layers * layer)


def flops_of(model: Model, lengths: NDArray[np.int64]) -> int:
    """Multiply-adds of all linear layers and both products of attention, twice each; every token seen once."""
    hidden, inner = model.config.hidden, model.inner
    tokens, squares = int(lengths.sum()), int((lengths**2).sum())
    return model.config.layers * (tokens * (8 * hidden**2 + 4 * hidden * inner) + 4 * squares * hidden)


def lengths_of(texts: str, batch: int, tokens: int) -> NDArray[np.int64]:
    """Tokens of each text of a case, the same ones at every turn.

    >>> lengths_of("even", 3, 32).tolist()
    [32, 32, 32]
    >>> round(float(lengths_of("movies", 62_423, 32).mean()), 1)
    21.0
    """
    if texts == "even":
        return np.full(batch, tokens, np.int64)
    if texts != "movies":
        raise InputError(f"texts is '{texts}'; there are: even, movies.")
    m = MOVIE_LENGTHS
    drawn = np.random.default_rng(25).lognormal(np.log(m["mean"]), m["sigma"], batch)
    return np.clip(np.rint(drawn), m["least"], m["most"]).astype(np.int64)


@dataclass(frozen=True)
class Words:
    """Words that the tokenizer takes for one token each, their numbers, and what stands around a text."""

    words: NDArray[Any]  # of str
    ids: NDArray[np.int32]
    before: int
    after: int

    @property
    def mean_bytes(self) -> float:
        return sum(map(len, self.words.tolist())) / len(self.words)

    def draw(self, lengths: NDArray[np.int64], random: np.random.Generator) -> tuple[list[str], Tokens]:
        """A text of each length, in an order of its own, and the tokens it must have."""
        lengths = random.permutation(lengths)
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        picked = random.integers(len(self.words), size=int(offsets[-1]))
        ids = self.ids[picked]
        ids[offsets[:-1]], ids[offsets[1:] - 1] = self.before, self.after
        words = self.words[picked].tolist()
        bounds = offsets.tolist()
        texts = [" ".join(words[a + 1 : b - 1]) for a, b in pairwise(bounds)]
        return texts, Tokens(ids, offsets)


@lru_cache(maxsize=4)
def words_of(name: str) -> Words:
    """Every word of the vocabulary that its tokenizer gives back as one token between two others."""
    model = model_of(name)
    own = model.config.folder
    tokenizer = load_tokenizer(own if (own / "tokenizer.json").exists() else model.folder)
    found = list(
        dict.fromkeys(w for w in _vocabulary(own, model.folder) if w.isascii() and w.isalpha() and w.islower())
    )
    tokens = tokenizer.encode(found)
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
    words = np.array(found, object)[single][keep]
    return Words(words, ids[keep], int(tokens.ids[first]), int(tokens.ids[first + 2]))


def _vocabulary(*folders: Path) -> list[str]:
    for folder in folders:
        if (folder / "tokenizer.json").exists():
            told = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
            entries = told if isinstance(told, dict) else [entry[0] for entry in told]
            return [str(entry).lstrip("▁Ġ") for entry in entries]
        if (folder / "vocab.txt").exists():
            return (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    return []


class Ring:
    """Some sets of texts, drawn together; every step takes the next one."""

    def __init__(self, words: Words, lengths: NDArray[np.int64]) -> None:
        self._words, self._lengths = words, lengths
        self._count = int(np.clip(RING_TOKENS // max(1, int(lengths.sum())), RING_LEAST, RING_MOST))
        self._random = np.random.default_rng()
        self._at = 0
        self.sets: list[tuple[list[str], Tokens]] = []
        self.rewrite()

    def rewrite(self) -> None:
        self.sets = [self._words.draw(self._lengths, self._random) for _ in range(self._count)]

    def next(self) -> int:
        """The number of the set whose turn it is."""
        self._at = (self._at + 1) % self._count
        return self._at

    @property
    def last(self) -> tuple[list[str], Tokens]:
        return self.sets[self._at]
