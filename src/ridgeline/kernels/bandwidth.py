"""A kernel that only reads: the ceiling for scans. (torch.sum reaches less and writes partial sums.)

TRITON_INTERPRET=1 python -m pytest tests/kernels
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

BLOCK = 8192  # elements per step; 32 KB in flight per program
PROGRAMS_PER_SM = 16


def reader(buffer: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A step that reads all of `buffer` [n] int32 once and gives one xor per program.

    The xor over the result equals the xor over the buffer; the result is a few kilobytes.
    """
    count = buffer.numel()
    programs = max(1, min(triton.cdiv(count, BLOCK), _multiprocessors(buffer) * PROGRAMS_PER_SM))
    out = torch.zeros(programs, dtype=torch.int32, device=buffer.device)

    def step() -> torch.Tensor:
        _read[(programs,)](buffer, out, count, BLOCK=BLOCK, num_warps=8)
        return out

    return step


def _multiprocessors(buffer: torch.Tensor) -> int:
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
    seen = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(program.to(tl.int64) * BLOCK, count, step):
        at = start + lanes
        seen ^= tl.load(source + at, mask=at < count, other=0)
    tl.store(out + program, tl.reduce(seen, 0, _xor))
