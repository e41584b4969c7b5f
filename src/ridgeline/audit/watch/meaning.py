"""The meaning index: search a log by a sentence, by its meaning and its words.

It has one vector per template, and the template of every entry.

    meaning = Meaning(folder, str(ledger.verifier), "all-MiniLM-L6-v2", embedder.encode)
    meaning.catch_up(ledger)
    meaning.search("someone opened the firewall", 5, ledger)

The index derives from the log alone: delete it, and it is built again. It knows up to which entry it is complete. Its
files only grow, and `state.json` says how much of them is valid, so a kill during saving loses only the unsaved part:
    state.json      valid sizes, the model, the log's key, the template miner
    entries.i4      for each entry the row of its template; −1 for internal events
    times.i8        for each entry its time (ns)
    texts.jsonl     the words of the templates, as they were encoded
    vectors.f4      their vectors, unit length
"""

from __future__ import annotations

import atexit
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
from numpy.typing import NDArray

from ridgeline.audit.anomaly.sentences import describe_event, strip_masks
from ridgeline.audit.anomaly.template import Miner, mask
from ridgeline.audit.ledger.event import decode
from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.audit.ledger.tiles import WIDTH
from ridgeline.audit.watch.internal_events import is_internal
from ridgeline.audit.watch.state import WatchPaths
from ridgeline.audit.watch.word_index import WordIndex
from ridgeline.errors import InputError, MissingExtra, StoreError, Unverified
from ridgeline.machine import parse_devices
from ridgeline.store import get_owner, publish

if TYPE_CHECKING:
    from ridgeline.audit.ledger.ledger import Ledger
    from ridgeline.embed import Embedder, EmbedderPool

Where = Callable[[dict[str, Any]], bool]

_FORMAT = 3
_INTERNAL = -1
_AT_ONCE = 4_096  # entries read from the log at a time
Vectors = NDArray[np.float32]
Encode = Callable[[list[str]], Vectors]
PART = 1 << 16  # numbers; a part of this size is never moved again
SMALL_BATCH = 4  # texts
SHARED_BATCH = 64  # texts, from which several devices share a batch
WORDS_WEIGHT = 0.3  # of the shared words in the relevance; the meaning has the rest
CONTRADICTION = 0.5  # factor on the relevance of a template that says the opposite of the query


@dataclass(frozen=True)
class Hit:
    """An entry that fits the query; `relevance`, from 0 to 1, says how well its template does, by meaning and words."""

    entry: int
    relevance: float
    template: str
    event: dict[str, Any]


