"""An encoder's steps on the GPU: torch tensors in and out, one launch each.

python -m pytest tests/kernels/test_encoder.py
"""

from __future__ import annotations

from functools import cache

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from ridgeline.kernels.encoder import products, rows, texts

ACTIVATIONS = ("gelu", "gelu_16", "gelu_tanh", "relu")
INTERPRETED = triton.knobs.runtime.interpret
ELEMENTS = 2048  # per program of a row kernel; whole rows, so at least one
# Shapes by benchmarks/records/h200-embed-sweep.txt. Of a product: tokens, columns, step along the depth, warps, stages;
# and the tokens from which it pays.
ACTIVATE, PAYS = (128, 256, 64, 8, 4), 16_384
# Of attention, by the longest text: queries and keys at a time, warps. float32 is multiplied without tensor cores, and
# what does not fit into registers costs twenty times as much.
ATTENTION = {16: (16, 16, 1), 32: (32, 32, 2), 64: (64, 32, 2)}
LONG = (128, 64, 4)
WIDE_ATTENTION = {16: (16, 16, 1), 32: (32, 32, 1)}
WIDE_LONG = (64, 32, 2)


def embed(
    ids: torch.Tensor,
    offsets: torch.Tensor,
    word: torch.Tensor,
    position: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    epsilon: float,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """ids [T], offsets [n + 1] → [T, width]; rows from offsets[n] on are zero."""
    tokens, width = ids.shape[0], word.shape[1]
    out = torch.empty((tokens, width), dtype=word.dtype, device=word.device)
    block, step = _rows(width)
    if tokens:
        rows.embed[(triton.cdiv(tokens, step),)](
            ids, offsets, positions, word, position, weight, bias, out, tokens, offsets.shape[0] - 1, epsilon,
            width, block, step, num_warps=4,
        )  # fmt: skip
    return out


def add_norm(
    x: torch.Tensor,
    x_bias: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    epsilon: float,
) -> torch.Tensor:
    """x [T, width] + x_bias + residual, normalised; written over x."""
    tokens, width = x.shape
    block, step = _rows(width)
    if tokens:
        rows.add_norm[(triton.cdiv(tokens, step),)](
            x, x_bias, residual, weight, bias, x, tokens, epsilon, width, block, step, num_warps=4
        )
    return x


def activate(x: torch.Tensor, bias: torch.Tensor, kind: str) -> torch.Tensor:
    """x [T, width] + bias through its activation; written over x."""
    tokens, width = x.shape
    block = min(512, triton.next_power_of_2(width))
    step = max(1, ELEMENTS // block)
    if tokens:
        rows.activate[(triton.cdiv(tokens, step), triton.cdiv(width, block))](
            x, bias, tokens, width, kind, block, step, num_warps=4
        )
    return x


def multiplies(weight: torch.Tensor, tokens: int) -> bool:
    """Whether `linear_activate` takes a weight, and is faster than a product and `activate`."""
    width, depth = weight.shape
    return width % ACTIVATE[1] == 0 and depth % ACTIVATE[2] == 0 and tokens >= PAYS


def linear_activate(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, kind: str) -> torch.Tensor:
    """x [T, depth] · weight [width, depth]ᵀ + bias through its activation → [T, width]."""
    (tokens, depth), width = x.shape, weight.shape[0]
    out = torch.empty((tokens, width), dtype=x.dtype, device=x.device)
    taken, columns, step, warps, stages = ACTIVATE
    programs = min(multiprocessors(x.get_device()), triton.cdiv(tokens, taken) * (width // columns))
    if tokens:
        products.linear_activate[(programs,)](
            TensorDescriptor.from_tensor(x, [taken, step]), TensorDescriptor.from_tensor(weight, [columns, step]), bias,
            TensorDescriptor.from_tensor(out, [taken, columns // 2]), tokens, width, depth, kind, taken, columns, step,
            programs, INTERPRETED, num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return out


@cache
def multiprocessors(device: int) -> int:
    """Of a GPU; a handful in the interpreter."""
    return 4 if device < 0 else torch.cuda.get_device_properties(device).multi_processor_count


def attention(qkv: torch.Tensor, offsets: torch.Tensor, heads: int, longest: int) -> torch.Tensor:
    """qkv [T, 3 · heads · depth], offsets [n + 1] → [T, heads · depth]; no text has more than `longest` tokens."""
    tokens, width = qkv.shape[0], qkv.shape[1] // 3
    out = torch.empty((tokens, width), dtype=qkv.dtype, device=qkv.device)
    wide = qkv.dtype == torch.float32
    shapes, long = (WIDE_ATTENTION, WIDE_LONG) if wide else (ATTENTION, LONG)
    queries, keys, warps = next((shape for most, shape in shapes.items() if longest <= most), long)
    grid = (offsets.shape[0] - 1, heads, triton.cdiv(longest, queries))
    if tokens:
        texts.attention[grid](
            qkv, offsets, out, (width // heads) ** -0.5, heads, width // heads, queries, keys, INTERPRETED,
            num_warps=warps,
        )  # fmt: skip
    return out


def pool(hidden: torch.Tensor, offsets: torch.Tensor, mode: str, unit: bool) -> torch.Tensor:
    """hidden [T, width], offsets [n + 1] → float32 [n, width]."""
    count, width = offsets.shape[0] - 1, hidden.shape[1]
    out = torch.empty((count, width), dtype=torch.float32, device=hidden.device)
    block, step = _rows(width)
    if count:
        texts.pool[(count,)](hidden, offsets, out, width, block, step, mode, unit, num_warps=4)
    return out


def _rows(width: int) -> tuple[int, int]:
    """The width as a power of two, and how many rows of it a program takes."""
    block = triton.next_power_of_2(width)
    return block, max(1, ELEMENTS // block)
