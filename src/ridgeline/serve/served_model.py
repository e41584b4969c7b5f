"""A model that serves: loaded, warm, with its batcher; and the folder's state, to notice a change.

A request takes the model once and keeps it to its end. So while a model is replaced, every answer comes wholly from the
old one or wholly from the new one.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ridgeline.embed import Embedder, Reranker, Tokens, TooLong, find_model
from ridgeline.errors import InputError, MissingExtra
from ridgeline.serve.batcher import Batcher, BatchSizes, Queue
from ridgeline.serve.device_turns import take_turn

CPU_BATCH_TOKENS = 4096  # some tens of milliseconds: short enough that a new request need not wait long
GPU_BATCH_TOKENS = 65_536
FIRST_TEXT = "a first text"
_SEND_TEXTS = "Send texts (in LangChain: check_embedding_ctx_length=False)"

Loaded = TypeVar("Loaded", Embedder, Reranker)
FolderState = tuple[tuple[str, int, int, int], ...]


class ServedModel:
    """A model behind a batcher.

    name              the name that clients use
    aliases           more names of it
    source            a folder, or the name of a model on this machine
    batch_invariant   whether the model promises a text the same bits in any batch
    max_batch_tokens  tokens of a batch; None: 4,096 on a CPU, 65,536 on a GPU
    """

    kind: str

    def __init__(
        self,
        name: str,
        source: str,
        model: Embedder | Reranker,
        state: FolderState,
        *,
        batch_invariant: bool,
        aliases: Sequence[str] = (),
        max_batch_tokens: int | None = None,
        observe: Callable[[str, BatchSizes], object] = lambda name, sizes: None,
        on_failure: Callable[[BaseException], object] = lambda error: None,
    ) -> None:
        self.name, self.source, self.state, self._model = name, source, state, model
        self.max_batch_tokens = max_batch_tokens or (
            GPU_BATCH_TOKENS if model.device.startswith("cuda") else CPU_BATCH_TOKENS
        )
        self.batch_invariant, self.aliases = batch_invariant, tuple(aliases)
        self.ready, self.users, self.created = False, 0, int(time.time())
        self._tokenizer: Any = None  # of the library, for the texts of tokens
        self._tokenizer_json = _read_file(model.folder / "tokenizer.json")
        self.batcher: Queue = Batcher(
            name,
            self._run_in_turn,
            self.max_batch_tokens,
            observe=lambda sizes: observe(name, sizes),
            on_failure=on_failure,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Copy to another process what requests are read with: tokenizer, prompts and limits, but no weights."""
        return {**vars(self), "users": 0, "batcher": None, "_tokenizer": None}

    @property
    def device(self) -> str:
        return self._model.device

    @property
    def dtype(self) -> str:
        return self._model.dtype

    @property
    def max_tokens(self) -> int:
        return self._model.max_tokens

    @property
    def dim(self) -> int | None:
        """Components of a vector."""
        return None

    async def warm_up(self) -> None:
        """Compute a first text, as a request does; the model is ready after that."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish what was accepted, then release the weights."""
        self.batcher.close()
        with take_turn(self.device):
            self._model.close()

    def answers(self) -> bool:
        """Whether the device of the model still computes; after some errors of CUDA, nothing in the process does."""
        if not self.device.startswith("cuda"):
            return True
        import torch

        try:
            torch.zeros(1, device=self.device).add_(1).item()
        except RuntimeError as error:
            return isinstance(error, torch.OutOfMemoryError)
        return True

    def read_state(self) -> FolderState:
        """Return the state of the folder now; another one than `state` means that it changed."""
        return read_folder_state(self._model.folder)

    def hide_folder(self, message: str) -> str:
        """Return a message with the name that clients know instead of the folder on this machine."""
        for place in (str(self._model.folder), self._model.name):
            message = message.replace(place, self.name) if "/" in place else message
        return message

    def describe_tokens(self, texts: Sequence[str], special: bool) -> list[list[dict[str, Any]]]:
        """Return number, text, start and stop of every token, as TEI's /tokenize does."""
        if self._tokenizer is None:
            self._tokenizer = _load_library_tokenizer(self._tokenizer_json)
        rows = self._tokenizer.encode_batch(list(texts), add_special_tokens=special)
        return [
            [
                {
                    "id": number,
                    "text": text if is_special else source[start:stop],
                    "special": bool(is_special),
                    "start": None if is_special else start,
                    "stop": None if is_special else stop,
                }
                for number, text, is_special, (start, stop) in zip(
                    row.ids, row.tokens, row.special_tokens_mask, row.offsets, strict=True
                )
            ]
            for source, row in zip(texts, rows, strict=True)
        ]

    def _run_in_turn(self, output: str, tokens: Tokens) -> Sequence[Any]:
        with take_turn(self.device):
            return self._run(output, tokens)

    def _run(self, output: str, tokens: Tokens) -> Sequence[Any]:
        """Compute one batch, in the thread of the batcher."""
        raise NotImplementedError


