"""Laws of scaling and their fits: Amdahl, Gustafson, the Universal Scalability Law (USL).

    python -m pytest tests/lab/test_scaling.py

Each law says how the rate (items per second) grows with n workers, up to a scale:

    Amdahl      n / (1 + serial · (n - 1))                         a fixed problem with a serial part
    Gustafson   serial + (1 - serial) · n                          a problem that grows with n
    USL         n / (1 + contention · (n - 1) + coherence · n · (n - 1))   queueing, and talk between all pairs

Errors of times are relative, so fits are least squares of logarithms; the scale then has a closed form. Intervals
are profiles: the values of one parameter (or of a prediction) for which the best of the others still fits nearly as
well, by Student's t. They hold where the law does; how well it does is for held-out points to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError, unknown
from ridgeline.lab.judge.stats import Estimate

Vector = NDArray[np.float64]
STARTS = (0.0, 1e-4, 1e-2, 0.3)
FAR = 30.0  # natural logarithms
LARGEST = 1e6  # a parameter beyond this is as good as unbounded
# Student's t at 95 %, two-sided, by degrees of freedom from 1; beyond: the first terms of its expansion.
T_95 = (12.706, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


@dataclass(frozen=True)
class Law:
    name: str
    parameters: tuple[str, ...]
    upper: tuple[float, ...]  # bounds; the lower ones are 0
    growth: Callable[[Vector, Vector], Vector]  # (n, parameters) → rate relative to one worker


@dataclass(frozen=True)
class Fit:
    """A law fitted to rates at n workers."""

    law: Law
    n: tuple[float, ...]
    rates: tuple[float, ...]
    values: dict[str, Estimate]  # parameters with 95 % intervals (0 to the bound where nothing can be said)
    one: float  # the rate of one worker, fitted
    residual: float  # standard deviation of the relative errors

    @property
    def exact(self) -> bool:
        """As many parameters as points: the law passes through them whatever they are."""
        return len(self.n) <= len(self.law.parameters) + 1

    def rate(self, n: float) -> float:
        phi = np.array([v.value for v in self.values.values()])
        return self.one * float(self.law.growth(np.array([float(n)]), phi)[0])

    def at(self, n: float) -> Estimate:
        """The law's rate at n, with its 95 % interval."""
        low, high = _profile_rate(self, float(n))
        return Estimate(self.rate(n), low, high, len(self.n))

    @property
    def peak(self) -> float | None:
        """The n beyond which more workers make it slower (USL with coherence); None where there is none."""
        if "coherence" not in self.values or not self.values["coherence"].value:
            return None
        contention, coherence = (self.values[k].value for k in ("contention", "coherence"))
        return math.sqrt(max(0.0, 1 - contention) / coherence)


def _amdahl(n: Vector, phi: Vector) -> Vector:
    grown: Vector = n / (1 + phi[0] * (n - 1))
    return grown


def _gustafson(n: Vector, phi: Vector) -> Vector:
    grown: Vector = phi[0] + (1 - phi[0]) * n
    return grown


def _usl(n: Vector, phi: Vector) -> Vector:
    grown: Vector = n / (1 + phi[0] * (n - 1) + phi[1] * n * (n - 1))
    return grown


LAWS = {
    law.name: law
    for law in (
        Law("amdahl", ("serial",), (1.0,), _amdahl),
        Law("gustafson", ("serial",), (1.0,), _gustafson),
        Law("usl", ("contention", "coherence"), (LARGEST, LARGEST), _usl),
    )
}


def fit(name: str, n: Vector | list[float], rates: Vector | list[float]) -> Fit:
    """Fit one law; n are numbers of workers from 1 up, rates items per second. Points may repeat an n.

    >>> round(fit("amdahl", [1, 2, 4], [1.0, 2 / 1.1, 4 / 1.3]).values["serial"].value, 9)
    0.1
    """
    if name not in LAWS:
        raise unknown("law of scaling", name, LAWS)
    law, at, seen = LAWS[name], np.asarray(n, float), np.asarray(rates, float)
    _refuse(law, at, seen)
    logs = np.log(seen)
    problem = _Problem(law, at, logs)
    phi, error = problem.best()
    freedom = len(at) - len(phi) - 1
    values = {}
    for j, parameter in enumerate(law.parameters):
        low, high = (
            _edge(_holding(problem, phi, j), float(phi[j]), end, _reach(error, freedom)) for end in (0.0, law.upper[j])
        )
        values[parameter] = Estimate(float(phi[j]), low, high if high < LARGEST else math.inf, len(at))
    scale = math.exp(float(np.mean(logs - np.log(law.growth(at, phi)))))
    spread = math.sqrt(error / freedom) if freedom > 0 else 0.0
    return Fit(law, tuple(at.tolist()), tuple(seen.tolist()), values, scale, spread)


