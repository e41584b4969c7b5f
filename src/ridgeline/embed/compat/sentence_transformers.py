"""The classes of sentence-transformers on Ridgeline's encoders: one changed import line moves a program here.

from ridgeline.embed.compat import SentenceTransformer

model = SentenceTransformer("all-MiniLM-L6-v2")
vectors = model.encode(["first text", "second text"], normalize_embeddings=True)

Calls, defaults and results are those of sentence-transformers 6; an argument that is not here is refused by its name.
Models are found on this machine only (`ridgeline model get` fetches one). The type is float32 unless
`model_kwargs={"dtype": "float16"}` says otherwise. `batch_size` bounds the tokens of a batch (batch_size ×
max_seq_length); by default batches are as large as suits the device. Results do not depend on it. A copy (pickle,
copy.deepcopy) loads the model again.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ridgeline.embed.config import read_config
from ridgeline.embed.embedder import Embedder
from ridgeline.embed.embedder_pool import EmbedderPool
from ridgeline.embed.reranker import Reranker
from ridgeline.embed.tokens import Tokens
from ridgeline.errors import InputError, unknown

__all__ = ["CrossEncoder", "MultiVectorEncoder", "SentenceTransformer", "SparseEncoder"]

PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
_PAIRS_PER_LINE = 4_096  # scored before each line of progress
_log = logging.getLogger(__name__)
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # the first that the model has
# Arguments of the constructors that change nothing here: models are local, and code of a model is never run.
_WITHOUT_EFFECT = ("cache_folder", "local_files_only", "token", "use_auth_token", "revision", "model_card_data")
# Arguments that are not here; their defaults are welcome.
_DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "backend": ("torch",),
    "config_kwargs": (None, {}),
    "keep_in_fp32_modules": (None,),
    "modules": (None,),
    "trust_remote_code": (False, None),
}
# Keys that change nothing here: texts are not padded, and attention is our own.
_MODEL_KEYS = ("attn_implementation", "low_cpu_mem_usage", "use_safetensors")
_TOKENIZER_KEYS = ("padding_side", "use_fast")
_CPU_WORKERS = 4  # of a pool without devices, as there, if the machine has that number of CPUs
_TEXTS_PER_TASK = 4_096  # of a pool, at most


class _CallError(InputError, ValueError):
    """A wrong argument: in sentence-transformers it is a ValueError."""


class _ModelCard:
    """What evaluators and mteb read and write of a model card; no card is written here."""

    base_model = base_model_revision = None

    def __init__(self, name: str) -> None:
        self.model_name = name

    def set_evaluation_metrics(self, *metrics: Any) -> None:
        """Do nothing."""


class _Model(ABC):
    """What all classes share: the arguments of the constructor, prompts, properties."""

    # These names are always there, so that a task without a prompt takes none, not the default one or a "passage".
    _default_prompts: Mapping[str, str] = {"query": "", "document": ""}
    # What can be changed after the constructor; a copy takes it along.
    _changeable: tuple[str, ...] = ("prompts", "default_prompt_name")
    _arguments: tuple[tuple[Any, ...], Mapping[str, Any]]  # of the constructor, for copies

    def __new__(cls, *positional: Any, **named: Any) -> Any:
        model = super().__new__(cls)
        model._arguments = positional, named
        return model

    def __init__(
        self,
        model_name_or_path: str | os.PathLike[str] | None = None,
        *,
        device: Any = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        **other: Any,
    ) -> None:
        name = type(self).__name__
        for key, value in other.items():
            if key in ("processor_kwargs", "tokenizer_kwargs"):
                _check_keys(key, value, _TOKENIZER_KEYS)
            elif key not in _WITHOUT_EFFECT and value not in _DEFAULTS.get(key, ()):
                raise InputError(f"{name} has no argument '{key}' here; leave it out.")
        if other.get("revision") is not None:
            raise InputError("a revision is chosen when the model is fetched: ridgeline model get NAME.")
        if model_name_or_path is None:
            raise InputError(f"{name} needs the folder or the name of a model.")
        self._name = model_name_or_path
        self._device = "auto" if device is None else str(device)
        self._dtype = _read_dtype(model_kwargs)
        self._settings: dict[str, Any] = {"device": self._device, "dtype": self._dtype}
        self._tokenizer: Any = None
        self.prompts: dict[str, str] = {**self._default_prompts, **(prompts or {})}
        self.default_prompt_name = default_prompt_name
        self.model_card_data = _ModelCard(str(model_name_or_path))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of sentence-transformers of this name, once a program imports that library.

        KeyBERT, BERTopic and mteb ask isinstance(model, SentenceTransformer); the first two load another model without
        a word if it is false. `type(model)` is the class here.
        """
        library = sys.modules.get("sentence_transformers")
        names = (kind.__name__ for kind in type(self).__mro__)
        return next((kind for name in names if (kind := getattr(library, name, None)) is not None), type(self))

    def _take_prompts(self, config: Any) -> None:
        """Add the prompts of the model; those given to the constructor come first."""
        for name, text in config.prompts.items():
            if not self.prompts.get(name):
                self.prompts[name] = text
        if self.default_prompt_name is None:
            self.default_prompt_name = config.default_prompt
        elif self.default_prompt_name not in self.prompts:
            raise _CallError(
                f"Default prompt name {self.default_prompt_name!r} not found in the configured prompts dictionary with "
                f"keys {list(self.prompts)!r}."
            )

    def _find_prompt(self, prompt: str | None, prompt_name: str | None) -> str:
        if prompt is not None and prompt_name is not None:
            _log.warning(
                "Provide either a `prompt`, a `prompt_name`, or neither, but not both. Ignoring the `prompt_name` in "
                "favor of `prompt`."
            )
        if prompt is not None:
            return prompt
        if prompt_name is not None:
            if prompt_name not in self.prompts:
                raise _CallError(
                    f"Prompt name {prompt_name!r} not found in the configured prompts dictionary with keys "
                    f"{list(self.prompts)!r}."
                )
            return self.prompts[prompt_name] or ""
        return (self.prompts.get(self.default_prompt_name) or "") if self.default_prompt_name else ""

    def _choose_query_prompt(self, prompt: str | None, prompt_name: str | None) -> str | None:
        if prompt is None and prompt_name is None and "query" in self.prompts:
            return "query"
        return prompt_name

    def _choose_document_prompt(self, prompt: str | None, prompt_name: str | None) -> str | None:
        if prompt is None and prompt_name is None:
            return next((name for name in _DOCUMENT_PROMPTS if name in self.prompts), None)
        return prompt_name

    def _check_call(self, method: str, device: Any, other: Mapping[str, Any]) -> None:
        if device is not None and str(device) not in (self._device, str(self.device), self.device.type):
            raise InputError(f"this model is on {self.device}; make another one for device={device!r}.")
        for key, value in other.items():
            if value is not None:
                raise _CallError(f"{type(self).__name__}.{method} has no argument '{key}' here; leave it out.")

    @abstractmethod
    def _close_all(self) -> Iterable[Any]:
        """Return what `close` closes."""

    @property
    @abstractmethod
    def device(self) -> Any:
        """The torch device."""

    @abstractmethod
    def _get_core(self) -> Embedder | Reranker:
        """What computes; its folder, its type and its limits are those of this model."""

    @property
    def dtype(self) -> Any:
        """The torch type that is computed in; results are float32."""
        import torch

        return getattr(torch, self._get_core().dtype)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of transformers for this model, for counting and splitting texts; `encode` has its own."""
        if self._tokenizer is None:
            try:
                from transformers import AutoTokenizer
            except ImportError:
                raise InputError("model.tokenizer is that of transformers: pip install transformers.") from None
            self._tokenizer = AutoTokenizer.from_pretrained(self._get_core().config.folder, local_files_only=True)
        return self._tokenizer

    def to(self, device: Any = None, dtype: Any = None) -> Any:
        """Return this model; another device or type is refused, because the weights stay where they are."""
        import torch

        for value in (device, dtype):
            if isinstance(value, torch.dtype) and value != self.dtype:
                name = str(value).removeprefix("torch.")
                raise InputError(
                    f"this model computes in {self.dtype}; make it with model_kwargs={{'dtype': '{name}'}}."
                )
            if value is not None and not isinstance(value, torch.dtype):
                self._check_call("to", value, {})
        return self

    def cpu(self) -> Any:
        return self.to("cpu")

    def cuda(self, device: int | None = None) -> Any:
        return self.to("cuda" if device is None else f"cuda:{device}")

    def float(self) -> Any:
        import torch

        return self.to(torch.float32)

    def half(self) -> Any:
        import torch

        return self.to(torch.float16)

    def eval(self) -> Any:
        """Return this model: it never trains."""
        return self

    def __getitem__(self, index: Any) -> Any:
        raise InputError(
            f"the modules of a {type(self).__name__} are not separate here (model[{index!r}]); max_seq_length, "
            "tokenizer and device are attributes of the model."
        )

    def save_pretrained(self, path: str | os.PathLike[str], **other: Any) -> None:
        """Write the model to a folder: its files, and the settings that were changed since it was loaded."""
        for key, value in other.items():
            if key not in ("model_name", "create_model_card", "train_datasets", "safe_serialization"):
                raise _CallError(f"{type(self).__name__}.save_pretrained has no argument '{key}' here; leave it out.")
            if key == "safe_serialization" and not value:
                raise _CallError("weights are only written as safetensors; leave safe_serialization out.")
        core, target = self._get_core(), Path(path)
        if target.exists() and target.resolve() == Path(core.folder).resolve():
            raise InputError(f"'{path}' is the folder of this model; give another one.")
        shutil.copytree(core.folder, target, dirs_exist_ok=True)
        self._write_settings(target, target / Path(core.config.folder).relative_to(core.folder))

    save = save_pretrained

    def _write_settings(self, folder: Path, encoder_folder: Path) -> None:
        """Write prompts, limits and similarity into the files of a saved model."""
        settings = {name: getattr(self, name) for name in ("similarity_fn_name", "truncate_dim") if hasattr(self, name)}
        _update_json(
            folder / "config_sentence_transformers.json",
            {"prompts": self.prompts, "default_prompt_name": self.default_prompt_name, **settings},
        )

    def __reduce__(self) -> Any:
        return _make_copy, (type(self), *self._arguments, {name: getattr(self, name) for name in self._changeable})

    def close(self) -> None:
        """Release the weights and the threads; safe to call twice."""
        for part in self._close_all():
            part.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Encoder(_Model):
    """What the encoders share."""

    _changeable = (*_Model._changeable, "max_seq_length", "similarity_fn_name")

    def __init__(self, model_name_or_path: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        super().__init__(model_name_or_path, **settings)
        self._embedder = Embedder(self._name, normalize=False, prompt="", **self._settings)
        self._prompt_lock = threading.Lock()
        self._take_prompts(self._embedder.config)

    def _get_core(self) -> Embedder:
        return self._embedder

    @property
    def device(self) -> Any:
        import torch

        return torch.device(self._embedder.device)

    @property
    def similarity_fn_name(self) -> str:
        """The function of `similarity`; a member of their SimilarityFunction can be set, too."""
        return self._similarity

    @similarity_fn_name.setter
    def similarity_fn_name(self, value: Any) -> None:
        name = str(getattr(value, "value", value))
        if name not in SIMILARITIES:
            raise unknown("similarity", name, SIMILARITIES)
        self._similarity = name

    def _write_settings(self, folder: Path, encoder_folder: Path) -> None:
        super()._write_settings(folder, encoder_folder)
        names = ("roberta", "xlm_roberta", "camembert", "distilbert")  # of old folders
        files = [encoder_folder / f"sentence_{name}_config.json" for name in names]
        file = next((file for file in files if file.is_file()), encoder_folder / "sentence_bert_config.json")
        if self.max_seq_length != self._embedder.config.max_tokens:
            _update_json(file, {"max_seq_length": self.max_seq_length})

    def tokenize(self, texts: Sequence[str], prompt: str | None = None, **other: Any) -> dict[str, Any]:
        """Return input_ids and attention_mask, padded with zeros: tensors [N, tokens of the longest text]."""
        import torch

        self._check_call("tokenize", None, other)
        if isinstance(texts, str):
            raise _CallError("tokenize takes a list of texts; give [text].")
        if prompt and not self._embedder.config.pools_prompt:
            raise InputError("this model leaves its prompt out of the pooling; use encode, which knows the prompt.")
        texts = [(prompt or "") + text if isinstance(text, str) else text for text in texts]
        tokens = self._embedder.tokenize(texts)
        rows = [torch.from_numpy(tokens[i].astype(np.int64)) for i in range(len(tokens))]
        masks = [torch.ones_like(row) for row in rows]
        pad = torch.nn.utils.rnn.pad_sequence
        return {"input_ids": pad(rows, batch_first=True), "attention_mask": pad(masks, batch_first=True)}

    preprocess = tokenize

    @property
    def max_seq_length(self) -> int:
        """Tokens per text; texts are cut there."""
        return self._embedder.max_tokens

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        self._embedder.max_tokens = _check_length(self._embedder.config, value)

    def get_model_kwargs(self) -> list[str]:
        """Names of further arguments of `encode` that the parts of the model take: none."""
        return []

    def get_max_seq_length(self) -> int:
        return self.max_seq_length

    def get_embedding_dimension(self) -> int:
        return self._embedder.dim

    def get_sentence_embedding_dimension(self) -> int:
        return self.get_embedding_dimension()

    def _close_all(self) -> Iterable[Any]:
        return [self._embedder]

    def _encode(
        self, embedder: Embedder, texts: Sequence[str], prompt: str, output: str, batch_size: Any, shows_progress: Any
    ) -> Any:
        options: dict[str, Any] = {
            "output": output,
            "batch_tokens": _bound_batch(batch_size, embedder.max_tokens, embedder),
            "progress": _print_progress if shows_progress else None,
        }
        if not prompt or embedder.config.pools_prompt:
            return embedder.encode([prompt + text for text in texts] if prompt else texts, **options)
        with self._prompt_lock:  # the embedder must know the prompt, to leave it out of the pooling
            embedder.prompt = prompt
            try:
                return embedder.encode(texts, **options)
            finally:
                embedder.prompt = ""

    @abstractmethod
    def encode(self, *args: Any, **settings: Any) -> Any:
        """Encode texts."""

    def encode_query(
        self,
        inputs: str | Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        sentences: str | Iterable[str] | None = None,
        **settings: Any,
    ) -> Any:
        """Encode with the prompt "query", if the model has it; options as in `encode`."""
        name = self._choose_query_prompt(prompt, prompt_name)
        texts = sentences if inputs is None else inputs
        return self.encode(inputs=texts, prompt_name=name, prompt=prompt, task="query", **settings)

    def encode_document(
        self,
        inputs: str | Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        sentences: str | Iterable[str] | None = None,
        **settings: Any,
    ) -> Any:
        """Encode with the prompt "document", "passage" or "corpus", if the model has one; options as in `encode`."""
        name = self._choose_document_prompt(prompt, prompt_name)
        texts = sentences if inputs is None else inputs
        return self.encode(inputs=texts, prompt_name=name, prompt=prompt, task="document", **settings)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the similarity of each vector with each other one, a tensor [N1, N2]."""
        return _compare(self.similarity_fn_name, embeddings1, embeddings2, pairwise=False)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the similarity of vectors i and i, a tensor [N]."""
        return _compare(self.similarity_fn_name, embeddings1, embeddings2, pairwise=True)


class SentenceTransformer(_Encoder):
    """Texts → one vector each, as sentence_transformers.SentenceTransformer.

    Constructor: model_name_or_path, device, prompts, default_prompt_name, similarity_fn_name, truncate_dim,
    model_kwargs={"dtype": …}.
    """

    _changeable = (*_Encoder._changeable, "truncate_dim", "_pools_prompt")

    def __init__(
        self,
        model_name_or_path: str | os.PathLike[str] | None = None,
        *,
        similarity_fn_name: str | None = None,
        truncate_dim: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(model_name_or_path, **settings)
        config = self._embedder.config
        self.truncate_dim = config.truncate_dim if truncate_dim is None else truncate_dim
        self.similarity_fn_name = similarity_fn_name or config.similarity or "cosine"
        self._embedder._folder_heads.check(["dense"])

    def get_embedding_dimension(self) -> int:
        width = self._embedder.dim
        return min(width, self.truncate_dim) if self.truncate_dim else width

    def encode(
        self,
        inputs: str | Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: EmbedderPool | None = None,
        chunk_size: int | None = None,
        *,
        task: str | None = None,
        sentences: str | Iterable[str] | None = None,
        **other: Any,
    ) -> Any:
        """Return an array [N, dim], a tensor, or a list of tensors; one str gives one vector.

        output_value  "token_embeddings": a list of tensors [tokens, hidden]; None: a list of dicts with both, and with
                input_ids and attention_mask
        device  a list of devices: a process for each encodes a part of the texts
        pool    the processes of `start_multi_process_pool`; chunk_size: texts per task of a process
        task    "query" or "document", for models with parts of their own for each, which this model lacks: no effect
        """
        import torch

        if isinstance(device, list):
            pool = self.start_multi_process_pool(device)
            try:
                return self.encode(
                    inputs, prompt_name, prompt, batch_size, show_progress_bar, output_value, precision,
                    convert_to_numpy, convert_to_tensor, None, normalize_embeddings, truncate_dim, pool, chunk_size,
                    sentences=sentences, **other,
                )  # fmt: skip
            finally:
                self.stop_multi_process_pool(pool)
        self._check_call("encode", device, other)
        if pool is not None and not isinstance(pool, EmbedderPool):
            raise _CallError("pool must come from start_multi_process_pool.")
        if precision is not None and precision not in PRECISIONS:
            raise _CallError(f"Precision '{precision}' is not supported. Known are {', '.join(PRECISIONS)}.")
        texts, single = _read_inputs(inputs, sentences)
        words = self._find_prompt(prompt, prompt_name)
        if output_value == "token_embeddings" and pool is None:
            tokens = self._encode(self._embedder, texts, words, "tokens", batch_size, show_progress_bar)
            parts = [torch.from_numpy(tokens[i]).to(self.device) for i in range(len(tokens))]
            return parts[0] if single else parts
        if output_value is None and pool is None:
            rows = self._encode_all(texts, words, batch_size, show_progress_bar, truncate_dim or self.truncate_dim)
            return rows[0] if single else rows
        if output_value != "sentence_embedding":
            known = ("sentence_embedding", "token_embeddings") if pool is None else ("sentence_embedding",)
            raise unknown("output_value", str(output_value), known)
        if pool is not None and words and not self._embedder.config.pools_prompt:
            raise InputError("this model leaves its prompt out of the pooling, which a pool cannot; encode without it.")
        if pool is None:
            array = self._encode(self._embedder, texts, words, "dense", batch_size, show_progress_bar)
        else:
            pool.chunk = chunk_size or max(1, min(_TEXTS_PER_TASK, -(-len(texts) // (4 * len(pool.stats())))))
            array = pool.encode(
                [words + text for text in texts], progress=_print_progress if show_progress_bar else None
            )
        vectors = torch.from_numpy(array)
        if self._embedder.config.ends_with_norm:
            vectors = torch.nn.functional.normalize(vectors, dim=1)
        width = truncate_dim or self.truncate_dim
        if width is not None:
            vectors = vectors[:, :width]
        if normalize_embeddings:
            vectors = torch.nn.functional.normalize(vectors, dim=1)
        if precision is not None and precision != "float32" and len(vectors):
            if len(vectors) == 1 and precision in ("int8", "uint8"):
                raise _CallError(
                    f"Cannot compute {precision} quantization ranges from a single embedding; give more texts."
                )
            vectors = torch.from_numpy(quantize(vectors.numpy(), precision))
        if convert_to_tensor:
            vectors = vectors.to(self.device) if len(vectors) else torch.tensor([], device=self.device)
            return vectors[0] if single else vectors
        if convert_to_numpy:
            result = vectors.contiguous().numpy() if len(vectors) else np.array([])
            return result[0] if single else result
        return vectors[0] if single else list(vectors)

    def _encode_all(
        self, texts: list[str], prompt: str, batch_size: Any, shows_progress: Any, width: int | None
    ) -> list[dict[str, Any]]:
        """Return the vector, the vectors of the tokens and the tokens of each text."""
        import torch

        names: Any = ("dense", "tokens")
        results = self._encode(self._embedder, texts, prompt, names, batch_size, shows_progress)
        tokens = self._embedder.tokenize([prompt + text for text in texts])
        vectors = torch.from_numpy(results["dense"])
        if self._embedder.config.ends_with_norm:
            vectors = torch.nn.functional.normalize(vectors, dim=1)
        rows = []
        for i in range(len(texts)):
            ids = torch.from_numpy(tokens[i].astype(np.int64))
            row = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            row |= {
                "token_embeddings": torch.from_numpy(results["tokens"][i]),
                "sentence_embedding": vectors[i, :width],
            }
            rows.append({name: value.to(self.device) for name, value in row.items()})
        return rows

    def forward(self, input: Mapping[str, Any], **other: Any) -> dict[str, Any]:
        """Return the features of `tokenize` (input_ids, attention_mask) with token_embeddings and sentence_embedding.

        Rows of token_embeddings for padding are zeros. There are no gradients.
        """
        import torch

        self._check_call("forward", None, other)
        if "input_ids" not in input:
            raise _CallError("the features have no input_ids; tokenize(texts) makes them.")
        if input.get("prompt_length") and not self._embedder.config.pools_prompt:
            raise InputError("this model leaves its prompt out of the pooling; use encode, which knows the prompt.")
        types = input.get("token_type_ids")
        if types is not None and torch.as_tensor(types).any():
            raise InputError("token_type_ids are not 0, which is for pairs of texts; a CrossEncoder takes pairs.")
        ids = torch.as_tensor(input["input_ids"]).cpu()
        mask = torch.ones_like(ids) if input.get("attention_mask") is None else torch.as_tensor(input["attention_mask"])
        used = mask.cpu() > 0
        lengths = used.sum(1).numpy()
        tokens = Tokens(ids[used].numpy().astype(np.int32), np.concatenate([[0], np.cumsum(lengths)]))
        results = self._embedder.encode_tokens(tokens, output=("dense", "tokens"))
        vectors, hidden = (torch.from_numpy(part) for part in (results["dense"], results["tokens"].vectors))
        if self._embedder.config.ends_with_norm:
            vectors = torch.nn.functional.normalize(vectors, dim=1)
        padded = hidden.new_zeros(*ids.shape, hidden.shape[1])
        padded[used] = hidden
        outputs = {"token_embeddings": padded.to(self.device), "sentence_embedding": vectors.to(self.device)}
        return {**input, **outputs}

    __call__ = forward

    def evaluate(self, evaluator: Callable[..., Any], output_path: str | None = None) -> Any:
        """Return what an evaluator of sentence-transformers says about this model."""
        if output_path is not None:
            os.makedirs(output_path, exist_ok=True)
        return evaluator(self, output_path)

    def set_pooling_include_prompt(self, include_prompt: bool) -> None:
        """Choose whether the tokens of a prompt count in the pooling."""
        if not include_prompt and "weightedmean" in self._embedder.config.poolings:
            raise InputError("a weightedmean without the prompt is not known here.")
        self._pools_prompt = include_prompt

    @property
    def _pools_prompt(self) -> bool:
        return self._embedder.config.pools_prompt

    @_pools_prompt.setter
    def _pools_prompt(self, value: bool) -> None:
        self._embedder.config = replace(self._embedder.config, pools_prompt=bool(value))

    def _write_settings(self, folder: Path, encoder_folder: Path) -> None:
        super()._write_settings(folder, encoder_folder)
        if self._pools_prompt != read_config(Path(self._embedder.folder)).pools_prompt:
            modules = folder / "modules.json"
            entries = json.loads(modules.read_text(encoding="utf-8")) if modules.is_file() else []
            pooling = next((entry["path"] for entry in entries if str(entry["type"]).endswith("Pooling")), None)
            if pooling is None:
                raise InputError(f"'{self._name}' has no pooling module, so include_prompt=False cannot be saved.")
            _update_json(folder / pooling / "config.json", {"include_prompt": self._pools_prompt})

    def start_multi_process_pool(self, target_devices: Sequence[Any] | None = None) -> EmbedderPool:
        """Start a process with this model for each device; without `target_devices` for each GPU, else up to four."""
        import torch

        if target_devices is None:
            count = torch.cuda.device_count()
            processes = min(_CPU_WORKERS, len(os.sched_getaffinity(0)))
            target_devices = [f"cuda:{k}" for k in range(count)] if count else ["cpu"] * processes
        pool = EmbedderPool(
            self._name,
            devices=[str(device) for device in target_devices],
            dtype=self._dtype,
            normalize=False,
            prompt="",
            max_tokens=self.max_seq_length,
        )
        return pool.__enter__()

    @staticmethod
    def stop_multi_process_pool(pool: EmbedderPool) -> None:
        """End the processes of a pool."""
        pool.__exit__(None, None, None)

    def encode_multi_process(
        self,
        inputs: Iterable[str] | None = None,
        pool: EmbedderPool | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        chunk_size: int | None = None,
        show_progress_bar: bool | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        *,
        sentences: Iterable[str] | None = None,
        precision: str | None = "float32",
    ) -> Any:
        """Return an array [N, dim], computed by the processes of a pool; options as in `encode`."""
        if pool is None:
            raise _CallError("encode_multi_process needs a pool; start_multi_process_pool makes one.")
        return self.encode(
            inputs, prompt_name, prompt, batch_size, show_progress_bar, precision=precision, pool=pool,
            normalize_embeddings=normalize_embeddings, truncate_dim=truncate_dim, chunk_size=chunk_size,
            sentences=sentences,
        )  # fmt: skip

    @contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Encode with another `truncate_dim` inside a `with` block."""
        before, self.truncate_dim = self.truncate_dim, truncate_dim
        try:
            yield
        finally:
            self.truncate_dim = before


