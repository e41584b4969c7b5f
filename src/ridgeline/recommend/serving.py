"""The models of a server: each answers from a snapshot, and all take the same changes.

Readers take `model.snapshot` once per request. One thread takes all changes that wait: it encodes them in one batch,
stores them with one write and acknowledges them together; then the next request sees a new snapshot. A refit runs in a
process of its own, and replaces the model when it is complete; no request waits for it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline import store
from ridgeline.errors import InputError, RidgelineError
from ridgeline.recommend.live import Change, Line, NotFound
from ridgeline.recommend.models import NeighbourEase
from ridgeline.recommend.recommender import Recommender, load_model
from ridgeline.recommend.versions import RefitRules, count_learnt_lines, list_versions, set_current

Result = dict[str, int] | InputError

POLL_S = 1.0  # how often a refit that may be due, and changes of other processes, are looked for
RETRY_S = 60.0  # after a refit that failed
STOP_S = 10.0  # for a refit to end when the server stops
MAX_PREPARED, MIN_PREPARED_LIKES = 500, 128  # users whose lists are made at the start, and their likes
MAX_PREPARE_S = 2.0
GROUP_S = 0.05  # between the starts of two groups of changes, if many arrive
WRITER_NICE = 10  # added to the nice value of the thread that writes
MAX_LISTS = 100_000  # users whose last list is kept, to count the likes that follow
_LISTED = 200  # items of a list that are kept
_log = logging.getLogger("ridgeline.recommend")


def prepare_lists(model: Recommender) -> None:
    """Read all weights from the disk, make a first list, and then lists of the users with the most likes.

    So no request waits for the disk, and the sums over the longest histories are in EASE's cache: they take most of the
    time of such a list.
    """
    if len(model.user_ids):
        model.recommend(model.user_ids[0])
    weights = model.hybrid.ease.weights
    if isinstance(model.hybrid.ease, NeighbourEase):
        np.max(weights.data, initial=0)
        return
    np.max(weights, initial=0)
    end_s = time.monotonic() + MAX_PREPARE_S
    for row in np.argsort(-model.likes.lengths, kind="stable")[:MAX_PREPARED].tolist():
        if model.likes.lengths[row] < MIN_PREPARED_LIKES or time.monotonic() > end_s:
            break
        model.recommend(model.user_ids[row], explain=False)


class ServedModel:
    """One model of a server, by name."""

    def __init__(self, name: str, model: Recommender, *, path: Path | None = None) -> None:
        """`path` is the folder of the model; without it there are no refits and no way back to a version."""
        self.name, self.requests, self.lists, self.hits = name, 0, 0, 0
        self.path, self.refit_error = path, ""
        self._learnt_lines = 0 if path is None else count_learnt_lines(path)
        self._model = model  # only the thread that holds `writing` uses it
        self.snapshot = copy(model)
        self.writing, self._mutex = threading.Lock(), threading.Lock()
        self._last: OrderedDict[str, frozenset[str]] = OrderedDict()  # the last list of each user

    @property
    def version(self) -> int:
        return self.snapshot.version

    @property
    def new_lines(self) -> int:
        """The number of changes that no version learnt from."""
        live = self._model._live
        return 0 if live is None else max(0, live.offset - self._learnt_lines)

    def count_request(self) -> None:
        with self._mutex:
            self.requests += 1

    def note_list(self, user: str, items: Sequence[object]) -> None:
        """Remember what a user was recommended, so that likes of it can be counted."""
        with self._mutex:
            self.lists += 1
            self._last[user] = frozenset(str(item) for item in items[:_LISTED])
            self._last.move_to_end(user)
            if len(self._last) > MAX_LISTS:
                self._last.popitem(last=False)

    def note_ratings(self, lines: Sequence[Line]) -> None:
        """Count the likes of items that this model recommended to their user."""
        with self._mutex:
            for line in lines:
                if line["op"] == "rating" and line["rating"] >= self.snapshot.min_rating:
                    self.hits += line["item"] in self._last.get(line["user"], ())

    def write(self, change: Change) -> Result:
        """Apply a change to this model alone."""
        with self.writing:
            results, lines = self.check([change])
            self.commit(lines)
        return results[0]

    # -- for the thread that holds `writing`

    def check(self, changes: Sequence[Change]) -> tuple[list[Result], list[Line]]:
        return self._model.check_changes(changes)

    def copy_lines(self, lines: Sequence[Line]) -> list[Line]:
        return self._model.copy_lines(lines)

    def commit(self, lines: Sequence[Line]) -> None:
        self._model.commit_lines(lines)
        self.snapshot = copy(self._model)
        self.note_ratings(lines)

    def follow(self) -> None:
        """Answer with what another process wrote to the journal, such as `recommend add`."""
        with self.writing:
            if self._model.follow():
                self.snapshot = copy(self._model)

    # -- versions

    def replace(self, version: int | None = None) -> int:
        """Answer by another version (default: that in use on the disk), with all changes; return its number."""
        if self.path is None:
            raise InputError(f"the model '{self.name}' has no folder, so it has no versions.")
        device, old = self._model.device, self._model
        new = load_model(Recommender, self.path, device=device, verify=False, version=version)
        if new.encoder == old.encoder:
            new._loaded_encoder = old._loaded_encoder
        prepare_lists(new)
        with self.writing:
            new.take_over(self._model)
            if version is not None:
                set_current(self.path, version)
            self._model, self.snapshot = new, copy(new)
            self._learnt_lines = max(self._learnt_lines, new.journal_lines)
        return new.version

    def list_versions(self) -> list[int]:
        with suppress(RidgelineError):  # the folder may be gone; the model in memory answers on
            if self.path is not None:
                return list_versions(self.path)
        return [self.version]

    def describe(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "versions": self.list_versions(),
            "requests": self.requests,
            "lists": self.lists,
            "hits": self.hits,
            "changes_since_refit": self.new_lines,
            **({"refit_error": self.refit_error} if self.refit_error else {}),
        }

    def close(self) -> None:
        with self.writing:
            self._model.close()


class ServedModels:
    """The models of a server side by side; a user always gets the same one."""

    def __init__(self, models: Sequence[ServedModel], shares: Sequence[int] = (), log: Path | None = None) -> None:
        """`shares` are the percentages of users that each model answers (default: all to the first).

        `log` is a file that gets a JSON line for each list and each change: which model answered with what.
        """
        self.models = {model.name: model for model in models}
        self._shares = list(shares) or [100] + [0] * (len(models) - 1)
        self._mutex = threading.Lock()
        self._waiting: list[tuple[Change, Future[Result]]] = []
        self._arrived = threading.Condition(self._mutex)
        self._writer: threading.Thread | None = None  # from the first change until `close`
        self._is_closed = False
        self._log = None if log is None else _open_log(log)
        self._log_fails = False

    @property
    def first(self) -> ServedModel:
        return next(iter(self.models.values()))

    def choose(self, parameters: Mapping[str, str]) -> ServedModel:
        """Choose the model of a request: the one that it names, else the one of its user, else the first."""
        name, user = parameters.get("model"), parameters.get("user")
        if name is not None:
            return self.find(name)
        return self.first if user is None else self.choose_for(user)

    def choose_for(self, user: str) -> ServedModel:
        """Return the model of a user, always the same one for the same shares."""
        if len(self.models) == 1:
            return self.first
        place = int.from_bytes(hashlib.blake2b(user.encode(errors="replace"), digest_size=8).digest()) % 100
        for model, share in zip(self.models.values(), self._shares, strict=True):
            if place < share:
                return model
            place -= share
        return self.first

    def find(self, name: str) -> ServedModel:
        model = self.models.get(name)
        if model is None:
            raise NotFound(f"there is no model '{name:.80}'; there are {', '.join(self.models)}.")
        return model

    def note_list(self, model: ServedModel, user: str, items: Sequence[object]) -> None:
        """Remember and log a list that a user got."""
        model.note_list(user, items)
        self._write_log({"user": user, "model": model.name, "version": model.version, "items": list(items)})

    def write(self, change: Change) -> Result:
        """Apply a change to every model; return when it is on the disk of all of them."""
        return self.submit(change).result()

    def submit(self, change: Change) -> Future[Result]:
        """Apply a change to every model, with all others that wait; the result comes when it is on all disks.

        The first model decides what is refused. The other ones store a change before the first does. So if the process
        dies in between, the change was not acknowledged, and sending it again brings it to all.
        """
        future: Future[Result] = Future()
        with self._mutex:
            if self._is_closed:
                raise RidgelineError("the server stops, so it takes no more changes; send them again later.")
            self._waiting.append((change, future))
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_groups, name="changes", daemon=True)
                self._writer.start()
            self._arrived.notify()
        return future

    def close(self) -> None:
        """Write the changes that wait, then free the journals."""
        with self._mutex:
            self._is_closed = True
            self._arrived.notify()
        if self._writer is not None:
            self._writer.join()
        for model in self.models.values():
            model.close()
        if self._log is not None:
            self._log.close()

    def _write_groups(self) -> None:
        thread = threading.get_native_id()  # lists and searches come first: encoding takes most of a change's time
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + WRITER_NICE)
        is_busy, last_s = False, 0.0  # whether the last group had several changes, and its start
        while True:
            with self._mutex:
                self._arrived.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
            if is_busy:  # with many writers, larger groups: a text encoded alone takes twice the CPU time
                time.sleep(max(0.0, last_s + GROUP_S - time.monotonic()))
            with self._mutex:
                group, self._waiting = self._waiting, []
            is_busy, last_s = len(group) > 1, time.monotonic()
            self._write_group([entry for entry in group if entry[1].set_running_or_notify_cancel()])

    def _write_group(self, group: Sequence[tuple[Change, Future[Result]]]) -> None:
        try:
            with self.first.writing:
                results, lines = self.first.check([change for change, _ in group])
                for model in list(self.models.values())[1:]:
                    with model.writing:
                        model.commit(model.copy_lines(lines))
                self.first.commit(lines)
        except BaseException as error:
            for _, future in group:
                future.set_exception(error)
            return
        for line in lines if self._log is not None else ():
            self._write_log({name: value for name, value in line.items() if name not in ("vector", "text")})
        for (_, future), result in zip(group, results, strict=True):
            future.set_result(result)

    def _write_log(self, line: dict[str, Any]) -> None:
        """Log a line; a log that cannot be written stops no list and no change, which is on the disk already."""
        if self._log is None:
            return
        try:
            with self._mutex:
                self._log.write(json.dumps({"at": round(time.time(), 3), **line}) + "\n")
        except OSError as error:
            if not self._log_fails:
                _log.warning("the log of results cannot be written, and lines are missing in it: %s", error)
            self._log_fails = True
        else:
            self._log_fails = False


class Refitter:
    """A thread that refits the models of a server in processes of their own, by RefitRules, and swaps them in.

    It also looks for changes that other processes wrote, once a second.
    """

    def __init__(self, served: ServedModels, rules: RefitRules) -> None:
        self._served, self._rules = served, rules
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="refit", daemon=True)
        self._process: subprocess.Popen[str] | None = None
        self._last_s = {name: time.monotonic() for name in served.models}

    def __enter__(self) -> Refitter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def is_due(self, model: ServedModel, now_s: float) -> bool:
        changes, age_s = model.new_lines, now_s - self._last_s[model.name]
        if not changes or (model.refit_error and age_s < RETRY_S):
            return False
        by_time = bool(self._rules.every_s) and age_s >= self._rules.every_s
        return by_time or bool(self._rules.after and changes >= self._rules.after)

    def _run(self) -> None:
        while not self._stop.wait(POLL_S):
            for model in self._served.models.values():
                try:
                    model.follow()
                except RidgelineError as error:
                    _log.warning("the journal of model '%s' cannot be read: %s", model.name, error)
                if self.is_due(model, time.monotonic()) and not self._stop.is_set():
                    self.refit(model)

    def refit(self, model: ServedModel) -> None:
        """Refit a model and answer by the new version; a refit that fails leaves the old one in use."""
        self._last_s[model.name] = time.monotonic()
        command = [sys.executable, "-m", "ridgeline", "recommend", "refit", str(model.path), "--background", "--quiet"]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
            _, message = self._process.communicate()
            if self._stop.is_set():
                return
            if self._process.returncode:
                raise RidgelineError(" ".join(message.split())[-500:] or f"exit {self._process.returncode}")
            version = model.replace()
        except (RidgelineError, OSError) as error:
            model.refit_error = str(error)
            _log.warning("the refit of model '%s' failed; version %d stays: %s", model.name, model.version, error)
            return
        model.refit_error = ""
        _log.warning("model '%s' answers by version %d", model.name, version)


def parse_shares(text: str, names: Sequence[str]) -> list[int]:
    """Parse '90/10' as the percentages of the models `names`."""
    try:
        shares = [int(word) for word in text.split("/")]
    except ValueError:
        raise InputError(f"the split '{text}' is no list of whole percentages; write 90/10.") from None
    if len(shares) != len(names):
        raise InputError(f"the split '{text}' has {len(shares)} shares for {len(names)} models; give one for each.")
    if min(shares) < 0 or sum(shares) != 100:
        raise InputError(
            f"the split '{text}' adds up to {sum(shares)}; the shares must be 0 or more and add up to 100."
        )
    return shares


def _open_log(path: Path) -> Any:
    with store.explain_errors(path):
        return path.open("a", encoding="utf-8", buffering=1)
