"""Matrix products on the GPU whose bits do not depend on the number of rows: torch tensors in and out.

A library chooses another algorithm for another number of rows, and with it another order of summing. Here every element
is a sum along the depth, step by step, by the same instruction: tiles of every shape give the same bits, so a small
batch can have small tiles (tests/kernels/test_products.py compares them on a GPU).

    python -m pytest tests/kernels/test_products.py
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from ridgeline.kernels.encoder.activations import _apply_activation

INTERPRETED = triton.knobs.runtime.interpret


class Tile(NamedTuple):
    """The shape of a tile: tokens, columns, step along the depth, warps, stages."""

    tokens: int
    columns: int
    step: int
    warps: int
    stages: int


# By benchmarks/records/h200-embed-sweep.txt.
LARGE_TILE, NARROW_TILE, SMALL_TILE = Tile(256, 128, 64, 8, 3), Tile(128, 128, 64, 8, 4), Tile(64, 64, 128, 4, 3)
SMALL_GATED_TILE = Tile(64, 128, 64, 4, 4)
FLOAT32_TILE, SMALL_FLOAT32_TILE = Tile(64, 64, 32, 4, 3), Tile(16, 32, 64, 2, 3)
SMALL_TILES = 200  # with no more small tiles than this they are the fastest
LARGE_TOKENS = 16_384  # from here the large tile is the fastest
MIN_LINEAR_TOKENS = 16_384  # from here one launch is faster than the library's product and a pass for the activation
GATE_COLUMNS = 64  # of a gate, beside as many of what it multiplies, in a weight of `linear_gated`
ALIGNMENT = 16  # bytes of a row, for the tensor copy engine
ADDED_COLUMNS = 8  # their multiples have aligned rows in every type


@cache
def count_multiprocessors(device: int) -> int:
    """The multiprocessors of a GPU; 4 in the interpreter."""
    return 4 if device < 0 else torch.cuda.get_device_properties(device).multi_processor_count


def linear_activate_pays(weight: torch.Tensor, tokens: int) -> bool:
    """Return whether `linear` with an activation is faster than the library's product and `activate`."""
    width, depth = weight.shape
    return width % 256 == 0 and depth % LARGE_TILE.step == 0 and tokens >= MIN_LINEAR_TOKENS


def choose_tile(tokens: int, width: int, dtype: torch.dtype, gated: bool = False) -> Tile:
    """Return the fastest tile; all tiles of a type give the same bits."""
    if dtype == torch.float32:
        small, large = SMALL_FLOAT32_TILE, FLOAT32_TILE
    else:
        small = SMALL_GATED_TILE if gated else SMALL_TILE
        large = LARGE_TILE if tokens >= LARGE_TOKENS else NARROW_TILE
    tiles = triton.cdiv(tokens, small.tokens) * triton.cdiv(width, small.columns)
    return small if tiles <= SMALL_TILES else large


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    kind: str = "none",
    tile: Tile | None = None,
) -> torch.Tensor:
    """Activation of x [T, depth] · weight [width, depth]ᵀ + bias → [T, width]; the same bits for any T.

    kind  an activation, or "none"
    """
    return _multiply(x, weight, bias, kind, False, weight.shape[0], tile)


def add_linear(total: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, tile: Tile | None = None) -> torch.Tensor:
    """Add x [T, depth] · weight [width, depth]ᵀ to `total` [T, width], rounding once; the same bits for any T.

    The width must be a multiple of `ADDED_COLUMNS`.
    """
    return _multiply(x, weight, None, "none", False, len(weight), tile, total, add=True)


def library_agrees(weight: torch.Tensor, bias: torch.Tensor | None, tokens: int, add: bool = False) -> bool:
    """Return whether the library's product of this many rows has the bits of `linear`, for every row.

    Then its sums have the same order, and the library, which is faster, can compute exactly this many rows at a time.

    add  compare with `add_linear` instead
    """
    random = torch.Generator(weight.device).manual_seed(0)
    options: Any = {"generator": random, "device": weight.device, "dtype": weight.dtype}
    x, out = torch.randn(tokens, weight.shape[1], **options), torch.randn(tokens, len(weight), **options)
    ours = add_linear(out.clone(), x, weight) if add else linear(x, weight, bias)
    _multiply_by_library(x, weight, bias, out, add)
    return bool(torch.equal(out, ours))


def linear_by_library(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    sizes: Sequence[int],
    total: torch.Tensor | None = None,
) -> torch.Tensor:
    """The result of `linear`, from the library for as many rows as `sizes` can make up, descending.

    The caller has checked each size for weights of this shape by `library_agrees`.

    total  the result of `add_linear` instead: the product is added to it
    """
    add = total is not None
    out = torch.empty((len(x), len(weight)), dtype=x.dtype, device=x.device) if total is None else total
    begin = 0
    for size in sizes:
        while len(x) - begin >= size:
            _multiply_by_library(x[begin : begin + size], weight, bias, out[begin : begin + size], add)
            begin += size
    if begin < len(x):
        _multiply(x[begin:], weight, bias, "none", False, len(weight), None, out[begin:], add)
    return out


