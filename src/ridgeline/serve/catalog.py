"""The models and indexes of a server by name, and the error of a request that cannot have one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ridgeline.serve.api_errors import ApiError, bad_request
from ridgeline.serve.served_model import ServedEmbedder, ServedModel, ServedReranker

MAX_QUEUE = 1024  # requests
MAX_QUEUE_TOKENS = 16_000_000  # 64 MB of token ids
Kind = TypeVar("Kind", bound=ServedModel)


@dataclass(frozen=True)
class Settings:
    """The options of a server that concern its models.

    batch_invariant  the same bits for a text in every batch, where the device can promise it
    """

    device: str = "auto"
    dtype: str = "auto"
    max_batch_tokens: int | None = None
    max_queue: int = MAX_QUEUE
    batch_invariant: bool = True


class AnyIndex(Protocol):
    """An index, of this process or of another."""

    name: str

    @property
    def dim(self) -> int | None: ...

    @property
    def model(self) -> str | None: ...

    async def count_rows(self) -> int: ...


IndexKind = TypeVar("IndexKind", bound=AnyIndex)


class Catalog(Generic[IndexKind]):
    """Models and indexes by name.

    failed  the models that are broken and being loaded again
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.models: dict[str, ServedModel] = {}
        self.indexes: dict[str, IndexKind] = {}
        self.failed: set[str] = set()

    @property
    def ready(self) -> bool:
        """Whether every model has encoded a first text and none has failed."""
        return not self.failed and all(model.ready for model in self.models.values())

    @property
    def model_names(self) -> list[str]:
        """The names of all models, aliases too."""
        return [name for model in self.models.values() for name in (model.name, *model.aliases)]

    def check_available(self) -> None:
        """Refuse a request while nothing can be answered."""

    def get_embedder(self, name: str | None) -> ServedEmbedder:
        """Return an embedder by name; without a name, the first one."""
        return self._get_model(name, ServedEmbedder)

    def get_reranker(self, name: str | None) -> ServedReranker:
        """Return a reranker by name; without a name, the first one."""
        return self._get_model(name, ServedReranker)

    def get_any_model(self, name: str) -> ServedModel:
        self.check_available()
        return self.find_model(name)

    def find_model(self, name: str) -> ServedModel:
        """Return a model by its name or an alias, even while it cannot answer."""
        model = self.models.get(name) or next((m for m in self.models.values() if name in m.aliases), None)
        if model is None:
            known = ", ".join(self.model_names) or "none"
            raise ApiError(
                404, f"there is no model of this name; there are: {known}.", code="model_not_found", param="model"
            )
        return model

    def _get_model(self, name: str | None, kind: type[Kind]) -> Kind:
        self.check_available()
        fitting = [model for model in self.models.values() if isinstance(model, kind)]
        if name is None:
            if not fitting:
                raise ApiError(404, f"this server has no {kind.kind} model.", code="model_not_found")
            model = fitting[0]
        else:
            given = self.get_any_model(name)
            if not isinstance(given, kind):
                known = ", ".join(other.name for other in fitting) or "none"
                raise bad_request(f"'{name}' is no {kind.kind} model; there are: {known}.", "model")
            model = given
        if model.name in self.failed:
            raise ApiError(
                503,
                f"'{model.name}' failed and is loaded again; try again in a moment.",
                code="model_unavailable",
                headers={"retry-after": "2"},
            )
        return self.spread(model)

    def spread(self, model: Kind) -> Kind:
        """Return the copy of a model that takes the next request; here there is one."""
        return model

    def get_index(self, name: str) -> IndexKind:
        self.check_available()
        if name not in self.indexes:
            known = ", ".join(self.indexes) or "none"
            raise ApiError(
                404, f"there is no index of this name; there are: {known}.", code="index_not_found", param="index"
            )
        return self.indexes[name]

    def choose_text_model(self, index: IndexKind, name: str | None) -> ServedEmbedder:
        """Return the model that encodes texts for an index: the named one, the index's own, or the only fitting one."""
        if name is not None:
            model = self.get_embedder(name)
        else:
            embedders = [m for m in self.models.values() if isinstance(m, ServedEmbedder)]
            fitting = [m for m in embedders if m.dim == index.dim]
            matching = [m for m in fitting if index.model in m.names]
            if len(matching or fitting) != 1:
                names = ", ".join(m.name for m in fitting) or "none"
                raise bad_request(
                    f"name the 'model' that encodes texts for '{index.name}'; there are: {names}.", "model"
                )
            model = self.get_embedder((matching or fitting)[0].name)
        if index.dim not in (None, model.dim):
            raise bad_request(
                f"'{model.name}' has {model.dim} dimensions, and the index '{index.name}' {index.dim}.", "model"
            )
        return model

    def check_queue(self, model: ServedModel) -> None:
        """Refuse a request if too many wait; the header says when to try again."""
        tokens = model.batcher.waiting_tokens
        if model.users < self.settings.max_queue and tokens < MAX_QUEUE_TOKENS:
            return
        seconds = math.ceil(min(60.0, max(1.0, tokens / max(1.0, model.batcher.tokens_per_second))))
        raise ApiError(
            429,
            f"{model.users} requests wait for '{model.name}', which is the limit; try again in {seconds} s.",
            code="rate_limit_exceeded",
            headers={"retry-after": str(seconds)},
        )
