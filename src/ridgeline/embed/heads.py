"""The steps after the encoder: sparse vectors, one vector per token, scores of a classifier.

`find_heads` reads which outputs a folder has. Each head takes the packed hidden states of a batch and returns a dict of
tensors on the device; `collect` functions turn the parts of all batches into one result in the order of the texts.

    sparse   SPLADE (a masked language model, log(1 + relu), maximum over the tokens), or the sparse_linear of bge-m3
    multi    ColBERT (a linear layer per token, unit length), or the colbert_linear of bge-m3
    tokens   the last hidden states
    scores   the classifier of a cross-encoder (reranker.py)
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.embed.folder_files import list_modules, read_json_object
from ridgeline.embed.tensor_files import find_weight_files
from ridgeline.errors import InputError, MissingExtra, unknown

if TYPE_CHECKING:
    from ridgeline.embed.layers import Layers, Packed

OUTPUTS = ("dense", "sparse", "multi", "tokens")
LOGITS = 1 << 24  # values of a masked language model that are held at a time: 64 MiB of float32


@dataclass(frozen=True)
class TokenVectors:
    """Vectors of the tokens of many texts: text i has `vectors[offsets[i]:offsets[i + 1]]`.

    >>> tokens = TokenVectors(np.zeros((5, 8), np.float32), np.array([0, 3, 5]))
    >>> len(tokens), tokens[1].shape
    (2, (2, 8))
    """

    vectors: NDArray[np.float32]  # [tokens of all texts, d]
    offsets: NDArray[np.int64]  # [texts + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        """The vectors of one text, a view."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"text {index} of {len(self)}")
        index %= len(self)
        return self.vectors[self.offsets[index] : self.offsets[index + 1]]


@dataclass(frozen=True)
class Splade:
    """A SpladePooling module over a masked language model."""

    pooling: str = "max"
    activation: str = "relu"


@dataclass(frozen=True)
class TokenLayer:
    """A linear layer per token; `normalized` if a Normalize module comes before it."""

    folder: Path
    activation: str = "Identity"
    normalized: bool = False


@dataclass(frozen=True)
class MultiVectors:
    """The modules of a MultiVectorEncoder after its Transformer."""

    layers: tuple[TokenLayer, ...]
    normalize: bool
    skipped_words: tuple[str, ...] = ()  # tokens that have no vector
    skipped_tasks: tuple[str, ...] = ("document",)
    query_length: int | None = None
    document_length: int | None = None
    expands_queries: bool = False


@dataclass(frozen=True)
class FolderHeads:
    """The outputs of a model folder."""

    folder: Path
    dense: bool = True
    splade: Splade | None = None
    multi: MultiVectors | None = None
    linear_files: Mapping[str, Path] = field(default_factory=dict)  # bge-m3: "sparse", "multi" → file

    @property
    def names(self) -> tuple[str, ...]:
        has = {
            "dense": self.dense,
            "sparse": self.splade is not None or "sparse" in self.linear_files,
            "multi": self.multi is not None or "multi" in self.linear_files,
            "tokens": True,
        }
        return tuple(name for name in OUTPUTS if has[name])

    def check(self, names: Sequence[str]) -> None:
        """Raise InputError unless the folder has all these outputs."""
        for name in names:
            if name not in OUTPUTS:
                raise unknown("output", name, OUTPUTS)
            if name not in self.names:
                raise InputError(f"'{self.folder}' has no '{name}' output; it has {_list_names(self.names)}.")


def find_heads(folder: Path) -> FolderHeads:
    """Read which outputs a folder has; a folder that is no sparse or multi-vector encoder has a dense output."""
    modules = _read_modules(folder)
    names = [name for name, _ in modules]
    kind = read_json_object(folder / "config_sentence_transformers.json", needed=False).get("model_type")
    if "SpladePooling" in names or (not modules and _is_masked_language_model(folder)):
        return FolderHeads(folder, dense=False, splade=_read_splade(folder, modules))
    if kind in ("MultiVectorEncoder", "ColBERT") or "MultiVectorMask" in names:
        return FolderHeads(folder, dense=False, multi=_read_multi(folder, modules, str(kind)))
    files: dict[str, Path] = {}
    for name, stem in (("sparse", "sparse_linear"), ("multi", "colbert_linear")):
        for file in (folder / f"{stem}.safetensors", folder / f"{stem}.pt"):
            if file.is_file():
                files.setdefault(name, file)
    return FolderHeads(folder, linear_files=files)


