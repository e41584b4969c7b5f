"""What the NVIDIA driver reports, through NVML. Without a driver or the library: no GPUs, and no error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NvmlGpu:
    """One GPU as the driver lists it."""

    uuid: str
    name: str
    pci: str  # 0000:01:00.0, as sysfs writes it
    memory_bytes: int | None
    link: str | None


@dataclass(frozen=True)
class GpuState:
    """The state of a GPU at one moment, as the lab writes it beside its samples."""

    sm_mhz: int | None
    memory_mhz: int | None
    max_sm_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    throttle_reasons: tuple[str, ...]  # only those that slow work down; an idle clock does not count


@dataclass(frozen=True)
class GpuSettings:
    """What limits a GPU, as its driver reports it. None: the board does not support the query."""

    hbm: bool  # its memory is HBM, whose ECC costs nothing
    ecc: bool | None = None
    mig: bool | None = None
    power_limit_w: float | None = None
    default_power_w: float | None = None
    application_sm_mhz: int | None = None
    default_sm_mhz: int | None = None
    application_memory_mhz: int | None = None
    default_memory_mhz: int | None = None
    busy_percent: int | None = None
    throttle_reasons: tuple[str, ...] = ()


# Bits of nvmlDeviceGetCurrentClocksEventReasons that mean "slower than it could be".
THROTTLE_BITS = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


def list_installed_gpus() -> list[NvmlGpu]:
    """All GPUs of the driver, in PCI order, before CUDA_VISIBLE_DEVICES applies."""
    with _open_nvml() as nvml:
        if nvml is None:
            return []
        # A GPU that is off the bus or forbidden to this process cannot be opened; CUDA does not list it either.
        handles = [_query(nvml, nvml.nvmlDeviceGetHandleByIndex, i) for i in range(nvml.nvmlDeviceGetCount())]
        return sorted((_read_gpu(nvml, h) for h in handles if h is not None), key=lambda g: g.pci)


def read_gpu_state(uuid: str) -> GpuState | None:
    """Clocks, temperature and throttle reasons of one GPU now; None if NVML cannot reach it."""
    with _open_nvml() as nvml:
        gpu = _query(nvml, nvml.nvmlDeviceGetHandleByUUID, uuid) if nvml is not None else None
        if gpu is None:
            return None
        reasons = _query(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu) or 0
        power = _query(nvml, nvml.nvmlDeviceGetPowerUsage, gpu)
        return GpuState(
            sm_mhz=_query(nvml, nvml.nvmlDeviceGetClockInfo, gpu, nvml.NVML_CLOCK_SM),
            memory_mhz=_query(nvml, nvml.nvmlDeviceGetClockInfo, gpu, nvml.NVML_CLOCK_MEM),
            max_sm_mhz=_query(nvml, nvml.nvmlDeviceGetMaxClockInfo, gpu, nvml.NVML_CLOCK_SM),
            temperature_c=_query(nvml, nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU),
            power_w=power / 1000 if power is not None else None,
            throttle_reasons=tuple(word for bit, word in THROTTLE_BITS.items() if reasons & bit),
        )


def read_gpu_settings(uuid: str) -> GpuSettings | None:
    """Read what limits one GPU; None if NVML cannot reach it."""
    with _open_nvml() as nvml:
        gpu = _query(nvml, nvml.nvmlDeviceGetHandleByUUID, uuid) if nvml is not None else None
        if gpu is None:
            return None
        ecc, mig = (_query(nvml, f, gpu) for f in (nvml.nvmlDeviceGetEccMode, nvml.nvmlDeviceGetMigMode))
        power = _query(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, gpu)
        default_power = _query(nvml, nvml.nvmlDeviceGetPowerManagementDefaultLimit, gpu)
        use = _query(nvml, nvml.nvmlDeviceGetUtilizationRates, gpu)
        reasons = _query(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu) or 0
        sm, memory = nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM
        width = _query(nvml, nvml.nvmlDeviceGetMemoryBusWidth, gpu)
        return GpuSettings(
            hbm=bool(width and width >= 1024),  # a stack of HBM has 1024 bits, GDDR has 384 at most
            ecc=bool(ecc[0]) if ecc is not None else None,
            mig=bool(mig[0]) if mig is not None else None,
            power_limit_w=power / 1000 if power is not None else None,
            default_power_w=default_power / 1000 if default_power is not None else None,
            application_sm_mhz=_query(nvml, nvml.nvmlDeviceGetApplicationsClock, gpu, sm),
            default_sm_mhz=_query(nvml, nvml.nvmlDeviceGetDefaultApplicationsClock, gpu, sm),
            application_memory_mhz=_query(nvml, nvml.nvmlDeviceGetApplicationsClock, gpu, memory),
            default_memory_mhz=_query(nvml, nvml.nvmlDeviceGetDefaultApplicationsClock, gpu, memory),
            busy_percent=use.gpu if use is not None else None,
            throttle_reasons=tuple(word for bit, word in THROTTLE_BITS.items() if reasons & bit),
        )


def read_driver_version() -> str | None:
    with _open_nvml() as nvml:
        return _text(nvml.nvmlSystemGetDriverVersion()) if nvml is not None else None


@contextmanager
def _open_nvml() -> Iterator[Any]:
    """NVML, or None where there is no library, no driver or no permission."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # every failure means the same: no usable GPU
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _read_gpu(nvml: Any, handle: Any) -> NvmlGpu:
    memory = _query(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    generation = _query(nvml, nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
    width = _query(nvml, nvml.nvmlDeviceGetMaxPcieLinkWidth, handle)
    return NvmlGpu(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        pci=_sysfs_address(_text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
        memory_bytes=int(memory.total) if memory is not None else None,
        link=f"PCIe {generation}.0 x{width}" if generation and width else None,
    )


def _query(nvml: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return None if the board does not support the query; virtual GPUs support few."""
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None


def _sysfs_address(bus_id: str) -> str:
    """NVML writes the domain with 8 digits, sysfs with 4."""
    domain, rest = bus_id.lower().split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
