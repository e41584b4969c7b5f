"""`Embedder`: texts → vectors.

with Embedder() as embedder:
    vectors = embedder.encode(["first text", "second text"])  # float32 [2, 384], unit length
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from ridgeline.embed.batches import Batch, Window, find_runs, make_window
from ridgeline.embed.config import STATIC, choose_prompt, read_config
from ridgeline.embed.devices import limit_threads, resolve_dtype, resolve_torch_device
from ridgeline.embed.heads import (
    HiddenStates,
    RowParts,
    SparseParts,
    SpladeHead,
    TokenParts,
    TokenVectorHead,
    TokenVectors,
    TokenWeightHead,
    find_heads,
    find_token_ids,
    read_linear_file,
)
from ridgeline.embed.inputs import (
    FIRST_WINDOW,
    are_few,
    check_texts,
    explain_unreadable,
    get_length,
    split_windows,
)
from ridgeline.embed.models import DEFAULT, find_model
from ridgeline.embed.tokenizer import load_tokenizer
from ridgeline.embed.tokens import Tokens, drop_token, join_tokens
from ridgeline.embed.weights import read_dense
from ridgeline.errors import InputError, unknown
from ridgeline.machine import now_ns
from ridgeline.native import scatter_rows, touch_pages
from ridgeline.pipeline import Staging

if TYPE_CHECKING:
    from ridgeline.embed.batches import BatchRunner, Compute
    from ridgeline.embed.cuda_graphs import SmallBatchReplay
    from ridgeline.embed.encoder import Encoder


Vectors = NDArray[np.float32]
Progress = Callable[[int, int | None], None]

_TASKS = ("query", "document")  # of a multi-vector encoder
LARGE_RESULT = 16 << 20  # bytes of vectors
WINDOWS_AHEAD = 2  # tokenized while one is encoded
# Special tokens without a weight in the sparse vectors of bge-m3.
_UNWEIGHTED_TOKENS = ("<s>", "</s>", "<pad>", "<unk>", "[CLS]", "[SEP]", "[PAD]", "[UNK]")


class TooLong(InputError):
    """A text has more tokens than the model takes."""


class TruncationWarning(UserWarning):
    """Texts reach the limit of tokens: `count` of them, the first one has the number `first`."""

    def __init__(self, count: int, first: int, limit: int) -> None:
        super().__init__(count, first, limit)
        self.count, self.first, self.limit = count, first, limit

    def __str__(self) -> str:
        subject = f"text {self.first} reaches" if self.count == 1 else f"{self.count:,} texts reach"
        return f"{subject} the limit of {self.limit} tokens; what lies beyond is not in the vector."


class Embedder:
    """A sentence encoder: texts → vectors.

    model         a folder, or the name of a model on this machine (see `models.py`)
    device        "auto", "cpu", "cuda", "cuda:N"
    dtype         "auto", "float32", "bfloat16", "float16", "int8"; auto is float16 on a GPU; on a CPU bfloat16 or
                  float16 if it multiplies them (AMX, AVX512-BF16; ARM), else float32; int8 computes products
                  in 8 bits, on CPUs with instructions for them. Vectors are always float32.
    max_tokens    truncate texts to this many tokens; None: the limit of the model
    normalize     scale vectors to length 1; False returns the result of the pooling (and dense modules)
    prompt        text before every input: the name of a prompt of the model, or the words themselves
    truncate_dim  keep the first components only (Matryoshka), before normalising; None: as many as the folder says, or
                  all of them, as always with normalize=False
    batch_invariant  promise that the result of a text is the same to the last bit in any batch, order, `batch_tokens`
                  and thread. On a CPU whose products oneDNN or native code computes this always holds; a GPU with
                  Triton chooses kernels that keep it; everywhere else the promise is refused

    A folder of a sparse or a multi-vector encoder has other outputs than "dense" (`outputs`): with such a model
    max_tokens and the prompt are those of a document unless the prompt is "query".

    A copy by pickle has no weights: it tokenizes and knows the limits of the model, as after `close`.

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
        batch_invariant: bool = False,
    ) -> None:
        model_files = find_model(model)
        heads = find_heads(model_files.folder)
        config = read_config(model_files.folder, encoder_only=not heads.dense)
        if max_tokens is not None and not 3 <= max_tokens <= config.positions - config.first_position:
            position_limit = config.positions - config.first_position
            raise InputError(f"max_tokens is {max_tokens}; '{model_files.name}' takes 3 to {position_limit}.")
        if truncate_dim is not None and truncate_dim < 1:
            raise InputError(f"truncate_dim is {truncate_dim}; give 1 or more.")
        if truncate_dim is not None:
            heads.check(["dense"])
        width = config.truncate_dim if truncate_dim is None and normalize else truncate_dim
        self.name, self.folder, self.config = model_files.name, model_files.folder, config
        self.batch_invariant, self._folder_heads, self._normalize = batch_invariant, heads, normalize
        self._task = "query" if prompt == "query" else "document"
        self.max_tokens = max_tokens or self._choose_max_tokens()
        if heads.multi is not None and (prompt in _TASKS or (prompt is None and config.default_prompt is None)):
            self.prompt = config.prompts.get(prompt or "document", "")  # a model may lack a prompt for its task
        else:
            self.prompt = choose_prompt(config, prompt)
        self._tokenizer = load_tokenizer(
            config.folder if (config.folder / "tokenizer.json").exists() else model_files.folder,
            special_tokens=config.model_type != STATIC,
            lower=config.lower,
        )
        size = self._tokenizer.vocabulary_size
        if size > config.vocabulary:
            raise InputError(
                f"'{model_files.folder}': the tokenizer knows {size} tokens, the weights {config.vocabulary}; "
                "they do not belong together."
            )
        self._device = resolve_torch_device(device)
        self._dtype = resolve_dtype(dtype, self._device, config)
        self._lock = threading.Lock()
        self._budget: int | None = None  # the reduced budget after memory ran out
        self._encoder: Encoder | None = _load_encoder(
            config, self._device, self._dtype, width, normalize, batch_invariant
        )
        if batch_invariant and not self._encoder.layers.batch_invariant:
            raise InputError(
                f"batch_invariant is not available for dtype '{self.dtype}' on {self.device} yet: the last bits of a "
                "vector depend on its batch there; leave it out, or use device='cpu'."
            )
        self._staging = Staging()  # pinned once, for all calls
        # Nanoseconds of each stage of all calls, on a GPU also the copies (h2d, d2h). Stages of many texts overlap.
        self.stage_ns: Counter[str] = Counter()
        self._pool: ThreadPoolExecutor | None = None
        self._replays: SmallBatchReplay | None = None
        self._heads: dict[str, Any] = {}
        self.dim: int = self._encoder.dim if heads.dense else self._get_head(heads.names[0]).width
        if truncate_dim is not None and truncate_dim > self.dim:
            raise InputError(f"truncate_dim is {truncate_dim}, and '{model_files.name}' has {self.dim} dimensions.")

    @property
    def device(self) -> str:
        return str(self._device)

    @property
    def dtype(self) -> str:
        return str(self._dtype).removeprefix("torch.")

    @property
    def special_tokens(self) -> frozenset[int]:
        """The numbers of the special tokens."""
        return frozenset(self._tokenizer.special.values())

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs that the model has: some of "dense", "sparse", "multi", and always "tokens"."""
        return self._folder_heads.names

    def encode(
        self,
        texts: str | Iterable[str],
        *,
        output: str | tuple[str, ...] = "dense",
        batch_tokens: int | str = "auto",
        progress: Progress | None = None,
        to: str = "numpy",
    ) -> Any:
        """Return float32 [N, dim], in the order of the texts: a list, a generator, a pandas or pyarrow column.

        texts         one str gives one vector [dim]
        output        "dense": float32 [N, dim];
                      "sparse": a scipy.sparse CSR array [N, vocabulary] (one text: [1, vocabulary]);
                      "multi" (one vector per token, as ColBERT) and "tokens" (last hidden states): an object with
                      `.vectors` float32 [tokens of all texts, d] and `.offsets` int64 [N + 1] (one text: [tokens, d]);
                      a tuple of these names: a dict with all of them, computed in one pass
        batch_tokens  tokens per batch; memory depends on it, not on the number of texts
        progress      called with (texts done, number of texts or None)
        to            "numpy", or "torch" for a tensor in host memory (dense only)
        """
        names = self._check_output(output, to)
        if isinstance(texts, str):
            return self._encode_single(texts, output, batch_tokens, progress, to)
        check_texts(texts)
        total = get_length(texts)
        if names != ("dense",):
            results = self._encode_outputs(names, self._make_windows(texts, total), total, batch_tokens, progress)
            return results[output] if isinstance(output, str) else results
        if self._encodes_few and are_few(texts):
            tokens = self.tokenize(texts)
            return self.encode_tokens(tokens, output=output, batch_tokens=batch_tokens, progress=progress, to=to)
        vectors = self._encode_windows(self._make_windows(texts, total), total, batch_tokens, progress)
        return _name_result(_convert_result(vectors, to), output)

    def encode_part(
        self,
        texts: Sequence[str],
        first: int,
        *,
        batch_tokens: int | str = "auto",
        progress: Progress | None = None,
    ) -> Vectors:
        """Encode some of many texts into float32 [N, dim]; messages count them from `first`."""
        self._folder_heads.check(["dense"])
        check_texts(texts)
        if self._encodes_few and are_few(texts):
            tokens = join_tokens(
                [self._tokenize(part, first + start) for start, part in split_windows(texts, before=first)]
            )
            vectors: Vectors = self.encode_tokens(tokens, batch_tokens=batch_tokens, progress=progress)
            return vectors
        windows = self._make_windows(texts, len(texts), first)
        return self._encode_windows(windows, len(texts), batch_tokens, progress)

    def encode_one(self, text: str) -> Vectors:
        """Encode one text into float32 [dim], with the least overhead."""
        self._folder_heads.check(["dense"])
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
        self._folder_heads.check(["dense"])
        check_texts(texts)
        runner = self._make_runner(batch_tokens)
        unfinished: deque[tuple[int, Vectors]] = deque()  # (missing rows, block)

        def track_windows() -> Iterator[Window]:
            for window in self._make_windows(texts, get_length(texts)):
                unfinished.append((len(window.rows), np.empty((len(window.rows), self.dim), np.float32)))
                yield window

        begin = 0

        def put(batch: Batch, arrays: Mapping[str, Any]) -> None:
            # Batches of a window are consecutive, so only the oldest block can be completed.
            self._scatter(unfinished[0][1], batch.rows - begin, arrays["dense"])

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
        self,
        tokens: Tokens,
        *,
        output: str | tuple[str, ...] = "dense",
        batch_tokens: int | str = "auto",
        progress: Progress | None = None,
        to: str = "numpy",
    ) -> Any:
        """Return float32 [N, dim] from tokens of `tokenize`; options as in `encode`."""
        names = self._check_output(output, to)
        self._check_tokens(tokens, 0)
        if names != ("dense",):
            windows = iter([make_window(tokens)])
            results = self._encode_outputs(names, windows, len(tokens), batch_tokens, progress)
            return results[output] if isinstance(output, str) else results
        vectors = self._encode_small(tokens) if batch_tokens == "auto" else None
        if vectors is None:
            vectors = self._encode_windows(iter([make_window(tokens)]), len(tokens), batch_tokens, progress)
        elif progress is not None:
            progress(len(tokens), len(tokens))
        return _name_result(_convert_result(vectors, to), output)

    def close(self) -> None:
        """Release the weights and the threads; safe to call twice."""
        if self._replays is not None:
            from ridgeline.kernels import recording

            with recording:
                self._replays = None
        self._encoder = None
        self._heads.clear()
        self._staging = Staging()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name not in ("_lock", "_staging")}
        # without objects of torch: a process that only tokenizes need not import it
        return {**state, "_device": self.device, "_dtype": self.dtype, "_encoder": None, "_replays": None} | {
            "_heads": {},
            "_pool": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock(), _staging=Staging())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_output(self, output: str | tuple[str, ...], to: str) -> tuple[str, ...]:
        """Return the names of the outputs; raise InputError for one that the model does not have."""
        names = (output,) if isinstance(output, str) else tuple(output)
        if not names:
            raise InputError("output is empty; give one name or more.")
        self._folder_heads.check(names)
        if to not in ("numpy", "torch"):
            raise unknown("answer", to, ("numpy", "torch"))
        if to == "torch" and names != ("dense",):
            raise InputError("to='torch' is for the output 'dense' alone; the others are NumPy and SciPy arrays.")
        return names

    def _encode_single(
        self,
        text: str,
        output: str | tuple[str, ...],
        batch_tokens: int | str,
        progress: Progress | None,
        to: str,
    ) -> Any:
        if output == "dense" and batch_tokens == "auto":
            vector = self.encode_one(text)
            if progress is not None:
                progress(1, 1)
            return _convert_result(vector, to)
        result = self.encode([text], output=output, batch_tokens=batch_tokens, progress=progress, to=to)
        return {n: _get_first(r) for n, r in result.items()} if isinstance(result, dict) else _get_first(result)

    def _encode_outputs(
        self,
        names: tuple[str, ...],
        windows: Iterator[Window],
        total: int | None,
        batch_tokens: int | str,
        progress: Progress | None,
    ) -> dict[str, Any]:
        """Compute several outputs in one pass."""
        heads = {name: self._get_head(name) for name in names if name != "dense"}
        encoder, prompt_tokens = self._get_encoder(), self._count_prompt_tokens()

        def compute(ids: Any, packed: Any) -> dict[str, Any]:
            import torch

            with torch.inference_mode():
                hidden = encoder.compute_hidden(ids, packed)
                outputs = {"dense": encoder.vectors(hidden, packed, prompt_tokens)} if "dense" in names else {}
                for head in heads.values():
                    outputs |= head(hidden, packed, ids)
            return outputs

        parts = {name: self._make_parts(name) for name in names}

        def put(batch: Batch, arrays: Mapping[str, Any]) -> None:
            for part in parts.values():
                part.add(batch, arrays)

        runner, done = self._make_runner(batch_tokens, compute), 0
        for batch in runner.run(windows, put):
            done += len(batch)
            if progress is not None:
                progress(done, total)
        self._add_stage_times(runner)
        return {name: part.join(done) for name, part in parts.items()}

    def _make_parts(self, name: str) -> RowParts | SparseParts | TokenParts:
        if name == "dense":
            return RowParts(name, self.dim)
        head = self._get_head(name)
        if name == "sparse":
            return SparseParts(head.width, getattr(head, "unused", None))
        return TokenParts(name, self.config.hidden if head.width is None else head.width)

    def _get_head(self, name: str) -> Any:
        """Return a head; it is loaded when it is first needed."""
        with self._lock:
            if name not in self._heads:
                self._heads[name] = self._load_head(name)
            return self._heads[name]

    def _load_head(self, name: str) -> Any:
        layers, heads = self._get_encoder().layers, self._folder_heads
        if name == "tokens":
            return HiddenStates()
        if name == "sparse":
            if heads.splade is not None:
                return SpladeHead(layers, self.config.folder, heads.splade)
            special = self._tokenizer.special
            unused = [special[token] for token in _UNWEIGHTED_TOKENS if token in special]
            return TokenWeightHead(layers, heads.linear_files["sparse"], self.config.vocabulary, unused)
        if heads.multi is None:
            weight, bias = read_linear_file(heads.linear_files["multi"])
            steps = [(weight, bias, "Identity", False)]
            return TokenVectorHead(layers, steps, normalize=self._normalize, skips_first=True)
        steps = []
        for layer in heads.multi.layers:
            weight, bias = read_dense(layer.folder)
            bias = weight.new_zeros(len(weight)) if bias is None else bias
            steps.append((weight, bias, layer.activation, layer.normalized))
        skips = self._task in heads.multi.skipped_tasks
        skipped = find_token_ids(self.config.folder, heads.multi.skipped_words) if skips else []
        return TokenVectorHead(layers, steps, normalize=heads.multi.normalize and self._normalize, skipped=skipped)

    def _choose_max_tokens(self) -> int:
        """The limit of the model, for a multi-vector encoder that of a query or a document."""
        multi, limit = self._folder_heads.multi, self.config.max_tokens
        if multi is None:
            return limit
        if self._task == "query" and multi.expands_queries:
            raise InputError(
                f"'{self.folder}' extends queries by mask tokens, which is not known here; encode documents with it."
            )
        length = multi.query_length if self._task == "query" else multi.document_length
        return min(limit, length or limit)

    def _encode_windows(
        self, parts: Iterator[Window], total: int | None, batch_tokens: int | str, progress: Progress | None
    ) -> Vectors:
        runner = self._make_runner(batch_tokens)
        result = np.empty((total or 0, self.dim), np.float32)
        pages = threading.Thread(target=touch_pages, args=(result,))
        if result.nbytes >= LARGE_RESULT:  # allocate its pages while the first texts are encoded
            pages.start()
        done = 0

        def put(batch: Batch, arrays: Mapping[str, Any]) -> None:
            nonlocal result
            row_count = int(batch.rows.max()) + 1
            if row_count > len(result):  # a generator: its length is known only at its end
                result = np.concatenate(
                    [result, np.empty((max(row_count, 2 * len(result)) - len(result), self.dim), np.float32)]
                )
            self._scatter(result, batch.rows, arrays["dense"])

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

    def _make_windows(self, texts: Iterable[str], total: int | None, before: int = 0) -> Iterator[Window]:
        """Yield windows of sorted tokens; the next ones are tokenized while one is encoded.

        before  texts of earlier parts, which messages count as well
        """
        source = split_windows(texts, before=before)
        if total is not None and total <= FIRST_WINDOW:  # one window: nothing to overlap
            for first, part in source:
                yield self._make_window(part, first, before)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "ridgeline-tokenize")
        pending: deque[Future[Window]] = deque()
        for first, part in source:
            pending.append(self._pool.submit(self._make_window, part, first, before))
            if len(pending) > WINDOWS_AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _make_window(self, texts: list[str], first: int, before: int) -> Window:
        tokens = self._tokenize(texts, before + first)
        start_ns = now_ns()
        window = make_window(tokens, first)
        self.stage_ns["sorting by length"] += now_ns() - start_ns
        return window

    def _tokenize(self, texts: list[str], first: int, truncate: bool = True) -> Tokens:
        if self.prompt:
            texts = [self.prompt + text for text in texts]
        if self.config.max_characters is not None:
            texts = [text[: self.config.max_characters] for text in texts]
        start_ns = now_ns()
        try:
            with self._lock:
                tokens = self._tokenizer.encode(texts, self.max_tokens if truncate else self.max_tokens + 1)
        except Exception as error:  # its number counts from the start of the window, or is missing
            raise explain_unreadable(texts, first, error) from error
        self.stage_ns["tokenizing"] += now_ns() - start_ns
        lengths = tokens.lengths
        if not truncate and lengths.max(initial=0) > self.max_tokens:
            row = first + int(lengths.argmax())
            raise TooLong(
                f"text {row} has more than the {self.max_tokens} tokens that '{self.name}' takes; shorten it."
            )
        self._check_tokens(tokens, first)
        if truncate and lengths.max(initial=0) >= self.max_tokens:
            truncated = np.flatnonzero(lengths >= self.max_tokens)
            warnings.warn(TruncationWarning(len(truncated), first + int(truncated[0]), self.max_tokens), stacklevel=3)
        return tokens if self.config.dropped_token is None else drop_token(tokens, self.config.dropped_token)

    def _check_tokens(self, tokens: Tokens, first: int) -> None:
        lengths = tokens.lengths
        if not len(lengths):
            return
        if lengths.min() < 1 and self.config.model_type != STATIC:  # a table answers with zeros
            raise InputError(f"text {first + int(lengths.argmin())} has no tokens; give one at least.")
        if lengths.max() > self.config.positions - self.config.first_position:
            row, position_limit = first + int(lengths.argmax()), self.config.positions - self.config.first_position
            raise InputError(f"text {row} has {lengths.max()} tokens; '{self.name}' takes at most {position_limit}.")
        low, high = int(tokens.ids.min(initial=0)), int(tokens.ids.max(initial=0))
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
        prompt_tokens = self._count_prompt_tokens()
        if result is None and not prompt_tokens:
            result = self._get_encoder().encode_arrays(tokens.ids, tokens.offsets)
        if result is not None:
            return result
        ids, offsets = (torch.from_numpy(a.copy()).to(self._device) for a in (tokens.ids, tokens.offsets))
        limited = self._device.type == "cpu" and self._dtype == torch.bfloat16
        with limit_threads(len(ids)) if limited else nullcontext():
            packed = Packed(offsets, find_runs(tokens.offsets))
            vectors: Vectors = self._get_encoder()(ids, packed, prompt_tokens).cpu().numpy()
        return vectors

    def _encode_small(self, tokens: Tokens) -> Vectors | None:
        """Encode tokens that are one small batch, without the stages of many batches, which take a millisecond.

        None if they are more than that, or if memory runs out.
        """
        if self._device.type != "cpu":
            return self._replay(tokens)
        if not len(tokens) or self._budget is not None or len(tokens.ids) > self._get_encoder().layers.budget:
            return None
        from ridgeline.embed.batches import is_out_of_memory, make_window

        start_ns = now_ns()
        window = make_window(tokens)  # texts of equal length are neighbours, which attention needs
        vectors = np.empty((len(tokens), self.dim), np.float32)
        try:
            vectors[window.rows] = self._encode_directly(window.tokens)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return None
        self.stage_ns["encoding"] += now_ns() - start_ns
        return vectors

    @property
    def _encodes_few(self) -> bool:
        """Whether few texts are encoded in another way than many."""
        return self._can_record or self._device.type == "cpu"

    def _count_prompt_tokens(self) -> int:
        """The first tokens of every text that the pooling leaves out: those of the prompt, with the special ones
        before it, if the folder says so (`include_prompt`), as sentence-transformers counts them.
        """
        if self.config.pools_prompt or not self.prompt:
            return 0
        with self._lock:
            ids = self._tokenizer.encode([self.prompt], self.max_tokens).ids
        return len(ids) - (len(ids) > 0 and int(ids[-1]) in self.special_tokens)

    @property
    def _can_record(self) -> bool:
        """Whether a small batch can be recorded as a CUDA graph."""
        encoder = self._get_encoder()
        pools_all = self.config.pools_prompt or not self.prompt
        return self._device.type == "cuda" and bool(encoder.layers.by_offsets) and pools_all

    def _replay(self, tokens: Tokens) -> Vectors | None:
        """Encode with a recorded graph if the batch is small and memory suffices; else None."""
        if not self._can_record or self._budget is not None:
            return None
        import torch

        from ridgeline.embed.cuda_graphs import SmallBatchReplay, split_for_recordings

        parts = split_for_recordings(tokens)
        if parts is None:
            return None
        if self._replays is None:
            self._replays = SmallBatchReplay(self._get_encoder(), self._device)
        start_ns = now_ns()
        try:
            vectors = [self._replays(part) for part in parts]
            return vectors[0] if len(vectors) == 1 else np.concatenate(vectors)
        except torch.OutOfMemoryError:
            return None
        finally:
            self.stage_ns["encoding"] += now_ns() - start_ns

    def _make_runner(self, batch_tokens: int | str, compute: Compute | None = None) -> BatchRunner:
        from ridgeline.embed.batches import BatchRunner

        if batch_tokens == "auto":
            budget = self._budget or self._get_encoder().layers.budget
        elif isinstance(batch_tokens, int | np.integer) and not isinstance(batch_tokens, bool) and batch_tokens > 0:
            budget = int(batch_tokens)
        else:
            raise InputError(f"batch_tokens is {batch_tokens!r}; give a number above 0, or 'auto'.")
        encoder, prompt_tokens = self._get_encoder(), self._count_prompt_tokens()
        return BatchRunner(
            compute or (lambda ids, packed: {"dense": encoder(ids, packed, prompt_tokens)}),
            self._device,
            budget,
            self._staging,
        )

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


def _load_encoder(
    config: Any, device: Any, dtype: Any, width: int | None, normalize: bool, batch_invariant: bool
) -> Encoder:
    from ridgeline.embed.encoder import load_encoder

    return load_encoder(config, device, dtype, width=width, normalize=normalize, batch_invariant=batch_invariant)


def _name_result(result: Any, output: str | tuple[str, ...]) -> Any:
    return result if isinstance(output, str) else {output[0]: result}


def _get_first(result: Any) -> Any:
    """The result of the only text: a row, or its token vectors; a sparse array stays as it is."""
    if isinstance(result, TokenVectors):
        return result.vectors
    return result[0] if isinstance(result, np.ndarray) else result


def _convert_result(vectors: Vectors, to: str) -> Any:
    if to == "numpy":
        return vectors
    import torch

    return torch.from_numpy(vectors)
