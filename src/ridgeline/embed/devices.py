"""Choose the device, the data type and the number of threads for an encoder."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.errors import InputError, MissingExtra, unknown
from ridgeline.machine import resolve_device

if TYPE_CHECKING:
    from ridgeline.embed.config import Config

DTYPES = ("float32", "bfloat16", "float16", "int8")


def resolve_torch_device(device: str) -> Any:
    """Return the torch device of that name; "auto" is the GPU if there is one."""
    try:
        import torch
    except ImportError:
        raise MissingExtra("embedding texts", "embed") from None
    torch_device = torch.device(resolve_device(device))
    return torch.device("cuda", torch.cuda.current_device()) if torch_device == torch.device("cuda") else torch_device


def resolve_dtype(dtype: str, device: Any, config: Config | None = None) -> Any:
    """Return the torch type to compute in; "auto" suits the model if its configuration is given."""
    import torch

    if dtype == "auto":
        if device.type == "cuda":
            dtype = "bfloat16" if config is not None and config.wide_range else "float16"
        else:
            dtype = choose_cpu_dtype()
            if dtype == "float16" and config is not None and not config.plain:  # the native layers are BERT's
                dtype = "float32"
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, ("auto", *DTYPES))
    if dtype == "float16" and device.type == "cpu" and not multiplies_float16():
        raise InputError(
            "dtype 'float16' is for GPUs and for ARM CPUs that multiply it; on this CPU use float32 or bfloat16."
        )
    if dtype == "int8" and device.type != "cpu":
        raise InputError("dtype 'int8' is for CPUs; on a GPU use float16 or bfloat16.")
    if dtype == "int8" and not multiplies_bytes():
        raise InputError(
            "dtype 'int8' needs a CPU with AVX512-VNNI, AVX-VNNI or AMX (x86) or SDOT (ARM); on this CPU use float32."
        )
    return getattr(torch, dtype)


def choose_cpu_dtype() -> str:
    """Return the fastest type of this CPU that is accurate enough: cosines of 0.9998 (16 bits) and 0.99999."""
    return "bfloat16" if multiplies_bfloat16() else "float16" if multiplies_float16() else "float32"


def multiplies_float16() -> bool:
    """Whether float16 is faster on this CPU: ARM's half-precision arithmetic, and a native build that uses it."""
    if "asimdhp" not in read_cpu_flags():
        return False
    return float16_works()


def multiplies_bytes() -> bool:
    """Whether this CPU has instructions for products of bytes: AVX512-VNNI, AVX-VNNI, AMX or SDOT."""
    from ridgeline.native import chosen_int8

    return bool(chosen_int8() != "plain")


def multiplies_bfloat16() -> bool:
    """Whether bfloat16 is faster on this CPU: AMX or AVX512-BF16."""
    return bool({"amx_bf16", "avx512_bf16"} & read_cpu_flags())


def has_bfloat16() -> bool:
    """Whether this CPU has any bfloat16 instruction (on ARM: BF16); otherwise it is emulated in float32."""
    return bool({"amx_bf16", "avx512_bf16", "bf16"} & read_cpu_flags())


@cache
def read_cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The CPU features that the Linux kernel lists; empty if it lists none."""
    try:
        return frozenset(cpuinfo.read_text(errors="replace").split())
    except OSError:
        return frozenset()


# With sixteen threads, synchronising takes longer than a norm over thirty tokens. In bfloat16, where products are fast,
# one text of 28 tokens took 3.8 ms with sixteen threads and 2.1 ms with four
# (benchmarks/records/h200-host-embed-one.txt).


TOKENS_PER_THREAD = 8

_lock = threading.Lock()
_users = 0
_default_threads = 0


@contextmanager
def limit_threads(tokens: int) -> Iterator[None]:
    """Limit torch's threads to what `tokens` tokens need, inside a `with` block.

    The number is global to the process, so the last of several callers restores it.
    """
    import torch

    global _users, _default_threads
    threads = -(-tokens // TOKENS_PER_THREAD)
    with _lock:
        if not _users:
            _default_threads = torch.get_num_threads()
        if threads >= _default_threads:
            threads = 0
        else:
            _users += 1
            torch.set_num_threads(threads)
    try:
        yield
    finally:
        if threads:
            with _lock:
                _users -= 1
                if not _users:
                    torch.set_num_threads(_default_threads)


def float16_works() -> bool:
    """Return whether this CPU multiplies float16 and the native build supports it."""
    from ridgeline.native import half_supported

    return bool(half_supported())
