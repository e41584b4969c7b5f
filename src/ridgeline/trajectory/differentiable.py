"""resample in plain torch operations: slower, and differentiable with respect to the values.

The forward pass uses the fast engine; only the backward pass runs this code.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from ridgeline.errors import InputError
from ridgeline.trajectory.channels import compute_scaling, resolve_kinds
from ridgeline.trajectory.shape import unify_shapes


def resample_with_gradient(engine: Callable[..., Any], values: Any, times: Any, at: Any, **options: Any) -> Any:
    """Resample with `engine`, which takes the same arguments, and record the gradient for the values."""
    if options["sort"]:
        raise InputError("sort=True has no gradient; sort the stamps first.")
    answer = _Resample.apply(values, times, at, engine, options)
    return answer if options["return_mask"] else answer[0]


class _Resample(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, values: Any, times: Any, at: Any, engine: Any, options: dict[str, Any]) -> Any:
        ctx.save_for_backward(values, times, at)
        ctx.options = options
        with torch.no_grad():
            result, mask = engine(values.detach(), times, at, out=None, **{**options, "return_mask": True})
        ctx.mark_non_differentiable(mask)
        ctx.mask = mask
        return result, mask

    @staticmethod
    def backward(ctx: Any, grad: Any, _mask: Any) -> Any:
        values, times, at = ctx.saved_tensors
        with torch.enable_grad():
            leaf = values.detach().requires_grad_()
            recomputed = in_torch(leaf, times, at, ctx.options)
            known = ctx.mask.reshape(*ctx.mask.shape, *(1,) * (recomputed.dim() - ctx.mask.dim()))
            safe = torch.where(
                known, grad.to(recomputed.dtype), torch.zeros((), dtype=recomputed.dtype, device=grad.device)
            )
            (gradient,) = torch.autograd.grad(recomputed, leaf, safe)
        return gradient, None, None, None, None


def in_torch(values: Any, times: Any, at: Any, options: dict[str, Any]) -> Any:
    """Resample by counting stamps and gathering frames, in the compute type; masked targets are not NaN."""
    offsets = options["offsets"]
    if offsets is not None:
        offsets = torch.as_tensor(offsets, dtype=torch.int64, device=values.device)
    batch = unify_shapes(values, times, at, offsets, lambda a, n: a.expand(n, *a.shape[1:]))
    clock, stamps = batch.times, batch.times.shape[1]
    device = values.device
    first, last = _ends(options["lengths"], offsets, batch.batch, stamps, device)
    rows = torch.arange(batch.batch, device=device)[:, None] if offsets is None else torch.zeros_like(first)
    # Find the interval of each target by counting the stamps of its trajectory that are not after it.
    inside = torch.arange(stamps, device=device)[None]
    inside = (inside >= first) & (inside < last)
    wide = clock.expand(batch.batch, stamps) if offsets is not None else clock
    passed = ((wide[:, None, :] <= batch.at[:, :, None]) & inside[:, None, :]).sum(-1)
    top = (last - 1).clamp_min(0)
    i = torch.minimum((first + passed - 1).clamp_min(0), top).maximum(first.clamp_max(top))

    def take(k: Any) -> Any:
        return clock[rows.expand_as(k), k]

    i = _last_equal(take, i, top)
    j = _last_equal(take, torch.minimum(i + 1, top), top)
    beyond = options["outside"] == "extrapolate"
    if beyond:  # after the end, continue the last interval
        at_end = i == j
        i = torch.where(at_end, _before(take, i, first), i)
    span = (take(j) - take(i)).to(torch.float64)
    weight = torch.where(
        span > 0, (batch.at - take(i)).to(torch.float64) / span.clamp_min(1e-300), torch.zeros_like(span)
    )
    if not beyond:
        weight = weight.clamp(0, 1)
    work = torch.float64 if values.dtype is torch.float64 else torch.float32

    def fetch(k: Any) -> Any:
        return batch.values[rows.expand_as(k), k].to(work)

    parts = [
        _kind(name, fetch, take, i, j, weight, first, top, slice(start, stop))
        for start, stop, name in resolve_kinds(options["kind"], batch.channels)
    ]
    result = torch.cat(parts, -1)
    scaling = compute_scaling(options["normalize"], batch.channels)
    if scaling:
        scale, shift = (torch.as_tensor(a, dtype=work, device=device) for a in scaling)
        result = result * scale + shift
    return result.reshape(batch.result_shape)


def _ends(lengths: Any, offsets: Any, batch: int, stamps: int, device: Any) -> tuple[Any, Any]:
    def as_count(c: Any) -> Any:
        return torch.as_tensor(c, dtype=torch.int64, device=device)

    if offsets is not None:
        bounds = as_count(offsets)
        first, last = bounds[:-1, None], bounds[1:, None]
    else:
        first = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        last = torch.full((batch, 1), stamps, dtype=torch.int64, device=device)
    return first, last if lengths is None else torch.minimum(last, first + as_count(lengths)[:, None])


def _last_equal(take: Any, k: Any, top: Any) -> Any:
    """Return the last index of equal stamps."""
    while True:
        advance = (take(torch.minimum(k + 1, top)) == take(k)) & (k < top)
        if not bool(advance.any()):
            return k
        k = torch.where(advance, k + 1, k)


def _before(take: Any, k: Any, first: Any) -> Any:
    """Return the last index with a smaller stamp, or k without one."""
    down = k
    while True:
        same = (take(down) == take(k)) & (down > first)
        if not bool(same.any()):
            return torch.where(take(down) < take(k), down, k)
        down = torch.where(same, down - 1, down)


def _kind(name: str, fetch: Any, take: Any, i: Any, j: Any, w: Any, first: Any, top: Any, part: slice) -> Any:
    a, b = fetch(i)[..., part], fetch(j)[..., part]
    if name in ("previous", "nearest"):  # before the weight is rounded: rounding could reach the next stamp
        return torch.where((w >= 1 if name == "previous" else w > 0.5)[..., None], b, a)
    w = w.to(a.dtype)
    weight = w[..., None]
    if name == "angle":
        turn = 2 * torch.pi

        def wrap(x: Any) -> Any:
            return x - turn * torch.round(x.detach() / turn)

        return wrap(a + wrap(b - a) * weight)
    if name == "slerp":
        return _slerp(a, b, weight)
    if name == "cubic":
        return _cubic(fetch, take, i, j, w, first, top, part)
    return torch.where(weight == 0, a, a + (b - a) * weight)


def _slerp(a: Any, b: Any, w: Any) -> Any:
    shape = a.shape
    p, q = (x.reshape(*shape[:-1], -1, 4) for x in (a, b))
    p, q = (x / x.norm(dim=-1, keepdim=True) for x in (p, q))
    dot = (p * q).sum(-1, keepdim=True)
    side = torch.where(dot < 0, -1.0, 1.0).to(p.dtype)
    dot = dot * side
    w = w[..., None]
    is_close = dot > (1 - 1e-8 if dot.dtype == torch.float64 else 0.9995)  # the chord is as exact as the arc
    theta = torch.acos(torch.where(is_close, torch.zeros_like(dot), dot))
    sine = torch.sin(theta)
    left = torch.where(is_close, 1 - w, torch.sin((1 - w) * theta) / sine)
    right = torch.where(is_close, w, torch.sin(w * theta) / sine) * side
    mixed = left * p + right * q
    return (mixed / mixed.norm(dim=-1, keepdim=True)).reshape(shape)


def _cubic(fetch: Any, take: Any, i: Any, j: Any, w: Any, first: Any, top: Any, part: slice) -> Any:
    before = _before(take, i, first)
    after = _last_equal(take, torch.minimum(j + 1, top), top)
    values = [fetch(k)[..., part].double() for k in (before, i, j, after)]
    clocks = [take(k) for k in (before, i, j, after)]
    h0, h, h1 = (((q - p).double()[..., None]) for p, q in pairwise(clocks))
    one = torch.ones_like(h)
    m0, m, m1 = ((q - p) / torch.where(s > 0, s, one) for p, q, s in zip(values, values[1:], (h0, h, h1), strict=False))
    has0, has1 = h0 > 0, h1 > 0
    left = torch.where(has0, _inner(h0, h, m0, m), torch.where(has1, _end(h, h1, m, m1), m))
    right = torch.where(has1, _inner(h, h1, m, m1), torch.where(has0, _end(h, h0, m, m0), m))
    x = w.double()[..., None]
    v = 1 - x
    a, b = values[1], values[2]
    curve = a * v * v * (1 + 2 * x) + b * x * x * (3 - 2 * x) + h * x * v * (left * v - right * x)
    return torch.where((x == 0) | (h <= 0), a, curve).to(w.dtype)


def _inner(h0: Any, h1: Any, m0: Any, m1: Any) -> Any:
    same = m0 * m1 > 0
    one = torch.ones_like(m0)
    w0, w1 = 2 * h1 + h0, h1 + 2 * h0
    harmonic = (w0 + w1) / (w0 / torch.where(same, m0, one) + w1 / torch.where(same, m1, one))
    return torch.where(same, harmonic, torch.zeros_like(m0))


def _end(h0: Any, h1: Any, m0: Any, m1: Any) -> Any:
    d = ((2 * h0 + h1) * m0 - h0 * m1) / torch.where(h0 + h1 > 0, h0 + h1, torch.ones_like(h0))
    d = torch.where(torch.sign(d) != torch.sign(m0), torch.zeros_like(d), d)
    return torch.where((torch.sign(m0) != torch.sign(m1)) & (d.abs() > 3 * m0.abs()), 3 * m0, d)