class ServedEmbedder(ServedModel):
    """An embedder behind a batcher."""

    kind = "embedding"
    _model: Embedder

    def __init__(self, name: str, source: str, model: Embedder, state: FolderState, **settings: Any) -> None:
        super().__init__(name, source, model, state, **settings)
        ids = model.tokenize([FIRST_TEXT], truncate=True).ids.tolist()
        # the special tokens before and after a text, if the model has them
        self._first, self._last = (i if i in model.special_tokens else None for i in (ids[0], ids[-1]))

    @property
    def dim(self) -> int:
        return self._model.dim

    @property
    def hidden(self) -> int:
        """Components of the vector of a token."""
        return self._model.config.hidden

    @property
    def names(self) -> tuple[str, str]:
        """The names that an index may have for the model of its vectors."""
        return self.name, self._model.name

    @property
    def outputs(self) -> tuple[str, ...]:
        return self._model.outputs

    @property
    def prompts(self) -> Mapping[str, str]:
        """The prompts of the model, by name."""
        return self._model.config.prompts

    async def warm_up(self) -> None:
        await self.batcher.compute(self.tokenize([FIRST_TEXT], truncate=True), self.outputs[0])
        self.ready = True

    def tokenize(self, texts: Sequence[str], *, truncate: bool) -> Tokens:
        """Return the tokens of texts; raise TooLong if one has too many and may not be cut."""
        return self._model.tokenize(texts, truncate=truncate)

    def add_prompt(self, texts: list[str], name: str) -> list[str]:
        """Put a prompt of the model before the texts."""
        if name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise InputError(f"'{self.name}' has no prompt of this name; there are: {known}.")
        prompt = self.prompts[name]
        if self._model.prompt not in ("", prompt):
            raise InputError(f"'{self.name}' has a prompt of its own for every text; leave out prompt_name.")
        if not self._model.config.pools_prompt and not self._model.prompt:
            raise InputError(
                f"'{self.name}' leaves its prompt out of the pooling, which is not known here; encode with "
                f"Embedder(prompt={name!r})."
            )
        return texts if self._model.prompt else [prompt + text for text in texts]

    def take_tokens(self, rows: Sequence[Sequence[int]], truncate: bool, *, bare: bool = False) -> Tokens:
        """Return token ids of a client as `Tokens`, after a check; special tokens stay as they are given.

        bare  the ids have no special tokens on purpose. Else they are probably those of another tokenizer (LangChain
              sends OpenAI's), and their vectors would be wrong without a word.
        """
        limit, vocabulary, ends = self.max_tokens, self._model.config.vocabulary, (self._first, self._last)
        cut = []
        for number, row in enumerate(rows):
            if not row:
                raise InputError(f"input {number} has no token ids; give one at least.")
            if min(row) < 0 or max(row) >= vocabulary:
                wrong = next(i for i in row if not 0 <= i < vocabulary)
                raise InputError(
                    f"input {number} has the token id {wrong}; '{self.name}' has 0 to {vocabulary - 1}. {_SEND_TEXTS}."
                )
            if not bare and any(end not in (None, i) for end, i in zip(ends, (row[0], row[-1]), strict=True)):
                where = zip(ends, ("first", "last"), strict=True)
                words = " and ".join(f"{end} {place}" for end, place in where if end is not None)
                raise InputError(
                    f"input {number} has token ids without the special tokens of '{self.name}' ({words}): are they of "
                    f'another tokenizer? {_SEND_TEXTS}; "add_special_tokens": false encodes the ids without them.'
                )
            if len(row) > limit:
                if not truncate:
                    raise TooLong(f"input {number} has {len(row)} token ids; '{self.name}' takes {limit}.")
                # as the tokenizer cuts a text: its last special token stays
                row = row[:limit] if bare or self._last is None else [*row[: limit - 1], row[-1]]
            cut.append(row)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in cut], out=offsets[1:])
        return Tokens(np.concatenate([np.asarray(row, np.int32) for row in cut]), offsets)

    async def encode(self, tokens: Tokens) -> NDArray[np.float32]:
        """Return float32 [texts, dim], batched with the texts of other requests."""
        return np.asarray(await self.encode_each(tokens, "dense"))

    async def encode_each(self, tokens: Tokens, output: str) -> Sequence[Any]:
        """Return one result per text: "tokens" float32 [tokens, width], "sparse" (token numbers, weights)."""
        if output not in self.outputs:
            raise InputError(f"'{self.name}' has no output '{output}'; it has: {', '.join(self.outputs)}.")
        return await self.batcher.compute(tokens, output)

    def _run(self, output: str, tokens: Tokens) -> Sequence[Any]:
        results: Any = self._model.encode_tokens(tokens, output=output)
        if output == "sparse":
            starts = results.indptr.tolist()  # of the rows
            return [(results.indices[i:j], results.data[i:j]) for i, j in pairwise(starts)]
        return results if output == "dense" else [results[i] for i in range(len(results))]


