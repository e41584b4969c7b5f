"""What the events of a log mean: one vector per template, and for every entry its template; found by a sentence.

    meaning = Meaning(folder, str(ledger.verifier), "all-MiniLM-L6-v2", embedder.encode)
    meaning.catch_up(ledger)
    meaning.search("someone opened the firewall", 5, ledger)

Derived from the log and nothing else: it can be deleted and is made again. It knows up to which entry it is complete.
Files only grow, and `state.json` says how much of them counts, so a kill while saving costs what was not yet saved:
    state.json      complete, counts, the model, the log's key, the miner
    entries.i4      per entry the row of its template's words; −1 for the watcher's own
    times.i8        per entry its time
    texts.jsonl     templates' words, as they were embedded
    vectors.f4      their vectors, unit length
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.audit.anomaly.sentences import sentence, spoken
from ridgeline.audit.anomaly.template import Miner, mask
from ridgeline.audit.ledger.event import decode
from ridgeline.audit.ledger.layout import Home
from ridgeline.audit.ledger.tiles import WIDTH
from ridgeline.audit.watch.column import Column
from ridgeline.audit.watch.encoding import encoder
from ridgeline.audit.watch.own import is_own
from ridgeline.audit.watch.state import Places
from ridgeline.audit.watch.vocabulary import Encode, Vectors, Vocabulary
from ridgeline.errors import InputError, StoreError, Unverified
from ridgeline.store import owner, publish

if TYPE_CHECKING:
    from ridgeline.audit.ledger.ledger import Ledger

Where = Callable[[dict[str, Any]], bool]

_FORMAT = 3
_OWN = -1
_AT_ONCE = 4_096  # entries between two looks at the log


@dataclass(frozen=True)
class Hit:
    """An entry that means something like what was asked; `score` is the cosine of its template."""

    entry: int
    score: float
    template: str
    event: dict[str, Any]


class Meaning:
    """One log's index of meaning, open; safe to use from several threads."""

    def __init__(self, folder: Path, log: str, model: str, encode: Encode) -> None:
        self.folder, self._log, self._model, self._encode = folder, log, model, encode
        self._lock = threading.RLock()
        self._miner = Miner()
        self._entries, self._times = Column(np.int32), Column(np.int64)  # rows of the vocabulary, times
        self._words = Vocabulary(encode)
        self.complete = 0  # entries it knows
        self._saved = {"entries": 0, "rows": 0, "text_bytes": 0}
        self._load()

    def embed(self, texts: Sequence[str]) -> Vectors:
        """float32 [n, dim]; each text is encoded once and remembered."""
        with self._lock:
            return self._words.embed(texts)

    def share(self, miner: Miner, position: int) -> None:
        """From entry `position` on `add` is told the templates, by their numbers in this miner."""
        with self._lock:
            if self.complete > position:
                self._entries.cut(position)
                self._times.cut(position)
                self.complete = position
                self._saved = {**self._saved, "entries": min(position, self._saved["entries"])}
            self._miner = miner

    def add(self, first: int, events: Sequence[Mapping[str, Any]], templates: Sequence[int] | None = None) -> None:
        """Entries from `first` on; those it knows are passed over, those between (pruned) are nobody's.

        `templates`: their numbers in the miner it shares, −1 for own events; else it finds them itself.
        """
        with self._lock:
            gap, known = max(0, first - self.complete), max(0, self.complete - first)
            fresh = events[known:]
            if templates is None:
                templates = [_OWN if is_own(e) else self._miner.learn(sentence(e)).id for e in fresh]
            else:
                templates = templates[known:]
            rows = {n: self._words.row(spoken(self._miner.text(n))) for n in set(templates) if n != _OWN}
            self._entries.add([_OWN] * gap + [rows.get(n, _OWN) for n in templates])
            self._times.add([0] * gap + [int(e["time"]) for e in fresh])
            self.complete += gap + len(fresh)

    def catch_up(self, ledger: Ledger, end: int | None = None) -> None:
        """Read what it does not know yet from the log."""
        end = ledger.checkpoint().size if end is None else end
        at = self.complete
        while at < end:
            upto = min(end, at + _AT_ONCE)
            try:
                events = [ledger.whole(decode(raw, f"entry {i}")) for i, raw in ledger.raws(at, upto)]
            except Unverified as error:
                if error.kind != "missing":
                    raise
                upto = min(end, (at // WIDTH + 1) * WIDTH)
                try:  # a bundle at a time, until one is there
                    events = [ledger.whole(decode(raw, f"entry {i}")) for i, raw in ledger.raws(at, upto)]
                except Unverified as again:
                    if again.kind != "missing":
                        raise
                    at = upto
                    continue
            self.add(at, events)
            at = upto

    def search(
        self,
        text: str,
        k: int,
        ledger: Ledger,
        *,
        since: int | None = None,
        until: int | None = None,
        where: Where | None = None,
    ) -> list[Hit]:
        """The k entries nearest in meaning; of one template the newest first. Events are read from the log, proved."""
        if not text.strip():
            raise InputError("what to look for is empty; give a few words.")
        if k < 1:
            raise InputError(f"k is {k}; ask for 1 event or more.")
        with self._lock:
            numbers, times = self._entries.since(0), self._times.since(0)
            chosen = numbers != _OWN
            if since is not None:
                chosen &= times >= since
            if until is not None:
                chosen &= times < until
            candidates = np.flatnonzero(chosen)
            seen = np.unique(numbers[candidates])
            vectors = self._words.vectors()[seen]
        if not len(seen):
            return []
        hits: list[Hit] = []
        read = _reader(ledger)
        for rank, score in self._scores(vectors, text):
            for entry in candidates[numbers[candidates] == seen[rank]][::-1].tolist():
                event = read(entry)
                if event is not None and (where is None or where({**event, "index": entry})):
                    hits.append(Hit(entry, score, mask(sentence(event)), event))
                    if len(hits) == k:
                        return hits
        return hits

    def save(self) -> None:
        """Bring what is new to the disk."""
        with self._lock:
            self.complete_vectors()
            self.saved(self.write())

    def complete_vectors(self) -> None:
        """So that `write` needs no encoder."""
        with self._lock:
            self._words.vectors()

    def write(self) -> dict[str, int]:
        """What is new, to the disk; what lies there then, for `saved`. Changes nothing here: a copy may do it."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        matrix, texts = self._words.vectors(), self._words.texts
        done = self._saved
        _grow(self.folder / "entries.i4", done["entries"] * 4, self._entries.since(done["entries"]).tobytes())
        _grow(self.folder / "times.i8", done["entries"] * 8, self._times.since(done["entries"]).tobytes())
        width = matrix.shape[1] * 4 if len(matrix) else 0
        _grow(self.folder / "vectors.f4", done["rows"] * width, matrix[done["rows"] :].tobytes())
        lines = "".join(json.dumps(text) + "\n" for text in texts[done["rows"] :]).encode()
        begin = done["text_bytes"]
        _grow(self.folder / "texts.jsonl", begin, lines)
        now = {"entries": len(self._entries), "rows": len(texts), "text_bytes": begin + len(lines)}
        state = {
            "format": _FORMAT,
            "log": self._log,
            "model": self._model,
            **now,
            "dim": matrix.shape[1] if len(matrix) else 0,
            "miner": self._miner.state(),
        }
        with publish(self.folder / "state.json") as tmp:
            tmp.write_text(json.dumps(state), encoding="utf-8")
        return now

    def saved(self, now: dict[str, int]) -> None:
        """So much lies on the disk."""
        with self._lock:
            self._saved = now

    def stats(self) -> dict[str, Any]:
        with self._lock:
            return {"complete": self.complete, "templates": len(self._miner), "vectors": len(self._words)}

    def _scores(self, vectors: Vectors, text: str) -> list[tuple[int, float]]:
        from ridgeline.search import Index

        index = Index("Flat", dim=vectors.shape[1], device="cpu")
        index.add(vectors)
        query = np.asarray(self._encode([text]), np.float32)
        scores, rows = index.search(query, len(vectors))
        return [(int(row), float(score)) for row, score in zip(rows[0], scores[0], strict=True) if row >= 0]

    def _load(self) -> None:
        """What lies there, if it is of this log and this model and whole; else it is made anew."""
        try:
            state = json.loads((self.folder / "state.json").read_text(encoding="utf-8"))
            if (state["format"], state["log"], state["model"]) != (_FORMAT, self._log, self._model):
                raise ValueError("of another log or model")
            count, rows, dim = state["entries"], state["rows"], state["dim"]
            entries = np.fromfile(self.folder / "entries.i4", np.int32, count)
            times = np.fromfile(self.folder / "times.i8", np.int64, count)
            vectors = np.fromfile(self.folder / "vectors.f4", np.float32, rows * dim).reshape(rows, dim)
            with (self.folder / "texts.jsonl").open("rb") as file:
                texts = [json.loads(line) for line in file.read(state["text_bytes"]).splitlines()]
            if len(entries) != count or len(times) != count or len(texts) != rows:
                raise ValueError("cut off")
            miner = Miner.restore(state["miner"])
        except (OSError, ValueError, KeyError, TypeError):
            return  # the first save writes over it
        self._miner, self._entries, self._times = miner, Column(np.int32, entries), Column(np.int64, times)
        self._words = Vocabulary(self._encode, texts, vectors)
        self.complete = count
        self._saved = {"entries": count, "rows": rows, "text_bytes": state["text_bytes"]}


def open_meaning(ledger: Ledger, model: str, device: str = "auto") -> Meaning:
    """The index of a log, up to date; saved as well where no watcher is there to do it."""
    home = Home(ledger.path)
    meaning = Meaning(Places(home).meaning, str(ledger.verifier), model, encoder(model, device))
    before = meaning.complete
    meaning.catch_up(ledger)
    if meaning.complete > before and home.private.is_dir() and owner(home.lock) is None:
        with suppress(StoreError, OSError):  # a place we may not write to: then it is made anew next time
            meaning.save()
    return meaning


def _reader(ledger: Ledger) -> Callable[[int], dict[str, Any] | None]:
    """One event at a time; a bundle is read and proved once for its neighbours. None where it was pruned."""
    size = ledger.checkpoint().size

    @lru_cache(64)
    def bundle(number: int) -> list[bytes] | None:
        try:
            return [raw for _, raw in ledger.raws(number * WIDTH, min((number + 1) * WIDTH, size))]
        except Unverified as error:
            if error.kind != "missing":
                raise
            return None

    def read(entry: int) -> dict[str, Any] | None:
        raws = bundle(entry // WIDTH)
        return None if raws is None else ledger.whole(decode(raws[entry % WIDTH], f"entry {entry}"))

    return read


def _grow(path: Path, at: int, data: bytes) -> None:
    """Write `data` at byte `at`, which is where what counts ends, and bring it to the disk."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, at)
        done = 0
        while done < len(data):
            done += os.pwrite(fd, data[done:], at + done)
        os.fsync(fd)
    finally:
        os.close(fd)
