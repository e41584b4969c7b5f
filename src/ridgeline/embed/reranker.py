"""Scores of pairs of texts by a cross-encoder.

from ridgeline.embed import Reranker

with Reranker("path/to/ms-marco-MiniLM-L6-v2") as reranker:
    scores = reranker.score("a query", documents)  # float32 [N]
    best = reranker.rank("a query", documents, top_k=10)  # [{"corpus_id": 3, "score": 0.98}, …]
"""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.embed.batches import BatchRunner, Window, make_window
from ridgeline.embed.config import read_config
from ridgeline.embed.devices import resolve_dtype, resolve_torch_device
from ridgeline.embed.embedder import TooLong
from ridgeline.embed.folder_files import list_modules, read_json_object
from ridgeline.embed.heads import Classifier, RowParts
from ridgeline.embed.models import find_model
from ridgeline.embed.pairs import PairTokenizer
from ridgeline.embed.tokens import Tokens
from ridgeline.errors import InputError, unknown
from ridgeline.pipeline import Staging

if TYPE_CHECKING:
    from ridgeline.embed.encoder import Encoder

Scores = NDArray[np.float32]
ACTIVATIONS = ("identity", "sigmoid", "softmax", "tanh")
WINDOW_PAIRS = 8_192  # tokenized while the ones before are computed
# Tokenizers that give token types; the default of these families if the folder names no tokenizer.
_TYPED_TOKENIZERS = ("Bert", "Electra", "DebertaV2", "Deberta")
_TYPED_MODELS = ("bert", "nomic_bert", "deberta-v2")
_CLASSES = {"Identity": "identity", "Sigmoid": "sigmoid", "Tanh": "tanh"}  # of torch.nn, in configurations


