"""The models of a server: each answers from a snapshot, takes changes in groups, and counts its requests.

Readers take `model.snapshot` once per request. Changes that arrive together are encoded in one batch, stored with one
write and acknowledged together; then the next request sees a new snapshot.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from copy import copy

from ridgeline.errors import InputError
from ridgeline.recommend.live import Change
from ridgeline.recommend.recommender import Recommender

Result = dict[str, int] | InputError


class ServedModel:
    """One model of a server, by name."""

    def __init__(self, name: str, model: Recommender) -> None:
        self.name, self.version, self.requests = name, model.version, 0
        self._model = model  # only the thread that holds `_writing` uses it
        self.snapshot = copy(model)
        self._writing, self._mutex = threading.Lock(), threading.Lock()
        self._waiting: list[tuple[Change, Future[Result]]] = []

    def count_request(self) -> None:
        with self._mutex:
            self.requests += 1

    def write(self, change: Change) -> Result:
        """Apply a change with all others that wait; return when it is on the disk, or say why it was refused."""
        mine: Future[Result] = Future()
        with self._mutex:
            self._waiting.append((change, mine))
        with self._writing:
            if not mine.done():
                self._write_waiting()
        return mine.result()

    def close(self) -> None:
        with self._writing:
            self._model.close()

    def _write_waiting(self) -> None:
        with self._mutex:
            group, self._waiting = self._waiting, []
        try:
            results = self._model.apply_changes([change for change, _ in group])
        except BaseException as error:
            for _, future in group:
                future.set_exception(error)
            return
        self.snapshot = copy(self._model)
        for (_, future), result in zip(group, results, strict=True):
            future.set_result(result)


class ServedModels:
    """The models of a server side by side; a user always gets the same one."""

    def __init__(self, models: Sequence[ServedModel], shares: Sequence[int] = ()) -> None:
        """`shares` are the percentages of users that each model answers (default: all to the first)."""
        self.models = {model.name: model for model in models}
        self._shares = list(shares) or [100] + [0] * (len(models) - 1)

    @property
    def first(self) -> ServedModel:
        return next(iter(self.models.values()))

    def choose(self, parameters: Mapping[str, str]) -> ServedModel:
        """Choose the model of a request: the one that it names, else the one of its user, else the first."""
        name, user = parameters.get("model"), parameters.get("user")
        if name is not None:
            return self.find(name)
        if user is None or len(self.models) == 1:
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
            raise InputError(f"there is no model '{name:.80}'; there are {', '.join(self.models)}.")
        return model

    def write(self, change: Change) -> Result:
        """Apply a change to every model; the answer is that of the first. A refusal of one is a refusal."""
        results: list[Result] = []
        for model in self.models.values():
            results.append(model.write(change))
            if isinstance(results[0], InputError):
                break
        return results[0]

    def close(self) -> None:
        for model in self.models.values():
            model.close()


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
