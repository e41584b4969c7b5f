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

from ridgeline.embed.batches import Batch, Window, find_runs, make_window
from ridgeline.embed.config import choose_prompt, read_config
from ridgeline.embed.devices import limit_threads, resolve_dtype, resolve_torch_device
from ridgeline.embed.inputs import (
    FIRST_WINDOW,
    MAX_RECORDED_TEXTS,
    check_texts,
    explain_unreadable,
    get_length,
    split_windows,
)
from ridgeline.embed.models import DEFAULT, find_model
from ridgeline.embed.tokenizer import load_tokenizer
from ridgeline.embed.tokens import Tokens, join_tokens
from ridgeline.errors import InputError, unknown
from ridgeline.machine import now_ns
from ridgeline.native import scatter_rows, touch_pages
from ridgeline.pipeline import Staging

if TYPE_CHECKING:
    from ridgeline.embed.batches import BatchRunner
    from ridgeline.embed.cuda_graphs import SmallBatchReplay
    from ridgeline.embed.encoder import Encoder


Vectors = NDArray[np.float32]
Progress = Callable[[int, int | None], None]

LARGE_RESULT = 16 << 20  # bytes of vectors
WINDOWS_AHEAD = 2  # tokenized while one is encoded


class TooLong(InputError):
    """A text has more tokens than the model takes."""