def _refuse(law: Law, n: Vector, rates: Vector) -> None:
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
class _Problem:
    """Log rates to be met. Without an anchor the scale is free; with one, the law passes through it."""

    law: Law
    n: Vector
    logs: Vector
    anchor: tuple[float, float] | None = None  # n, log rate

    def residuals(self, phi: Vector) -> Vector:
        bare: Vector = self.logs - np.log(self.law.growth(self.n, phi))
        if self.anchor is None:
            bare -= bare.mean()
        else:
            n, level = self.anchor
            bare -= level - math.log(float(self.law.growth(np.array([n]), phi)[0]))
        return bare

    def error(self, phi: Vector) -> float:
        return float(np.sum(self.residuals(phi) ** 2))

    def best(self) -> tuple[Vector, float]:
        """The parameters of least squared error, from the best two of a grid of starts; noughts are noughts."""
        starts = sorted(product(*([min(s, u) for s in STARTS] for u in self.law.upper)), key=self._at)
        phi, error = min((self.descend(np.array(start), 1e-13) for start in starts[:2]), key=lambda found: found[1])
        for j in range(len(phi)):
            without = np.where(np.arange(len(phi)) == j, 0.0, phi)
            if self.error(without) <= error * (1 + 1e-9) + 1e-24:
                phi, error = without, min(error, self.error(without))
        return phi, error

    def _at(self, start: tuple[float, ...]) -> float:
        return self.error(np.array(start))

    def descend(self, phi: Vector, enough: float = 1e-8, held: int | None = None) -> tuple[Vector, float]:
        """Projected Gauss-Newton; one parameter may be held."""
        upper, free = np.array(self.law.upper), [j for j in range(len(phi)) if j != held]
        r = self.residuals(phi)
        error = float(r @ r)
        for _ in range(60 if free else 0):
            jacobian = np.stack([self._slope(phi, r, j, upper[j]) for j in free], axis=1)
            downhill = -(jacobian.T @ r)
            going = [
                c
                for c, j in enumerate(free)
                if not ((phi[j] <= 0 and downhill[c] <= 0) or (phi[j] >= upper[j] and downhill[c] >= 0))
            ]
            if not going:
                break
            move = np.zeros(len(phi))
            move[[free[c] for c in going]] = np.linalg.lstsq(jacobian[:, going], -r, rcond=None)[0]
            gained = 0.0
            for halving in range(30):
                trial = np.clip(phi + move / 2**halving, 0.0, upper)
                there = self.error(trial)
                if there < error:
                    gained, phi, error = error - there, trial, there
                    r = self.residuals(phi)
                    break
            if gained <= enough * error:
                break
        return phi, error

    def _slope(self, phi: Vector, r: Vector, j: int, upper: float) -> Vector:
        step = 1e-6 * max(1e-3, float(phi[j]))
        moved = phi.copy()
        moved[j] += step if phi[j] + step <= upper else -step
        slope: Vector = (self.residuals(moved) - r) / (moved[j] - phi[j])
        return slope


def _edge(error_at: Callable[[float], float], best: float, end: float, reach: float) -> float:
    """How far from `best` towards `end` the error stays within reach: by doubling, then by halves."""
    if not math.isfinite(reach) or best == end:
        return end
    inside, step = best, math.copysign(max(1e-6, 0.1 * abs(best)), end - best)
    for _ in range(200):
        outside = inside + step
        if (outside - end) * step >= 0:
            outside = end
        if error_at(outside) > reach:
            break
        if outside == end:
            return end
        inside, step = outside, 2 * step
    for _ in range(40):
        middle = (inside + outside) / 2
        if error_at(middle) <= reach:
            inside = middle
        else:
            outside = middle
        if abs(outside - inside) <= 1e-3 * abs(outside - best):
            break
    return (inside + outside) / 2


def _holding(problem: _Problem, phi: Vector, j: int) -> Callable[[float], float]:
    """The least error with parameter j held at a value; each descent starts where the last one ended."""
    warm = phi.copy()

    def error_at(value: float) -> float:
        nonlocal warm
        warm = warm.copy()
        warm[j] = value
        warm, error = problem.descend(warm, held=j)
        return error

    return error_at


def _profile_rate(found: Fit, n: float) -> tuple[float, float]:
    at, logs = np.array(found.n), np.log(np.array(found.rates))
    phi = np.array([v.value for v in found.values.values()])
    freedom = len(at) - len(phi) - 1
    level, reach = math.log(found.rate(n)), _reach(_Problem(found.law, at, logs).error(phi), freedom)
    warm = phi

    def error_at(there: float) -> float:
        nonlocal warm
        warm, error = _Problem(found.law, at, logs, (n, there)).descend(warm)
        return error

    low = _edge(error_at, level, level - FAR, reach)
    warm = phi
    high = _edge(error_at, level, level + FAR, reach)
    return (math.exp(low) if low > level - FAR else 0.0), (math.exp(high) if high < level + FAR else math.inf)


def _reach(error: float, freedom: int) -> float:
    """The squared error up to which a value is inside the 95 % interval."""
    return error * (1 + _t(freedom) ** 2 / freedom) if freedom > 0 else math.inf


def _t(freedom: int) -> float:
    """Student's t at 95 %, two-sided."""
    if freedom <= len(T_95):
        return T_95[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