def _multiply_by_library(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, add: bool
) -> None:
    if add:
        out.addmm_(x, weight.T)
    elif bias is None:
        torch.mm(x, weight.T, out=out)
    else:
        torch.addmm(bias, x, weight.T, out=out)


def linear_gated(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    kind: str,
    width: int,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Activation of x · gateᵀ + bias, times x · upᵀ + bias → [T, width]; weight and bias by `join_gate`."""
    return _multiply(x, weight, bias, kind, True, width, tile)


def join_gate(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Join rows of a gate and of what it multiplies in blocks of GATE_COLUMNS, padded with zeros."""
    padding = -len(gate) % GATE_COLUMNS
    blocks = [
        F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, padding)).unflatten(0, (-1, GATE_COLUMNS)) for rows in (gate, up)
    ]
    return torch.stack(blocks, 1).flatten(0, 2).contiguous()


def _multiply(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, kind: str, gated: bool, width: int,
    tile: Tile | None, result: torch.Tensor | None = None, add: bool = False,
) -> torch.Tensor:  # fmt: skip
    multiple = ALIGNMENT // x.element_size()
    padding = -x.shape[1] % multiple
    if padding:
        x, weight = F.pad(x, (0, padding)), F.pad(weight, (0, padding))
    (tokens, depth), padded = x.shape, width + -width % multiple
    fits = result is not None and padded == width and result.data_ptr() % ALIGNMENT == 0
    if add and not fits:
        raise ValueError(f"a product cannot be added to rows of {width} columns: give a multiple of {ADDED_COLUMNS}")
    out = result if result is not None and fits else torch.empty((tokens, padded), dtype=x.dtype, device=x.device)
    if tokens:
        rows = len(weight) if gated else padded
        if padded != width and not gated:
            weight = F.pad(weight, (0, 0, 0, padded - width))
            bias = None if bias is None else F.pad(bias, (0, padded - width))
        tile = tile or choose_tile(tokens, rows, x.dtype, gated)
        grid = triton.cdiv(tokens, tile.tokens) * triton.cdiv(rows, tile.columns)
        programs = min(count_multiprocessors(x.get_device()), grid)
        _linear_kernel[(programs,)](
            TensorDescriptor.from_tensor(_align(x), [tile.tokens, tile.step]),
            TensorDescriptor.from_tensor(_align(weight), [tile.columns, tile.step]), bias,
            TensorDescriptor.from_tensor(out, [tile.tokens, tile.columns // 2]), tokens, rows, depth, kind, gated,
            add, tile.tokens, tile.columns, tile.step, INTERPRETED, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    if result is not None:
        return result if fits else result.copy_(out[:, :width])
    return out if padded == width else out[:, :width].contiguous()


def _align(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as the copy engine takes it; a part of a larger one is copied if it must be."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor


# There are as many programs as multiprocessors; each takes one tile after the other, so the operands of the next tile
# load while an activation is computed. The tensor copy engine loads operands and stores results; what lies beyond the
# edge of a tensor is zero, and is not stored.


@triton.jit(do_not_specialize=["tokens"])
def _linear_kernel(
    x, weight, bias, out, tokens, WIDTH: tl.constexpr, DEPTH: tl.constexpr, KIND: tl.constexpr, GATED: tl.constexpr,
    ADD: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Activation of x [tokens, DEPTH] · weight [WIDTH, DEPTH]ᵀ + bias → out.

    Neighbouring programs take neighbouring columns of the same tokens, so x is read from memory once. A tile is
    finished in two halves: the registers hold one half beside the sum. With GATED the first half is a gate of the
    second. With ADD the product is added to `out`. WIDEN multiplies in float32, because Triton's interpreter cannot
    multiply bfloat16.
    """
    TILES: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    HALF: tl.constexpr = COLUMNS // 2
    half = tl.arange(0, HALF)
    for tile in tl.range(tl.program_id(0), tl.cdiv(tokens, TOKENS) * TILES, tl.num_programs(0), flatten=True):
        row = (tile // TILES) * TOKENS
        column = (tile % TILES) * COLUMNS
        total = tl.zeros([TOKENS, COLUMNS], tl.float32)
        for d in range(0, DEPTH, STEP):
            a, b = x.load([row, d]), weight.load([column, d])
            if WIDEN:
                a, b = a.to(tl.float32), b.to(tl.float32)
            total = tl.dot(a, b.T, total, input_precision="ieee")
        left, right = tl.split(tl.permute(tl.reshape(total, (TOKENS, 2, HALF)), (0, 2, 1)))
        if bias is not None:
            first, second = column + half, column + HALF + half
            left += tl.load(bias + first, mask=first < WIDTH, other=0).to(tl.float32)[None, :]
            right += tl.load(bias + second, mask=second < WIDTH, other=0).to(tl.float32)[None, :]
        if ADD:
            left += out.load([row, column]).to(tl.float32)
            right += out.load([row, column + HALF]).to(tl.float32)
        if GATED:
            left = _apply_activation(left, KIND) * right
            out.store([row, column // 2], left.to(out.dtype))
        else:
            left = _apply_activation(left, KIND)
            out.store([row, column], left.to(out.dtype))
            right = _apply_activation(right, KIND)
            out.store([row, column + HALF], right.to(out.dtype))