class Embedder:
    """A sentence encoder: texts → vectors.

    model         a folder, or the name of a model on this machine (see `models.py`)
    device        "auto", "cpu", "cuda", "cuda:N"
    dtype         "auto", "float32", "bfloat16", "float16"; auto is float16 on a GPU; on a CPU bfloat16 or float16 if it
                  multiplies them (AMX, AVX512-BF16; ARM), else float32. Vectors are always float32.
    max_tokens    truncate texts to this many tokens; None: the limit of the model
    normalize     scale vectors to length 1; False returns the result of the pooling (and dense modules)
    prompt        text before every input: the name of a prompt of the model, or the words themselves
    truncate_dim  keep the first components only (Matryoshka), before normalising

    Raises InputError if the model is not on this machine, cannot be run, or an option is out of range.
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
        model_files = find_model(model)
        config = read_config(model_files.folder)
        if max_tokens is not None and not 3 <= max_tokens <= config.positions - config.first_position:
            position_limit = config.positions - config.first_position
            raise InputError(f"max_tokens is {max_tokens}; '{model_files.name}' takes 3 to {position_limit}.")
        if truncate_dim is not None and truncate_dim < 1:
            raise InputError(f"truncate_dim is {truncate_dim}; give 1 or more.")
        self.name, self.folder, self.config = model_files.name, model_files.folder, config
        self.max_tokens = max_tokens or config.max_tokens
        self.prompt = choose_prompt(config, prompt)
        self._tokenizer = load_tokenizer(
            config.folder if (config.folder / "tokenizer.json").exists() else model_files.folder
        )
        size = self._tokenizer.vocabulary_size
        if size > config.vocabulary:
            raise InputError(
                f"'{model_files.folder}': the tokenizer knows {size} tokens, the weights {config.vocabulary}; "
                "they do not belong together."
            )
        self._device = resolve_torch_device(device)
        self._dtype = resolve_dtype(dtype, self._device)
        self._lock = threading.Lock()
        self._budget: int | None = None  # the reduced budget after memory ran out
        self._encoder: Encoder | None = _load_encoder(config, self._device, self._dtype, truncate_dim, normalize)
        self._staging = Staging()  # pinned once, for all calls
        # Nanoseconds of each stage of all calls, on a GPU also the copies (h2d, d2h). Stages of many texts overlap.
        self.stage_ns: Counter[str] = Counter()
        self._pool: ThreadPoolExecutor | None = None
        self._replays: SmallBatchReplay | None = None
        self.dim = self._encoder.dim
        if truncate_dim is not None and truncate_dim > self.dim:
            raise InputError(f"truncate_dim is {truncate_dim}, and '{model_files.name}' has {self.dim} dimensions.")

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
        """Return float32 [N, dim], in the order of the texts: a list, a generator, a pandas or pyarrow column.

        batch_tokens  tokens per batch; memory depends on it, not on the number of texts
        progress      called with (texts done, number of texts or None)
        to            "numpy", or "torch" for a tensor in host memory
        """
        if to not in ("numpy", "torch"):
            raise unknown("answer", to, ("numpy", "torch"))
        check_texts(texts)
        total = get_length(texts)
        if total is not None and total <= MAX_RECORDED_TEXTS and self._can_record:  # nothing to overlap
            return self.encode_tokens(self.tokenize(texts), batch_tokens=batch_tokens, progress=progress, to=to)
        vectors = self._encode_windows(self._make_windows(texts, total), total, batch_tokens, progress)
        return _convert_result(vectors, to)

    def encode_one(self, text: str) -> Vectors:
        """Encode one text into float32 [dim], with the least overhead."""
        if not isinstance(text, str):
            raise InputError(f"the text is {type(text).__name__}; give a string, or use encode for several.")
        tokens = self._tokenize([text], 0)
        return np.asarray(self._encode_directly(tokens)[0])

    def encode_iter(self, texts: Iterable[str], *, batch_tokens: int | str = "auto") -> Iterator[Vectors]:
        """Yield one float32 [dim] per text, in order; texts are read one window at a time, so they can be endless."""
        for block in self.encode_blocks(texts, batch_tokens=batch_tokens):
            yield from block

    def encode_blocks(self, texts: Iterable[str], *, batch_tokens: int | str = "auto") -> Iterator[Vectors]:
        """Yield float32 [n, dim] for some thousands of texts at a time, in order."""
        check_texts(texts)
        runner = self._make_runner(batch_tokens)
        unfinished: deque[tuple[int, Vectors]] = deque()  # (missing rows, block)

        def track_windows() -> Iterator[Window]:
            for window in self._make_windows(texts, get_length(texts)):
                unfinished.append((len(window.rows), np.empty((len(window.rows), self.dim), np.float32)))
                yield window

        begin = 0

        def put(batch: Batch, vectors: Vectors) -> None:
            # Batches of a window are consecutive, so only the oldest block can be completed.
            self._scatter(unfinished[0][1], batch.rows - begin, vectors)

        for batch in runner.run(track_windows(), put):
            missing, block = unfinished.popleft()
            if missing > len(batch):
                unfinished.appendleft((missing - len(batch), block))
            else:
                begin += len(block)
                yield block
        self._add_stage_times(runner)

    def tokenize(self, texts: Iterable[str], *, truncate: bool = True) -> Tokens:
        """Return token numbers as the tokenizer of the model gives them, with prompt and special tokens.

        truncate  cut a text to `max_tokens`, with a warning; False raises TooLong instead
        """
        check_texts(texts)
        parts = [self._tokenize(part, first, truncate) for first, part in split_windows(texts)]
        return join_tokens(parts)

    def encode_tokens(
        self, tokens: Tokens, *, batch_tokens: int | str = "auto", progress: Progress | None = None, to: str = "numpy"
    ) -> Any:
        """Return float32 [N, dim] from tokens of `tokenize`; options as in `encode`."""
        if to not in ("numpy", "torch"):
            raise unknown("answer", to, ("numpy", "torch"))
        self._check_tokens(tokens, 0)
        vectors = self._replay(tokens) if batch_tokens == "auto" else None
        if vectors is None:
            vectors = self._encode_windows(iter([make_window(tokens)]), len(tokens), batch_tokens, progress)
        elif progress is not None:
            progress(len(tokens), len(tokens))
        return _convert_result(vectors, to)

    def close(self) -> None:
        """Release the weights and the threads; safe to call twice."""
        self._encoder = self._replays = None
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

    def _encode_windows(
        self, parts: Iterator[Window], total: int | None, batch_tokens: int | str, progress: Progress | None
    ) -> Vectors:
        runner = self._make_runner(batch_tokens)
        result = np.empty((total or 0, self.dim), np.float32)
        pages = threading.Thread(target=touch_pages, args=(result,))
        if result.nbytes >= LARGE_RESULT:  # allocate its pages while the first texts are encoded
            pages.start()
        done = 0

        def put(batch: Batch, vectors: Vectors) -> None:
            nonlocal result
            row_count = int(batch.rows.max()) + 1
            if row_count > len(result):  # a generator: its length is known only at its end
                result = np.concatenate(
                    [result, np.empty((max(row_count, 2 * len(result)) - len(result), self.dim), np.float32)]
                )
            self._scatter(result, batch.rows, vectors)

        for batch in runner.run(parts, put):
            done += len(batch)
            if progress is not None:
                progress(done, total)
        self._add_stage_times(runner)
        if pages.ident is not None:
            pages.join()
        return result if done == len(result) else result[:done].copy()

    def _scatter(self, result: Vectors, rows: NDArray[np.int64], vectors: Vectors) -> None:
        """Copy vectors to their rows with several threads: one is slow beside a GPU, because the pages of the result
        are new.
        """
        start_ns = now_ns()
        scatter_rows(result, rows, vectors, len(os.sched_getaffinity(0)))
        self.stage_ns["placing vectors"] += now_ns() - start_ns

    def _make_windows(self, texts: Iterable[str], total: int | None) -> Iterator[Window]:
        """Yield windows of sorted tokens; the next ones are tokenized while one is encoded."""
        source = split_windows(texts)
        if total is not None and total <= FIRST_WINDOW:  # one window: nothing to overlap
            for first, part in source:
                yield self._make_window(part, first)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "ridgeline-tokenize")
        pending: deque[Future[Window]] = deque()
        for first, part in source:
            pending.append(self._pool.submit(self._make_window, part, first))
            if len(pending) > WINDOWS_AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _make_window(self, texts: list[str], first: int) -> Window:
        tokens = self._tokenize(texts, first)
        start_ns = now_ns()
        window = make_window(tokens, first)
        self.stage_ns["sorting by length"] += now_ns() - start_ns
        return window

    def _tokenize(self, texts: list[str], first: int, truncate: bool = True) -> Tokens:
        if self.prompt:
            texts = [self.prompt + text for text in texts]
        if self.config.lower:
            texts = [text.lower() for text in texts]
        start_ns = now_ns()
        try:
            with self._lock:
                tokens = self._tokenizer.encode(texts, self.max_tokens if truncate else self.max_tokens + 1)
        except Exception as error:  # its number counts from the start of the window, or is missing
            raise explain_unreadable(texts, first, error) from error
        self.stage_ns["tokenizing"] += now_ns() - start_ns
        if not truncate and len(tokens) and tokens.lengths.max() > self.max_tokens:
            row = first + int(tokens.lengths.argmax())
            raise TooLong(f"text {row} has more than the {self.max_tokens} tokens that '{self.name}' takes; shorten it.")
        self._check_tokens(tokens, first)
        truncated = np.flatnonzero(tokens.lengths >= self.max_tokens)
        if truncate and len(truncated):
            subject = (
                f"text {first + int(truncated[0])} reaches" if len(truncated) == 1 else f"{len(truncated)} texts reach"
            )
            warnings.warn(
                f"{subject} the limit of {self.max_tokens} tokens; what lies beyond is not in the vector.", stacklevel=3
            )
        return tokens

    def _check_tokens(self, tokens: Tokens, first: int) -> None:
        lengths = tokens.lengths
        if not len(lengths):
            return
        if lengths.min() < 1:
            raise InputError(f"text {first + int(lengths.argmin())} has no tokens; give one at least.")
        if lengths.max() > self.config.positions - self.config.first_position:
            row, position_limit = first + int(lengths.argmax()), self.config.positions - self.config.first_position
            raise InputError(f"text {row} has {lengths.max()} tokens; '{self.name}' takes at most {position_limit}.")
        low, high = int(tokens.ids.min()), int(tokens.ids.max())
        if low < 0 or high >= self.config.vocabulary:
            raise InputError(
                f"token {low if low < 0 else high} is not among the {self.config.vocabulary} of '{self.name}'; "
                "tokenizer and weights do not belong together."
            )

    def _encode_directly(self, tokens: Tokens) -> Vectors:
        """Encode without staging or threads, which would take longer than one text."""
        import torch

        from ridgeline.embed.layers import Packed

        result: Vectors | None = self._replay(tokens)
        if result is None:
            result = self._get_encoder().encode_arrays(tokens.ids, tokens.offsets)
        if result is not None:
            return result
        ids, offsets = (torch.from_numpy(a.copy()).to(self._device) for a in (tokens.ids, tokens.offsets))
        limited = self._device.type == "cpu" and self._dtype == torch.bfloat16
        with limit_threads(len(ids)) if limited else nullcontext():
            vectors: Vectors = self._get_encoder()(ids, Packed(offsets, find_runs(tokens.offsets))).cpu().numpy()
        return vectors

    @property
    def _can_record(self) -> bool:
        """Whether a small batch can be recorded as a CUDA graph."""
        return self._device.type == "cuda" and bool(self._get_encoder().layers.by_offsets)

    def _replay(self, tokens: Tokens) -> Vectors | None:
        """Encode with a recorded graph if the batch is small and memory suffices; else None."""
        if not self._can_record or self._budget is not None:
            return None
        import torch

        from ridgeline.embed.cuda_graphs import SmallBatchReplay, fits_recording

        if not fits_recording(tokens):
            return None
        if self._replays is None:
            self._replays = SmallBatchReplay(self._get_encoder(), self._device)
        start_ns = now_ns()
        try:
            return self._replays(tokens)
        except torch.OutOfMemoryError:
            return None
        finally:
            self.stage_ns["encoding"] += now_ns() - start_ns

    def _make_runner(self, batch_tokens: int | str) -> BatchRunner:
        from ridgeline.embed.batches import BatchRunner

        if batch_tokens == "auto":
            budget = self._budget or self._get_encoder().layers.budget
        elif isinstance(batch_tokens, int | np.integer) and not isinstance(batch_tokens, bool) and batch_tokens > 0:
            budget = int(batch_tokens)
        else:
            raise InputError(f"batch_tokens is {batch_tokens!r}; give a number above 0, or 'auto'.")
        return BatchRunner(self._get_encoder(), self._device, budget, self._staging)

    def _add_stage_times(self, runner: BatchRunner) -> None:
        for stage, seconds in runner.stage_seconds.items():
            if stage == "compute" or self._device.type != "cpu":  # a CPU has no copies
                self.stage_ns["encoding" if stage == "compute" else stage] += round(1e9 * seconds)
        if runner.budget_reduced:
            self._budget = min(runner.budget, self._budget or runner.budget)

    def _get_encoder(self) -> Encoder:
        if self._encoder is None:
            raise InputError("this embedder is closed; make a new one.")
        return self._encoder

    def __repr__(self) -> str:
        return f"Embedder({self.name!r}, device={self.device!r}, dtype={self.dtype!r}, dim={self.dim})"


def _load_encoder(config: Any, device: Any, dtype: Any, width: int | None, normalize: bool) -> Encoder:
    from ridgeline.embed.encoder import load_encoder

    return load_encoder(config, device, dtype, width=width, normalize=normalize)


def _convert_result(vectors: Vectors, to: str) -> Any:
    if to == "numpy":
        return vectors
    import torch

    return torch.from_numpy(vectors)