class ServedReranker(ServedModel):
    """A reranker behind a batcher."""

    kind = "reranker"
    _model: Reranker

    async def warm_up(self) -> None:
        await self.score(self.tokenize(FIRST_TEXT, [FIRST_TEXT], truncate=True))
        self.ready = True

    def tokenize(self, query: str, documents: Sequence[str], *, truncate: bool) -> Tokens:
        """Return the tokens of the pairs; raise TooLong if one has too many and may not be cut."""
        return self._model.tokenize(query, documents, truncate=truncate)

    async def score(self, pairs: Tokens, *, raw: bool = False) -> NDArray[np.float32]:
        """Return one score per pair; `raw` leaves out the activation."""
        return np.asarray(await self.batcher.compute(pairs, "raw" if raw else "score"), np.float32)

    def _run(self, output: str, tokens: Tokens) -> Sequence[Any]:
        scores: Sequence[Any] = self._model.score_tokens(tokens, raw=output == "raw").tolist()
        return scores


def load_model(
    name: str, source: str, *, device: str = "auto", dtype: str = "auto", batch_invariant: bool = True, **settings: Any
) -> ServedModel:
    """Load an embedder or a reranker, whichever the folder holds.

    batch_invariant  ask it for the same bits in any batch; without that promise if the device cannot give it
    """
    folder = find_model(source).folder
    state = read_folder_state(folder)  # before the files are read: no change is missed
    options = {"device": device, "dtype": dtype}
    if not _holds_reranker(folder):
        embedder, promised = _load(Embedder, source, options, batch_invariant)
        return ServedEmbedder(name, source, embedder, state, batch_invariant=promised, **settings)
    reranker, promised = _load(Reranker, source, options, batch_invariant)
    if reranker.labels != 1:
        raise InputError(f"'{source}' has {reranker.labels} outputs; a reranker that serves has one.")
    return ServedReranker(name, source, reranker, state, batch_invariant=promised, **settings)


def _load(kind: type[Loaded], source: str, options: dict[str, Any], batch_invariant: bool) -> tuple[Loaded, bool]:
    """Return the model, and whether it promises the same bits in any batch."""
    if batch_invariant:
        try:
            return kind(source, **options, batch_invariant=True), True
        except InputError as error:
            if "batch_invariant" not in str(error):
                raise
    return kind(source, **options), False


def read_folder_state(folder: Path) -> FolderState:
    """Return name, inode, size and time of every file of a folder: a replaced or rewritten file changes it."""
    entries = []
    for path in sorted(folder.rglob("*")):
        try:
            status = os.stat(path)
        except OSError:
            continue  # it is gone again
        if path.is_file():
            entries.append((str(path.relative_to(folder)), status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(entries)


class ServedIndex:
    """An index that serves. Changes of its rows stay in memory: a restart or a reload reads the folder again.

    name    the name that clients use
    folder  what `Index.save`, `ridgeline index` or `ridgeline bulk index` wrote
    """

    def __init__(self, name: str, folder: Path, *, device: str = "auto") -> None:
        from ridgeline.search import load_index

        self.name, self.folder = name, folder
        self.state = self.read_state()  # before the files are read: no change is missed
        self.index = load_index(folder, device=device)

    @property
    def dim(self) -> int | None:
        return self.index.dim

    @property
    def model(self) -> str | None:
        """The model of the vectors, as far as the index knows it."""
        return self.index.model

    async def count_rows(self) -> int:
        return len(self.index)

    async def search(
        self, queries: NDArray[np.float32], k: int, where: str | None, recall: float | None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return scores and ids [queries, k]; an id of -1 means that there is no further row."""
        k = min(k, max(1, len(self.index)))
        return await asyncio.to_thread(self._run_in_turn, self.index.search, queries, k, where=where, recall=recall)

    async def add(self, vectors: NDArray[np.float32], ids: NDArray[np.int64], meta: dict[str, list[Any]] | None) -> int:
        """Add rows; return the number of all rows."""
        await asyncio.to_thread(self._run_in_turn, self.index.add, vectors, ids=ids, meta=meta)
        return len(self.index)

    async def remove(self, ids: NDArray[np.int64]) -> int:
        """Remove rows; return how many there were."""
        return await asyncio.to_thread(self._run_in_turn, self.index.remove, ids)

    def _run_in_turn(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        with take_turn(str(getattr(self.index, "device", "cpu"))):
            return call(*arguments, **options)

    def read_state(self) -> FolderState:
        """Return the state of the folder now; another one than `state` means that it changed."""
        return read_folder_state(self.folder)


def _holds_reranker(folder: Path) -> bool:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        names = config.get("architectures") or []
        return any(str(name).endswith("ForSequenceClassification") for name in names)
    except (OSError, ValueError, AttributeError, TypeError):
        return False  # the embedder says what is wrong


def _read_file(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _load_library_tokenizer(content: bytes | None) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtra("/tokenize", "embed") from None
    if content is None:
        raise InputError("this model has no tokenizer.json, which /tokenize reads.")
    tokenizer = Tokenizer.from_buffer(content)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