class SparseEncoder(_Encoder):
    """Texts → weights of the words of a vocabulary, as sentence_transformers.SparseEncoder."""

    _changeable = (*_Encoder._changeable, "max_active_dims")

    def __init__(
        self,
        model_name_or_path: str | os.PathLike[str] | None = None,
        *,
        similarity_fn_name: str | None = None,
        max_active_dims: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(model_name_or_path, **settings)
        self._embedder._folder_heads.check(["sparse"])
        self.max_active_dims = max_active_dims
        self.similarity_fn_name = similarity_fn_name or self._embedder.config.similarity or "dot"

    def encode(
        self,
        inputs: str | Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        convert_to_tensor: bool = True,
        convert_to_sparse_tensor: bool = True,
        save_to_cpu: bool = False,
        device: Any = None,
        max_active_dims: int | None = None,
        *,
        task: str | None = None,
        sentences: str | Iterable[str] | None = None,
        **other: Any,
    ) -> Any:
        """Return a tensor [N, vocabulary], sparse (COO) by default, or a list of tensors."""
        import torch

        self._check_call("encode", device, other)
        texts, single = _read_inputs(inputs, sentences)
        words = self._find_prompt(prompt, prompt_name)
        rows = self._encode(self._embedder, texts, words, "sparse", batch_size, show_progress_bar)
        count = max_active_dims or self.max_active_dims
        if count is not None:
            rows = _keep_largest(rows, count)
        entries = rows.tocoo()
        places = torch.from_numpy(np.stack([entries.row, entries.col]).astype(np.int64))
        values = torch.from_numpy(np.ascontiguousarray(entries.data))
        tensor = torch.sparse_coo_tensor(places, values, rows.shape, check_invariants=True).coalesce()
        tensor = tensor if save_to_cpu else tensor.to(self.device)
        if not convert_to_sparse_tensor:
            tensor = tensor.to_dense()
        if single:
            return tensor[0]
        return tensor if convert_to_tensor else [tensor[i] for i in range(len(texts))]

    def decode(self, embeddings: Any, top_k: int | None = None) -> Any:
        """Return [(word, weight)] of a vector, largest weights first, or a list of them; needs transformers."""
        if top_k is not None and top_k < 1:
            raise _CallError(f"top_k is {top_k}; give 1 or more.")
        rows = embeddings.to_dense() if embeddings.is_sparse else embeddings
        words = [self._list_words(row, top_k) for row in (rows[None] if rows.ndim == 1 else rows)]
        return words[0] if rows.ndim == 1 else words

    @staticmethod
    def sparsity(embeddings: Any) -> dict[str, float]:
        """Return the mean number of values above or below 0 of a vector, and the share of the others."""
        rows = embeddings.to_dense() if embeddings.is_sparse else embeddings
        rows = rows[None] if rows.ndim == 1 else rows
        count = (rows != 0).sum(1).float().mean().item() if rows.numel() else 0.0
        return {"active_dims": count, "sparsity_ratio": 1.0 - (count / rows.shape[1] if rows.numel() else 0.0)}

    @staticmethod
    def intersection(embeddings_1: Any, embeddings_2: Any) -> Any:
        """Return the products of a vector [vocabulary] with one or many others that are above 0, a sparse tensor."""
        if embeddings_1.ndim != 1 or embeddings_2.ndim not in (1, 2):
            raise _CallError("intersection takes a vector [vocabulary], and one or many others.")
        if embeddings_1.shape[0] != embeddings_2.shape[-1]:
            raise _CallError(f"the vectors have {embeddings_1.shape[0]} and {embeddings_2.shape[-1]} dimensions.")
        first, second = (x.to_dense() if x.is_sparse else x for x in (embeddings_1, embeddings_2))
        return (first * second).clamp(min=0).to_sparse()

    def _list_words(self, row: Any, top_k: int | None) -> list[tuple[str, float]]:
        ids = (row > 0).nonzero()[:, 0]
        ids = ids[row[ids].argsort(descending=True, stable=True)][:top_k]
        return list(zip(self.tokenizer.convert_ids_to_tokens(ids.tolist()), row[ids].tolist(), strict=True))


class MultiVectorEncoder(_Model):
    """Texts → one vector per token, as sentence_transformers.MultiVectorEncoder (ColBERT)."""

    def __init__(self, model_name_or_path: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        super().__init__(model_name_or_path, **settings)
        self._embedders = {"document": Embedder(self._name, **self._settings)}
        self._embedders["document"]._folder_heads.check(["multi"])
        self._take_prompts(self._embedders["document"].config)
        for embedder in self._embedders.values():
            embedder.prompt = ""

    def _get_core(self) -> Embedder:
        return self._embedders["document"]

    @property
    def device(self) -> Any:
        import torch

        return torch.device(self._embedders["document"].device)

    def get_embedding_dimension(self) -> int:
        return int(self._embedders["document"]._get_head("multi").width)

    def get_sentence_embedding_dimension(self) -> int:
        return self.get_embedding_dimension()

    def encode(
        self,
        inputs: str | Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        output_value: str = "token_embeddings",
        convert_to_numpy: bool = False,
        device: Any = None,
        *,
        task: str | None = None,
        sentences: str | Iterable[str] | None = None,
        **other: Any,
    ) -> Any:
        """Return a list of tensors (or arrays) [tokens, dim]; one str gives one. task: "query" or "document"."""
        import torch

        self._check_call("encode", device, other)
        if task not in ("query", "document"):
            raise InputError("give task='query' or task='document', or use encode_query or encode_document.")
        if output_value != "token_embeddings":
            raise unknown("output_value", str(output_value), ("token_embeddings",))
        texts, single = _read_inputs(inputs, sentences)
        embedder = self._get_embedder(task)
        words = self._find_prompt(prompt, prompt_name)
        vectors = embedder.encode(
            [words + text for text in texts] if words else texts,
            output="multi",
            batch_tokens=_bound_batch(batch_size, embedder.max_tokens, embedder),
            progress=_print_progress if show_progress_bar else None,
        )
        parts = [vectors[i] for i in range(len(vectors))]
        if not convert_to_numpy:
            parts = [torch.from_numpy(part).to(self.device) for part in parts]
        return parts[0] if single else parts

    def encode_query(
        self,
        inputs: str | Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        **settings: Any,
    ) -> Any:
        """Encode queries: their prompt, length and words; options as in `encode`."""
        name = self._choose_query_prompt(prompt, prompt_name)
        return self.encode(inputs, name, prompt, task="query", **settings)

    def encode_document(
        self,
        inputs: str | Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        **settings: Any,
    ) -> Any:
        """Encode documents: their prompt, length and words; options as in `encode`."""
        name = self._choose_document_prompt(prompt, prompt_name)
        return self.encode(inputs, name, prompt, task="document", **settings)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return MaxSim of each query with each document, a tensor [queries, documents]."""
        import torch

        queries, documents = (_list_matrices(e) for e in (embeddings1, embeddings2))
        scores = [[(q @ d.T).amax(1).sum() for d in documents] for q in queries]
        return torch.stack([torch.stack(row) for row in scores])

    def _get_embedder(self, task: str) -> Embedder:
        if task not in self._embedders:
            embedder = Embedder(self._name, prompt=task, **self._settings)
            embedder.prompt = ""
            self._embedders[task] = embedder
        return self._embedders[task]

    def _close_all(self) -> Iterable[Any]:
        return self._embedders.values()


class CrossEncoder(_Model):
    """Scores of pairs of texts, as sentence_transformers.CrossEncoder.

    Constructor: model_name_or_path, num_labels (that of the model), max_length, activation_fn, device, prompts,
    model_kwargs={"dtype": …}.
    """

    _default_prompts: Mapping[str, str] = {}
    _changeable = (*_Model._changeable, "activation_fn", "max_length")

    def __init__(
        self,
        model_name_or_path: str | os.PathLike[str] | None = None,
        *,
        num_labels: int | None = None,
        max_length: int | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(model_name_or_path, **settings)
        self._reranker = Reranker(self._name, max_tokens=max_length, **self._settings)
        self._take_prompts(self._reranker.config)
        self.activation_fn = activation_fn
        if num_labels is not None and num_labels != self.num_labels:
            raise InputError(f"num_labels is {num_labels}; '{self._reranker.name}' has {self.num_labels}.")

    def _get_core(self) -> Reranker:
        return self._reranker

    @property
    def device(self) -> Any:
        import torch

        return torch.device(self._reranker.device)

    @property
    def num_labels(self) -> int:
        """Outputs per pair."""
        return self._reranker.labels

    @property
    def max_seq_length(self) -> int:
        """Tokens per pair; the longer side of a pair is cut."""
        return self._reranker.max_tokens

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        self._reranker.max_tokens = value

    max_length = max_seq_length

    def predict(
        self,
        inputs: Any = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        *,
        sentences: Any = None,
        num_workers: int | None = None,
        **other: Any,
    ) -> Any:
        """Return the scores of pairs: an array [N] (or [N, labels]), a tensor, or a list of tensors.

        num_workers: of older versions, no effect
        """
        import torch

        self._check_call("predict", device, other)
        if self._find_prompt(prompt, prompt_name):
            raise InputError("a prompt before pairs is not known here; put it into the texts.")
        pairs = inputs if inputs is not None else sentences
        if pairs is None:
            raise InputError("predict needs pairs of texts.")
        pairs = pairs.tolist() if isinstance(pairs, np.ndarray) else list(pairs)
        single = bool(pairs) and isinstance(pairs[0], str)
        if single:
            pairs = [pairs]
        activate = activation_fn or self.activation_fn
        budget = _bound_batch(batch_size, self._reranker.max_tokens, self._reranker)
        step = _PAIRS_PER_LINE if show_progress_bar else max(1, len(pairs))
        parts = []
        for first in range(0, max(1, len(pairs)), step):
            part = pairs[first : first + step]
            parts.append(self._reranker.score_pairs(part, batch_tokens=budget, raw=activate is not None))
            if show_progress_bar:
                _print_progress(first + len(part), len(pairs))
        scores = torch.from_numpy(np.concatenate(parts))
        if activate is not None:
            scores = activate(scores)
        if apply_softmax and scores.ndim > 1:
            scores = scores.softmax(1)
        if convert_to_tensor:
            result: Any = scores.to(self.device)
        elif convert_to_numpy:
            result = scores.numpy() if len(pairs) else np.array([])
        else:
            result = list(scores)
        return result[0] if single else result

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        **settings: Any,
    ) -> list[dict[str, Any]]:
        """Return {"corpus_id", "score"} (and "text") of the best documents; options as in `predict`."""
        if self.num_labels != 1:
            raise InputError(f"a model with {self.num_labels} outputs does not rank; use predict.")
        texts = list(documents)
        settings = {name: value for name, value in settings.items() if not name.startswith("convert_to_")}
        scores = self.predict([(query, text) for text in texts], **settings)
        order = np.argsort(-np.asarray(scores, np.float64), kind="stable")[:top_k]
        more = [{"text": texts[i]} if return_documents else {} for i in order]
        return [{"corpus_id": int(i), "score": float(scores[i]), **m} for i, m in zip(order, more, strict=True)]

    def _close_all(self) -> Iterable[Any]:
        return [self._reranker]


def quantize(vectors: Any, precision: str) -> Any:
    """Round vectors float32 [N, dim] as sentence-transformers does: to one byte per dimension between the smallest and
    largest value of each dimension among these vectors, or to one bit per dimension (its sign).

    >>> quantize(np.array([[0.0, -1.0], [0.5, 0.0], [255.0, 509.0]], np.float32), "uint8").tolist()
    [[0, 0], [0, 0], [255, 255]]
    """
    if precision in ("binary", "ubinary"):
        bits = np.packbits(vectors > 0, axis=1)
        return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    low = vectors.min(0)
    steps = (vectors.max(0) - low) / 255
    levels = np.clip(np.floor((vectors - low) / np.where(steps > 0, steps, 1)), 0, 255)
    return levels.astype(np.uint8) if precision == "uint8" else (levels - 128).astype(np.int8)


def _make_copy(kind: Any, positional: tuple[Any, ...], named: Mapping[str, Any], changed: Mapping[str, Any]) -> Any:
    model = kind(*positional, **named)
    for name, value in changed.items():
        setattr(model, name, value)
    return model


def _update_json(file: Path, changed: Mapping[str, Any]) -> None:
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    file.write_text(json.dumps({**content, **changed}, indent=2), encoding="utf-8")


def _check_keys(name: str, settings: Mapping[str, Any] | None, known: Sequence[str]) -> None:
    for key in settings or {}:
        if key not in known:
            raise InputError(f"{name} has '{key}', which is not known here; known: {', '.join(known)}.")


def _read_dtype(model_kwargs: Mapping[str, Any] | None) -> str:
    settings = dict(model_kwargs or {})
    dtype = settings.pop("dtype", None) or settings.pop("torch_dtype", None) or "float32"
    _check_keys("model_kwargs", settings, ("dtype", *_MODEL_KEYS))
    return str(dtype).removeprefix("torch.")


def _check_length(config: Any, value: int) -> int:
    limit = config.positions - config.first_position
    if not isinstance(value, int) or not 3 <= value <= limit:
        raise InputError(f"max_seq_length is {value!r}; this model takes 3 to {limit}.")
    return value


def _read_inputs(inputs: Any, sentences: Any) -> tuple[list[str], bool]:
    """Return the texts as a list, and whether it was one text."""
    texts = inputs if inputs is not None else sentences
    if texts is None:
        raise InputError("encode needs texts.")
    if isinstance(texts, Mapping):  # its keys would be encoded
        raise InputError("encode takes a text or a list of texts, not a dict; images and messages are not known here.")
    return ([texts], True) if isinstance(texts, str) else (list(texts), False)


def _bound_batch(batch_size: Any, max_tokens: int, model: Embedder | Reranker) -> int | str:
    if batch_size is None:
        return "auto"
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise InputError(f"batch_size is {batch_size!r}; give 1 or more.")
    return min(int(batch_size) * max_tokens, int(model._get_encoder().layers.budget))


def _print_progress(done: int, total: int | None) -> None:
    print(f"\r{done:,} of {total:,} texts" if total else f"\r{done:,} texts", end="", file=sys.stderr, flush=True)
    if done == total:
        print(file=sys.stderr)


def _keep_largest(rows: Any, count: int) -> Any:
    """The largest `count` values of each row of a CSR array."""
    from scipy.sparse import csr_array

    keep = np.zeros(len(rows.data), bool)
    for first, last in zip(rows.indptr, rows.indptr[1:], strict=False):
        order = np.argsort(-rows.data[first:last], kind="stable")[:count]
        keep[first + order] = True
    counts = np.add.reduceat(np.append(keep, False), rows.indptr[:-1]) * (np.diff(rows.indptr) > 0)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return csr_array((rows.data[keep], rows.indices[keep], indptr), shape=rows.shape)


def _compare(name: str, first: Any, second: Any, *, pairwise: bool) -> Any:
    import torch

    a, b = (_make_matrix(vectors) for vectors in (first, second))
    b = b.to(a.device)
    if name == "cosine":
        a, b = (torch.nn.functional.normalize(x, dim=1) for x in (a, b))
    if name in ("cosine", "dot"):
        return (a * b).sum(1) if pairwise else a @ b.T
    order = 2.0 if name == "euclidean" else 1.0
    return -torch.linalg.vector_norm(a - b, order, dim=1) if pairwise else -torch.cdist(a, b, p=order)


def _make_matrix(vectors: Any) -> Any:
    """Vectors as a dense tensor [N, dim]."""
    import torch

    if isinstance(vectors, list | tuple):
        vectors = torch.stack([torch.as_tensor(vector) for vector in vectors])
    tensor = torch.as_tensor(vectors)
    tensor = tensor.to_dense() if tensor.is_sparse else tensor
    return tensor[None] if tensor.ndim == 1 else tensor


def _list_matrices(vectors: Any) -> list[Any]:
    import torch

    if not isinstance(vectors, list | tuple):
        tensor = torch.as_tensor(vectors)
        return list(tensor) if tensor.ndim == 3 else [tensor]
    return [torch.as_tensor(part) for part in vectors]
