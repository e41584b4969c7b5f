"""Fits of performance laws: how a rate grows with workers, and what a batch costs by its amounts of work.

    python -m pytest tests/lab/judge/test_scaling.py tests/lab/judge/test_cost_laws.py

Scaling laws give the rate (items per second) at n workers, up to a constant factor:

    Amdahl      n / (1 + serial · (n - 1))                                 a fixed problem with a serial part
    Gustafson   serial + (1 - serial) · n                                  a problem that grows with n
    USL         n / (1 + contention · (n - 1) + coherence · n · (n - 1))   the Universal Scalability Law

Cost laws give the seconds of a batch by its amounts (FLOPs, bytes, sizes):

    sum             seconds = a + b · first + c · second …     no coefficient is negative
    power           seconds = k · first^p · second^q …
    slowest stage   seconds = factor · the slowest stage       each stage has a cost law of its own

Errors of times are relative, so every fit minimises relative errors. Intervals of scaling laws are profiles: the values
of one parameter (or of a prediction) for which the best of the others still fits nearly as well, by Student's t.
Intervals of cost laws are Student's. All intervals assume that the law is right; held-out points test that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError, unknown
from ridgeline.lab.judge.stats import CONFIDENCE, Estimate, t_quantile

Array = NDArray[np.float64]

# Scaling laws.
STARTS = (0.0, 1e-4, 1e-2, 0.3)  # initial values of every parameter
LOG_RANGE = 30.0  # natural logarithms on either side of a rate in which its interval is searched
LARGEST = 1e6  # a parameter beyond this counts as unbounded

# Cost laws.
LEAVE_ONE_OUT, FOLDS = 20, 10  # up to 20 points are held out one by one, more points in 10 folds
ONE = "1"  # the constant term, which every law has
SPARE = 2  # points that a fit needs beyond its terms: with fewer the residuals say nothing


@dataclass(frozen=True)
class ScalingLaw:
    """A family of curves over the number of workers.

    name        amdahl | gustafson | usl
    parameters  names, in the order that `growth` takes their values
    upper       upper bounds of the parameters; the lower bounds are 0
    growth      (n, parameters) -> rate relative to one worker
    """

    name: str
    parameters: tuple[str, ...]
    upper: tuple[float, ...]
    growth: Callable[[Array, Array], Array]


@dataclass(frozen=True)
class ScalingFit:
    """A scaling law fitted to rates at n workers."""

    law: ScalingLaw
    n: tuple[float, ...]
    rates: tuple[float, ...]
    values: dict[str, Estimate]  # parameters with 95 % intervals (0 to the bound where the points say nothing)
    one: float  # fitted rate of one worker
    residual: float  # standard deviation of the relative errors

    @property
    def exact(self) -> bool:
        """Whether there are as many parameters as points: the law then passes through any points."""
        return len(self.n) <= len(self.law.parameters) + 1

    def rate(self, n: float) -> float:
        """Return the law's rate at n workers, in items per second."""
        parameters = np.array([value.value for value in self.values.values()])
        return self.one * float(self.law.growth(np.array([float(n)]), parameters)[0])

    def estimate_rate(self, n: float) -> Estimate:
        """Return the law's rate at n workers with its 95 % interval."""
        low, high = _profile_rate(self, float(n))
        return Estimate(self.rate(n), low, high, len(self.n))

    @property
    def peak(self) -> float | None:
        """The n beyond which more workers are slower (USL with coherence); None where the rate never falls."""
        if "coherence" not in self.values or not self.values["coherence"].value:
            return None
        contention, coherence = (self.values[name].value for name in ("contention", "coherence"))
        return math.sqrt(max(0.0, 1 - contention) / coherence)


def _grow_amdahl(n: Array, parameters: Array) -> Array:
    growth: Array = n / (1 + parameters[0] * (n - 1))
    return growth


def _grow_gustafson(n: Array, parameters: Array) -> Array:
    growth: Array = parameters[0] + (1 - parameters[0]) * n
    return growth


def _grow_usl(n: Array, parameters: Array) -> Array:
    growth: Array = n / (1 + parameters[0] * (n - 1) + parameters[1] * n * (n - 1))
    return growth


