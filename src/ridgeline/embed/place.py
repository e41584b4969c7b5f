"""Where to compute, and in which type."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, MissingExtra, unknown
from ridgeline.machine import device_named

DTYPES = ("float32", "bfloat16", "float16")


def device_of(device: str) -> Any:
    """The torch device of that name; auto is the GPU where there is one."""
    try:
        import torch
    except ImportError:
        raise MissingExtra("embedding texts", "embed") from None
    named = torch.device(device_named(device))
    return torch.device("cuda", torch.cuda.current_device()) if named == torch.device("cuda") else named


def dtype_of(dtype: str, device: Any) -> Any:
    """The torch type to compute in."""
    import torch

    if dtype == "auto":
        dtype = "float16" if device.type == "cuda" else cpu_dtype()
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, ("auto", *DTYPES))
    if dtype == "float16" and device.type == "cpu" and not multiplies_float16():
        raise InputError(
            "dtype 'float16' is for GPUs and for ARM CPUs that multiply it; on this CPU use float32 or bfloat16."
        )
    return getattr(torch, dtype)


def cpu_dtype() -> str:
    """The type this CPU is quickest in, of those whose vectors are near enough: cosines of 0.9998 and 0.99999."""
    return "bfloat16" if multiplies_bfloat16() else "float16" if multiplies_float16() else "float32"


def multiplies_float16() -> bool:
    """Whether this CPU gains by it: ARM's half-precision arithmetic, and a build of ours that uses it."""
    if "asimdhp" not in cpu_flags():
        return False
    from ridgeline.embed.layers_half import works

    return works()


def multiplies_bfloat16() -> bool:
    """Whether this CPU gains by it: AMX or AVX512-BF16."""
    return bool({"amx_bf16", "avx512_bf16"} & cpu_flags())


def knows_bfloat16() -> bool:
    """Whether this CPU has any instruction for it (on ARM: BF16); without, it is played in float32."""
    return bool({"amx_bf16", "avx512_bf16", "bf16"} & cpu_flags())


@cache
def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The kernel's words for what the CPU can do; none where it does not say."""
    try:
        return frozenset(cpuinfo.read_text(errors="replace").split())
    except OSError:
        return frozenset()