class Meaning:
    """The open meaning index of one log; several threads may use it.

    folder  the folder of its files
    log     the log's public key
    model   the name of the encoder
    encode  texts → float32 [n, dim], unit length
    """

    def __init__(self, folder: Path, log: str, model: str, encode: Encode) -> None:
        self.folder, self._log, self._model, self._encode = folder, log, model, encode
        self._lock = threading.RLock()
        self._miner = Miner()
        self._entries, self._times = Column(np.int32), Column(np.int64)  # rows of the vocabulary, times
        self._words = Vocabulary(encode)
        self._word_index = WordIndex()  # of the vocabulary; `search` extends it
        self.complete = 0  # entries in the index
        self._saved = {"entries": 0, "rows": 0, "text_bytes": 0}
        self._load()

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return float32 [n, dim]; each text is encoded only once."""
        with self._lock:
            return self._words.embed(texts)

    def share_miner(self, miner: Miner, position: int) -> None:
        """Use the detector's miner: from entry `position` on, `add` gets template numbers of this miner."""
        with self._lock:
            if self.complete > position:
                self._entries.cut(position)
                self._times.cut(position)
                self.complete = position
                self._saved = {**self._saved, "entries": min(position, self._saved["entries"])}
            self._miner = miner

    def add(self, first: int, events: Sequence[Mapping[str, Any]], templates: Sequence[int] | None = None) -> None:
        """Add the entries from `first` on; skip those in the index already. A gap before `first` was pruned.

        `templates` are their numbers in the shared miner, −1 for internal events; without it, the index mines them.
        """
        with self._lock:
            gap, known = max(0, first - self.complete), max(0, self.complete - first)
            fresh = events[known:]
            if templates is None:
                templates = [_INTERNAL if is_internal(e) else self._miner.learn(describe_event(e)).id for e in fresh]
            else:
                templates = templates[known:]
            rows = {n: self._words.row(strip_masks(self._miner.text(n))) for n in set(templates) if n != _INTERNAL}
            self._entries.add([_INTERNAL] * gap + [rows.get(n, _INTERNAL) for n in templates])
            self._times.add([0] * gap + [int(e["time"]) for e in fresh])
            self.complete += gap + len(fresh)

    def catch_up(self, ledger: Ledger, end: int | None = None) -> None:
        """Add the entries of the log that are not in the index yet."""
        end = ledger.checkpoint().size if end is None else end
        at = self.complete
        while at < end:
            until = min(end, at + _AT_ONCE)
            try:
                events = [ledger.load_event(decode(raw, f"entry {i}")) for i, raw in ledger.raw_entries(at, until)]
            except Unverified as error:
                if error.kind != "missing":
                    raise
                until = min(end, (at // WIDTH + 1) * WIDTH)
                try:  # one bundle at a time, until one is not pruned
                    events = [ledger.load_event(decode(raw, f"entry {i}")) for i, raw in ledger.raw_entries(at, until)]
                except Unverified as second_error:
                    if second_error.kind != "missing":
                        raise
                    at = until
                    continue
            self.add(at, events)
            at = until

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
        """Return the `k` entries that fit best, best first; of one template the newest first.

        The relevance of a template is the weighted mean of the cosine of its vector and of the words that it shares
        with the text; it is halved if the template says the opposite of the text (failed instead of successful).

        `since` and `until` are times in ns since 1970; `where(event)` selects events. Events are read from the log and
        proved.
        """
        if not text.strip():
            raise InputError("the text to search for is empty; give a few words.")
        if k < 1:
            raise InputError(f"k is {k}; give 1 or more.")
        with self._lock:
            numbers, times = self._entries.since(0), self._times.since(0)
            chosen = numbers != _INTERNAL
            if since is not None:
                chosen &= times >= since
            if until is not None:
                chosen &= times < until
            candidates = np.flatnonzero(chosen)
            seen = np.unique(numbers[candidates])
            if not len(seen):
                return []
            vectors = self._words.vectors()[seen]
            self._word_index.extend(self._words.texts[len(self._word_index) :])
            uses = np.bincount(numbers[numbers != _INTERNAL], minlength=len(self._word_index))
            shared, contradicts = self._word_index.compare(text, uses)
        hits: list[Hit] = []
        read = _make_reader(ledger)
        cosines = np.clip(vectors @ np.asarray(self._encode([text]), np.float32)[0], 0, 1)
        relevance = (1 - WORDS_WEIGHT) * cosines + WORDS_WEIGHT * shared[seen]
        relevance *= np.where(contradicts[seen], CONTRADICTION, 1)
        for best in np.argsort(-relevance, kind="stable").tolist():
            for entry in candidates[numbers[candidates] == seen[best]][::-1].tolist():
                event = read(entry)
                if event is not None and (where is None or where({**event, "index": entry})):
                    hits.append(Hit(entry, float(relevance[best]), mask(describe_event(event)), event))
                    if len(hits) == k:
                        return hits
        return hits

    def save(self) -> None:
        """Save the new entries, texts and vectors."""
        with self._lock:
            self.encode_missing()
            self.mark_saved(self.write())

    def encode_missing(self) -> None:
        """Encode all texts, so that `write` needs no encoder."""
        with self._lock:
            self._words.vectors()

    def write(self) -> dict[str, int]:
        """Write the unsaved part to the disk; return the saved sizes, for `mark_saved`. Does not change the object."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        matrix, texts = self._words.vectors(), self._words.texts
        saved = self._saved
        _write_at(self.folder / "entries.i4", saved["entries"] * 4, self._entries.since(saved["entries"]).tobytes())
        _write_at(self.folder / "times.i8", saved["entries"] * 8, self._times.since(saved["entries"]).tobytes())
        width = matrix.shape[1] * 4 if len(matrix) else 0
        _write_at(self.folder / "vectors.f4", saved["rows"] * width, matrix[saved["rows"] :].tobytes())
        lines = "".join(json.dumps(text) + "\n" for text in texts[saved["rows"] :]).encode()
        begin = saved["text_bytes"]
        _write_at(self.folder / "texts.jsonl", begin, lines)
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

    def mark_saved(self, now: dict[str, int]) -> None:
        """Note the sizes that `write` returned."""
        with self._lock:
            self._saved = now

    def stats(self) -> dict[str, Any]:
        with self._lock:
            return {"complete": self.complete, "templates": len(self._miner), "vectors": len(self._words)}

    def _load(self) -> None:
        """Load the files if they belong to this log and model and are complete; else start empty."""
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
            return  # the first save overwrites them
        self._miner, self._entries, self._times = miner, Column(np.int32, entries), Column(np.int64, times)
        self._words = Vocabulary(self._encode, texts, vectors)
        self.complete = count
        self._saved = {"entries": count, "rows": rows, "text_bytes": state["text_bytes"]}


def open_meaning(ledger: Ledger, model: str, device: str = "auto") -> Meaning:
    """Open the meaning index of a log and bring it up to date; save it if no watcher runs.

    model   the name of the encoder
    device  auto, cpu, cuda or cuda:N
    """
    paths = LedgerPaths(ledger.path)
    meaning = Meaning(WatchPaths(paths).meaning, str(ledger.verifier), model, make_encoder(model, device))
    before = meaning.complete
    meaning.catch_up(ledger)
    if meaning.complete > before and paths.private.is_dir() and get_owner(paths.lock) is None:
        with suppress(StoreError, OSError):  # a read-only place: it is built again next time
            meaning.save()
    return meaning


def _make_reader(ledger: Ledger) -> Callable[[int], dict[str, Any] | None]:
    """Return a function that reads one event, or None if it was pruned; it caches and proves bundles."""
    size = ledger.checkpoint().size

    @lru_cache(64)
    def bundle(number: int) -> list[bytes] | None:
        try:
            return [raw for _, raw in ledger.raw_entries(number * WIDTH, min((number + 1) * WIDTH, size))]
        except Unverified as error:
            if error.kind != "missing":
                raise
            return None

    def read(entry: int) -> dict[str, Any] | None:
        raw_bundle = bundle(entry // WIDTH)
        return None if raw_bundle is None else ledger.load_event(decode(raw_bundle[entry % WIDTH], f"entry {entry}"))

    return read


def _write_at(path: Path, at: int, data: bytes) -> None:
    """Write `data` at byte `at`, the end of the valid part, truncate the file there, and sync it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, at)
        done = 0
        while done < len(data):
            done += os.pwrite(fd, data[done:], at + done)
        os.fsync(fd)
    finally:
        os.close(fd)


class Vocabulary:
    """Texts and their vectors: each text has a row for ever and is encoded once, perhaps later than it gets its row."""

    def __init__(self, encode: Encode, texts: Sequence[str] = (), vectors: Vectors | None = None) -> None:
        self._encode = encode
        self.texts = list(texts)  # row → text
        self._rows = {text: row for row, text in enumerate(texts)}
        self._buffer = (
            vectors if vectors is not None else np.zeros((0, 0), np.float32)
        )  # its size doubles when it is full
        self._count = len(self._buffer)

    def __len__(self) -> int:
        return len(self.texts)

    def row(self, text: str) -> int:
        row = self._rows.get(text)
        if row is None:
            row = self._rows[text] = len(self.texts)
            self.texts.append(text)
        return row

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of `texts`, float32 [n, dim]."""
        rows = [self.row(text) for text in texts]
        return self.vectors()[rows] if rows else np.zeros((0, self._buffer.shape[1]), np.float32)

    def vectors(self) -> Vectors:
        """Return the vectors of all texts, float32 [rows, dim]; earlier rows never change."""
        missing = self.texts[self._count :]
        if missing:
            new_vectors = np.asarray(self._encode(missing), np.float32)
            end = self._count + len(new_vectors)
            if end > len(self._buffer):
                buffer = np.empty((max(end, 2 * len(self._buffer), 64), new_vectors.shape[1]), np.float32)
                if self._count:
                    buffer[: self._count] = self._buffer[: self._count]
                self._buffer = buffer
            self._buffer[self._count : end] = new_vectors
            self._count = end
        return self._buffer[: self._count]


class Column:
    """A growing array, one number per entry. Only small parts are joined, so that adding never moves large ones.

    >>> column = Column(np.int32)
    >>> column.add([1, 2])
    >>> column.add([3])
    >>> column.since(1).tolist(), len(column)
    ([2, 3], 3)
    """

    def __init__(self, dtype: type, numbers: NDArray[Any] | None = None) -> None:
        self._dtype = dtype
        self._parts: list[NDArray[Any]] = [] if numbers is None else [numbers]
        self._count = 0 if numbers is None else len(numbers)

    def __len__(self) -> int:
        return self._count

    def add(self, numbers: Sequence[int]) -> None:
        self._parts.append(np.array(numbers, self._dtype))
        self._count += len(numbers)
        while len(self._parts) > 1 and len(self._parts[-2]) <= len(self._parts[-1]) and len(self._parts[-2]) < PART:
            self._parts[-2:] = [np.concatenate(self._parts[-2:])]

    def since(self, first: int) -> NDArray[Any]:
        """Return the numbers from index `first` on."""
        parts, begin = list[NDArray[Any]](), self._count
        while begin > first:
            part = self._parts[-1 - len(parts)]
            begin -= len(part)
            parts.append(part[max(0, first - begin) :])
        return np.concatenate(parts[::-1]) if parts else np.zeros(0, self._dtype)

    def cut(self, count: int) -> None:
        """Keep only the first `count` numbers."""
        self._parts = [self.since(0)[:count]]
        self._count = len(self._parts[0])


def make_encoder(model: str, device: str = "auto") -> Encode:
    """Return a function texts → float32 [n, dim]; its first call loads the model.

    device  several, like "cuda:0,cuda:1" or "cuda:all", share large batches; the first one encodes small ones alone
    """
    loaded: list[Embedder] = []
    pools: list[EmbedderPool] = []
    lock = threading.Lock()
    devices = parse_devices(device) if "," in device or device == "cuda:all" else [device]

    def encode(texts: list[str]) -> Vectors:
        with lock:
            if not loaded:
                try:
                    from ridgeline.embed import Embedder, EmbedderPool

                    loaded.append(Embedder(model, device=devices[0]))
                    _warm_up(loaded[0])
                    if len(devices) > 1:
                        pools.append(EmbedderPool(model, devices=devices))
                        pools[0].__enter__()
                        atexit.register(pools[0].__exit__, None, None, None)
                except ImportError:
                    raise MissingExtra("finding and scoring events by meaning", "audit") from None
            if pools and len(texts) >= SHARED_BATCH:
                size = -(-len(texts) // len(devices))
                parts = [texts[first : first + size] for first in range(0, len(texts), size)]
                return np.concatenate(list(pools[0].encode_chunks(parts)))
            return _encode_texts(loaded[0], texts)

    return encode


def _encode_texts(embedder: Embedder, texts: list[str]) -> Vectors:
    """Encode a few texts one by one on a GPU: each is one CUDA graph replay, while a batch is many launches."""
    if texts and len(texts) <= SMALL_BATCH and embedder.device != "cpu":
        return np.stack([embedder.encode_one(text) for text in texts])
    return np.asarray(embedder.encode(texts), np.float32)


def _warm_up(embedder: Embedder) -> None:
    """Let the GPU compile and record CUDA graphs for common sizes, before an event waits for it."""
    if embedder.device == "cpu":
        return
    for words in (1, 20, 40, 80):
        _encode_texts(embedder, ["ready " * words])
    for count in (5, 8, 16, 31, 64):
        _encode_texts(embedder, ["ready " * (1 + k % 20) for k in range(count)])