SCALING_LAWS = {
    law.name: law
    for law in (
        ScalingLaw("amdahl", ("serial",), (1.0,), _grow_amdahl),
        ScalingLaw("gustafson", ("serial",), (1.0,), _grow_gustafson),
        ScalingLaw("usl", ("contention", "coherence"), (LARGEST, LARGEST), _grow_usl),
    )
}


def fit_scaling_law(name: str, n: Array | list[float], rates: Array | list[float]) -> ScalingFit:
    """Fit the scaling law `name` to rates (items per second) at n workers; an n may occur several times.

    Raises InputError for an unknown law, for a worker count below 1, for a rate that is not a positive number, and for
    fewer different worker counts than the law has parameters plus one.

    >>> round(fit_scaling_law("amdahl", [1, 2, 4], [1.0, 2 / 1.1, 4 / 1.3]).values["serial"].value, 9)
    0.1
    """
    if name not in SCALING_LAWS:
        raise unknown("law of scaling", name, SCALING_LAWS)
    law, workers, measured = SCALING_LAWS[name], np.asarray(n, float), np.asarray(rates, float)
    _check_scaling_points(law, workers, measured)
    logs = np.log(measured)
    problem = _ScalingProblem(law, workers, logs)
    parameters, error = problem.minimize()
    freedom = len(workers) - len(parameters) - 1
    values = {}
    for j, parameter in enumerate(law.parameters):
        low, high = (
            _find_edge(_profile_parameter(problem, parameters, j), float(parameters[j]), end, _limit(error, freedom))
            for end in (0.0, law.upper[j])
        )
        values[parameter] = Estimate(float(parameters[j]), low, high if high < LARGEST else math.inf, len(workers))
    scale = math.exp(float(np.mean(logs - np.log(law.growth(workers, parameters)))))
    residual = math.sqrt(error / freedom) if freedom > 0 else 0.0
    return ScalingFit(law, tuple(workers.tolist()), tuple(measured.tolist()), values, scale, residual)


@dataclass(frozen=True)
class Observation:
    """A measured time of a batch, in seconds, with the amounts that explain it and the seconds of its stages."""

    amounts: Mapping[str, float]
    seconds: float
    stages: Mapping[str, float] | None = None


class CostLaw(Protocol):
    """A fitted law of the seconds of a batch."""

    @property
    def name(self) -> str: ...

    @property
    def coefficients(self) -> dict[str, Estimate]: ...

    @property
    def noise(self) -> float:
        """The standard deviation of a point around the law, relative."""
        ...

    def predict(self, amounts: Mapping[str, float]) -> Estimate:
        """Return the seconds of a batch with the interval that holds 95 % of further runs; NaN where amounts lack."""
        ...


FitCost = Callable[[Sequence[Observation]], CostLaw | None]  # None: too few points, or nothing varies


@dataclass(frozen=True)
class LinearLaw:
    """seconds = Σ coefficient · amount, no coefficient negative; with `logs` the same of logarithms (a power law)."""

    name: str
    terms: tuple[str, ...]
    values: Array  # [k]
    unbounded: Array  # [k] the coefficients of ordinary least squares, which may be negative
    errors: Array  # [k] standard errors of `unbounded`
    covariance: Array  # [k, k] of the coefficients that no bound holds at zero
    noise: float
    freedom: int
    logs: bool
    n: int

    @property
    def coefficients(self) -> dict[str, Estimate]:
        """Each with the interval of ordinary least squares, which covers as stated, cut at zero if zero is a bound."""
        widths = t_quantile(CONFIDENCE, self.freedom) * self.errors
        estimates = {}
        for term, value, middle, width in zip(self.terms, self.values, self.unbounded, widths, strict=True):
            low = middle - width if self.logs else max(middle - width, 0.0)
            estimates[term] = Estimate(float(value), float(min(low, value)), float(max(middle + width, value)), self.n)
        return estimates

    def predict(self, amounts: Mapping[str, float]) -> Estimate:
        """Return the seconds of a batch with the interval that holds 95 % of further runs; NaN where amounts lack."""
        inputs = [amounts.get(term, math.nan) for term in self.terms[1:]]
        if not all(math.isfinite(v) and (v > 0 or not self.logs) for v in inputs):
            return Estimate(math.nan, math.nan, math.nan, self.n)
        x = np.array([1.0, *(map(math.log, inputs) if self.logs else inputs)])
        middle = float(x @ self.values)
        variance = float(x @ self.covariance @ x)
        if not self.logs:
            if middle <= 0:
                return Estimate(math.nan, math.nan, math.nan, self.n)
            middle, variance = math.log(middle), variance / middle**2
        width = t_quantile(CONFIDENCE, self.freedom) * math.sqrt(max(variance, 0.0) + self.noise**2)
        return Estimate(_exp(middle), _exp(middle - width), _exp(middle + width), self.n)


