"""Trajectories onto new stamps, on the GPU: the launch of `resample_kernel`, kept cheap.

Triton's own dispatch inspects every argument on every call and costs more than the kernel. Here the first call
of a shape goes through it; what it compiled is kept, under a key that holds all it was specialised on (types,
shapes, strides, alignment of pointers, device), and is launched directly from then on.

    python benchmarks/trajectory_gpu.py
"""

from __future__ import annotations

import math
import struct
import weakref
from typing import Any

import torch
import triton

from ridgeline.kernels import resample_kernel

# Elements (targets × channels) and warps per program, as `benchmarks/trajectory_gpu.py --sweep` found them best on an
# H200 (benchmarks/records/h200-trajectory-sweep.txt): small programs, many of them; cubic is short of registers.
TILE = {"cubic": 512}
USUAL_TILE = 1024
WARPS = {"cubic": 2}
USUAL_WARPS = 1
WIDEST = 128  # channels at a time
PLANS = 4096  # shapes remembered; a program that sees more starts anew

Channels = tuple[tuple[int, int, str], ...]


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
    """values [B, S, D] at times [B, S], read off at [B, T], into out [B, T, D] and mask [B, T].

    Packed: values [N, D], times [N] and offsets [B + 1]. `channels` are (start, stop, kind), in order; none means
    linear for all. Neither allocates nor waits; the first call of a shape compiles, so make one before capturing
    a CUDA graph.
    """
    if mask is lengths is at_lengths is offsets is scale is max_gap is None and outside == "clamp" and not channels:
        again = _again
        if (
            again is not None
            and again[0]() is values
            and again[1]() is times
            and again[2]() is at
            and again[3]() is out
            and again[4] == _looks(values, times, at, out)
        ):
            # The very tensors of the last call, as in a training loop or a graph: what was found then still holds.
            direct, device, programs, stream, function, packed, pointers, fixed = again[5]
            direct(programs, 1, 1, stream(device), function, packed, None, None, None, *pointers, *fixed)
            return None
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
        if len(_plans) >= PLANS:
            _plans.clear()
        plan = _plans[key] = _plan(values, times, at, out, mask, offsets, channels, outside, max_gap)
    for launch in plan:
        if launch.direct is None:
            launch.ordinary(values, times, at, out, mask, lengths, at_lengths, offsets, scale, shift)
        else:
            launch.direct(
                launch.programs, 1, 1, launch.stream(device), launch.function, launch.packed, None, None, None,
                v + launch.v_at, t, a, o + launch.o_at, m if launch.masks else None, ln, al, of,
                sc and sc + launch.c_at, sh and sh + launch.c_at, *launch.fixed,
            )  # fmt: skip
    plain = rest == _NOTHING and max_gap is None and not channels and outside == "clamp"
    if plain and len(plan) == 1 and plan[0].direct is not None:
        _remember(values, times, at, out, device, plan[0], (v, t, a, o, *_NOTHING))
    return None


def _looks(values: torch.Tensor, times: torch.Tensor, at: torch.Tensor, out: torch.Tensor) -> tuple[Any, ...]:
    """What an in-place change of a tensor (or of the current device) would change."""
    return (
        torch.cuda.current_device(),
        values.data_ptr(), values.shape, values.stride(),
        times.data_ptr(), times.stride(), at.data_ptr(), at.shape, at.stride(),
        out.data_ptr(), out.shape, out.stride(),
    )  # fmt: skip


def _remember(
    values: torch.Tensor, times: torch.Tensor, at: torch.Tensor, out: torch.Tensor, device: int, launch: _Launch,
    pointers: tuple[Any, ...],
) -> None:  # fmt: skip
    """Keep how the plain call on these tensors is launched, without keeping the tensors."""
    global _again
    seen = _looks(values, times, at, out)
    how = (
        launch.direct, device, launch.programs, launch.stream, launch.function, launch.packed, pointers, launch.fixed,
    )  # fmt: skip
    _again = (*(weakref.ref(x) for x in (values, times, at, out)), seen, how)


