"""Boots a machine of two NUMA nodes under QEMU and returns the report of the probe inside.

    python -m tests.machine.guest.boot       # prints the report as JSON

The guest has this host's architecture, so that it can run this host's Python, but is emulated (TCG): no KVM
is needed, and the test is the same on every host. Its machine:

    node 0: CPUs 0-1, 512 MB        node 1: CPUs 2-3, 512 MB        distance 10 to itself, 21 to the other
    one NIC behind a PCI bridge of node 1; one NIC on the root bus, without a node from the firmware
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from .image import CACHE, Unavailable, initramfs, kernel, vmlinuz

BEGIN, END = "<<<ridgeline report", "ridgeline report>>>"  # as init.py prints them
SECONDS = 480  # a minute or two on two idle cores; the rest is for a busy host

FIRMWARE = (  # Debian, Fedora
    "/usr/share/qemu-efi-aarch64/QEMU_EFI.fd",
    "/usr/share/edk2/aarch64/QEMU_EFI.fd",
)
NODES = """
    -smp 4,sockets=2,cores=2,threads=1 -m 1024
    -object memory-backend-ram,id=memory0,size=512M -numa node,nodeid=0,cpus=0-1,memdev=memory0
    -object memory-backend-ram,id=memory1,size=512M -numa node,nodeid=1,cpus=2-3,memdev=memory1
    -numa dist,src=0,dst=1,val=21
"""
NICS = """
    -device pxb-pcie,id=farbus,bus=pcie.0,bus_nr=128,numa_node=1
    -device pcie-root-port,id=farport,bus=farbus,chassis=1
    -device virtio-net-pci,bus=farport,mac=52:54:00:00:00:01,speed=10000,duplex=full,romfile=
    -device virtio-net-pci,bus=pcie.0,mac=52:54:00:00:00:02,romfile=
"""


class GuestFailed(Exception):
    """QEMU ran, but no report came back; the message ends with the last lines of the console."""


def boot(seconds: float = SECONDS) -> dict[str, Any]:
    """Builds, boots, waits for power-off, and returns the probe's report."""
    arch = platform.machine()
    unpacked = kernel(arch)
    archive = CACHE / "initramfs"
    command = qemu(arch, vmlinuz(unpacked), archive)
    initramfs(unpacked, archive)
    console = CACHE / "console.txt"
    with console.open("wb") as out:
        try:  # `run` kills only its child when the time is over
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=seconds)
            end = "the guest stopped without a report"
        except subprocess.TimeoutExpired:
            end = f"no power-off within {seconds:g} s"
    text = console.read_text(errors="replace").replace("\r", "")
    if BEGIN in text and END in text:
        report: dict[str, Any] = json.loads(text.split(BEGIN)[-1].split(END)[0])
        return report
    tail = "\n".join(text.splitlines()[-40:])
    raise GuestFailed(f"{end}; the last lines of {console}:\n{tail}")


def qemu(arch: str, image: Path, archive: Path) -> list[str]:
    """The command line that boots `image` with `archive` on two nodes."""
    # Only ACPI gives the nodes of PCI buses; on Arm that needs UEFI, a PC always has it.
    if arch == "aarch64":
        program, console = "qemu-system-aarch64", "ttyAMA0"
        firmware = next((f for f in FIRMWARE if Path(f).exists()), None)
        if firmware is None:
            raise Unavailable("no UEFI firmware for the guest; try: scripts/packages qemu")
        machine = ["-machine", "virt,gic-version=3", "-cpu", "cortex-a57", "-bios", firmware]
    else:
        program, console = "qemu-system-x86_64", "ttyS0"
        machine = ["-machine", "q35", "-cpu", "max"]
    if not shutil.which(program):
        raise Unavailable(f"{program} is not installed; try: scripts/packages qemu")
    # panic=-1 reboots at once and -no-reboot makes that an exit: a dead guest ends the wait
    options = f"console={console} rdinit=/init panic=-1 PYTHONHASHSEED=0"
    return [
        *(program, *machine, "-accel", "tcg"),
        *("-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"),
        *(*NODES.split(), *NICS.split()),
        *("-kernel", str(image), "-initrd", str(archive), "-append", options),
    ]


if __name__ == "__main__":
    print(json.dumps(boot(), indent=1))