@dataclass(frozen=True)
class SlowestStageLaw:
    """seconds = factor · the slowest stage, each stage by a law of its own: the time of an overlapped pipeline."""

    name: str
    stages: Mapping[str, CostLaw]
    factor: float
    noise: float
    freedom: int

    @property
    def coefficients(self) -> dict[str, Estimate]:
        width = t_quantile(CONFIDENCE, self.freedom) * self.noise / math.sqrt(self.freedom + 1)
        ends = self.factor * _exp(-width), self.factor * _exp(width)
        estimates = {"× slowest stage": Estimate(self.factor, *ends, self.freedom + 1)}
        for stage, law in self.stages.items():
            estimates |= {f"{stage}: {'constant' if t == ONE else t}": value for t, value in law.coefficients.items()}
        return estimates

    def predict(self, amounts: Mapping[str, float]) -> Estimate:
        """Return the seconds of a batch with the interval that holds 95 % of further runs; NaN where amounts lack."""
        predictions = [law.predict(amounts) for law in self.stages.values()]
        slowest = max(predictions, key=lambda e: e.value)
        noise = t_quantile(CONFIDENCE, self.freedom) * self.noise
        if not all(0 < e.low <= e.high < math.inf for e in predictions):  # the unknown stage may be the slowest
            return Estimate(math.nan, math.nan, math.nan, slowest.n)
        middle = math.log(slowest.value * self.factor)
        down = math.hypot(noise, math.log(slowest.value / slowest.low))
        up = math.hypot(noise, math.log(slowest.high / slowest.value))
        return Estimate(_exp(middle), _exp(middle - down), _exp(middle + up), slowest.n)


def sum_law(name: str, terms: Sequence[str]) -> FitCost:
    """Return a fit of seconds = a + b · first + c · second …, by non-negative least squares of the relative errors."""

    def fit(data: Sequence[Observation]) -> CostLaw | None:
        usable = [d for d in data if d.seconds > 0 and all(math.isfinite(d.amounts.get(t, math.nan)) for t in terms)]
        times = np.array([d.seconds for d in usable])
        design = np.array([[1.0, *(d.amounts[t] for t in terms)] for d in usable]).reshape(len(usable), 1 + len(terms))
        weights = 1 / times
        columns = _select_independent(design * weights[:, None])
        design = design[:, columns]
        if len(usable) < design.shape[1] + SPARE:
            return None
        values = np.zeros(len(columns))
        for _ in range(3):  # the first weights are measured times, the next are fitted times, which are less noisy
            values = least_squares_above_zero(design * weights[:, None], times * weights)
            predictions = design @ values
            weights = 1 / np.where(predictions > 0, predictions, times)
        return _build_law(name, (ONE, *terms), columns, design * weights[:, None], times * weights, values, logs=False)

    return fit


def power_law(name: str, terms: Sequence[str]) -> FitCost:
    """Return a fit of seconds = k · first^p · second^q …, by least squares of the logarithms."""

    def fit(data: Sequence[Observation]) -> CostLaw | None:
        usable = [d for d in data if d.seconds > 0 and all(d.amounts.get(t, 0.0) > 0 for t in terms)]
        design = np.array([[1.0, *(math.log(d.amounts[t]) for t in terms)] for d in usable]).reshape(-1, 1 + len(terms))
        columns = _select_independent(design)
        design = design[:, columns]
        if len(usable) < len(columns) + SPARE or len(columns) < 2:
            return None
        times = np.log([d.seconds for d in usable])
        values = np.asarray(np.linalg.lstsq(design, times, rcond=None)[0], dtype=np.float64)
        return _build_law(name, (ONE, *terms), columns, design, times, values, logs=True)

    return fit


