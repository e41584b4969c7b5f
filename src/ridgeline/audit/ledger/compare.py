"""What was done to a bundle whose entries are not those of its proved leaf hashes: in words people use."""

from __future__ import annotations

from collections import Counter

from ridgeline.audit.ledger.merkle import HASH
from ridgeline.errors import Unverified
from ridgeline.native import bundle_hashes

_NAMED = 5


def check_entries(name: str, first: int, wanted: bytes, bundle: bytes) -> None:
    """Raise unless the entries of the bundle `name` have the leaf hashes `wanted`."""
    try:
        found = bundle_hashes(bundle)
    except ValueError as error:
        raise Unverified("altered", f"{name} is damaged: {error}.") from None
    if found != wanted:
        raise Unverified(*difference(name, first, wanted, found)[0])


def difference(name: str, first: int, wanted: bytes, found: bytes) -> list[tuple[str, str]]:
    """(kind, sentence) for each thing that is wrong with the bundle `name`, whose first entry is `first`."""
    right, here = _split(wanted), _split(found)
    if not right:
        return []
    lost, added = Counter(right) - Counter(here), Counter(here) - Counter(right)
    if not lost and not added:
        moved = [first + k for k, (a, b) in enumerate(zip(right, here, strict=True)) if a != b]
        return [("reordered", f"{name}: entries {_some(moved)} are in another order than was signed.")]
    changed = [first + k for k, (a, b) in enumerate(zip(right, here, strict=False)) if a != b]
    if len(right) == len(here) and len(changed) == lost.total():
        return [("altered", f"{name}: {_entries(changed)} altered after it was signed.")]
    said = []
    if lost:
        where = [first + k for k, hash_ in enumerate(right) if hash_ in lost]
        said.append(("dropped", f"{name}: {_entries(where)} dropped."))
    if added:
        where = [first + k for k, hash_ in enumerate(here) if hash_ in added]
        said.append(("inserted", f"{name}: {added.total()} foreign entries were inserted, the first at {where[0]}."))
    return said


def _split(hashes: bytes) -> list[bytes]:
    return [hashes[k : k + HASH] for k in range(0, len(hashes), HASH)]


def _entries(where: list[int]) -> str:
    return f"entry {where[0]} was" if len(where) == 1 else f"entries {_some(where)} were"


def _some(where: list[int]) -> str:
    more = f" and {len(where) - _NAMED} more" if len(where) > _NAMED else ""
    return ", ".join(map(str, where[:_NAMED])) + more