# Heads on the device. Every `__call__` takes hidden [T, hidden], the packed texts, and ids [T].


class SpladeHead:
    """hidden → the values above 0 of log(1 + relu(logits)), pooled over the tokens of each text."""

    def __init__(self, layers: Layers, folder: Path, settings: Splade) -> None:
        tensors, config = RawTensors(folder), read_json_object(folder / "config.json", needed=False)
        self._layers, self._settings = layers, settings
        head = next((names for names in MASKED_LANGUAGE_HEADS if f"{names.dense}.weight" in tensors), None)
        if head is None:
            raise InputError(f"the weights in '{folder}' hold no head of a masked language model; fetch it again.")
        weight = tensors.get(f"{head.decoder}.weight", default=None)
        if weight is None:  # tied to the table of words
            weight = tensors.find("word_embeddings.weight", "tok_embeddings.weight", "embed_tokens.weight")
        bias = tensors.get(f"{head.decoder}.bias", f"{head.bias}.bias", default=None)
        self.width = len(weight)
        self._dense = layers.prepare_linear(*tensors.read_linear(head.dense))
        self._norm = _Norm(tensors, head.norm, config, layers.device)
        self._activate = _get_activation(config.get(head.activation, "gelu") if head.activation else "gelu")
        self._decoder = layers.prepare_linear(weight, weight.new_zeros(len(weight)) if bias is None else bias)

    def __call__(self, hidden: Any, packed: Packed, ids: Any) -> dict[str, Any]:
        import torch

        rows, columns, values = [], [], []
        first_row = 0
        for first, count, length in packed.runs:
            texts = max(1, LOGITS // (length * self.width))
            for start in range(0, count, texts):
                n = min(texts, count - start)
                begin = first + start * length
                pooled = self._pool(hidden[begin : begin + n * length], n, length)
                row, column = pooled.nonzero(as_tuple=True)
                rows.append(row + first_row)
                columns.append(column.int())
                values.append(pooled[row, column])
                first_row += n
        counts = torch.bincount(torch.cat(rows), minlength=first_row) if rows else hidden.new_zeros(0).long()
        return {"sparse.counts": counts, "sparse.columns": torch.cat(columns), "sparse.values": torch.cat(values)}

    def _pool(self, hidden: Any, texts: int, length: int) -> Any:
        """hidden [texts · length, hidden] → float32 [texts, vocabulary]; a long text in parts."""
        import torch

        step = max(1, LOGITS // (texts * self.width))
        pooled: Any = None
        for begin in range(0, length, step):
            part = hidden.view(texts, length, -1)[:, begin : begin + step]
            x = self._activate(self._layers.linear(part.reshape(-1, part.shape[2]), self._dense))
            logits = self._layers.linear(self._norm(x).to(hidden.dtype), self._decoder).float()
            logits = logits.view(texts, -1, self.width)
            if self._settings.pooling == "max":  # the logarithm keeps the order, so it can wait
                values = logits.amax(1)
                pooled = values if pooled is None else torch.maximum(pooled, values)
            else:
                values = self._layers.sum_tokens(self._transform(logits))
                pooled = values if pooled is None else pooled + values
        return self._transform(pooled) if self._settings.pooling == "max" else pooled

    def _transform(self, logits: Any) -> Any:
        values = logits.relu().log1p()
        return values.log1p() if self._settings.activation == "log1p_relu" else values


class TokenWeightHead:
    """bge-m3: hidden → one weight per token, relu of a linear layer; a token of the vocabulary has its largest."""

    def __init__(self, layers: Layers, file: Path, vocabulary: int, unused: Sequence[int]) -> None:
        weight, bias = read_linear_file(file)
        self._layers = layers
        self._weight, self._bias = weight.flatten().to(layers.device), bias.to(layers.device)
        self.width = vocabulary
        self.unused = np.array(sorted(unused), np.int32)  # special tokens have no weight

    def __call__(self, hidden: Any, packed: Packed, ids: Any) -> dict[str, Any]:
        weights = self._layers.dot_rows(hidden.float(), self._weight) + self._bias
        return {"sparse.weights": weights.relu()}


class TokenVectorHead:
    """hidden → a vector per token: linear layers, and unit length."""

    def __init__(
        self,
        layers: Layers,
        steps: Sequence[tuple[Any, Any, str, bool]],  # weight, bias, activation, whether its input is normalized
        *,
        normalize: bool,
        skipped: Sequence[int] = (),  # ids without a vector
        skips_first: bool = False,  # no vector for the first token of a text
    ) -> None:
        import torch

        self._layers, self._normalize = layers, normalize
        self._skipped, self._skips_first = sorted(skipped), skips_first
        self._steps = [
            (layers.prepare_linear(weight, bias), getattr(torch.nn, activation)(), normalized)
            for weight, bias, activation, normalized in steps
        ]
        self.width: int | None = steps[-1][0].shape[0] if steps else None

    def __call__(self, hidden: Any, packed: Packed, ids: Any) -> dict[str, Any]:
        import torch

        vectors = hidden
        for linear, activation, normalized in self._steps:
            if normalized:
                vectors = self._layers.normalize_rows(vectors.float()).to(hidden.dtype)
            vectors = activation(self._layers.linear(vectors, linear))
        vectors = vectors.float()
        if self._normalize:
            vectors = self._layers.normalize_rows(vectors)
        starts, counts = packed.offsets[:-1], packed.offsets.diff()
        if self._skipped or self._skips_first:
            keep = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
            if self._skipped:
                keep &= ~torch.isin(ids, torch.tensor(self._skipped, device=ids.device, dtype=ids.dtype))
            if self._skips_first:
                keep[starts] = False
            before = torch.nn.functional.pad(keep.long().cumsum(0), (1, 0))
            counts = before[packed.offsets].diff()
            vectors = vectors[keep]
        return {"multi.counts": counts, "multi.vectors": vectors}


class HiddenStates:
    """The last hidden states as they are."""

    width = None  # that of the encoder

    def __call__(self, hidden: Any, packed: Packed, ids: Any) -> dict[str, Any]:
        return {"tokens.counts": packed.offsets.diff(), "tokens.vectors": hidden.float()}


class Classifier:
    """hidden → logits float32 [n, labels], as …ForSequenceClassification of transformers."""

    def __init__(self, layers: Layers, folder: Path) -> None:
        tensors, config = RawTensors(folder), read_json_object(folder / "config.json", needed=False)
        parts = next((p for p in CLASSIFIERS if f"{p.out}.weight" in tensors and p.fits(tensors)), None)
        if parts is None:
            raise InputError(f"the weights in '{folder}' hold no classifier that is known here, so it is no reranker.")
        self._layers = layers
        self._pooling = str(config.get(parts.pooling_key, parts.pooling)) if parts.pooling_key else parts.pooling
        if self._pooling not in ("cls", "mean", "last"):
            raise InputError(f"'{folder}' pools by {self._pooling} for its classifier; known are cls, mean and last.")
        device = layers.device
        self._dense = None
        if parts.dense:
            self._dense = layers.prepare_head(*tensors.read_linear(parts.dense))
            name = parts.activation if parts.activation in _ACTIVATIONS else config.get(parts.activation, "gelu")
            self._activate = _get_activation(name)
        self._norm = _Norm(tensors, parts.norm, config, device) if parts.norm else None
        weight, bias = tensors.read_linear(parts.out)
        self._out, self.labels = layers.prepare_head(weight, bias), len(weight)

    def __call__(self, hidden: Any, packed: Packed, ids: Any) -> dict[str, Any]:
        if self._pooling == "mean":
            x = self._layers.pool(hidden, packed, "mean", False)
        else:
            rows = packed.offsets[:-1] if self._pooling == "cls" else packed.offsets[1:] - 1
            x = hidden[rows].float()
        if self._dense is not None:
            x = self._activate(self._layers.head_linear(x, self._dense))
        if self._norm is not None:
            x = self._norm(x)
        return {"scores": self._layers.head_linear(x, self._out)}


# Results of all batches, in the order of the texts.


class SparseParts:
    """Collects the sparse rows of batches into one CSR matrix."""

    def __init__(self, width: int, unused: NDArray[np.int32] | None = None) -> None:
        self.width, self._unused = width, unused
        self._parts: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]] = []

    def add(self, batch: Any, outputs: Mapping[str, NDArray[Any]]) -> None:
        if "sparse.weights" in outputs:
            lengths, ids, weights = np.diff(batch.offsets), batch.ids, outputs["sparse.weights"]
            counts, columns, values = _keep_largest(lengths, ids, weights, self._unused)
        else:
            counts, columns, values = (outputs[f"sparse.{name}"].copy() for name in ("counts", "columns", "values"))
        self._parts.append((batch.rows.copy(), counts, columns, values))

    def join(self, rows: int) -> Any:
        """Return a scipy.sparse CSR array, float32 [rows, width], with sorted columns."""
        from scipy.sparse import csr_array

        indptr, order = _order_parts([p[0] for p in self._parts], [p[1] for p in self._parts], rows)
        columns = _join([p[2] for p in self._parts], np.int32)[order]
        values = _join([p[3] for p in self._parts], np.float32)[order]
        return csr_array((values, columns, indptr), shape=(rows, self.width))


