"""The ACPI table of nodes (SRAT) of the guest, for Arm only: the table of QEMU, and the flash memory.

The UEFI of Debian 12 (edk2 2022.11) lists the flash of its variables as write-combined in the memory map. Linux takes
it for memory, finds it in no node, prints "invalid memblk node" and makes one node of all memory. A table at
kernel/firmware/acpi in the initramfs replaces that of the firmware. So this table repeats that of QEMU and adds the
flash to node 0; with a correct firmware it changes nothing.

>>> table = srat(nodes=2, cpus=4, memory=1 << 30)
>>> table[:4], len(table), sum(table) % 256
(b'SRAT', 240, 0)
"""

from __future__ import annotations

from struct import pack

FLASH, FLASH_BYTES = 0x0400_0000, 0x0400_0000  # QEMU's `virt` machine: the second bank
RAM = 0x4000_0000  # and where its memory begins
ENABLED = 1


def srat(nodes: int, cpus: int, memory: int) -> bytes:
    """CPUs and bytes of memory dealt evenly over the nodes, in their order."""
    share = memory // nodes
    body = pack("<LQ", 1, 0)
    for cpu in range(cpus):
        body += pack("<BBLLLL", 3, 18, cpu * nodes // cpus, cpu, ENABLED, 0)
    for node, start, size in ((0, FLASH, FLASH_BYTES), *((n, RAM + n * share, share) for n in range(nodes))):
        body += pack("<BBLHQQLLQ", 1, 40, node, 0, start, size, 0, ENABLED, 0)
    # The same names as in QEMU's table and a higher revision (2): the kernel requires both.
    names = pack("<6s8sL4sL", b"BOCHS ", b"BXPC    ", 2, b"BXPC", 1)
    head = pack("<4sLB", b"SRAT", 36 + len(body), 3)
    checksum = -sum(head + names + body) % 256
    return head + bytes([checksum]) + names + body
