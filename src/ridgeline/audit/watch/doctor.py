"""The doctor: is this machine, and is one ledger on it, fit for auditing? Each answer is a sentence with its cure.

    for finding in examine_machine() + examine_log(path): print(finding.ok, finding.check, finding.sentence)

It changes nothing and takes no lock.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ridgeline.audit.ledger.checkpoint import read_checkpoint
from ridgeline.audit.ledger.erasure import count_key_use
from ridgeline.audit.ledger.journal import has_records
from ridgeline.audit.ledger.layout import LedgerPaths, check_private, find_ledger, read_key, read_settings
from ridgeline.audit.ledger.ledger import Ledger
from ridgeline.audit.ledger.merkle import HASH
from ridgeline.audit.ledger.moment import show_moment
from ridgeline.audit.ledger.personal import read_policy
from ridgeline.audit.ledger.persons import PersonKeys
from ridgeline.audit.ledger.tiles import WIDTH, list_levels, tile_path
from ridgeline.audit.ledger.verify import examine
from ridgeline.audit.ledger.witness import read_cosigned_files
from ridgeline.audit.watch.delivery import describe_error
from ridgeline.audit.watch.state import WatchPaths
from ridgeline.errors import InputError, RidgelineError, format_install
from ridgeline.store import get_owner

_FREE_BYTES = 1 << 30
_FREE_SHARE = 0.05
_STALE_S = 30.0  # a running watcher writes its status every second
_AHEAD_S = 60.0  # a clock may be ahead by this much
_LISTED = 5  # files that one finding lists
_ENTRY_HEAD = 2  # bytes before an entry: its length
_MODULES = (
    ("cryptography", "signing and encrypting", "ledger"),
    ("pyarrow", "Parquet exports", "parquet"),
    ("starlette", "--http, --otlp and the page", "serve"),
    ("torch", "scores and search by meaning", "audit"),
    ("dbus_fast", "--dbus", "audit"),
)


@dataclass(frozen=True)
class Finding:
    """The answer to one check; `ok` is None if it is only information."""

    check: str
    ok: bool | None
    sentence: str


def examine_machine() -> list[Finding]:
    """Return what this machine has for auditing."""
    findings = []
    for module, what, extra in _MODULES:
        if importlib.util.find_spec(module) is not None:
            findings.append(Finding(module, True, f"{module} is installed, for {what}."))
        else:
            needed, cure = module == "cryptography", format_install(extra)
            findings.append(Finding(module, False if needed else None, f"{module} is missing, for {what}: {cure}."))
    for program, what in (("journalctl", "--journal"), ("dbus-daemon", "a system bus, for --dbus")):
        path = shutil.which(program)
        findings.append(Finding(program, True if path else None, f"{path or program + ' is missing'}: {what}."))
    return findings


def examine_log(log: Path) -> list[Finding]:
    """Return the findings about one ledger on this machine; raise `InputError` if there is none."""
    paths = find_ledger(log)
    checks: tuple[tuple[str, Callable[[LedgerPaths], Finding]], ...] = (
        ("private", _check_private),
        ("key", _check_key),
        ("checkpoint", _check_checkpoint),
        ("entries", _check_entries),
        ("journal", _check_journal),
        ("disk", _check_disk),
        ("watcher", _check_watcher),
        ("witnesses", _check_witnesses),
        ("personal", _check_personal),
    )
    findings = []
    for name, check in checks:
        try:
            findings.append(check(paths))
        except RidgelineError as error:
            findings.append(Finding(name, False, str(error)))
        except OSError as error:
            findings.append(
                Finding(name, False, f"{error.filename}: {describe_error(error)}; restore it from a backup.")
            )
    return findings


def _check_private(paths: LedgerPaths) -> Finding:
    if not paths.private.is_dir():
        return Finding("private", None, f"{paths.private} is not here: this is a copy, which can only be read.")
    check_private(paths)
    mode = stat.S_IMODE(paths.private.stat().st_mode)
    if mode & 0o077:
        return Finding("private", False, f"{paths.private} has mode {mode:04o}; chmod 700 it.")
    return Finding("private", True, f"only its owner can use {paths.private}.")


def _check_key(paths: LedgerPaths) -> Finding:
    if not paths.settings.exists():
        return Finding("key", None, "the signing key is not on this machine.")
    verifier, key_file = read_settings(paths)
    path = key_file or paths.key
    if not path.exists():
        return Finding("key", False, f"the signing key {path} is missing, so nothing can be appended; restore it.")
    try:
        signer = read_key(path)
    except InputError:
        return Finding("key", False, f"{path} is damaged, so nothing can be appended; restore it.")
    if signer.verifier != verifier:
        return Finding("key", False, f"{path} is not the key of this log, which is {verifier}; restore the right one.")
    return Finding("key", True, f"{path} is the key of {verifier.name}.")


def _check_checkpoint(paths: LedgerPaths) -> Finding:
    if not paths.settings.exists():
        return Finding("checkpoint", None, "without the log's key its signature cannot be checked; see audit verify.")
    data = paths.checkpoint.read_bytes()
    checkpoint = read_checkpoint(data, read_settings(paths)[0], str(paths.checkpoint))
    signed_ns = paths.checkpoint.stat().st_mtime_ns
    if signed_ns / 1e9 > time.time() + _AHEAD_S:
        moment = show_moment(signed_ns)[:19]
        return Finding("checkpoint", False, f"it was written at {moment}Z, in the future; set this machine's clock.")
    return Finding("checkpoint", True, f"{checkpoint.size:,} entries, signed {show_moment(signed_ns)[:19]}Z.")


def _check_entries(paths: LedgerPaths) -> Finding:
    if not paths.settings.exists():
        return Finding("entries", None, "they were not verified; see audit verify --key.")
    report = examine(paths.log, read_settings(paths)[0], full=False)
    if not report.ok:
        return Finding("entries", False, "; ".join(finding.sentence for finding in report.findings)[:1_000])
    missing = list(
        islice(_find_missing_files(paths.log, report.checkpoint.size if report.checkpoint else 0), _LISTED + 1)
    )
    if missing:
        names = ", ".join(missing[:_LISTED]) + (" and others" if len(missing) > _LISTED else "")
        return Finding("entries", False, f"missing or cut off: {names}; restore a backup, and see audit verify.")
    return Finding("entries", True, "a quick verification found nothing; audit verify reads all of them.")


def _find_missing_files(log: Path, size: int) -> Iterator[str]:
    """Yield the full tiles that are not there, or shorter than tiles are.

    The first payloads may be missing because they were pruned; `audit verify` reads the events that say so.
    """
    for level, full, _ in list_levels(size):
        for number in range(full):
            name = tile_path(level, number)
            if _get_size(log / name) < WIDTH * HASH:
                yield name
    had_bundle = False
    for number in range(size // WIDTH):
        name = tile_path("entries", number)
        present = _get_size(log / name) >= WIDTH * _ENTRY_HEAD
        if had_bundle and not present:
            yield name
        had_bundle = had_bundle or present


def _get_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return -1


def _check_journal(paths: LedgerPaths) -> Finding:
    owner = get_owner(paths.lock) if paths.private.is_dir() else None
    if owner is not None:
        return Finding("journal", True, f"the writer is {owner}.")
    if paths.private.is_dir() and any(has_records(paths.journal(k)) for k in range(2)):
        return Finding("journal", None, "a writer was killed; the next command takes over its entries.")
    return Finding("journal", True, "no process writes the log, and nothing waits to be signed.")


def _check_disk(paths: LedgerPaths) -> Finding:
    disk = os.statvfs(paths.log)
    free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    text = f"{free / 1e9:.1f} GB of {total / 1e9:.1f} GB are free"
    if free < min(_FREE_BYTES, _FREE_SHARE * total):
        return Finding("disk", False, f"{text}; free some space, or prune.")
    if disk.f_files and disk.f_favail < _FREE_SHARE * disk.f_files:
        return Finding("disk", False, f"only {disk.f_favail:,} of {disk.f_files:,} files can still be created.")
    return Finding("disk", True, f"{text}.")


def _check_watcher(paths: LedgerPaths) -> Finding:
    status = WatchPaths(paths).status
    try:
        words = json.loads(status.read_text(encoding="utf-8"))
        age_s, down = time.time() - float(words["at"]), [source for source, is_down in words["down"].items() if is_down]
    except FileNotFoundError:
        return Finding("watcher", None, "no watcher is running.")
    except (ValueError, KeyError, TypeError, AttributeError):
        return Finding("watcher", False, f"{status} is damaged; restart the watcher.")
    if age_s > _STALE_S:
        return Finding("watcher", False, f"it was killed or hangs: no word for {age_s:,.0f} s; restart it.")
    problems = [f"{', '.join(down)} is down"] if down else []
    problems += [f"{sum(words['dropped'].values()):,} events were dropped"] if any(words["dropped"].values()) else []
    problems += [f"{name} gets no alerts: {why}" for name, why in words.get("failing", {}).items()]
    problems += [f"{words['undelivered']:,} alerts were not delivered"] if words["undelivered"] else []
    if problems:
        return Finding("watcher", False, f"{'; '.join(problems)}; the log says why.")
    return Finding("watcher", True, f"process {words['pid']}, {words['backlog']:,} entries to score.")


def _check_witnesses(paths: LedgerPaths) -> Finding:
    count = sum(1 for _ in read_cosigned_files(paths))
    if not count:
        return Finding("witnesses", None, "none, so no one else can tell if the end is cut off; see audit witness.")
    return Finding("witnesses", True, f"{count} co-signed it; audit verify --witness checks them.")


def _check_personal(paths: LedgerPaths) -> Finding:
    if not paths.private.is_dir() or not (read_policy(paths) or paths.persons.is_dir()):
        return Finding("personal", None, "no field is encrypted per person.")
    if (paths.persons / "pending.json").exists():
        return Finding("personal", False, "an erasure was interrupted; any audit subject command finishes it.")
    with Ledger.open(paths.log) as ledger:
        use = count_key_use(ledger, PersonKeys(paths.persons))
    if use.lost:
        what = f"{len(use.lost)} keys of {sum(use.lost.values()):,} entries are lost, though no one destroyed them"
        return Finding("personal", False, f"{what}; restore LOG.private/subjects from a backup with keys.")
    return Finding("personal", True, f"{len(use.known):,} persons can be read, {len(use.destroyed):,} are erased.")