class TokenParts:
    """Collects the token vectors of batches."""

    def __init__(self, name: str, width: int) -> None:
        self.name, self.width = name, width
        self._parts: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]] = []

    def add(self, batch: Any, outputs: Mapping[str, NDArray[Any]]) -> None:
        counts, vectors = outputs[f"{self.name}.counts"], outputs[f"{self.name}.vectors"]
        self._parts.append((batch.rows.copy(), counts.copy(), vectors.copy()))

    def join(self, rows: int) -> TokenVectors:
        """Return the vectors of all texts. Each part is freed when it is placed, so the vectors are in memory once."""
        counts = np.zeros(rows, np.int64)
        for texts, count, _ in self._parts:
            counts[texts] = count
        offsets = np.concatenate([[0], np.cumsum(counts)])
        vectors = np.empty((int(offsets[-1]), self.width), np.float32)
        while self._parts:
            texts, count, part = self._parts.pop()
            vectors[_expand(offsets[texts], count)] = part
        return TokenVectors(vectors, offsets)


class RowParts:
    """Collects one row per text: vectors, or scores of a classifier."""

    def __init__(self, name: str, width: int) -> None:
        self.name, self.width = name, width
        self._parts: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []

    def add(self, batch: Any, outputs: Mapping[str, NDArray[Any]]) -> None:
        self._parts.append((batch.rows.copy(), outputs[self.name].copy()))

    def join(self, rows: int) -> NDArray[np.float32]:
        result = np.empty((rows, self.width), np.float32)
        for texts, part in self._parts:
            result[texts] = part
        return result


