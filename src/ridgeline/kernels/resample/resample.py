"""Launch the resampling kernel on a GPU with little overhead.

Triton's dispatch inspects every argument on every call and costs more than the kernel. The first call of a shape uses
it. Later calls launch the compiled kernel directly, from a cache whose key has everything that Triton specialised on
(types, shapes, strides, alignment of pointers, device). Calls of one kind without other options are added to
`launches`, which repeats them without the Python interpreter (native/resample/launch_cache.cpp).

    python benchmarks/trajectory_gpu.py
"""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from functools import partial
from typing import Any

import torch
import triton

from ridgeline.kernels.launch import make_launch
from ridgeline.kernels.resample import kernel as resample_kernel
from ridgeline.native import LaunchCache, TensorReader

# Targets and channels per program of one warp, by kind and bytes per value: the best of
# `benchmarks/trajectory_gpu.py --sweep` on an H200 (records h200-trajectory-sweep.txt and -cubic.txt). Many small
# programs are best: the kernel waits for memory, and registers limit the number of waiting programs. Cubic needs four
# frames: its programs read complete rows, some at a time (ROWS: values at once), so that threads share cache lines.
# `benchmarks/trajectory_cubic_gpu.py` sweeps its shapes.
SHAPES = {
    ("linear", 8): (16, 16),
    ("packed", 2): (32, 16),
    ("packed", 4): (32, 16),
    ("slerp", 2): (32, 16),
    ("cubic", 2): (32, 16),
    ("cubic", 4): (32, 32),
    ("cubic", 8): (32, 8),
}
USUAL_BYTES, WIDEST = 2048, 128  # of values per program; channels at a time
WARPS: dict[str, int] = {}
ROWS = {("cubic", 2): 256, ("cubic", 4): 256}
REGISTERS = {("linear", 8): 64, ("packed", 4): 64, ("cubic", 2): 72, ("cubic", 4): 80}  # at most
INTERPRETED = triton.knobs.runtime.interpret  # without hand-written instructions
TENSORS = 10  # number of pointer arguments, before the fixed ones
PLANS = 4096  # cached shapes; with more, the cache is cleared

Channels = tuple[tuple[int, int, str], ...]

# Launches of earlier calls, by kind; None if torch has no C functions for its tensors.
launches: dict[str, LaunchCache] | None = None
if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    launches = defaultdict(partial(LaunchCache, TensorReader(torch.Tensor)))


def run(
    values: torch.Tensor,
    times: torch.Tensor,
    at: torch.Tensor,
    out: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    lengths: torch.Tensor | None = None,
    at_lengths: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    channels: Channels = (),
    outside: str = "clamp",
    max_gap: float | None = None,
    scale: torch.Tensor | None = None,
    shift: torch.Tensor | None = None,
) -> None:
    """Resample values [B, S, D] of times [B, S] at [B, T] into out [B, T, D] and mask [B, T].

    Packed: values [N, D], times [N] and offsets [B + 1]. `channels` are (start, stop, kind), in order; an empty tuple
    means linear for all. It neither allocates nor waits. The first call of a shape compiles, so call it once before
    capturing a CUDA graph.
    """
    device = values.get_device()
    if device >= 0 and device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return run(
                values, times, at, out, mask, lengths=lengths, at_lengths=at_lengths, offsets=offsets,
                channels=channels, outside=outside, max_gap=max_gap, scale=scale, shift=shift,
            )  # fmt: skip
    v, t, a, o = values.data_ptr(), times.data_ptr(), at.data_ptr(), out.data_ptr()
    m = None if mask is None else mask.data_ptr()
    ln = None if lengths is None else lengths.data_ptr()
    al = None if at_lengths is None else at_lengths.data_ptr()
    of = None if offsets is None else offsets.data_ptr()
    sc = None if scale is None else scale.data_ptr()
    sh = None if shift is None else shift.data_ptr()
    rest = (m, ln, al, of, sc, sh)
    key = (
        device,
        (v | t | a | o) & 15 and (v & 15, t & 15, a & 15, o & 15),
        rest == _NOTHING or tuple([x if x is None else x & 15 for x in rest]),
        values.dtype, values.shape, values.stride(),
        times.dtype, times.stride(), at.shape, at.stride(),
        out.dtype, out.stride(), None if mask is None else mask.stride(),
        channels, outside, max_gap,
    )  # fmt: skip
    plan = _plans.get(key)
    if plan is None:
        if not values.shape[-2]:  # without a frame every result is unknown
            out.fill_(math.nan)
            if mask is not None:
                mask.fill_(False)
            return None
        if len(_plans) >= PLANS:
            _plans.clear()
            for cache in (launches or {}).values():
                cache.clear()
        plan = _plans[key] = _plan(values, times, at, out, mask, offsets, channels, outside, max_gap)
    for launch in plan:
        if launch.direct is None:
            launch.ordinary(values, times, at, out, mask, lengths, at_lengths, offsets, scale, shift)
        else:
            launch.direct(
                launch.stream(device), v + launch.v_at, t, a, o + launch.o_at, m if launch.masks else None, ln, al, of,
                sc and sc + launch.c_at, sh and sh + launch.c_at,
            )  # fmt: skip
    plain = rest == _NOTHING and max_gap is None and outside == "clamp"
    if plain and len(plan) == 1 and plan[0].direct is not None and not plan[0].known:
        plan[0].known = True
        all_channels = plan[0].start == 0 and plan[0].stop == values.shape[-1]
        if launches is not None and all_channels:
            launches[plan[0].kind].add(values, times, at, out, plan[0].direct)
    return None


