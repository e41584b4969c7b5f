"""The versions of a model on the disk: the fit, and every refit with the items and ratings that arrived since.

    MODEL/                     version 1, written by `recommend fit`
    MODEL.live/journal.jsonl   every change since then; it is never shortened
    MODEL.live/versions/2/     a refit; its manifest says how many lines of the journal it learnt from
    MODEL.live/current.json    the version in use

Every version applies the lines of the journal that it did not learn from, so that no change is lost by going back. If
MODEL is fitted again, the versions of the old fit are not used any more.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ridgeline import store
from ridgeline.errors import InputError, RidgelineError, StoreError

LIVE_SUFFIX, JOURNAL, CURRENT, VERSIONS, REFIT_LOCK = ".live", "journal.jsonl", "current.json", "versions", "refit.lock"
FIRST = 1  # the version of `recommend fit`
MAX_VERSIONS = 5  # refits on the disk; the oldest ones are deleted
_UNIT_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True)
class RefitRules:
    """When to refit: after `every_s` seconds if anything changed, or after `after` changes (0: never)."""

    every_s: float = 0.0
    after: int = 0


def parse_refit(text: str) -> RefitRules:
    """Parse 'every=1h', 'after=10000' or both, separated by a comma.

    >>> parse_refit("every=30m,after=500")
    RefitRules(every_s=1800.0, after=500)
    """
    every_s, after = 0.0, 0
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", value)
        if name == "every" and match and float(match[1]) > 0:
            every_s = float(match[1]) * _UNIT_S[match[2]]
        elif name == "after" and re.fullmatch(r"[1-9]\d{0,11}", value):
            after = int(value)
        else:
            raise InputError(f"--refit '{part.strip():.80}' says no time and no number; write every=1h or after=10000.")
    return RefitRules(every_s, after)


def get_live_folder(model: Path) -> Path:
    return model.with_name(model.name + LIVE_SUFFIX)


def list_versions(model: Path) -> list[int]:
    """Return the versions of a model, the oldest first."""
    base = hash_fit(model)
    versions = [FIRST]
    for number, folder in _list_folders(model):
        with suppress(StoreError):
            if store.read_manifest(folder).meta.get("fit") == base:
                versions.append(number)
    return sorted(versions)


def count_learnt_lines(model: Path) -> int:
    """Return the lines of the journal that any version learnt from: a refit is due by what came after them."""
    with suppress(RidgelineError):
        folders = [find_version(model, number) for number in list_versions(model)]
        return max(int(store.read_manifest(folder).meta.get("journal_lines", 0)) for folder in folders)
    return 0


def find_version(model: Path, number: int) -> Path:
    """Return the folder of a version; raise InputError if there is none."""
    if number == FIRST:
        return model
    known = list_versions(model)
    if number not in known:
        raise InputError(f"{model.name} has no version {number}; it has {', '.join(map(str, known))}.")
    return _get_folder(model, number)


def get_current(model: Path) -> int:
    """Return the version in use; the fit if there is no other, or if the model was fitted again."""
    try:
        current = json.loads((get_live_folder(model) / CURRENT).read_text())
        number = int(current["version"])
        if number == FIRST or current["fit"] != hash_fit(model):
            return FIRST
        store.read_manifest(_get_folder(model, number))
    except (OSError, ValueError, KeyError, TypeError, RidgelineError):
        return FIRST
    return number


def set_current(model: Path, number: int) -> None:
    """Use a version from the next load on."""
    with store.publish(get_live_folder(model) / CURRENT) as tmp:
        tmp.write_text(json.dumps({"version": number, "fit": hash_fit(model)}))


def prepare_version(model: Path) -> tuple[int, Path]:
    """Return the number and the folder of the next version."""
    folder = get_live_folder(model) / VERSIONS
    with store.explain_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    number = max([FIRST, *(number for number, _ in _list_folders(model))]) + 1
    return number, _get_folder(model, number)


def delete_old_versions(model: Path) -> None:
    """Delete the oldest refits beyond MAX_VERSIONS, but not the one in use."""
    current, numbers = get_current(model), sorted(number for number, _ in _list_folders(model))
    for number in numbers[:-MAX_VERSIONS]:
        if number != current:
            with suppress(RidgelineError):
                store.discard_dir(_get_folder(model, number))


def hash_fit(model: Path) -> str:
    """Return what tells one fit of MODEL from another."""
    with store.explain_errors(model):
        return store.hash_file(model / store.MANIFEST)


def _get_folder(model: Path, number: int) -> Path:
    return get_live_folder(model) / VERSIONS / str(number)


def _list_folders(model: Path) -> list[tuple[int, Path]]:
    try:
        entries = list((get_live_folder(model) / VERSIONS).iterdir())
    except OSError:
        return []
    return [(int(path.name), path) for path in entries if re.fullmatch(r"\d{1,9}", path.name)]