def _keep_largest(
    lengths: NDArray[np.int64], ids: NDArray[np.int32], weights: NDArray[np.float32], unused: NDArray[np.int32] | None
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
    """Return counts, columns and values: the largest weight of each token of each text, if it is above 0.

    >>> ids, weights = np.array([7, 5, 7, 7], np.int32), np.array([0.5, 0, 2, 1], np.float32)
    >>> _keep_largest(np.array([3, 1]), ids, weights, None)
    (array([1, 1]), array([7, 7], dtype=int32), array([2., 1.], dtype=float32))
    """
    texts = np.repeat(np.arange(len(lengths)), lengths)
    keep = weights > 0
    if unused is not None and len(unused):
        keep &= ~np.isin(ids, unused)
    texts, ids, weights = texts[keep], ids[keep], weights[keep]
    order = np.lexsort((ids, texts))
    texts, ids, weights = texts[order], ids[order], weights[order]
    first = np.flatnonzero((np.diff(texts, prepend=-1) != 0) | (np.diff(ids, prepend=-1) != 0))
    values = np.maximum.reduceat(weights, first) if len(first) else weights
    return np.bincount(texts[first], minlength=len(lengths)), ids[first], values.astype(np.float32)


def _order_parts(
    texts: Sequence[NDArray[np.int64]], counts: Sequence[NDArray[np.int64]], rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return indptr [rows + 1], and for each value of the result its index in the joined parts."""
    per_row, begins = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    joined_counts = _join(counts, np.int64)
    joined_texts = _join(texts, np.int64)
    per_row[joined_texts] = joined_counts
    begins[joined_texts] = np.cumsum(joined_counts) - joined_counts
    return np.concatenate([[0], np.cumsum(per_row)]), _expand(begins, per_row)


def _expand(begins: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return begins[0], begins[0] + 1, …: `counts[0]` of them, and so on.

    >>> _expand(np.array([7, 2]), np.array([2, 3]))
    array([7, 8, 2, 3, 4])
    """
    total = int(counts.sum())
    shifts = np.repeat(begins - (np.cumsum(counts) - counts), counts)
    return shifts + np.arange(total)


def _join(parts: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


# Weights of heads, by their published names.


@dataclass(frozen=True)
class MaskedLanguageHead:
    """Names of the tensors: dense, activation, norm, then the decoder, which is often tied to the table of words."""

    dense: str
    norm: str
    decoder: str
    bias: str
    activation: str | None  # its key in config.json; None: gelu


MASKED_LANGUAGE_HEADS = (
    MaskedLanguageHead(
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.decoder",
        "cls.predictions",
        "hidden_act",
    ),
    MaskedLanguageHead("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head", None),
    MaskedLanguageHead("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector", "activation"),
    MaskedLanguageHead(
        "predictions.dense", "predictions.LayerNorm", "predictions.decoder", "predictions", "hidden_act"
    ),
    MaskedLanguageHead("head.dense", "head.norm", "decoder", "decoder", "classifier_activation"),
)


@dataclass(frozen=True)
class ClassifierParts:
    """Names of the tensors: pooling, dense, activation, norm, then one row per label."""

    out: str
    pooling: str = "cls"
    pooling_key: str | None = None  # the key in config.json that overrides the pooling
    dense: str | None = None
    activation: str = "tanh"  # its name, or its key in config.json
    norm: str | None = None

    def fits(self, tensors: RawTensors) -> bool:
        return self.dense is None or f"{self.dense}.weight" in tensors


CLASSIFIERS = (
    ClassifierParts("classifier.out_proj", dense="classifier.dense"),  # RoBERTa, XLM-R, MPNet
    ClassifierParts("classifier", dense="pre_classifier", activation="relu"),  # DistilBERT
    ClassifierParts(  # ModernBERT
        "classifier",
        pooling_key="classifier_pooling",
        dense="head.dense",
        activation="classifier_activation",
        norm="head.norm",
    ),
    ClassifierParts("classifier", dense="pooler.dense", activation="pooler_hidden_act"),  # DeBERTa: without a stem
    *(ClassifierParts("classifier", dense=f"{stem}.pooler.dense") for stem in ("bert", "nomic_bert", "gte", "new")),
    ClassifierParts("classifier", dense="albert.pooler"),
    ClassifierParts("score", pooling="last"),  # Qwen3 and other decoders
)


class RawTensors:
    """The tensors of a folder's safetensors by their published names, read when needed, in float32."""

    def __init__(self, folder: Path) -> None:
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError:
            raise MissingExtra("reading safetensors", "embed") from None
        self._folder = folder
        self._files: dict[str, Any] = {}
        for file in find_weight_files(folder):
            try:
                opened: Any = safe_open(file, "pt")
            except (OSError, SafetensorError) as error:
                raise InputError(f"'{file}' cannot be read as safetensors: {error}; fetch it again.") from error
            self._files.update(dict.fromkeys(opened.keys(), opened))

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def get(self, *names: str, default: Any = ...) -> Any:
        """Return the first tensor that is there; without a default a missing one is an error."""
        for name in names:
            if name in self._files:
                return self._files[name].get_tensor(name).float()
        if default is ...:
            raise InputError(f"the weights in '{self._folder}' lack '{names[0]}'; fetch the model again.")
        return default

    def find(self, *ends: str) -> Any:
        """Return the first tensor whose name ends so."""
        for end in ends:
            for name in self._files:
                if name.endswith(end):
                    return self.get(name)
        raise InputError(f"the weights in '{self._folder}' lack '{ends[0]}'; fetch the model again.")

    def read_linear(self, name: str) -> tuple[Any, Any]:
        """Return weight and bias; a missing bias is zero."""
        weight = self.get(f"{name}.weight")
        bias = self.get(f"{name}.bias", default=None)
        return weight, weight.new_zeros(len(weight)) if bias is None else bias


class _Norm:
    """A layer norm in float32; the first BERT models named its weight gamma and its bias beta."""

    def __init__(self, tensors: RawTensors, name: str, config: Mapping[str, Any], device: Any) -> None:
        self._weight = tensors.get(f"{name}.weight", f"{name}.gamma").to(device)
        bias = tensors.get(f"{name}.bias", f"{name}.beta", default=None)
        self._bias = None if bias is None else bias.to(device)
        self._epsilon = float(config.get("layer_norm_eps", config.get("norm_eps", 1e-12)))

    def __call__(self, x: Any) -> Any:
        from torch.nn.functional import layer_norm

        return layer_norm(x.float(), (x.shape[1],), self._weight, self._bias, self._epsilon)


def read_linear_file(file: Path) -> tuple[Any, Any]:
    """Return weight and bias of a file with one linear layer: safetensors, or a .pt file that holds tensors only."""
    import torch

    try:
        if file.suffix == ".pt":
            tensors = torch.load(file, map_location="cpu", weights_only=True)  # never runs code of the file
        else:
            from safetensors.torch import load_file

            tensors = load_file(file)
        weight = tensors["weight"].float()
    except Exception as error:  # pickle, safetensors and torch raise many kinds
        raise InputError(f"'{file}' cannot be read as a linear layer: {error}; fetch it again.") from error
    bias = tensors.get("bias")
    return weight, weight.new_zeros(len(weight)) if bias is None else bias.float()


def find_token_ids(folder: Path, words: Sequence[str]) -> list[int]:
    """Return the ids of words that are one token of the vocabulary; the others are left out."""
    if not words:
        return []
    description = read_json_object(folder / "tokenizer.json", needed=False)
    vocabulary = description.get("model", {}).get("vocab", {})
    if isinstance(vocabulary, list):  # Unigram: (token, score) by id
        vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
    added = {token["content"]: token["id"] for token in description.get("added_tokens") or []}
    return [{**vocabulary, **added}[word] for word in words if word in vocabulary or word in added]


_ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "tanh")


def _get_activation(name: str) -> Callable[[Any], Any]:
    import torch
    from torch.nn.functional import gelu, relu, silu

    if name not in _ACTIVATIONS:
        raise unknown("activation of a head", name, _ACTIVATIONS)
    if name.startswith("gelu"):
        return lambda x: gelu(x, approximate="none" if name == "gelu" else "tanh")
    functions: dict[str, Callable[[Any], Any]] = {"relu": relu, "silu": silu, "tanh": torch.tanh}
    return functions[name]


# Configuration of heads.


_TOKEN_ACTIVATIONS = ("Identity", "Tanh", "GELU", "ReLU", "Sigmoid")
_MULTI_MODULES = ("Transformer", "Dense", "MultiVectorMask", "Normalize", "Dropout")


def _read_modules(folder: Path) -> list[tuple[str, str]]:
    """Return (class name, subfolder) of the modules in order; [] without modules.json."""
    return [(kind.rpartition(".")[2], path) for kind, path in list_modules(folder)]


def _is_masked_language_model(folder: Path) -> bool:
    architectures = read_json_object(folder / "config.json", needed=False).get("architectures") or []
    return any(str(name).endswith("ForMaskedLM") for name in architectures)


def _read_splade(folder: Path, modules: Sequence[tuple[str, str]]) -> Splade:
    names = [name for name, _ in modules]
    if modules and (len(names) != 2 or names[0] not in ("Transformer", "MLMTransformer")):
        raise InputError(
            f"'{folder}' has the modules {' → '.join(names)}; a sparse encoder is a Transformer and a SpladePooling."
        )
    settings = read_json_object(folder / modules[1][1] / "config.json", needed=False) if modules else {}
    splade = Splade(str(settings.get("pooling_strategy", "max")), str(settings.get("activation_function", "relu")))
    if splade.pooling not in ("max", "sum"):
        raise unknown(f"pooling in '{folder}'", splade.pooling, ("max", "sum"))
    if splade.activation not in ("relu", "log1p_relu"):
        raise unknown(f"activation in '{folder}'", splade.activation, ("relu", "log1p_relu"))
    return splade


def _read_multi(folder: Path, modules: Sequence[tuple[str, str]], kind: str) -> MultiVectors:
    """Read the modules of a MultiVectorEncoder, or of PyLate, which lists only the linear layers."""
    layers, normalized = [], False
    mask: dict[str, Any] = {}
    names = [name for name, _ in modules]
    if not names or names[0] != "Transformer" or any(name not in _MULTI_MODULES for name in names):
        raise InputError(
            f"'{folder}' has the modules {' → '.join(names) or '(none)'}; a multi-vector encoder is a Transformer, "
            "then Dense, MultiVectorMask and Normalize."
        )
    for name, path in modules:
        settings = read_json_object(folder / path / "config.json", needed=False) if path else {}
        if name == "Dense":
            layers.append(_read_token_layer(folder / path, settings, normalized))
            normalized = False
        elif name == "MultiVectorMask":
            mask = settings
        elif name == "Normalize":
            normalized = True
    config = read_json_object(folder / "config_sentence_transformers.json", needed=False)
    encoder = read_json_object(folder / modules[0][1] / "sentence_bert_config.json", needed=False)
    old = kind == "ColBERT"  # PyLate up to version 3
    if old and any(config.get(f"{task}_prefix") for task in ("query", "document")):
        raise InputError(
            f"'{folder}' is a PyLate model that inserts prefix tokens; load it once with sentence-transformers' "
            "MultiVectorEncoder and save it, which turns them into prompts."
        )
    if mask.get("keep_only_token_ids"):
        raise InputError(f"'{folder}' keeps the vectors of some token ids only, which is not known here.")
    words = config.get("skiplist_words", list(string.punctuation)) if old else mask.get("skiplist_words")
    return MultiVectors(
        tuple(layers),
        normalized or old,
        tuple(words or ()),
        tuple(mask.get("skiplist_tasks") or ("document",)),
        encoder.get("query_length"),
        encoder.get("document_length") or (config.get("document_length") if old else None),
        bool(config.get("do_query_expansion", True) if old else encoder.get("query_expansion")),
    )


def _read_token_layer(folder: Path, settings: Mapping[str, Any], normalized: bool) -> TokenLayer:
    if settings.get("module_input_name", "token_embeddings") != "token_embeddings" or settings.get("use_residual"):
        raise InputError(f"'{folder}' is a dense module that is not for each token, or has a residual: not known here.")
    activation = str(settings.get("activation_function", "Tanh")).rpartition(".")[2]
    if activation not in _TOKEN_ACTIVATIONS:
        raise unknown(f"activation in '{folder}'", activation, _TOKEN_ACTIVATIONS)
    return TokenLayer(folder, activation, normalized)


def _list_names(names: Sequence[str]) -> str:
    return " and ".join([", ".join(f"'{n}'" for n in names[:-1]), f"'{names[-1]}'"]) if len(names) > 1 else names[0]