class _Launch:
    """The launch for channels of one kind, for one combination of types, shapes, strides and alignments."""

    __slots__ = (
        "c_at", "compiled", "direct", "fixed", "kind", "known", "masks", "o_at", "options", "programs", "refused",
        "start", "stop", "stream", "v_at",
    )  # fmt: skip

    def __init__(
        self, start: int, stop: int, kind: str, masks: bool, programs: int, options: dict[str, Any],
        fixed: tuple[Any, ...],
    ) -> None:  # fmt: skip
        self.start, self.stop, self.kind = start, stop, kind
        self.masks = masks  # the first launch writes the mask
        self.programs = programs
        self.options = options  # of the compiler
        self.fixed = fixed  # all arguments that are no pointers
        self.direct: Any = None  # None until Triton compiles the kernel, and always in its interpreter
        self.refused = self.known = False  # a direct launch is impossible; `launches` has this launch

    def ordinary(
        self, values: Any, times: Any, at: Any, out: Any, mask: Any, lengths: Any, at_lengths: Any, offsets: Any,
        scale: Any, shift: Any,
    ) -> None:  # fmt: skip
        """Launch with Triton's dispatch and prepare a direct launch for the next call."""
        part = slice(self.start, self.stop)
        mask_bytes = None if mask is None or not self.masks else mask.view(torch.uint8)
        arguments = (
            values[..., part], times, at, out[..., part], mask_bytes, lengths, at_lengths, offsets,
            None if scale is None else scale[part], None if shift is None else shift[part], *self.fixed,
        )  # fmt: skip
        launch = resample_kernel.resample[(self.programs,)]
        compiled = launch(*arguments, **self.options)
        if compiled is None or self.refused:
            return
        self.v_at = self.start * values.stride(-1) * values.element_size()
        self.o_at = self.start * out.stride(-1) * out.element_size()
        self.c_at = self.start * (8 if values.dtype == torch.float64 else 4)
        try:
            self.stream = triton.runtime.driver.active.get_current_stream
            tensors = {place: place for place in range(TENSORS)}
            self.direct = make_launch(compiled, self.programs, arguments, tensors)
            self.compiled = compiled  # keeps the code alive
        except (AttributeError, TypeError, KeyError, RuntimeError):  # another version of Triton or of the driver
            self.refused = True


_plans: dict[Any, list[_Launch]] = {}
_NOTHING = (None,) * 6


