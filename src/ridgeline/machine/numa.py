"""The memory-policy calls of the kernel, through ctypes, so that libnuma is not needed.

`move_pages` without a target returns the node of each page: it verifies a binding.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform

from ridgeline.errors import PlacementError

DEFAULT, PREFERRED, BIND, INTERLEAVE, LOCAL = range(5)  # MPOL_* of <linux/mempolicy.h>
MODES = {"local": LOCAL, "preferred": PREFERRED, "bind": BIND, "interleave": INTERLEAVE}
MAX_NODES = 1024  # CONFIG_NODES_SHIFT is at most 10
WORD = 8 * ctypes.sizeof(ctypes.c_ulong)

_GENERIC = {"get_mempolicy": 236, "set_mempolicy": 237, "move_pages": 239}
_NUMBERS = {
    "x86_64": {"get_mempolicy": 239, "set_mempolicy": 238, "move_pages": 279},
    "aarch64": _GENERIC,
    "riscv64": _GENERIC,
    "loongarch64": _GENERIC,
    "ppc64le": {"get_mempolicy": 260, "set_mempolicy": 261, "move_pages": 301},
    "ppc64": {"get_mempolicy": 260, "set_mempolicy": 261, "move_pages": 301},
    "s390x": {"get_mempolicy": 269, "set_mempolicy": 270, "move_pages": 310},
}
_libc = ctypes.CDLL(None, use_errno=True)


class PolicyRefused(PlacementError):
    """The kernel does not have a memory-policy call, or forbids it to this process."""


def memory_policy_supported() -> bool:
    """Whether this kernel has memory policies and allows this process to use them."""
    try:
        get_policy()
    except PolicyRefused:
        return False
    return True


def get_policy() -> tuple[int, frozenset[int]]:
    """Return the memory policy of the calling thread: (mode, nodes)."""
    mode = ctypes.c_int()
    mask = _mask(frozenset())
    _call("get_mempolicy", ctypes.byref(mode), mask, ctypes.c_ulong(MAX_NODES), None, ctypes.c_ulong(0))
    return mode.value, _nodes(mask)


def set_policy(mode: int, nodes: frozenset[int]) -> None:
    """Set the memory policy of the calling thread; threads that it starts inherit it."""
    if mode in (DEFAULT, LOCAL):
        _call("set_mempolicy", ctypes.c_int(mode), None, ctypes.c_ulong(0))
    else:
        # The kernel reads one bit less than this argument (an old bug of the call).
        _call("set_mempolicy", ctypes.c_int(mode), _mask(nodes), ctypes.c_ulong(MAX_NODES + 1))


def find_page_nodes(address: int, pages: int, page_bytes: int = mmap.PAGESIZE) -> list[int]:
    """The node of each of `pages` touched pages from `address` on."""
    addresses = (ctypes.c_void_p * pages)(*(address + i * page_bytes for i in range(pages)))
    status = (ctypes.c_int * pages)()
    _call("move_pages", 0, ctypes.c_ulong(pages), addresses, None, status, 0)
    return list(status)


def count_pages_by_node(address: int, size: int, most: int = 4096) -> dict[int, int]:
    """Count the pages of touched memory by node; in long ranges, count about `most` pages at equal distances.

    address  start of the memory
    size     its bytes

    Returns {node: pages}, empty if the kernel does not report nodes.
    """
    first = address // mmap.PAGESIZE
    pages = (address + size - 1) // mmap.PAGESIZE - first + 1
    step = max(1, pages // most)
    counts: dict[int, int] = {}
    try:
        for node in find_page_nodes(first * mmap.PAGESIZE, len(range(0, pages, step)), step * mmap.PAGESIZE):
            counts[node] = counts.get(node, 0) + 1
    except PolicyRefused:
        return {}
    return counts


def probe_fresh_pages(pages: int = 1) -> list[int]:
    """Map fresh memory under the current policy, touch it, and return the node of each page."""
    with mmap.mmap(-1, pages * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for i in range(pages):
            memory[i * mmap.PAGESIZE] = 1
        anchor = ctypes.c_char.from_buffer(memory)
        try:
            return find_page_nodes(ctypes.addressof(anchor), pages)
        finally:
            del anchor  # the map cannot be closed while it exists


def _call(name: str, *arguments: object) -> None:
    numbers = _NUMBERS.get(platform.machine())
    if numbers is None:
        raise PolicyRefused(f"memory cannot be bound: the number of {name} is unknown for {platform.machine()}.")
    ctypes.set_errno(0)
    if _libc.syscall(ctypes.c_long(numbers[name]), *arguments) < 0:
        code = ctypes.get_errno()
        cure = {
            errno.ENOSYS: "this kernel is built without NUMA; use memory='local'",
            errno.EPERM: "the container forbids it; start it with --cap-add SYS_NICE, or use memory='local'",
            errno.EINVAL: "the node has no memory or is outside this process's cpuset",
        }.get(code, os.strerror(code))
        raise PolicyRefused(f"{name} was refused: {cure}.")


def _mask(nodes: frozenset[int]) -> ctypes.Array[ctypes.c_ulong]:
    mask = (ctypes.c_ulong * (MAX_NODES // WORD + 1))()
    for node in nodes:
        mask[node // WORD] |= 1 << (node % WORD)
    return mask


def _nodes(mask: ctypes.Array[ctypes.c_ulong]) -> frozenset[int]:
    return frozenset(i for i in range(MAX_NODES) if mask[i // WORD] >> (i % WORD) & 1)