def slowest_stage_law(name: str, candidates: Mapping[str, Sequence[FitCost]]) -> FitCost:
    """Return a fit of the slowest stage; each stage takes the candidate with the least noise."""

    def fit(data: Sequence[Observation]) -> CostLaw | None:
        stages = {}
        for stage, fits in candidates.items():
            times = [Observation(d.amounts, d.stages[stage]) for d in data if d.stages and d.stages.get(stage, 0.0) > 0]
            laws = [law for law in (fit_stage(times) for fit_stage in fits) if law is not None]
            if times and not laws:
                return None  # the slowest of some stages need not be the slowest of all
            if laws:
                stages[stage] = min(laws, key=lambda law: law.noise)
        logs = []
        for d in data:
            seconds = [v for v in (law.predict(d.amounts).value for law in stages.values()) if v > 0]
            if seconds and d.seconds > 0:
                logs.append(math.log(d.seconds / max(seconds)))
        if len(logs) < 1 + SPARE or len(stages) < 2:
            return None
        middle = float(np.mean(logs))
        return SlowestStageLaw(name, stages, math.exp(middle), float(np.std(logs, ddof=1)), len(logs) - 1)

    return fit


def cross_validate(fit: FitCost, data: Sequence[Observation]) -> list[float]:
    """Return predicted over measured seconds of every observation, by a law that has not seen it; NaN where it cannot.

    Up to 20 different points are held out one by one, more points in ten folds. Repeats of a point share a fold.
    """
    points = list(dict.fromkeys(tuple(sorted(d.amounts.items())) for d in data))
    folds = len(points) if len(points) <= LEAVE_ONE_OUT else FOLDS
    fold_by_point = dict(zip(points, np.random.default_rng(0).permutation(len(points)) % max(folds, 1), strict=True))
    fold_numbers = [int(fold_by_point[tuple(sorted(d.amounts.items()))]) for d in data]
    ratios = [math.nan] * len(data)
    for fold in range(folds):
        law = fit([d for d, f in zip(data, fold_numbers, strict=True) if f != fold])
        for i, d in enumerate(data):
            if law is not None and fold_numbers[i] == fold:
                ratios[i] = law.predict(d.amounts).value / d.seconds
    return ratios


def mean_error(ratios: Sequence[float]) -> float:
    """Return the mean absolute relative error of predicted over measured; NaN where no ratio is a number."""
    known = [abs(r - 1) for r in ratios if math.isfinite(r)]
    return float(np.mean(known)) if known else math.nan


def worst_error(ratios: Sequence[float]) -> float:
    """Return the largest absolute relative error of predicted over measured; NaN where no ratio is a number."""
    return max((abs(r - 1) for r in ratios if math.isfinite(r)), default=math.nan)


def least_squares_above_zero(matrix: Array, target: Array) -> Array:
    """Return x ≥ 0 [k] that minimises |matrix @ x - target|; matrix [n, k], target [n].

    Columns are scaled to one size first: FLOPs (1e12) and ones share a matrix.

    >>> least_squares_above_zero(np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]), np.array([3.0, 2.0, 1.0]))
    array([2., 0.])
    """
    from scipy.optimize import nnls

    scale = np.sqrt((matrix * matrix).sum(axis=0))
    scale[scale == 0] = 1.0
    values, _ = nnls(matrix / scale, target, maxiter=100 * matrix.shape[1])
    return np.asarray(values / scale, dtype=np.float64)