def _plan(
    values: torch.Tensor,
    times: torch.Tensor,
    at: torch.Tensor,
    out: torch.Tensor,
    mask: torch.Tensor | None,
    offsets: torch.Tensor | None,
    channels: Channels,
    outside: str,
    max_gap: float | None,
) -> list[_Launch]:
    batch, targets, depth = out.shape
    stamps = values.shape[-2]
    if batch == 0 or targets == 0 or (depth == 0 and mask is None):
        return []
    packed = offsets is not None
    v_step = (0, *values.stride()) if packed else values.stride()
    t_step = (0, *times.stride()) if packed else times.stride()
    m_step = (0, 0) if mask is None else mask.stride()
    rows = batch * targets
    tensors = (values, times, at, out) if mask is None else (values, times, at, out, mask)
    wide = rows >= (1 << 31) - 1024 or any(_reach(x) >= 1 << 31 for x in tensors)
    gap = 0 if max_gap is None else _gap(max_gap, times.dtype)
    plan: list[_Launch] = []
    for start, stop, kind in _merge_neighbours(channels or ((0, depth, "linear"),)):
        width = stop - start
        variant = ("packed" if packed and kind == "linear" else kind, values.element_size())
        bt, bd = _shape(variant, width)
        fixed = (
            stamps, targets, rows, gap, *_division(targets), *v_step, *t_step, *at.stride(), *out.stride(), *m_step,
            width, bt, bd, min(bt, ROWS[variant] // bd) if variant in ROWS else bt,
            kind, outside, max_gap is not None, wide,
            _divisor(v_step, values.element_size()), _divisor(out.stride(), out.element_size()),
            not INTERPRETED,
        )  # fmt: skip
        options = {"num_warps": WARPS.get(kind, 1), "enable_fp_fusion": True}
        if variant in REGISTERS:
            options["maxnreg"] = REGISTERS[variant]
        plan.append(_Launch(start, stop, kind, not plan, triton.cdiv(rows, bt), options, fixed))
    return plan


def _shape(variant: tuple[str, int], width: int) -> tuple[int, int]:
    """Return the targets and channels of one program."""
    padded_width = triton.next_power_of_2(max(1, width))
    if variant in SHAPES:
        bt, bd = SHAPES[variant]
        return bt, min(bd, padded_width)
    bd = min(WIDEST, padded_width)
    return max(16, min(128, USUAL_BYTES // (variant[1] * bd))), bd


def _merge_neighbours(channels: Channels) -> list[tuple[int, int, str]]:
    """Merge neighbouring channels of one kind into one launch."""
    merged: list[tuple[int, int, str]] = []
    for start, stop, kind in channels:
        if merged and merged[-1][2] == kind:
            merged[-1] = (merged[-1][0], stop, kind)
        else:
            merged.append((start, stop, kind))
    return merged


def _reach(tensor: torch.Tensor) -> int:
    """Return the offset of the last element from the first, plus one."""
    return int(sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1)


def _divisor(strides: tuple[int, ...], size: int) -> int:
    """Return the common divisor of the strides of batch and row, at most 16 bytes of elements."""
    return math.gcd(*strides[:-1], 16 // size)


def _division(by: int) -> tuple[int, int]:
    """Return m, s: n // by is the upper half of (n + 1)·m, shifted right by s, for 0 <= n < 2³¹; m is signed."""
    halvings = by.bit_length() - 1
    times = ((1 << 32 + halvings) - 1) // by
    return times - (1 << 32 if times >= 1 << 31 else 0), halvings


def _gap(limit: float, times: torch.dtype) -> int:
    """Return the bits of the limit in the type of the times: Triton would round a float argument to float32."""
    if times == torch.int64:
        return int(max(-(2.0**63), math.floor(limit))) if limit < 2.0**63 else (1 << 63) - 1
    form = ("<d", "<q") if times == torch.float64 else ("<f", "<i")
    try:
        bits: int = struct.unpack(form[1], struct.pack(form[0], limit))[0]
    except OverflowError:  # beyond float32: no gap is longer
        bits = struct.unpack("<i", struct.pack("<f", math.inf))[0]
    return bits
