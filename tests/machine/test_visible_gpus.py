"""The GPUs that a process sees: NVML's list under CUDA_VISIBLE_DEVICES, on a fake driver."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.machine.trees import Recording

from ridgeline.machine import devices, nvml
from ridgeline.machine.devices import filter_visible
from ridgeline.machine.nvml import (
    GpuSettings,
    GpuState,
    NvmlGpu,
    list_installed_gpus,
    read_driver_version,
    read_gpu_settings,
    read_gpu_state,
)
from ridgeline.machine.state import read_machine_state
from ridgeline.machine.sysfs import Tree

GPUS = [NvmlGpu(f"GPU-{u}", "H200", f"0000:{i:02x}:00.0", 1 << 37, None) for i, u in enumerate(["aa1", "aa2", "bb3"])]


@pytest.mark.parametrize(
    ("setting", "order"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("GPU-bb", [2]),  # a prefix that matches one GPU is enough
        ("GPU-bb3,GPU-aa1", [2, 0]),
        ("GPU-aa", []),  # matches two GPUs
        ("1,7,2", [1]),  # an unknown entry hides itself and all that follow
        ("1,-1,2", [1]),
        ("0,nonsense", [0]),
        ("0,,1", [0]),
        ("1,1", []),  # a GPU that is named twice hides all
        ("0,GPU-aa1", []),
        ("²", []),
    ],
)
def test_the_setting_has_the_same_meaning_as_in_cuda(setting: str | None, order: list[int]):
    assert filter_visible(GPUS, setting) == [GPUS[i] for i in order]


@given(st.text("0123456789,- GPUab", max_size=20))
def test_with_any_setting_each_gpu_is_visible_at_most_once(setting: str):
    visible = filter_visible(GPUS, setting)
    assert len(set(visible)) == len(visible)
    assert set(visible) <= set(GPUS)


class FakeNvml:
    """The part of nvidia-ml-py that the package uses, for a list of boards."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self, boards: list[dict], absent: bool = False, silent: tuple[str, ...] = ()) -> None:
        self.boards, self.absent, self.silent, self.open = boards, absent, silent, 0

    def nvmlInit(self) -> None:
        if self.absent:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.boards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict:
        if self.boards[index].get("lost"):
            raise self.NVMLError("GPU is lost")
        return self.boards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> dict:
        for board in self.boards:
            if board["uuid"] == uuid:
                return board
        raise self.NVMLError("Not Found")

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"590.1"

    def nvmlDeviceGetUUID(self, board: dict) -> str:
        return board["uuid"]

    def nvmlDeviceGetName(self, board: dict) -> bytes:
        return b"NVIDIA H200"

    def nvmlDeviceGetPciInfo(self, board: dict) -> SimpleNamespace:
        return SimpleNamespace(busId=board["bus"])

    def __getattr__(self, name: str):
        answers = {
            "nvmlDeviceGetMemoryInfo": lambda board: SimpleNamespace(total=141 << 30),
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda board: 5,
            "nvmlDeviceGetMaxPcieLinkWidth": lambda board: 16,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda board: board.get("reasons", 0),
            "nvmlDeviceGetPowerUsage": lambda board: 350_500,
            "nvmlDeviceGetClockInfo": lambda board, which: {1: 1755, 2: 3201}[which],
            "nvmlDeviceGetMaxClockInfo": lambda board, which: 1980,
            "nvmlDeviceGetTemperature": lambda board, which: 41,
        }
        if name in self.silent:

            def refuse(*_):
                raise self.NVMLError("Not Supported")

            return refuse
        return answers[name]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch):
    def load(*boards: dict, **options) -> FakeNvml:
        fake = FakeNvml(list(boards), **options)
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        return fake

    return load


TWO = ({"uuid": "GPU-b", "bus": b"00000000:C1:00.0"}, {"uuid": "GPU-a", "bus": "00000000:41:00.0"})


def test_installed_gpus_come_in_pci_order_with_the_address_of_sysfs(driver):
    fake = driver(*TWO)
    assert list_installed_gpus() == [
        NvmlGpu("GPU-a", "NVIDIA H200", "0000:41:00.0", 141 << 30, "PCIe 5.0 x16"),
        NvmlGpu("GPU-b", "NVIDIA H200", "0000:c1:00.0", 141 << 30, "PCIe 5.0 x16"),
    ]
    assert fake.open == 0


def test_without_a_driver_there_are_no_gpus_and_no_error(driver):
    driver(absent=True)
    assert (list_installed_gpus(), read_gpu_state("GPU-a"), read_driver_version()) == ([], None, None)


def test_without_the_library_there_are_no_gpus_and_no_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert (list_installed_gpus(), read_gpu_state("GPU-a"), read_driver_version()) == ([], None, None)


def test_a_lost_gpu_hides_only_itself(driver):
    driver({"lost": True, "uuid": "GPU-x", "bus": "00000000:01:00.0"}, *TWO)
    assert [g.uuid for g in list_installed_gpus()] == ["GPU-a", "GPU-b"]


