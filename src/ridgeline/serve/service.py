"""The models and indexes of a server: load, warm up, replace, watch their folders, restart after a failure."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ridgeline.errors import InputError
from ridgeline.serve.api_errors import ApiError, bad_request, describe_error
from ridgeline.serve.batcher import Stopped
from ridgeline.serve.metrics import Metrics
from ridgeline.serve.served_model import ServedEmbedder, ServedIndex, ServedModel, ServedReranker, load_model

MAX_QUEUE = 1024  # requests
MAX_QUEUE_TOKENS = 16_000_000  # 64 MB of token ids
WATCH_S = 2.0
_RESTART_S = (0.0, 1.0, 5.0, 15.0, 60.0)  # pauses before a failed model is loaded again
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_log = logging.getLogger("ridgeline.serve")
Kind = TypeVar("Kind", bound=ServedModel)


@dataclass(frozen=True)
class Settings:
    """The options of a server that concern its models."""

    device: str = "auto"
    dtype: str = "auto"
    max_batch_tokens: int | None = None
    max_queue: int = MAX_QUEUE


class Service:
    """All models and indexes of one server.

    models   "FOLDER" or "NAME=FOLDER"; a model without a name takes the name of its folder
    indexes  likewise
    """

    def __init__(self, models: Sequence[str], indexes: Sequence[str], settings: Settings) -> None:
        if not models and not indexes:
            raise InputError("there is nothing to serve; give a model, or --index DIR.")
        if settings.max_queue < 1:
            raise InputError(f"--max-queue is {settings.max_queue}; give 1 or more.")
        if settings.max_batch_tokens is not None and settings.max_batch_tokens < 1:
            raise InputError(f"--max-batch-tokens is {settings.max_batch_tokens}; give 1 or more.")
        self.settings = settings
        self.metrics = Metrics(self._measure_queues)
        self.models: dict[str, ServedModel] = {}
        self.indexes: dict[str, ServedIndex] = {}
        self._reloading: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        for name, source in _parse_names(models, "model").items():
            self.models[name] = self._load(name, source)
        for name, source in _parse_names(indexes, "index").items():
            self.indexes[name] = ServedIndex(name, Path(source), device=settings.device)

    @property
    def ready(self) -> bool:
        """Whether every model has encoded a first text and none has failed."""
        return not self._failed and all(model.ready for model in self.models.values())

    async def start(self, watch: bool) -> None:
        """Warm up the models, in the background; watch the folders on request."""
        self._loop = asyncio.get_running_loop()
        self._run_task(self._warm_up())
        if watch:
            self._run_task(self._watch_folders())

    async def stop(self) -> None:
        """Finish what was accepted and release the models."""
        for task in self._tasks:
            task.cancel()
        for model in self.models.values():
            await asyncio.to_thread(model.close)

    def get_embedder(self, name: str | None) -> ServedEmbedder:
        """Return an embedder by name; without a name, the first one."""
        return self._get_model(name, ServedEmbedder)

    def get_reranker(self, name: str | None) -> ServedReranker:
        """Return a reranker by name; without a name, the first one."""
        return self._get_model(name, ServedReranker)

    def get_any_model(self, name: str) -> ServedModel:
        if name not in self.models:
            known = ", ".join(self.models) or "none"
            raise ApiError(
                404, f"there is no model of this name; there are: {known}.", code="model_not_found", param="model"
            )
        return self.models[name]

    def _get_model(self, name: str | None, kind: type[Kind]) -> Kind:
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
        if model.name in self._failed:
            raise ApiError(
                503,
                f"'{model.name}' failed and is loaded again; try again in a moment.",
                code="model_unavailable",
                headers={"retry-after": "2"},
            )
        return model

    def get_index(self, name: str) -> ServedIndex:
        if name not in self.indexes:
            known = ", ".join(self.indexes) or "none"
            raise ApiError(
                404, f"there is no index of this name; there are: {known}.", code="index_not_found", param="index"
            )
        return self.indexes[name]

    def choose_text_model(self, index: ServedIndex, name: str | None) -> ServedEmbedder:
        """Return the model that encodes texts for an index: the named one, the index's own, or the only fitting one."""
        if name is not None:
            model = self.get_embedder(name)
        else:
            embedders = [m for m in self.models.values() if isinstance(m, ServedEmbedder)]
            fitting = [m for m in embedders if m.dim == index.index.dim]
            matching = [m for m in fitting if index.index.model in m.names]
            if len(matching or fitting) != 1:
                names = ", ".join(m.name for m in fitting) or "none"
                raise bad_request(
                    f"name the 'model' that encodes texts for '{index.name}'; there are: {names}.", "model"
                )
            model = self.get_embedder((matching or fitting)[0].name)
        if index.index.dim not in (None, model.dim):
            raise bad_request(
                f"'{model.name}' has {model.dim} dimensions, and the index '{index.name}' {index.index.dim}.", "model"
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

    async def reload(self, *, model: str | None = None, index: str | None = None) -> None:
        """Load a model or an index again; the old one answers until the new one is ready."""
        if index is not None:
            folder = self.get_index(index).folder
            async with self._reloading.setdefault(f"index {index}", asyncio.Lock()):
                self.indexes[index] = await asyncio.to_thread(ServedIndex, index, folder, device=self.settings.device)
        if model is not None:
            self.get_any_model(model)
            async with self._reloading.setdefault(f"model {model}", asyncio.Lock()):
                old = self.models[model]
                self.models[model] = await self._load_warm(model, old.source)
                self._failed.discard(model)
                self._run_task(_close_later(old))

    def _load(self, name: str, source: str) -> ServedModel:
        settings = self.settings
        model: ServedModel = load_model(
            name,
            source,
            device=settings.device,
            dtype=settings.dtype,
            max_batch_tokens=settings.max_batch_tokens,
            observe=self.metrics.observe_batch,
            on_failure=lambda error: self._handle_failure(model, error),
        )
        self.metrics.largest_batch[name] = model.max_batch_tokens
        return model

    async def _load_warm(self, name: str, source: str) -> ServedModel:
        model = await asyncio.to_thread(self._load, name, source)
        try:
            await model.warm_up()
        except BaseException:
            await asyncio.to_thread(model.close)
            raise
        return model

    def _handle_failure(self, model: ServedModel, error: BaseException) -> None:
        """Load a broken model again; called in the thread of its batcher."""
        if self._loop is not None:
            _log.error("the model '%s' failed and is loaded again (%s)", model.name, describe_error(error))
            with suppress(RuntimeError):  # the server has ended
                self._loop.call_soon_threadsafe(self._start_restart, model)

    def _start_restart(self, model: ServedModel) -> None:
        if self.models[model.name] is model and model.name not in self._failed:  # else it was replaced already
            self._failed.add(model.name)
            self._run_task(self._restart(model.name))

    async def _restart(self, name: str) -> None:
        for pause in _RESTART_S:
            await asyncio.sleep(pause)
            try:
                await self.reload(model=name)
            except Exception as error:
                _log.error("the model '%s' could not be loaded again (%s)", name, describe_error(error))
            else:
                return
        _log.error("the model '%s' stays unavailable; restart the server", name)

    async def _warm_up(self) -> None:
        for model in list(self.models.values()):
            try:
                await model.warm_up()
            except Stopped:
                pass  # it is being loaded again
            except Exception as error:
                self._handle_failure(model, error)

    async def _watch_folders(self) -> None:
        """Reload what changed, once its files have been still for one period."""
        changing: dict[str, Any] = {}
        while True:
            await asyncio.sleep(WATCH_S)
            watched: list[tuple[str, ServedModel | ServedIndex]] = [
                *(("model", m) for m in self.models.values()),
                *(("index", i) for i in self.indexes.values()),
            ]
            for kind, served in watched:
                state = await asyncio.to_thread(served.read_state)
                if state == served.state:
                    changing.pop(served.name, None)
                elif changing.get(served.name) == state:
                    del changing[served.name]
                    try:
                        await self.reload(**{kind: served.name})
                    except Exception as error:
                        served.state = state  # until the folder changes again
                        _log.error("the %s '%s' was not loaded again (%s)", kind, served.name, describe_error(error))
                else:
                    changing[served.name] = state

    def _measure_queues(self) -> list[tuple[str, int, int]]:
        return [(name, m.users, m.batcher.waiting_tokens) for name, m in self.models.items()]

    def _run_task(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _close_later(model: ServedModel) -> None:
    """Close a replaced model once no request uses it."""
    while model.users:
        await asyncio.sleep(0.05)
    await asyncio.to_thread(model.close)


def _parse_names(words: Sequence[str], kind: str) -> dict[str, str]:
    """Return name → source of "NAME=SOURCE" or "SOURCE"."""
    sources: dict[str, str] = {}
    for word in words:
        name, equals, source = word.partition("=")
        if not equals or "/" in name:
            is_path = Path(word).exists() or word.startswith(("/", "./", "../", "~"))
            name, source = Path(word).expanduser().resolve().name if is_path else word, word
        if not _NAME.fullmatch(name):
            raise InputError(
                f"'{name}' is no name for a {kind}; give one with letters, digits and . _ -: NAME={source}."
            )
        if name in sources:
            raise InputError(f"two of the {kind}s are called '{name}'; give them names: NAME={source}.")
        sources[name] = source
    return sources