def _check_scaling_points(law: ScalingLaw, n: Array, rates: Array) -> None:
    if n.shape != rates.shape or n.ndim != 1:
        raise InputError(f"{n.size} numbers of workers and {rates.size} rates were given; one rate belongs to each n.")
    for what, values, least in (("number of workers", n, 1.0), ("rate", rates, 1e-300)):
        bad = [v for v in values.tolist() if not least <= v < math.inf]
        if bad:
            raise InputError(
                f"a {what} of {bad[0]:g} cannot be fitted; give finite numbers above zero, workers from 1."
            )
    need = len(law.parameters) + 1
    if len(set(n.tolist())) < need:
        raise InputError(f"{law.name} needs at least {need} different numbers of workers, there are {len(set(n))}.")


@dataclass(frozen=True)
class _ScalingProblem:
    """Least squares of log rates. Without an anchor the scale is free; with one, the law passes through the anchor."""

    law: ScalingLaw
    n: Array
    logs: Array
    anchor: tuple[float, float] | None = None  # n, log rate

    def residuals(self, parameters: Array) -> Array:
        differences: Array = self.logs - np.log(self.law.growth(self.n, parameters))
        if self.anchor is None:
            differences -= differences.mean()
        else:
            n, level = self.anchor
            differences -= level - math.log(float(self.law.growth(np.array([n]), parameters)[0]))
        return differences

    def error(self, parameters: Array) -> float:
        return float(np.sum(self.residuals(parameters) ** 2))

    def minimize(self) -> tuple[Array, float]:
        """Return the parameters of least squared error and that error, from the best two of a grid of starts.

        A parameter that is zero within rounding becomes exactly zero.
        """
        starts = sorted(
            product(*([min(s, u) for s in STARTS] for u in self.law.upper)),
            key=lambda start: self.error(np.array(start)),
        )
        parameters, error = min((self.descend(np.array(start), 1e-13) for start in starts[:2]), key=lambda end: end[1])
        for j in range(len(parameters)):
            without = np.where(np.arange(len(parameters)) == j, 0.0, parameters)
            if self.error(without) <= error * (1 + 1e-9) + 1e-24:
                parameters, error = without, min(error, self.error(without))
        return parameters, error

    def descend(self, parameters: Array, tolerance: float = 1e-8, fixed: int | None = None) -> tuple[Array, float]:
        """Descend by projected Gauss-Newton steps; the parameter number `fixed` keeps its value."""
        upper, free = np.array(self.law.upper), [j for j in range(len(parameters)) if j != fixed]
        r = self.residuals(parameters)
        error = float(r @ r)
        for _ in range(60 if free else 0):
            jacobian = np.stack([self._differentiate(parameters, r, j, upper[j]) for j in free], axis=1)
            downhill = -(jacobian.T @ r)
            moving = [
                c
                for c, j in enumerate(free)
                if not ((parameters[j] <= 0 and downhill[c] <= 0) or (parameters[j] >= upper[j] and downhill[c] >= 0))
            ]
            if not moving:
                break
            step = np.zeros(len(parameters))
            step[[free[c] for c in moving]] = np.linalg.lstsq(jacobian[:, moving], -r, rcond=None)[0]
            gain = 0.0
            for halving in range(30):
                trial = np.clip(parameters + step / 2**halving, 0.0, upper)
                trial_error = self.error(trial)
                if trial_error < error:
                    gain, parameters, error = error - trial_error, trial, trial_error
                    r = self.residuals(parameters)
                    break
            if gain <= tolerance * error:
                break
        return parameters, error

    def _differentiate(self, parameters: Array, r: Array, j: int, upper: float) -> Array:
        step = 1e-6 * max(1e-3, float(parameters[j]))
        moved = parameters.copy()
        moved[j] += step if parameters[j] + step <= upper else -step
        slope: Array = (self.residuals(moved) - r) / (moved[j] - parameters[j])
        return slope


def _find_edge(error_at: Callable[[float], float], best: float, end: float, limit: float) -> float:
    """Return the value between `best` and `end` where the error exceeds the limit: by doubling, then by bisection."""
    if not math.isfinite(limit) or best == end:
        return end
    inside, step = best, math.copysign(max(1e-6, 0.1 * abs(best)), end - best)
    for _ in range(200):
        outside = inside + step
        if (outside - end) * step >= 0:
            outside = end
        if error_at(outside) > limit:
            break
        if outside == end:
            return end
        inside, step = outside, 2 * step
    for _ in range(40):
        middle = (inside + outside) / 2
        if error_at(middle) <= limit:
            inside = middle
        else:
            outside = middle
        if abs(outside - inside) <= 1e-3 * abs(outside - best):
            break
    return (inside + outside) / 2