def test_a_board_that_does_not_support_a_query_is_still_listed(driver):
    driver(*TWO, silent=("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMaxPcieLinkWidth"))
    assert [(g.memory_bytes, g.link) for g in list_installed_gpus()] == [(None, None)] * 2


def test_the_state_of_a_gpu_names_the_reasons_for_throttling(driver):
    driver({**TWO[0], "reasons": 0x01 | 0x04 | 0x40})  # 0x01: idle, which is no throttling
    assert read_gpu_state("GPU-b") == GpuState(
        1755, 3201, 1980, 41, 350.5, ("software power cap", "hardware thermal slowdown")
    )


def test_the_settings_of_a_gpu_say_what_limits_it(driver):
    answers = {
        "nvmlDeviceGetEccMode": (1, 1),
        "nvmlDeviceGetMigMode": (0, 0),
        "nvmlDeviceGetEnforcedPowerLimit": 500_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=42),
        "nvmlDeviceGetMemoryBusWidth": 384,
    }
    fake = driver({**TWO[0], "reasons": 0x08})
    for name, answer in answers.items():
        setattr(fake, name, lambda board, answer=answer: answer)
    fake.nvmlDeviceGetApplicationsClock = lambda board, which: {1: 1200, 2: 2619}[which]
    fake.nvmlDeviceGetDefaultApplicationsClock = lambda board, which: {1: 1980, 2: 2619}[which]
    assert read_gpu_settings("GPU-b") == GpuSettings(
        False, True, False, 500.0, 700.0, 1200, 1980, 2619, 2619, 42, ("hardware slowdown",)
    )
    assert (read_gpu_settings("GPU-zz"), fake.open) == (None, 0)


def test_a_gpu_that_supports_no_query_has_settings_that_say_nothing(driver):
    queries = ("EccMode", "MigMode", "EnforcedPowerLimit", "PowerManagementDefaultLimit", "UtilizationRates")
    queries += ("MemoryBusWidth", "ApplicationsClock", "DefaultApplicationsClock", "CurrentClocksThrottleReasons")
    driver(*TWO, silent=tuple(f"nvmlDeviceGet{q}" for q in queries))
    assert read_gpu_settings("GPU-a") == GpuSettings(hbm=False)


def test_a_missing_gpu_has_no_state(driver):
    fake = driver(*TWO)
    assert read_gpu_state("GPU-zz") is None
    assert fake.open == 0


def test_a_gpu_that_supports_no_query_has_an_empty_state(driver):
    queries = ("ClockInfo", "MaxClockInfo", "Temperature", "PowerUsage", "CurrentClocksThrottleReasons")
    driver(*TWO, silent=tuple(f"nvmlDeviceGet{q}" for q in queries))
    assert read_gpu_state("GPU-a") == GpuState(None, None, None, None, None, ())


def test_the_machine_state_has_the_fields_of_a_record(driver):
    driver(*TWO)
    now = read_machine_state("GPU-a")
    assert now["load_average"] >= 0
    assert now["gpu"]["power_w"] == 350.5
    assert read_machine_state()["gpu"] is None


class LiveTree(Tree):
    """A fake tree that is read as if it were this machine."""

    live = True


def test_live_gpus_follow_the_setting_and_keep_their_node(driver, memory_path: Path, monkeypatch: pytest.MonkeyPatch):
    driver(*TWO)
    tree = Recording(memory_path).grid(2, 1)
    tree.pci("0000:41:00.0", 0x030200, 0x10DE, node=0).pci("0000:c1:00.0", 0x030200, 0x10DE, node=-1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    notes: list[str] = []
    gpus = devices.list_gpus(LiveTree(memory_path), {0: 0, 1: 1}, notes)
    assert [(g.index, g.uuid, g.node) for g in gpus] == [(0, "GPU-b", None), (1, "GPU-a", 0)]
    assert len(notes) == 1
    assert "GPU 0 (0000:c1:00.0)" in notes[0]


def test_gpus_of_several_models_cause_a_note(driver, memory_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake = driver(*TWO)
    monkeypatch.setattr(fake, "nvmlDeviceGetName", lambda board: board["uuid"], raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    notes: list[str] = []
    devices.list_gpus(LiveTree(memory_path), {}, notes)
    assert any("CUDA_DEVICE_ORDER=PCI_BUS_ID" in note for note in notes)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    notes.clear()
    devices.list_gpus(LiveTree(memory_path), {}, notes)
    assert not any("CUDA_DEVICE_ORDER" in note for note in notes)


def test_the_real_library_has_every_function_that_the_package_calls():
    pynvml = pytest.importorskip("pynvml")
    source = Path(nvml.__file__).read_text()
    for name in set(re.findall(r"nvml\.(nvml\w+|NVML\w+)", source)):
        assert hasattr(pynvml, name), name
