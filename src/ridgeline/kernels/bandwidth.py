"""Measure the memory bandwidth of a GPU with a kernel that only reads: the upper bound for scans.

torch.sum is slower and also writes partial sums.

    TRITON_INTERPRET=1 python -m pytest tests/kernels
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

BLOCK = 8192  # elements per step; 32 KB in flight per program
PROGRAMS_PER_SM = 16


def make_read_step(buffer: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Return a function that reads `buffer` [n] int32 once and returns one xor per program, int32 [programs].

    The xor of the result equals the xor of the buffer; the result takes a few kilobytes.
    """
    count = buffer.numel()
    programs = max(1, min(triton.cdiv(count, BLOCK), _count_multiprocessors(buffer) * PROGRAMS_PER_SM))
    out = torch.zeros(programs, dtype=torch.int32, device=buffer.device)

    def step() -> torch.Tensor:
        _read[(programs,)](buffer, out, count, BLOCK=BLOCK, num_warps=8)
        return out

    return step


def _count_multiprocessors(buffer: torch.Tensor) -> int:
    if buffer.device.type != "cuda":
        return 1  # Triton's interpreter
    count: int = torch.cuda.get_device_properties(buffer.device).multi_processor_count
    return count


@triton.jit
def _xor(a, b):
    return a ^ b


@triton.jit
def _read(source, out, count, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    lanes = tl.arange(0, BLOCK)
    partial = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(program.to(tl.int64) * BLOCK, count, step):
        offset = start + lanes
        partial ^= tl.load(source + offset, mask=offset < count, other=0)
    tl.store(out + program, tl.reduce(partial, 0, _xor))