def _profile_parameter(problem: _ScalingProblem, parameters: Array, j: int) -> Callable[[float], float]:
    """Return the least error as a function of parameter j; each descent starts where the last one ended."""
    warm = parameters.copy()

    def error_at(value: float) -> float:
        nonlocal warm
        warm = warm.copy()
        warm[j] = value
        warm, error = problem.descend(warm, fixed=j)
        return error

    return error_at


def _profile_rate(fit: ScalingFit, n: float) -> tuple[float, float]:
    workers, logs = np.array(fit.n), np.log(np.array(fit.rates))
    parameters = np.array([v.value for v in fit.values.values()])
    freedom = len(workers) - len(parameters) - 1
    level, limit = math.log(fit.rate(n)), _limit(_ScalingProblem(fit.law, workers, logs).error(parameters), freedom)
    warm = parameters

    def error_at(log_rate: float) -> float:
        nonlocal warm
        warm, error = _ScalingProblem(fit.law, workers, logs, (n, log_rate)).descend(warm)
        return error

    low = _find_edge(error_at, level, level - LOG_RANGE, limit)
    warm = parameters
    high = _find_edge(error_at, level, level + LOG_RANGE, limit)
    return (
        math.exp(low) if low > level - LOG_RANGE else 0.0,
        math.exp(high) if high < level + LOG_RANGE else math.inf,
    )


def _limit(error: float, freedom: int) -> float:
    """Return the squared error up to which a value lies inside the 95 % interval."""
    return error * (1 + t_quantile(CONFIDENCE, freedom) ** 2 / freedom) if freedom > 0 else math.inf


def _build_law(
    name: str, terms: tuple[str, ...], columns: list[int], design: Array, target: Array, values: Array, *, logs: bool
) -> LinearLaw:
    freedom = len(target) - len(columns)
    free = np.ones(len(columns), dtype=bool) if logs else values > 0
    residuals = target - design @ values
    # Columns that the bound holds at zero add nothing to the variance of a prediction; the noise is that of all points.
    noise = math.sqrt(float(residuals @ residuals) / freedom)
    unbounded = np.asarray(np.linalg.lstsq(design, target, rcond=None)[0], dtype=np.float64)
    rest = target - design @ unbounded
    errors = np.sqrt(np.maximum(np.diag(_invert(design)), 0.0) * float(rest @ rest) / freedom)
    covariance = np.zeros((len(columns), len(columns)))
    if free.any():
        covariance[np.ix_(free, free)] = _invert(design[:, free]) * noise**2
    names = tuple(terms[i] for i in columns)
    return LinearLaw(name, names, values, unbounded, errors, covariance, noise, freedom, logs, len(target))


def _invert(design: Array) -> Array:
    """Return (XᵀX)⁻¹; columns are scaled to one size first."""
    scale = np.sqrt((design * design).sum(axis=0))
    scale[scale == 0] = 1.0
    scaled = design / scale
    return np.asarray(np.linalg.pinv(scaled.T @ scaled, hermitian=True) / np.outer(scale, scale), dtype=np.float64)


def _select_independent(design: Array) -> list[int]:
    """Return the columns that are no linear mixture of earlier ones: a constant amount is no different from the 1."""
    columns: list[int] = []
    basis: list[Array] = []
    for i, column in enumerate(design.T):
        rest = column - sum((b * float(b @ column) for b in basis), np.zeros(len(column)))
        rest = rest - sum((b * float(b @ rest) for b in basis), np.zeros(len(column)))
        size = float(np.linalg.norm(rest))
        if size > 1e-6 * float(np.linalg.norm(column)) and size > 0:
            columns.append(i)
            basis.append(rest / size)
    return columns


def _exp(value: float) -> float:
    return math.exp(min(max(value, -700.0), 700.0))