class _Launch:
    """Some channels of one kind, for one combination of types, shapes, strides and alignments."""

    __slots__ = (
        "c_at", "direct", "fixed", "function", "masks", "o_at", "packed", "programs", "refused", "start", "stop",
        "stream", "v_at", "warps",
    )  # fmt: skip

    def __init__(self, start: int, stop: int, masks: bool, programs: int, warps: int, fixed: tuple[Any, ...]) -> None:
        self.start, self.stop = start, stop
        self.masks = masks  # the first launch writes the mask
        self.programs, self.warps = programs, warps
        self.fixed = fixed  # every argument that is no pointer
        self.direct: Any = None  # until Triton has compiled the kernel, and always in its interpreter
        self.refused = False

    def ordinary(
        self, values: Any, times: Any, at: Any, out: Any, mask: Any, lengths: Any, at_lengths: Any, offsets: Any,
        scale: Any, shift: Any,
    ) -> None:  # fmt: skip
        """Through Triton's dispatch; what it compiled is kept for the next call."""
        part = slice(self.start, self.stop)
        seen = None if mask is None or not self.masks else mask.view(torch.uint8)
        arguments = (
            values[..., part], times, at, out[..., part], seen, lengths, at_lengths, offsets,
            None if scale is None else scale[part], None if shift is None else shift[part], *self.fixed,
        )  # fmt: skip
        launch = resample_kernel.resample[(self.programs,)]
        compiled = launch(*arguments, num_warps=self.warps, enable_fp_fusion=True)
        if compiled is None or self.refused:
            return
        try:
            self.function, self.packed = compiled.function, compiled.packed_metadata
            self.stream = triton.runtime.driver.active.get_current_stream
            self.v_at = self.start * values.stride(-1) * values.element_size()
            self.o_at = self.start * out.stride(-1) * out.element_size()
            self.c_at = self.start * (8 if values.dtype == torch.float64 else 4)
            direct = compiled.run
            # Tried at once, on the same arguments: a Triton that launches otherwise is noticed here.
            stream = self.stream(values.get_device())
            direct(self.programs, 1, 1, stream, self.function, self.packed, None, None, None, *arguments)
        except (AttributeError, TypeError):
            self.refused = True
        else:
            self.direct = direct


_plans: dict[Any, list[_Launch]] = {}
_again: Any = None
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
    reach = [(stamps, v_step[1]), (stamps, t_step[1]), (targets, out.stride(1)), (targets, at.stride(1))]
    wide = any(count * step >= 1 << 31 for count, step in reach)
    gap = 0 if max_gap is None else _gap(max_gap, times.dtype)
    plan: list[_Launch] = []
    for start, stop, kind in _merged(channels or ((0, depth, "linear"),)):
        width = stop - start
        bd = min(WIDEST, triton.next_power_of_2(max(1, width)))
        bt = min(max(16, min(128, TILE.get(kind, USUAL_TILE) // bd)), triton.next_power_of_2(targets))
        tiles = triton.cdiv(targets, bt)
        fixed = (
            stamps, targets, tiles, gap, *v_step, *t_step, *at.stride(), *out.stride(), *m_step,
            width, bt, bd, kind, outside, max_gap is not None, wide,
            _divisor(v_step, values.element_size()), _divisor(out.stride(), out.element_size()),
        )  # fmt: skip
        plan.append(_Launch(start, stop, not plan, batch * tiles, WARPS.get(kind, USUAL_WARPS), fixed))
    return plan


def _merged(channels: Channels) -> list[tuple[int, int, str]]:
    """Neighbours of one kind are one launch."""
    merged: list[tuple[int, int, str]] = []
    for start, stop, kind in channels:
        if merged and merged[-1][2] == kind:
            merged[-1] = (merged[-1][0], stop, kind)
        else:
            merged.append((start, stop, kind))
    return merged


def _divisor(strides: tuple[int, ...], size: int) -> int:
    """What divides the strides of batch and row, up to 16 bytes of elements."""
    return math.gcd(*strides[:-1], 16 // size)


def _gap(limit: float, times: torch.dtype) -> int:
    """The limit in the type of the times, as bits: Triton would narrow a float argument to float32."""
    if times == torch.int64:
        return int(max(-(2.0**63), math.floor(limit))) if limit < 2.0**63 else (1 << 63) - 1
    form = ("<d", "<q") if times == torch.float64 else ("<f", "<i")
    try:
        bits: int = struct.unpack(form[1], struct.pack(form[0], limit))[0]
    except OverflowError:  # beyond float32: no gap is longer
        bits = struct.unpack("<i", struct.pack("<f", math.inf))[0]
    return bits
