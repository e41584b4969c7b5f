"""`Embedder`: texts → vectors.

with Embedder() as embedder:
    vectors = embedder.encode(["first text", "second text"])  # float32 [2, 384], unit length
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from ridgeline.embed.batches import Batch, Window, runs_of, window_of
from ridgeline.embed.config import prompt_of, read_config
from ridgeline.embed.inputs import FEW, FIRST, length_of, refuse_one, unreadable, windows
from ridgeline.embed.models import DEFAULT, find_model
from ridgeline.embed.place import device_of, dtype_of
from ridgeline.embed.threads import few_threads
from ridgeline.embed.tokenizer import load_tokenizer
from ridgeline.embed.tokens import Tokens, joined
from ridgeline.errors import InputError, unknown
from ridgeline.machine.clock import now_ns
from ridgeline.native import scatter_rows, touch_pages
from ridgeline.pipeline import Staging

if TYPE_CHECKING:
    from ridgeline.embed.encoder import Encoder
    from ridgeline.embed.few import FewTexts
    from ridgeline.embed.flow import Flow

Vectors = NDArray[np.float32]
Progress = Callable[[int, int | None], None]

LARGE = 16 << 20  # bytes of vectors
AHEAD = 2  # windows tokenized while one is being encoded


class Embedder:
    """A sentence encoder, loaded and ready.

    model         a folder, or a name that is found on this machine (see `models.py`)
    device        "auto", "cpu", "cuda", "cuda:N"
    dtype         "auto", "float32", "bfloat16", "float16"; auto is float16 on a GPU, on CPUs bfloat16 or float16
                  where they multiply it (AMX, AVX512-BF16; ARM), else float32. Vectors are float32 in any case.
    max_tokens    cut texts here; the model's own limit if None
    normalize     unit length; False leaves the vectors as the pooling (and dense modules) gave them
    prompt        put before every text: a name from the model's prompts, or the words themselves
    truncate_dim  keep the first so many components (Matryoshka), before normalising
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = DEFAULT,
        *,
        device: str = "auto",
        dtype: str = "auto",
        max_tokens: int | None = None,
        normalize: bool = True,
        prompt: str | None = None,
        truncate_dim: int | None = None,
    ) -> None:
        found = find_model(model)
        config = read_config(found.folder)
        if max_tokens is not None and not 3 <= max_tokens <= config.positions - config.first_position:
            most = config.positions - config.first_position
            raise InputError(f"max_tokens is {max_tokens}; '{found.name}' takes 3 to {most}.")
        if truncate_dim is not None and truncate_dim < 1:
            raise InputError(f"truncate_dim is {truncate_dim}; give 1 or more.")
        self.name, self.folder, self.config = found.name, found.folder, config
        self.max_tokens = max_tokens or config.max_tokens
        self.prompt = prompt_of(config, prompt)
        self._tokenizer = load_tokenizer(config.folder if (config.folder / "tokenizer.json").exists() else found.folder)
        size = self._tokenizer.vocabulary_size
        if size > config.vocabulary:
            raise InputError(
                f"'{found.folder}': the tokenizer knows {size} tokens, the weights {config.vocabulary}; "
                "they do not belong together."
            )
        self._device = device_of(device)
        self._dtype = dtype_of(dtype, self._device)
        self._lock = threading.Lock()
        self._budget: int | None = None  # what was left of it when memory ran out
        self._encoder: Encoder | None = _load(config, self._device, self._dtype, truncate_dim, normalize)
        self._staging = Staging()  # pinned once, not for every call
        # Nanoseconds of each stage of all calls so far, on a GPU the copies too (h2d, d2h). Of many texts they overlap.
        self.took: Counter[str] = Counter()
        self._pool: ThreadPoolExecutor | None = None
        self._few: FewTexts | None = None
        self.dim = self._encoder.dim
        if truncate_dim is not None and truncate_dim > self.dim:
            raise InputError(f"truncate_dim is {truncate_dim}, and '{found.name}' has {self.dim} dimensions.")

    @property
    def device(self) -> str:
        return str(self._device)

    @property
    def dtype(self) -> str:
        return str(self._dtype).removeprefix("torch.")

    def encode(
        self,
        texts: Iterable[str],
        *,
        batch_tokens: int | str = "auto",
        progress: Progress | None = None,
        to: str = "numpy",
    ) -> Any:
        """float32 [N, dim], in the order of the texts: a list, a generator, a pandas or pyarrow column.

        batch_tokens  tokens the device computes at a time; memory follows it, not the number of texts
        progress      called with (texts done, texts in all or None)
        to            "numpy", or "torch" for a tensor in host memory
        """
        if to not in ("numpy", "torch"):
            raise unknown("answer", to, ("numpy", "torch"))
        refuse_one(texts)
        total = length_of(texts)
        if total is not None and total <= FEW and self._records:  # nothing to overlap
            return self.encode_tokens(self.tokenize(texts), batch_tokens=batch_tokens, progress=progress, to=to)
        found = self._assembled(self._windows(texts, total), total, batch_tokens, progress)
        return _handed(found, to)

    def encode_one(self, text: str) -> Vectors:
        """One text → float32 [dim], by the shortest way."""
        if not isinstance(text, str):
            raise InputError(f"the text is {type(text).__name__}; give a string, or use encode for several.")
        tokens = self._tokens([text], 0)
        return np.asarray(self._direct(tokens)[0])

    def encode_iter(self, texts: Iterable[str], *, batch_tokens: int | str = "auto") -> Iterator[Vectors]:
        """One float32 [dim] per text, in order; texts are pulled and forgotten, so they may be without end."""
        for block in self.encode_blocks(texts, batch_tokens=batch_tokens):
            yield from block

    def encode_blocks(self, texts: Iterable[str], *, batch_tokens: int | str = "auto") -> Iterator[Vectors]:
        """float32 [n, dim] for some thousands of texts at a time, in order."""
        refuse_one(texts)
        flow = self._flow(batch_tokens)
        waiting: deque[tuple[int, Vectors]] = deque()  # blocks begun: rows still missing, rows

        def noted() -> Iterator[Window]:
            for window in self._windows(texts, length_of(texts)):
                waiting.append((len(window.rows), np.empty((len(window.rows), self.dim), np.float32)))
                yield window

        begin = 0

        def put(batch: Batch, vectors: Vectors) -> None:
            # A window's batches come one after the other, so only the oldest block can be completed.
            self._scatter(waiting[0][1], batch.rows - begin, vectors)

        for batch in flow.run(noted(), put):
            missing, block = waiting.popleft()
            if missing > len(batch):
                waiting.appendleft((missing - len(batch), block))
            else:
                begin += len(block)
                yield block
        self._remember(flow)

    def tokenize(self, texts: Iterable[str]) -> Tokens:
        """Token numbers as the model's tokenizer gives them, prompt and special tokens included."""
        refuse_one(texts)
        parts = [self._tokens(part, first) for first, part in windows(texts)]
        return joined(parts)

    def encode_tokens(
        self, tokens: Tokens, *, batch_tokens: int | str = "auto", progress: Progress | None = None, to: str = "numpy"
    ) -> Any:
        """float32 [N, dim] from tokens that are there already."""
        if to not in ("numpy", "torch"):
            raise unknown("answer", to, ("numpy", "torch"))
        self._check(tokens, 0)
        found = self._played(tokens) if batch_tokens == "auto" else None
        if found is None:
            found = self._assembled(iter([window_of(tokens)]), len(tokens), batch_tokens, progress)
        elif progress is not None:
            progress(len(tokens), len(tokens))
        return _handed(found, to)

    def close(self) -> None:
        """Let go of the weights and the threads; safe to call twice."""
        self._encoder = self._few = None
        self._staging = Staging()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _assembled(
        self, parts: Iterator[Window], total: int | None, batch_tokens: int | str, progress: Progress | None
    ) -> Vectors:
        flow = self._flow(batch_tokens)
        room = np.empty((total or 0, self.dim), np.float32)
        pages = threading.Thread(target=touch_pages, args=(room,))
        if room.nbytes >= LARGE:  # its pages come while the first texts are on their way, not when a result waits
            pages.start()
        done = 0

        def put(batch: Batch, vectors: Vectors) -> None:
            nonlocal room
            top = int(batch.rows.max()) + 1
            if top > len(room):  # a generator: how many there are is known only at its end
                room = np.concatenate([room, np.empty((max(top, 2 * len(room)) - len(room), self.dim), np.float32)])
            self._scatter(room, batch.rows, vectors)

        for batch in flow.run(parts, put):
            done += len(batch)
            if progress is not None:
                progress(done, total)
        self._remember(flow)
        if pages.ident is not None:
            pages.join()
        return room if done == len(room) else room[:done].copy()

    def _scatter(self, room: Vectors, rows: NDArray[np.int64], vectors: Vectors) -> None:
        """By several threads: one alone is slow beside a GPU, since the room's pages are fresh."""
        began = now_ns()
        scatter_rows(room, rows, vectors, len(os.sched_getaffinity(0)))
        self.took["placing vectors"] += now_ns() - began

    def _windows(self, texts: Iterable[str], total: int | None) -> Iterator[Window]:
        """Windows of sorted tokens; the next ones are tokenized while one is being encoded."""
        source = windows(texts)
        if total is not None and total <= FIRST:  # one window: nothing to overlap
            for first, part in source:
                yield self._window(part, first)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "ridgeline-tokenize")
        pending: deque[Future[Window]] = deque()
        for first, part in source:
            pending.append(self._pool.submit(self._window, part, first))
            if len(pending) > AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _window(self, texts: list[str], first: int) -> Window:
        tokens = self._tokens(texts, first)
        began = now_ns()
        window = window_of(tokens, first)
        self.took["sorting by length"] += now_ns() - began
        return window

    def _tokens(self, texts: list[str], first: int) -> Tokens:
        if self.prompt:
            texts = [self.prompt + text for text in texts]
        if self.config.lower:
            texts = [text.lower() for text in texts]
        began = now_ns()
        try:
            with self._lock:
                tokens = self._tokenizer.encode(texts, self.max_tokens)
        except Exception as error:  # it counts from the start of the window, and some say nothing of where
            raise unreadable(texts, first, error) from error
        self.took["tokenizing"] += now_ns() - began
        self._check(tokens, first)
        long = np.flatnonzero(tokens.lengths >= self.max_tokens)
        if len(long):
            which = f"text {first + int(long[0])} reaches" if len(long) == 1 else f"{len(long)} texts reach"
            warnings.warn(
                f"{which} the limit of {self.max_tokens} tokens; what lies beyond is not in the vector.", stacklevel=3
            )
        return tokens

    def _check(self, tokens: Tokens, first: int) -> None:
        lengths = tokens.lengths
        if not len(lengths):
            return
        if lengths.min() < 1:
            raise InputError(f"text {first + int(lengths.argmin())} has no tokens; give one at least.")
        if lengths.max() > self.config.positions - self.config.first_position:
            row, most = first + int(lengths.argmax()), self.config.positions - self.config.first_position
            raise InputError(f"text {row} has {lengths.max()} tokens; '{self.name}' takes at most {most}.")
        low, high = int(tokens.ids.min()), int(tokens.ids.max())
        if low < 0 or high >= self.config.vocabulary:
            raise InputError(
                f"token {low if low < 0 else high} is not among the {self.config.vocabulary} of '{self.name}'; "
                "tokenizer and weights do not belong together."
            )

    def _direct(self, tokens: Tokens) -> Vectors:
        """Without staging or threads: for one text the way there would be longer than the work."""
        import torch

        from ridgeline.embed.layers import Packed

        found: Vectors | None = self._played(tokens)
        if found is None:
            found = self._open().direct(tokens.ids, tokens.offsets)
        if found is not None:
            return found
        ids, offsets = (torch.from_numpy(a.copy()).to(self._device) for a in (tokens.ids, tokens.offsets))
        quick = self._device.type == "cpu" and self._dtype == torch.bfloat16
        with few_threads(len(ids)) if quick else nullcontext():
            vectors: Vectors = self._open()(ids, Packed(offsets, runs_of(tokens.offsets))).cpu().numpy()
        return vectors

    @property
    def _records(self) -> bool:
        """Whether the launches of a few texts can be recorded."""
        return self._device.type == "cuda" and bool(self._open().layers.by_offsets)

    def _played(self, tokens: Tokens) -> Vectors | None:
        """By a recording, if the texts are few, and there is memory for one."""
        if not self._records or self._budget is not None:
            return None
        import torch

        from ridgeline.embed.few import FewTexts, are_few

        if not are_few(tokens):
            return None
        if self._few is None:
            self._few = FewTexts(self._open(), self._device)
        began = now_ns()
        try:
            return self._few(tokens)
        except torch.OutOfMemoryError:
            return None
        finally:
            self.took["encoding"] += now_ns() - began

    def _flow(self, batch_tokens: int | str) -> Flow:
        from ridgeline.embed.flow import Flow

        if batch_tokens == "auto":
            budget = self._budget or self._open().layers.budget
        elif isinstance(batch_tokens, int | np.integer) and not isinstance(batch_tokens, bool) and batch_tokens > 0:
            budget = int(batch_tokens)
        else:
            raise InputError(f"batch_tokens is {batch_tokens!r}; give a number above 0, or 'auto'.")
        return Flow(self._open(), self._device, budget, self._staging)

    def _remember(self, flow: Flow) -> None:
        for stage, seconds in flow.busy.items():
            if stage == "compute" or self._device.type != "cpu":  # without a device nothing is copied there and back
                self.took["encoding" if stage == "compute" else stage] += round(1e9 * seconds)
        if flow.shrank:
            self._budget = min(flow.budget, self._budget or flow.budget)

    def _open(self) -> Encoder:
        if self._encoder is None:
            raise InputError("this embedder is closed; make a new one.")
        return self._encoder

    def __repr__(self) -> str:
        return f"Embedder({self.name!r}, device={self.device!r}, dtype={self.dtype!r}, dim={self.dim})"


def _load(config: Any, device: Any, dtype: Any, width: int | None, normalize: bool) -> Encoder:
    from ridgeline.embed.encoder import load_encoder

    return load_encoder(config, device, dtype, width=width, normalize=normalize)


def _handed(vectors: Vectors, to: str) -> Any:
    if to == "numpy":
        return vectors
    import torch

    return torch.from_numpy(vectors)
