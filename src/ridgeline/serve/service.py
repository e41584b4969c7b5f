"""The models and indexes of a server: load, warm up, replace, watch their folders, restart after a failure."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.serve.api_errors import describe_error
from ridgeline.serve.batcher import Stopped
from ridgeline.serve.catalog import Catalog, Settings
from ridgeline.serve.metrics import Gauges, Metrics, read_gpu_memory
from ridgeline.serve.served_model import ServedIndex, ServedModel, load_model

WATCH_S = 2.0
_RESTART_S = (0.0, 1.0, 5.0, 15.0, 60.0)  # pauses before a failed model is loaded again
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_log = logging.getLogger("ridgeline.serve")


async def _publish_nothing() -> None:
    pass


class Service(Catalog[ServedIndex]):
    """All models and indexes of one server, in this process.

    models    "FOLDER", "NAME=FOLDER" or "NAME,ALIAS=FOLDER"; a model without a name takes the name of its folder
    indexes   likewise, but without aliases

    If other processes have copies of the catalog (engine.py):
    publish   sends them what changed, and returns when they have it
    is_used   whether one of them uses a model that was replaced
    give_up   called if the device of a broken model does not answer any more: only a new process helps then
    """

    def __init__(self, models: Sequence[str], indexes: Sequence[str], settings: Settings) -> None:
        if not models and not indexes:
            raise InputError("there is nothing to serve; give a model, or --index DIR.")
        if settings.max_queue < 1:
            raise InputError(f"--max-queue is {settings.max_queue}; give 1 or more.")
        if settings.max_batch_tokens is not None and settings.max_batch_tokens < 1:
            raise InputError(f"--max-batch-tokens is {settings.max_batch_tokens}; give 1 or more.")
        super().__init__(settings)
        self.publish: Callable[[], Awaitable[None]] = _publish_nothing
        self.is_used: Callable[[ServedModel], bool] = lambda model: False
        self.give_up: Callable[[], object] | None = None
        self.metrics = Metrics(self.measure)
        self._reloading: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        for name, source in _parse_names(models, "model").items():
            name, *aliases = name.split(",")
            self.models[name] = self._load(name, source, aliases)
        for name, source in _parse_names(indexes, "index").items():
            self.indexes[name] = ServedIndex(name, Path(source), device=settings.device)

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

    async def reload(self, *, model: str | None = None, index: str | None = None) -> None:
        """Load a model or an index again; the old one answers until the new one is ready."""
        if index is not None:
            folder = self.get_index(index).folder
            async with self._reloading.setdefault(f"index {index}", asyncio.Lock()):
                self.indexes[index] = await asyncio.to_thread(ServedIndex, index, folder, device=self.settings.device)
                await self.publish()
        if model is not None:
            model = self.get_any_model(model).name
            async with self._reloading.setdefault(f"model {model}", asyncio.Lock()):
                old = self.models[model]
                self.models[model] = await self._load_warm(model, old.source, old.aliases)
                self.failed.discard(model)
                self._run_task(self._close_later(old))
                await self.publish()

    def _load(self, name: str, source: str, aliases: Sequence[str]) -> ServedModel:
        settings = self.settings
        model: ServedModel = load_model(
            name,
            source,
            device=settings.device,
            dtype=settings.dtype,
            batch_invariant=settings.batch_invariant,
            aliases=aliases,
            max_batch_tokens=settings.max_batch_tokens,
            observe=self.metrics.observe_batch,
            on_failure=lambda error: self._handle_failure(model, error),
        )
        self.metrics.largest_batch[name] = model.max_batch_tokens
        return model

    async def _load_warm(self, name: str, source: str, aliases: Sequence[str]) -> ServedModel:
        model = await asyncio.to_thread(self._load, name, source, aliases)
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
            if self.give_up is not None and not model.answers():
                self.give_up()
            with suppress(RuntimeError):  # the server has ended
                self._loop.call_soon_threadsafe(self._start_restart, model)

    def _start_restart(self, model: ServedModel) -> None:
        if self.models[model.name] is model and model.name not in self.failed:  # else it was replaced already
            self.failed.add(model.name)
            self._run_task(self._restart(model.name))
            self._run_task(self.publish())

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
                await self.publish()
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

    async def measure(self) -> Gauges:
        """Return the lengths of the queues and the memory of the GPUs."""
        queues = [(name, m.users, m.batcher.waiting_tokens) for name, m in self.models.items()]
        return Gauges(queues, read_gpu_memory())

    async def _close_later(self, model: ServedModel) -> None:
        """Close a replaced model once no request uses it."""
        while model.users or self.is_used(model):
            await asyncio.sleep(0.05)
        await asyncio.to_thread(model.close)

    def _run_task(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _parse_names(words: Sequence[str], kind: str) -> dict[str, str]:
    """Return names → source of "NAME,ALIAS=SOURCE" or "SOURCE"; a model can have several names, with commas."""
    sources: dict[str, str] = {}
    taken: set[str] = set()
    for word in words:
        names, equals, source = word.partition("=")
        is_path = Path(word).expanduser().exists() or word.startswith(("/", "./", "../", "~"))
        if not equals or is_path:
            names, source = Path(word).expanduser().resolve().name if is_path else word, word
        for name in names.split(",") if kind == "model" and equals else [names]:
            if not _NAME.fullmatch(name):
                raise InputError(
                    f"'{name}' is no name for a {kind}; give one with letters, digits and . _ -: NAME={source}."
                )
            if name in taken:
                raise InputError(f"two of the {kind}s are called '{name}'; give them names: NAME={source}.")
            taken.add(name)
        sources[names] = source
    return sources