class Reranker:
    """A cross-encoder: reads query and document together and gives the pair a score.

    model       the folder of a cross-encoder (…ForSequenceClassification), or the name of one on this machine
    device      "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1"
    dtype       "auto", "float32", "bfloat16", "float16" (as `Embedder`)
    max_tokens  tokens per pair (default: the model's limit); the longer side of a pair is cut, with a warning
    activation  what is applied to the outputs: "sigmoid", "identity", "tanh", "softmax" (default: that of the model,
                else "sigmoid" for one output and "identity" for several)
    batch_invariant  as in `Embedder`

    A copy by pickle has no weights, as that of `Embedder`.

    Raises InputError if the model is not on this machine, is no cross-encoder, or an option is out of range.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        device: str = "auto",
        dtype: str = "auto",
        max_tokens: int | None = None,
        activation: str | None = None,
        batch_invariant: bool = False,
    ) -> None:
        from ridgeline.embed.encoder import load_encoder

        model_files = find_model(model)
        self.name, self.folder = model_files.name, model_files.folder
        self.config = config = read_config(self.folder, encoder_only=True)
        _refuse_unknown_parts(self.folder)
        max_tokens = config.max_tokens if max_tokens is None else self._check_limit(max_tokens)
        self._device = resolve_torch_device(device)
        self._dtype = resolve_dtype(dtype, self._device, config)
        encoder = load_encoder(
            config,
            self._device,
            self._dtype,
            width=None,
            normalize=False,
            for_pairs=True,
            batch_invariant=batch_invariant,
        )
        if batch_invariant and not encoder.layers.batch_invariant:
            raise InputError(
                f"batch_invariant is not available for dtype '{self.dtype}' on {self.device} yet: the last bits of a "
                "score depend on its batch there; leave it out, or use device='cpu'."
            )
        self._classifier = Classifier(encoder.layers, config.folder)
        self._encoder: Encoder | None = encoder
        self.labels = self._classifier.labels  # outputs per pair
        self.activation = _choose_activation(activation, self.folder, config.folder, self.labels)
        second_ids = (
            config.vocabulary if encoder.has_pair_types and _uses_types(config.folder, config.model_type) else 0
        )
        tokenizer_folder = config.folder if (config.folder / "tokenizer.json").exists() else self.folder
        self._max_tokens = max_tokens
        self._tokenizer = PairTokenizer(tokenizer_folder, max_tokens, second_ids, lower=config.lower)
        self._long_tokenizer: PairTokenizer | None = None
        if self._tokenizer.vocabulary_size > config.vocabulary:
            raise InputError(
                f"'{self.folder}': the tokenizer knows {self._tokenizer.vocabulary_size} tokens, the weights "
                f"{config.vocabulary}; they do not belong together."
            )
        self._staging = Staging()
        self._budget: int | None = None
        self._pool: ThreadPoolExecutor | None = None

    @property
    def max_tokens(self) -> int:
        """Tokens per pair."""
        return self._max_tokens

    @max_tokens.setter
    def max_tokens(self, value: int) -> None:
        self._max_tokens = self._check_limit(value)
        self._tokenizer, self._long_tokenizer = self._tokenizer.copy(value), None

    def _check_limit(self, value: int) -> int:
        limit = self.config.positions - self.config.first_position
        if not 5 <= value <= limit:
            raise InputError(f"max_tokens is {value}; '{self.name}' takes 5 to {limit}.")
        return value

    @property
    def device(self) -> str:
        return str(self._device)

    @property
    def dtype(self) -> str:
        return str(self._dtype).removeprefix("torch.")

    def score(
        self, query: str, documents: Iterable[str], *, batch_tokens: int | str = "auto", raw: bool = False
    ) -> Scores:
        """Return the score of each document, float32 [N]; [N, labels] if the model has several outputs.

        batch_tokens  tokens per batch; memory depends on it, not on the number of documents
        raw           return the outputs of the model without the activation
        """
        _check_text(query, "the query")
        if isinstance(documents, str | bytes) or not isinstance(documents, Iterable):
            raise InputError(f"documents is one {type(documents).__name__}; give a list of str.")
        seconds = list(documents)
        return self._score([query] * len(seconds), seconds, batch_tokens, raw)

    def score_pairs(
        self, pairs: Iterable[Sequence[str]], *, batch_tokens: int | str = "auto", raw: bool = False
    ) -> Scores:
        """Return the score of each (query, document), float32 [N]; options as in `score`."""
        firsts, seconds = [], []
        for i, pair in enumerate(pairs):
            if isinstance(pair, str | bytes) or len(pair) != 2:
                raise InputError(f"pair {i} is {str(pair)[:40]!r}; give two texts, query and document.")
            firsts.append(pair[0])
            seconds.append(pair[1])
        return self._score(firsts, seconds, batch_tokens, raw)

    def rank(self, query: str, documents: Iterable[str], top_k: int | None = None) -> list[dict[str, Any]]:
        """Return {"corpus_id": its number, "score": its score} for the best `top_k` documents (default: all).

        Of documents with equal scores the first comes first.
        """
        if self.labels != 1:
            raise InputError(f"'{self.name}' has {self.labels} outputs, so it does not rank; use score.")
        if top_k is not None and top_k < 0:
            raise InputError(f"top_k is {top_k}; give 0 or more.")
        scores = self.score(query, documents)
        order = np.argsort(-scores, kind="stable")[:top_k]
        return [{"corpus_id": int(i), "score": float(scores[i])} for i in order]

    def tokenize(self, query: str, documents: Sequence[str], *, truncate: bool = True) -> Tokens:
        """Return the tokens of each pair of the query and a document.

        truncate  cut a pair to `max_tokens`, with a warning; False raises TooLong instead
        """
        _check_text(query, "the query")
        for i, text in enumerate(documents):
            _check_text(text, f"text {i}")
        queries, texts = [query] * len(documents), list(documents)
        if truncate:
            return self._tokenize(queries, texts, 0)
        if self._long_tokenizer is None:  # it lets one more token pass, which shows that the pair is too long
            self._long_tokenizer = self._tokenizer.copy(self.max_tokens + 1)
        tokens = self._encode(self._long_tokenizer, queries, texts, 0)
        if len(tokens) and tokens.lengths.max() > self.max_tokens:
            row = int(tokens.lengths.argmax())
            raise TooLong(
                f"the query and document {row} have more than the {self.max_tokens} tokens that '{self.name}' takes; "
                "shorten them."
            )
        return tokens

    def score_tokens(self, tokens: Tokens, *, batch_tokens: int | str = "auto", raw: bool = False) -> Scores:
        """Return the score of each pair of `tokenize`; options as in `score`."""
        return self._score_windows(iter([make_window(tokens)]), len(tokens), batch_tokens, raw)

    def close(self) -> None:
        """Release the weights and the threads; safe to call twice."""
        self._encoder = None
        self._staging = Staging()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name not in ("_classifier", "_staging")}
        return {**state, "_device": self.device, "_dtype": self.dtype, "_encoder": None, "_pool": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _staging=Staging())

    def __enter__(self) -> Reranker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Reranker({self.name!r}, device={self.device!r}, dtype={self.dtype!r}, labels={self.labels})"

    def _score(self, firsts: list[str], seconds: list[str], batch_tokens: int | str, raw: bool) -> Scores:
        for texts in (firsts, seconds):
            for i, text in enumerate(texts):
                _check_text(text, f"text {i}")
        return self._score_windows(self._make_windows(firsts, seconds), len(seconds), batch_tokens, raw)

    def _score_windows(self, windows: Iterator[Window], count: int, batch_tokens: int | str, raw: bool) -> Scores:
        if batch_tokens == "auto":
            budget = self._budget or self._get_encoder().layers.budget
        elif isinstance(batch_tokens, int | np.integer) and not isinstance(batch_tokens, bool) and batch_tokens > 0:
            budget = int(batch_tokens)
        else:
            raise InputError(f"batch_tokens is {batch_tokens!r}; give a number above 0, or 'auto'.")
        runner = BatchRunner(self._compute, self._device, budget, self._staging)
        parts = RowParts("scores", self.labels)
        for _ in runner.run(windows, parts.add):
            pass
        if runner.budget_reduced:
            self._budget = min(runner.budget, self._budget or runner.budget)
        scores = parts.join(count)
        scores = scores if raw else _activate(scores, self.activation)
        return scores[:, 0] if self.labels == 1 else scores

    def _compute(self, ids: Any, packed: Any) -> dict[str, Any]:
        import torch

        with torch.inference_mode():
            return self._classifier(self._get_encoder().compute_hidden(ids, packed), packed, ids)

    def _make_windows(self, firsts: list[str], seconds: list[str]) -> Iterator[Window]:
        """Yield windows of sorted pairs; the next one is tokenized while one is computed."""
        starts = range(0, len(seconds), WINDOW_PAIRS)
        if len(starts) < 2:
            for start in starts:
                yield self._make_window(firsts, seconds, start)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "ridgeline-tokenize")
        pending: deque[Future[Window]] = deque()
        for start in starts:
            pending.append(self._pool.submit(self._make_window, firsts, seconds, start))
            if len(pending) > 2:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _make_window(self, firsts: list[str], seconds: list[str], start: int) -> Window:
        part = slice(start, start + WINDOW_PAIRS)
        return make_window(self._tokenize(firsts[part], seconds[part], start), start)

    def _tokenize(self, firsts: list[str], seconds: list[str], start: int) -> Tokens:
        tokens = self._encode(self._tokenizer, firsts, seconds, start)
        self._warn_of_cut(tokens)
        return tokens

    def _encode(self, tokenizer: PairTokenizer, firsts: list[str], seconds: list[str], start: int) -> Tokens:
        tokens = tokenizer.encode(firsts, seconds)
        if len(tokens) and tokens.lengths.min() < 1:
            raise InputError(f"pair {start + int(tokens.lengths.argmin())} has no tokens; give one at least.")
        return tokens

    def _warn_of_cut(self, tokens: Tokens) -> None:
        count = int((tokens.lengths >= self.max_tokens).sum())
        if count:
            warnings.warn(
                f"{count} pair{'s reach' if count > 1 else ' reaches'} the limit of {self.max_tokens} tokens; what "
                "lies beyond is not in the score.",
                stacklevel=2,
            )

    def _get_encoder(self) -> Encoder:
        if self._encoder is None:
            raise InputError("this reranker is closed; make a new one.")
        return self._encoder


def _check_text(text: Any, name: str) -> None:
    if not isinstance(text, str):
        raise InputError(f"{name} is {type(text).__name__}; give a str.")


def _activate(scores: Scores, name: str) -> Scores:
    """Apply an activation in float32.

    >>> _activate(np.array([[0.0], [-200.0]], np.float32), "sigmoid")[:, 0].tolist()
    [0.5, 0.0]
    """
    if name == "sigmoid":
        small = np.exp(-np.abs(scores))  # at most 1
        activated: Scores = np.where(scores >= 0, np.float32(1), small) / (1 + small)
        return activated
    if name == "tanh":
        return np.tanh(scores)
    if name == "softmax":
        powers = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
        shares: Scores = powers / powers.sum(axis=1, keepdims=True)
        return shares
    return scores


def _choose_activation(name: str | None, folder: Path, root: Path, labels: int) -> str:
    """Return the activation: the given one, that of the folder, or the default of sentence-transformers."""
    if name is not None:
        if name not in ACTIVATIONS:
            raise unknown("activation", name, ACTIVATIONS)
        return name
    config = read_json_object(root / "config.json", needed=False)
    path = (
        read_json_object(folder / "config_sentence_transformers.json", needed=False).get("activation_fn")
        or (config.get("sentence_transformers") or {}).get("activation_fn")
        or config.get("sbert_ce_default_activation_function")
    )
    if path is None:
        return "sigmoid" if labels == 1 else "identity"
    package, _, kind = str(path).rpartition(".")
    if not package.startswith("torch.nn") or kind not in _CLASSES:
        raise InputError(f"'{folder}' has the activation '{path}'; give one of {', '.join(ACTIVATIONS)}.")
    return _CLASSES[kind]


def _refuse_unknown_parts(folder: Path) -> None:
    """Refuse modules after the classifier, and prompts: they would change the scores."""
    names = [kind.rpartition(".")[2] for kind, _ in list_modules(folder)]
    if any(name != "Transformer" for name in names):
        raise InputError(
            f"'{folder}' has the modules {' → '.join(names)}; a reranker here is one Transformer with a classifier."
        )
    prompt = read_json_object(folder / "config_sentence_transformers.json", needed=False).get("default_prompt_name")
    if prompt is not None:
        raise InputError(f"'{folder}' puts the prompt '{prompt}' before its pairs, which is not known here.")


def _uses_types(root: Path, model_type: str) -> bool:
    """Whether the tokenizer tells the model which text a token is of, as transformers 5 decides it."""
    config = read_json_object(root / "tokenizer_config.json", needed=False)
    if "model_input_names" in config:
        return "token_type_ids" in config["model_input_names"]
    tokenizer = str(config.get("tokenizer_class") or "").removesuffix("Fast").removesuffix("Tokenizer")
    return tokenizer in _TYPED_TOKENIZERS if tokenizer else model_type in _TYPED_MODELS
