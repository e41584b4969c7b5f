"""Baselines that learn from all normal units at once: PCA of counts, a forest over words, a network over sequences.

count_pca      counts of events, weighted by rarity; the distance from the plane that explains 95 % of the normal ones
               (Xu et al., Detecting large-scale system problems by mining console logs, 2009); single lines are
               counted together with those before them, as many as separate the training part best
tfidf_forest   words of a unit, weighted by rarity; an isolation forest (Liu, Ting and Zhou 2008)
next_template  a network guesses the next event from the five before it; the score is the worst rank of a true one
               (as in DeepLog, Du et al. 2017, with a small multilayer perceptron in place of its LSTM)

They are fitted when the first unit is to be judged without learning, and read events like the other baselines.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.audit.anomaly.evaluate.units import Event, Unit

Matrix = NDArray[np.float64]

EXPLAINED = 0.95  # share of the variance that the plane of count_pca explains
TREES, SAMPLE = 100, 256  # of the forest
TERMS = 2_000  # most words of the forest
HISTORY, WIDTH, STEPS = 5, 32, 300  # of next_template: events before, size of its layer, steps of training
_BATCH, _RATE = 256, 0.01
_SEED = 0
_WORD = re.compile(r"\w+|[^\w\s]+")


class Vocabulary:
    """Numbers of terms, and how rare each is: log(units / units with it)."""

    def __init__(self, documents: list[Counter[str]], most: int | None = None) -> None:
        frequency = Counter(term for document in documents for term in document)
        self.columns = {term: k for k, (term, _) in enumerate(frequency.most_common(most))}
        self._rarity = np.array([math.log((1 + len(documents)) / (1 + frequency[term])) + 1 for term in self.columns])

    def weigh(self, documents: Iterable[Counter[str]]) -> Matrix:
        """Return [documents, terms + 1]; the last column counts terms that are not known."""
        rows = []
        for document in documents:
            row = np.zeros(len(self.columns) + 1)
            for term, count in document.items():
                column = self.columns.get(term)
                row[-1 if column is None else column] += count * (1.0 if column is None else self._rarity[column])
            rows.append(row)
        return np.array(rows).reshape(-1, len(self.columns) + 1)


class Fitted:
    """A method that is fitted to all units at once, so that judging between two units of the training part is slow."""

    def skip(self, unit: Unit) -> None:
        """Take note of an anomaly of the training part, which is neither learnt nor judged."""


class CountPca(Fitted):
    """`window`: units of one event are counted together with this many before them, itself included."""

    def __init__(self, read: Callable[[Event], str], window: int = 1) -> None:
        self.window = window
        self._read = read
        self._before: deque[list[str]] = deque(maxlen=max(window - 1, 0))
        self._learnt: list[Counter[str]] = []
        self._fitted: tuple[Vocabulary, Matrix, Matrix] | None = None

    def judge(self, unit: Unit, learn: bool) -> float:
        events = [self._read(event) for event in unit.events]
        counts = Counter([*(event for before in self._before for event in before), *events])
        self._before.append(events)
        if learn:
            self._learnt.append(counts)
            self._fitted = None
            return 0.0
        vocabulary, mean, plane = self._fitted = self._fitted or self._fit()
        centred = vocabulary.weigh([counts])[0] - mean
        return float(np.sum((centred - plane.T @ (plane @ centred)) ** 2))

    def skip(self, unit: Unit) -> None:
        self._before.append([self._read(event) for event in unit.events])

    def _fit(self) -> tuple[Vocabulary, Matrix, Matrix]:
        distinct = Counter(frozenset(counts.items()) for counts in self._learnt)
        vocabulary = Vocabulary(self._learnt)
        rows = vocabulary.weigh(Counter(dict(items)) for items in distinct)
        weights = np.array(list(distinct.values()), float)
        mean = weights @ rows / weights.sum()
        centred = rows - mean
        values, vectors = np.linalg.eigh(centred.T @ (centred * weights[:, None]) / weights.sum())
        order = np.argsort(-values)
        share = np.cumsum(values[order]) / max(values.sum(), 1e-12)
        return vocabulary, mean, vectors[:, order[: int(np.searchsorted(share, EXPLAINED)) + 1]].T


@dataclass(frozen=True)
class Tree:
    """An isolation tree as arrays: node → column to compare (−1: a leaf), value, left child, depth of a leaf."""

    columns: NDArray[np.int64]
    values: Matrix
    left: NDArray[np.int64]
    depths: Matrix

    def measure(self, row: Matrix) -> float:
        node = 0
        while self.columns[node] >= 0:
            node = int(self.left[node]) + int(row[self.columns[node]] >= self.values[node])
        return float(self.depths[node])


def grow_tree(rows: Matrix, random: np.random.Generator) -> Tree:
    """Split the rows by random values of random columns until each is alone, or as deep as the mean of such trees."""
    most = math.ceil(math.log2(max(len(rows), 2)))
    nodes: list[tuple[int, float, int, float]] = [(-1, 0.0, -1, 0.0)]
    waiting = [(0, np.arange(len(rows)), 0)]
    while waiting:
        node, members, depth = waiting.pop()
        part = rows[members]
        splittable = np.flatnonzero(part.max(0) > part.min(0))
        if not len(splittable) or depth == most:
            nodes[node] = (-1, 0.0, -1, depth + expect_depth(len(members)))
            continue
        column = int(random.choice(splittable))
        value = float(random.uniform(part[:, column].min(), part[:, column].max()))
        right = part[:, column] >= value
        nodes[node] = (column, value, len(nodes), 0.0)
        nodes += [(-1, 0.0, -1, 0.0)] * 2
        waiting += [(len(nodes) - 2, members[~right], depth + 1), (len(nodes) - 1, members[right], depth + 1)]
    columns, values, left, depths = zip(*nodes, strict=True)
    return Tree(np.array(columns), np.array(values), np.array(left), np.array(depths))


def expect_depth(count: int) -> float:
    """Return the mean depth of a search in a random binary tree of `count` rows."""
    return (
        2.0 * (math.log(count - 1) + 0.5772156649) - 2.0 * (count - 1) / count if count > 2 else max(0.0, count - 1.0)
    )


class TfidfForest(Fitted):
    def __init__(self, read: Callable[[Event], str]) -> None:
        self._read = read
        self._learnt: list[Counter[str]] = []
        self._fitted: tuple[Vocabulary, list[Tree], float] | None = None
        self._scores: dict[frozenset[tuple[str, int]], float] = {}

    def judge(self, unit: Unit, learn: bool) -> float:
        words = Counter(word for event in unit.events for word in _WORD.findall(self._read(event)))
        if learn:
            self._learnt.append(words)
            self._fitted = None
            self._scores.clear()
            return 0.0
        key = frozenset(words.items())
        if key not in self._scores:
            vocabulary, trees, usual = self._fitted = self._fitted or self._fit()
            row = _normalize(vocabulary.weigh([words]))[0]
            self._scores[key] = 2.0 ** (-float(np.mean([tree.measure(row) for tree in trees])) / usual)
        return self._scores[key]

    def _fit(self) -> tuple[Vocabulary, list[Tree], float]:
        random = np.random.default_rng(_SEED)
        vocabulary = Vocabulary(self._learnt, TERMS)
        sample = min(SAMPLE, len(self._learnt))
        trees = []
        for _ in range(TREES):
            chosen = random.choice(len(self._learnt), sample, replace=False)
            trees.append(grow_tree(_normalize(vocabulary.weigh(self._learnt[k] for k in chosen)), random))
        return vocabulary, trees, max(expect_depth(sample), 1.0)


def _normalize(rows: Matrix) -> Matrix:
    lengths: Matrix = np.sqrt((rows**2).sum(1, keepdims=True))
    return rows / np.maximum(lengths, 1e-12)


class NextTemplate(Fitted):
    """Single lines have no session: their history is the lines before them."""

    def __init__(self, read: Callable[[Event], str], single: bool) -> None:
        self._read, self._single = read, single
        self._numbers = {"": 0}
        self._before = [0] * HISTORY
        self._pairs: Counter[tuple[int, ...]] = Counter()
        self._network: Network | None = None
        self._ranks: dict[tuple[int, ...], float] = {}

    def judge(self, unit: Unit, learn: bool) -> float:
        names = [self._read(event) for event in unit.events]
        if learn:
            numbers = [self._numbers.setdefault(name, len(self._numbers)) for name in names]
        else:
            numbers = [self._numbers.get(name, -1) for name in names]
        events = [*(self._before if self._single else [0] * HISTORY), *numbers]
        if self._single:
            self._before = events[-HISTORY:]
        windows = list(zip(*(events[start:] for start in range(HISTORY + 1)), strict=False))
        if learn:
            self._pairs.update(windows)
            self._network = None
            self._ranks.clear()
            return 0.0
        if self._network is None:
            self._network = Network(self._pairs, len(self._numbers))
        unknown = [window for window in dict.fromkeys(windows) if window not in self._ranks]
        if unknown:
            self._ranks.update(zip(unknown, self._network.rank(unknown), strict=True))
        return max(self._ranks[window] for window in windows)

    def skip(self, unit: Unit) -> None:
        if self._single:
            numbers = [self._numbers.get(self._read(event), -1) for event in unit.events]
            self._before = [*self._before, *numbers][-HISTORY:]


class Network:
    """A multilayer perceptron over the one-hot codes of the events before, trained with Adam."""

    def __init__(self, pairs: Counter[tuple[int, ...]], kinds: int) -> None:
        random = np.random.default_rng(_SEED)
        self._kinds = kinds
        windows = np.array(list(pairs), np.int64)
        until = np.cumsum(np.array(list(pairs.values()), float)) / sum(pairs.values())
        self._weights = [
            random.normal(0, 0.1, (HISTORY, kinds + 1, WIDTH)),  # the last kind is any that is not known
            np.zeros(WIDTH),
            random.normal(0, 1 / math.sqrt(WIDTH), (WIDTH, kinds)),
            np.zeros(kinds),
        ]
        moments = [(np.zeros_like(w), np.zeros_like(w)) for w in self._weights]
        for step in range(1, STEPS + 1):
            batch = windows[np.minimum(np.searchsorted(until, random.random(_BATCH)), len(windows) - 1)]
            for weight, (first, second), slope in zip(self._weights, moments, self._slopes(batch), strict=True):
                first += 0.1 * (slope - first)
                second += 0.001 * (slope**2 - second)
                weight -= _RATE * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)

    def rank(self, windows: list[tuple[int, ...]]) -> list[float]:
        """Return how many events were thought more likely than the true one; of an unknown one all are.

        The share of the probability that these have is added, so that no two ranks are equal by chance.
        """
        batch = np.array(windows, np.int64)
        shares, _ = self._predict(batch[:, :-1])
        ranks = []
        for row, true in zip(shares, batch[:, -1].tolist(), strict=True):
            ahead = row > row[true] if true >= 0 else np.ones(self._kinds, bool)
            ranks.append(float(ahead.sum() + row[ahead].sum()))
        return ranks

    def _predict(self, before: NDArray[np.int64]) -> tuple[Matrix, Matrix]:
        embedding, bias, out, out_bias = self._weights
        hidden = np.maximum(sum(embedding[k, before[:, k]] for k in range(HISTORY)) + bias, 0.0)
        logits = hidden @ out + out_bias
        shares = np.exp(logits - logits.max(1, keepdims=True))
        return shares / shares.sum(1, keepdims=True), hidden

    def _slopes(self, batch: NDArray[np.int64]) -> list[Matrix]:
        shares, hidden = self._predict(batch[:, :-1])
        shares[np.arange(len(batch)), batch[:, -1]] -= 1.0
        shares /= len(batch)
        back = (shares @ self._weights[2].T) * (hidden > 0)
        embedding = np.zeros_like(self._weights[0])
        for k in range(HISTORY):
            order = np.argsort(batch[:, k], kind="stable")
            kinds, starts = np.unique(batch[order, k], return_index=True)
            embedding[k, kinds] = np.add.reduceat(back[order], starts)
        return [embedding, back.sum(0), hidden.T @ shares, shares.sum(0)]
