"""Merkle trees of RFC 6962: roots, inclusion and consistency proofs, and their verification.

These functions read a tree through one function, `node(level, index)`: the hash over the 2**level leaves that begin at
leaf index * 2**level. `tiles.py` provides it; this module knows no files. Verification follows RFC 9162, section 2.1,
and needs no tree.

>>> from hashlib import sha256
>>> root_from_inclusion(0, 1, sha256(b"\\0one").digest(), []) == sha256(b"\\0one").digest()
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256

from ridgeline.errors import Unverified

HASH = 32
EMPTY = sha256(b"").digest()

Node = Callable[[int, int], bytes]


def leaf_hash(entry: bytes) -> bytes:
    return sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right).digest()


def root(size: int, node: Node) -> bytes:
    """Return the root of the first `size` leaves."""
    return range_hash(0, size, node) if size else EMPTY


def range_hash(start: int, end: int, node: Node) -> bytes:
    """Return the hash of leaves `start` to `end` (not included), a subtree of an RFC 6962 tree.

    `start` must be a multiple of the power of two that covers the range.
    """
    parts = []
    while start < end:  # complete subtrees from the left, each as large as possible
        level = (end - start).bit_length() - 1
        parts.append(node(level, start >> level))
        start += 1 << level
    result = parts.pop()
    while parts:
        result = node_hash(parts.pop(), result)
    return result


def inclusion_path(index: int, size: int, node: Node) -> list[bytes]:
    """Return the proof that leaf `index` is in the tree of `size` leaves, from its sibling up to the root."""
    path = []
    start, end = 0, size
    while end - start > 1:
        split = start + _below(end - start)
        if index < split:
            path.append(range_hash(split, end, node))
            end = split
        else:
            path.append(range_hash(start, split, node))
            start = split
    return path[::-1]


def consistency_path(old: int, new: int, node: Node) -> list[bytes]:
    """Return the proof that the tree of `new` leaves begins with the tree of `old` leaves (RFC 6962, 2.1.2)."""
    if old in (0, new):
        return []
    path = []
    start, end, known = 0, new, True  # known: the verifier has this hash as the old root
    while old != end:
        split = start + _below(end - start)
        if old <= split:
            path.append(range_hash(split, end, node))
            end = split
        else:
            path.append(range_hash(start, split, node))
            start, known = split, False
    if not known:
        path.append(range_hash(start, end, node))
    return path[::-1]


def root_from_inclusion(index: int, size: int, leaf: bytes, path: Sequence[bytes]) -> bytes:
    """Return the root that `path` gives for `leaf`; the caller compares it with a signed root."""
    if not 0 <= index < size:
        raise Unverified("proof", f"the proof is for entry {index}, but its tree has {size} entries.")
    node_index, last, result = index, size - 1, leaf
    for sibling in path:
        if last == 0:
            raise Unverified("proof", f"the proof has {len(path)} hashes, more than a tree of {size} entries gives.")
        if node_index & 1 or node_index == last:
            result = node_hash(sibling, result)
            while not node_index & 1 and node_index:
                node_index, last = node_index >> 1, last >> 1
        else:
            result = node_hash(result, sibling)
        node_index, last = node_index >> 1, last >> 1
    if last:
        raise Unverified("proof", f"the proof has {len(path)} hashes, fewer than a tree of {size} entries needs.")
    return result


def check_consistency(old: int, new: int, old_root: bytes, new_root: bytes, path: Sequence[bytes]) -> None:
    """Raise `Unverified` unless `path` proves that the tree of `new` leaves begins with the tree of `old` leaves."""
    fault = Unverified("fork", f"the tree of {new} entries does not continue the tree of {old} entries seen before.")
    if old > new:
        raise Unverified("truncated", f"the tree has {new} entries, but {old} were seen before.")
    if old in (0, new):
        if path or (old == new and old_root != new_root) or (old == 0 and old_root != EMPTY):
            raise fault
        return
    hashes = list(path)
    if old & (old - 1) == 0:  # the root of a complete tree is the first hash
        hashes.insert(0, old_root)
    if not hashes:
        raise fault
    node_index, last = old - 1, new - 1
    while node_index & 1:
        node_index, last = node_index >> 1, last >> 1
    first = second = hashes[0]
    for other in hashes[1:]:
        if last == 0:
            raise fault
        if node_index & 1 or node_index == last:
            first, second = node_hash(other, first), node_hash(other, second)
            while not node_index & 1 and node_index:
                node_index, last = node_index >> 1, last >> 1
        else:
            second = node_hash(second, other)
        node_index, last = node_index >> 1, last >> 1
    if last or first != old_root or second != new_root:
        raise fault


def _below(count: int) -> int:
    """Return the largest power of two below `count`, which is 2 or more."""
    return 1 << (count - 1).bit_length() - 1
