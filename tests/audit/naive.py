"""A second implementation of RFC 6962 and RFC 8785, slow, from their text; no code of the ledger."""

from __future__ import annotations

import math
from hashlib import sha256
from pathlib import Path


def leaf(data: bytes) -> bytes:
    return sha256(b"\x00" + data).digest()


def node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right).digest()


def split(n: int) -> int:
    k = 1
    while 2 * k < n:
        k *= 2
    return k


def root(leaves: list[bytes]) -> bytes:
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = split(len(leaves))
    return node(root(leaves[:k]), root(leaves[k:]))


def path(m: int, leaves: list[bytes]) -> list[bytes]:
    if len(leaves) == 1:
        return []
    k = split(len(leaves))
    if m < k:
        return [*path(m, leaves[:k]), root(leaves[k:])]
    return [*path(m - k, leaves[k:]), root(leaves[:k])]


def consistency(m: int, leaves: list[bytes]) -> list[bytes]:
    return subproof(m, leaves, True) if 0 < m < len(leaves) else []


def subproof(m: int, leaves: list[bytes], known: bool) -> list[bytes]:
    n = len(leaves)
    if m == n:
        return [] if known else [root(leaves)]
    k = split(n)
    if m <= k:
        return [*subproof(m, leaves[:k], known), root(leaves[k:])]
    return [*subproof(m - k, leaves[k:], False), root(leaves[:k])]


def root_by_path(m: int, n: int, leaf_hash: bytes, proof: list[bytes]) -> bytes:
    """RFC 6962's audit path, walked by the recursion it came from."""
    if n == 1:
        assert proof == []
        return leaf_hash
    k = split(n)
    if m < k:
        return node(root_by_path(m, k, leaf_hash, proof[:-1]), proof[-1])
    return node(proof[-1], root_by_path(m - k, n - k, leaf_hash, proof[:-1]))


def bundle(data: bytes) -> list[bytes]:
    out, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 2], "big")
        out.append(data[at + 2 : at + 2 + size])
        assert len(out[-1]) == size
        at += 2 + size
    return out


def make_bundle(entries: list[bytes]) -> bytes:
    return b"".join(len(e).to_bytes(2, "big") + e for e in entries)


def name(n: int) -> str:
    words = [f"{n % 1000:03}"]
    while n := n // 1000:
        words.insert(0, f"x{n % 1000:03}")
    return "/".join(words)


def read_log(folder: Path) -> tuple[str, int, str, list[bytes]]:
    """Origin, size, root in base64, and every entry, by the words of c2sp.org/tlog-tiles."""
    origin, size, root_text = (folder / "checkpoint").read_text().split("\n")[:3]
    entries = []
    for n in range(-(-int(size) // 256)):
        width = min(256, int(size) - 256 * n)
        partial = f".p/{width}" if width < 256 else ""
        entries += bundle((folder / f"tile/entries/{name(n)}{partial}").read_bytes())
    return origin, int(size), root_text, entries


def check_tiles(folder: Path, entries: list[bytes]) -> None:
    """Every hash tile that a log of these entries must have holds what it must hold."""
    hashes, level = [leaf(e) for e in entries], 0
    while hashes:
        for n in range(-(-len(hashes) // 256)):
            part = hashes[256 * n : 256 * (n + 1)]
            partial = f".p/{len(part)}" if len(part) < 256 else ""
            assert (folder / f"tile/{level}/{name(n)}{partial}").read_bytes() == b"".join(part)
        hashes = [root(hashes[256 * n : 256 * (n + 1)]) for n in range(len(hashes) // 256)]
        level += 1


def canonical(value: object) -> str:
    """RFC 8785, one rule after the other."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, str):
        return string(value)
    if isinstance(value, dict):
        order = sorted(value, key=lambda k: k.encode("utf-16-be"))
        return "{" + ",".join(f"{string(k)}:{canonical(value[k])}" for k in order) + "}"
    return "[" + ",".join(canonical(v) for v in value) + "]"


def string(text: str) -> str:
    short = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
    return '"' + "".join(short.get(c) or (f"\\u{ord(c):04x}" if c < " " else c) for c in text) + '"'


def number(value: float) -> str:
    """ECMAScript's Number::toString."""
    assert math.isfinite(value)
    if value == 0:
        return "0"
    if value < 0:
        return "-" + number(-value)
    mantissa, _, exponent = f"{value!r}".partition("e")
    integer, _, part = mantissa.partition(".")
    digits = (integer + part).lstrip("0")
    n = len(integer) + int(exponent or 0) - (len(integer + part) - len((integer + part).lstrip("0")))
    digits = digits.rstrip("0")
    k = len(digits)
    if k <= n <= 21:
        return digits + "0" * (n - k)
    if 0 < n <= 21:
        return digits[:n] + "." + digits[n:]
    if -6 < n <= 0:
        return "0." + "0" * -n + digits
    sign, size = ("+" if n > 0 else "-"), abs(n - 1)
    return digits[0] + ("." + digits[1:] if k > 1 else "") + f"e{sign}{size}"
