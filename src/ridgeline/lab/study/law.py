"""Laws of time: sums of costs, powers, the slowest stage. Each fits, says its error on held-out points, predicts.

Errors of times are relative, so all fits minimise relative errors. Intervals of coefficients and predictions are
Student's, with as much freedom as there are points more than terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.lab.judge import student
from ridgeline.lab.judge.stats import CONFIDENCE, Estimate
from ridgeline.lab.study.nnls import nnls

Array = NDArray[np.float64]
ALONE, FOLDS = 20, 10  # up to so many points each is held out alone, beyond it in so many parts
ONE = "1"  # the term that is always there
SPARE = 2  # points more than terms: fewer say nothing about the error


@dataclass(frozen=True)
class Datum:
    """A measured time and the amounts it is to be explained by."""

    amounts: Mapping[str, float]
    seconds: float
    stages: Mapping[str, float] | None = None


class Law(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def coefficients(self) -> dict[str, Estimate]: ...

    @property
    def noise(self) -> float:
        """The standard deviation of a point around the law, relative."""
        ...

    def predict(self, amounts: Mapping[str, float]) -> Estimate: ...


Fit = Callable[[Sequence[Datum]], Law | None]  # None: too few points, or nothing varies


@dataclass(frozen=True)
class Linear:
    """seconds = Σ coefficient · amount, no coefficient negative (`Sum`); or the same of logarithms (`Power`)."""

    name: str
    terms: tuple[str, ...]
    values: Array  # [k]
    unbound: Array  # [k] the values of plain least squares, which may be negative
    errors: Array  # [k] their standard errors
    spread: Array  # [k, k] covariance of what is free
    noise: float
    freedom: int
    logs: bool
    n: int

    @property
    def coefficients(self) -> dict[str, Estimate]:
        """The interval is that of plain least squares, which covers as it says, cut at zero where that is a bound."""
        reach = student.quantile(CONFIDENCE, self.freedom) * self.errors
        found = {}
        for term, value, middle, side in zip(self.terms, self.values, self.unbound, reach, strict=True):
            low = middle - side if self.logs else max(middle - side, 0.0)
            found[term] = Estimate(float(value), float(min(low, value)), float(max(middle + side, value)), self.n)
        return found

    def predict(self, amounts: Mapping[str, float]) -> Estimate:
        held = [amounts.get(term, math.nan) for term in self.terms[1:]]
        if not all(math.isfinite(v) and (v > 0 or not self.logs) for v in held):
            return Estimate(math.nan, math.nan, math.nan, self.n)
        x = np.array([1.0, *(map(math.log, held) if self.logs else held)])
        middle = float(x @ self.values)
        doubt = float(x @ self.spread @ x)
        if not self.logs:
            if middle <= 0:
                return Estimate(math.nan, math.nan, math.nan, self.n)
            middle, doubt = math.log(middle), doubt / middle**2
        reach = student.quantile(CONFIDENCE, self.freedom) * math.sqrt(max(doubt, 0.0) + self.noise**2)
        return Estimate(_exp(middle), _exp(middle - reach), _exp(middle + reach), self.n)


@dataclass(frozen=True)
class Slowest:
    """seconds = a factor × the slowest of the stages, each by a law of its own: what overlapping gives."""

    name: str
    stages: Mapping[str, Law]
    factor: float
    noise: float
    freedom: int

    @property
    def coefficients(self) -> dict[str, Estimate]:
        reach = student.quantile(CONFIDENCE, self.freedom) * self.noise / math.sqrt(self.freedom + 1)
        ends = self.factor * _exp(-reach), self.factor * _exp(reach)
        found = {"× slowest stage": Estimate(self.factor, *ends, self.freedom + 1)}
        for stage, law in self.stages.items():
            found |= {f"{stage}: {'constant' if t == ONE else t}": value for t, value in law.coefficients.items()}
        return found

    def predict(self, amounts: Mapping[str, float]) -> Estimate:
        told = [law.predict(amounts) for law in self.stages.values()]
        slowest = max(told, key=lambda e: e.value)
        own = student.quantile(CONFIDENCE, self.freedom) * self.noise
        if not all(0 < e.low <= e.high < math.inf for e in told):  # a stage that is not known may be the slowest
            return Estimate(math.nan, math.nan, math.nan, slowest.n)
        middle = math.log(slowest.value * self.factor)
        down = math.hypot(own, math.log(slowest.value / slowest.low))
        up = math.hypot(own, math.log(slowest.high / slowest.value))
        return Estimate(_exp(middle), _exp(middle - down), _exp(middle + up), slowest.n)


def sum_law(name: str, terms: Sequence[str]) -> Fit:
    """seconds = a + b · first + c · second …, by non-negative least squares of the relative errors."""

    def fit(data: Sequence[Datum]) -> Law | None:
        held = [d for d in data if d.seconds > 0 and all(math.isfinite(d.amounts.get(t, math.nan)) for t in terms)]
        times = np.array([d.seconds for d in held])
        design = np.array([[1.0, *(d.amounts[t] for t in terms)] for d in held]).reshape(len(held), 1 + len(terms))
        weights = 1 / times
        kept = _telling(design * weights[:, None])
        design = design[:, kept]
        if len(held) < design.shape[1] + SPARE:
            return None
        values = np.zeros(len(kept))
        for _ in range(3):  # weighed by what is measured, then by what is fitted, which is less noisy
            values = nnls(design * weights[:, None], times * weights)
            fitted = design @ values
            weights = 1 / np.where(fitted > 0, fitted, times)
        return _linear(name, (ONE, *terms), kept, design * weights[:, None], times * weights, values, logs=False)

    return fit


def power_law(name: str, terms: Sequence[str]) -> Fit:
    """seconds = k · first^p · second^q …, by least squares of the logarithms."""

    def fit(data: Sequence[Datum]) -> Law | None:
        held = [d for d in data if d.seconds > 0 and all(d.amounts.get(t, 0.0) > 0 for t in terms)]
        design = np.array([[1.0, *(math.log(d.amounts[t]) for t in terms)] for d in held]).reshape(-1, 1 + len(terms))
        kept = _telling(design)
        design = design[:, kept]
        if len(held) < len(kept) + SPARE or len(kept) < 2:
            return None
        times = np.log([d.seconds for d in held])
        values = np.asarray(np.linalg.lstsq(design, times, rcond=None)[0], dtype=np.float64)
        return _linear(name, (ONE, *terms), kept, design, times, values, logs=True)

    return fit


def slowest_law(name: str, parts: Mapping[str, Sequence[Fit]]) -> Fit:
    """Each stage by the law that fits it best, and the slowest of them."""

    def fit(data: Sequence[Datum]) -> Law | None:
        stages = {}
        for stage, fits in parts.items():
            own = [Datum(d.amounts, d.stages[stage]) for d in data if d.stages and d.stages.get(stage, 0.0) > 0]
            laws = [law for law in (one(own) for one in fits) if law is not None]
            if own and not laws:
                return None  # the slowest of some stages would not be the slowest
            if laws:
                stages[stage] = min(laws, key=lambda law: law.noise)
        logs = []
        for d in data:
            told = [v for v in (law.predict(d.amounts).value for law in stages.values()) if v > 0]
            if told and d.seconds > 0:
                logs.append(math.log(d.seconds / max(told)))
        if len(logs) < 1 + SPARE or len(stages) < 2:
            return None
        middle = float(np.mean(logs))
        return Slowest(name, stages, math.exp(middle), float(np.std(logs, ddof=1)), len(logs) - 1)

    return fit


def held_out(fit: Fit, data: Sequence[Datum]) -> list[float]:
    """Predicted over measured, for each datum by a law that has not seen it; NaN where that law cannot say.

    One point is held out at a time, where points are many a tenth of them; all repeats of a point go together.
    """
    points = list(dict.fromkeys(tuple(sorted(d.amounts.items())) for d in data))
    folds = len(points) if len(points) <= ALONE else FOLDS
    dealt = dict(zip(points, np.random.default_rng(0).permutation(len(points)) % max(folds, 1), strict=True))
    fold_of = [int(dealt[tuple(sorted(d.amounts.items()))]) for d in data]
    ratios = [math.nan] * len(data)
    for fold in range(folds):
        law = fit([d for d, f in zip(data, fold_of, strict=True) if f != fold])
        for i, d in enumerate(data):
            if law is not None and fold_of[i] == fold:
                ratios[i] = law.predict(d.amounts).value / d.seconds
    return ratios


def error(ratios: Sequence[float]) -> float:
    """The mean absolute relative error; NaN where nothing could be held out."""
    known = [abs(r - 1) for r in ratios if math.isfinite(r)]
    return float(np.mean(known)) if known else math.nan


def worst(ratios: Sequence[float]) -> float:
    return max((abs(r - 1) for r in ratios if math.isfinite(r)), default=math.nan)


def _linear(
    name: str, terms: tuple[str, ...], kept: list[int], design: Array, target: Array, values: Array, *, logs: bool
) -> Linear:
    freedom = len(target) - len(kept)
    free = np.ones(len(kept), dtype=bool) if logs else values > 0
    rest = target - design @ values
    # With bounds that bind, the free columns alone stand behind a prediction; the noise is that of all points.
    noise = math.sqrt(float(rest @ rest) / freedom)
    plain = np.asarray(np.linalg.lstsq(design, target, rcond=None)[0], dtype=np.float64)
    left = target - design @ plain
    errors = np.sqrt(np.maximum(np.diag(_inverse(design)), 0.0) * float(left @ left) / freedom)
    spread = np.zeros((len(kept), len(kept)))
    if free.any():
        spread[np.ix_(free, free)] = _inverse(design[:, free]) * noise**2
    return Linear(name, tuple(terms[i] for i in kept), values, plain, errors, spread, noise, freedom, logs, len(target))


def _inverse(design: Array) -> Array:
    """(XᵀX)⁻¹ by columns of one size, so that FLOPs and ones go together."""
    scale = np.sqrt((design * design).sum(axis=0))
    scale[scale == 0] = 1.0
    scaled = design / scale
    return np.asarray(np.linalg.pinv(scaled.T @ scaled, hermitian=True) / np.outer(scale, scale), dtype=np.float64)


def _telling(design: Array) -> list[int]:
    """The columns that are no mixture of those before them: what did not vary cannot be told from a constant."""
    kept: list[int] = []
    basis: list[Array] = []
    for i, column in enumerate(design.T):
        rest = column - sum((b * float(b @ column) for b in basis), np.zeros(len(column)))
        rest = rest - sum((b * float(b @ rest) for b in basis), np.zeros(len(column)))
        size = float(np.linalg.norm(rest))
        if size > 1e-6 * float(np.linalg.norm(column)) and size > 0:
            kept.append(i)
            basis.append(rest / size)
    return kept


def _exp(value: float) -> float:
    return math.exp(min(max(value, -700.0), 700.0))
