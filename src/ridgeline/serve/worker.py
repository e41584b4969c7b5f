"""A worker of a server: it does HTTP, JSON, checks and tokenizing, and asks an engine (engine.py) for the rest.

It runs the same application as a server of one process, over a `RemoteService` in place of a `Service`.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ridgeline import web
from ridgeline.embed import Tokens
from ridgeline.serve.app import BODIES_LIMIT, create_app
from ridgeline.serve.batcher import Stopped
from ridgeline.serve.catalog import Catalog, Kind, Settings
from ridgeline.serve.messages import Connection
from ridgeline.serve.metrics import Gauges, Metrics, add_gauges
from ridgeline.serve.process_setup import DRAIN_S, KEEP_ALIVE_S, MAX_CONNECTIONS, ignore_cut_texts, raise_file_limit
from ridgeline.serve.served_model import ServedModel

RECONNECT_S = 0.05


class Engine:
    """The engine, from a worker: operations that it runs, over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[Any]] = {}

    async def run(self, operation: str, *arguments: Any) -> Any:
        """Return the result of an operation. If the caller is cancelled, the engine stops it, too."""
        if not self._connection.is_open:
            raise _make_absence_error()
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._connection.send("do", number, operation, arguments)
        try:
            return await answer
        except asyncio.CancelledError:
            self._connection.send("cancel", number)
            raise
        finally:
            del self._answers[number]

    def tell(self, *message: Any) -> None:
        """Send a message without an answer."""
        self._connection.send(*message)

    def take_answer(self, number: int, result: Any, error: Exception | None) -> None:
        answer = self._answers.get(number)
        if answer is None or answer.done():  # it was cancelled
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def lose(self) -> None:
        """The engine is gone: nothing that waits for it can be answered."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(_make_absence_error())


class RemoteBatcher:
    """Takes the place of the batcher of a model that the engine has."""

    waiting_tokens = 0  # the engine counts those of all workers
    tokens_per_second = 0.0

    def __init__(self, engine: Engine, key: int) -> None:
        self._engine, self._key = engine, key

    async def compute(self, tokens: Tokens, output: str) -> Sequence[Any]:
        results: Sequence[Any] = await self._engine.run("compute", self._key, output, tokens.ids, tokens.offsets)
        return results

    def close(self) -> None:
        """Do nothing: the engine closes its batchers."""


class RemoteIndex:
    """Takes the place of a `ServedIndex` that the engine has."""

    def __init__(self, engine: Engine, name: str, dim: int | None, model: str | None) -> None:
        self.name, self.dim, self.model = name, dim, model
        self._engine, self._rows = engine, 0

    async def count_rows(self) -> int:
        with suppress(Stopped):  # then the last known number
            self._rows = await self._engine.run("count_rows", self.name)
        return self._rows

    async def search(self, queries: Any, k: int, where: str | None, recall: float | None) -> tuple[Any, Any]:
        scores, ids = await self._engine.run("search", self.name, queries, k, where, recall)
        return scores, ids

    async def add(self, vectors: Any, ids: Any, meta: Any) -> int:
        count: int = await self._engine.run("add", self.name, vectors, ids, meta)
        return count

    async def remove(self, ids: Any) -> int:
        count: int = await self._engine.run("remove", self.name, ids)
        return count


class _Link:
    """One engine, as a worker knows it: its models, while it is there. It connects again when the engine was restarted.

    change  called when the catalog of the engine has changed, or the engine is gone
    """

    def __init__(self, path: Path, change: Callable[[], object]) -> None:
        self.engine: Engine | None = None  # if it has sent its catalog
        self.models: dict[str, ServedModel] = {}
        self.indexes: list[tuple[str, int | None, str | None]] = []
        self.failed: set[str] = set()
        self._path, self._change = path, change
        self._engines: dict[Connection, Engine] = {}
        self._keys: dict[str, int] = {}  # of the models
        self._releasing: set[asyncio.Task[None]] = set()

    async def stay_connected(self) -> None:
        while True:
            try:
                await self._run_connection()
            except OSError:
                await asyncio.sleep(RECONNECT_S)

    async def _run_connection(self) -> None:
        """Connect to the engine, and return when it is gone."""
        lost = asyncio.Event()

        def lose(connection: Connection) -> None:
            lost.set()

        connection = Connection(self._receive, lose)
        engine = self._engines[connection] = Engine(connection)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: connection, str(self._path))
            connection.send("hello")
            await lost.wait()
        finally:
            connection.close()
            del self._engines[connection]
            self.engine = None
            self._change()
            engine.lose()

    def _receive(self, connection: Connection, message: Any) -> None:
        engine, (kind, *more) = self._engines[connection], message
        if kind == "done":
            engine.take_answer(more[0], more[1], None)
        elif kind == "failed":
            engine.take_answer(more[0], None, more[1])
        elif kind == "catalog":
            self._take_catalog(engine, *more)

    def _take_catalog(
        self,
        engine: Engine,
        version: int,
        models: dict[str, tuple[int, bool, ServedModel | None]],
        indexes: list[tuple[str, int | None, str | None]],
        failed: set[str],
    ) -> None:
        for name, (key, ready, model) in models.items():
            if model is not None:
                model.batcher = RemoteBatcher(engine, key)
                if self.engine is engine and name in self.models:
                    self._release_later(engine, self._keys[name], self.models[name])
                self.models[name], self._keys[name] = model, key
            self.models[name].ready = ready
        self.indexes, self.failed, self.engine = indexes, failed, engine
        self._change()
        engine.tell("knows", version)

    def _release_later(self, engine: Engine, key: int, model: ServedModel) -> None:
        """Tell the engine once no request uses a replaced model."""

        async def release() -> None:
            while model.users:
                await asyncio.sleep(0.05)
            engine.tell("released", key)

        task = asyncio.ensure_future(release())
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)


class RemoteService(Catalog[RemoteIndex]):
    """The models and indexes of the engines, as a worker knows them.

    paths  of the sockets of the engines. All have the same models; only the first one has the indexes. A request is
           computed by the engine that has the fewest requests of this worker.
    """

    def __init__(self, paths: Sequence[Path], settings: Settings) -> None:
        super().__init__(settings)
        self.metrics = Metrics(self.measure)
        self._links = [_Link(path, self._update) for path in paths]
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def ready(self) -> bool:
        return all(
            link.engine is not None and not link.failed and all(model.ready for model in link.models.values())
            for link in self._links
        )

    def check_available(self) -> None:
        if all(link.engine is None for link in self._links):
            raise _make_absence_error()

    async def start(self, watch: bool) -> None:
        self._tasks = [asyncio.ensure_future(link.stay_connected()) for link in self._links]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def get_index(self, name: str) -> RemoteIndex:
        _get_engine(self._links[0])
        return super().get_index(name)

    def spread(self, model: Kind) -> Kind:
        """Return the copy of a model whose engine has the fewest requests of this worker."""
        copies = [
            link.models[model.name]
            for link in self._links
            if link.engine is not None and model.name in link.models and model.name not in link.failed
        ]
        chosen = min((copy for copy in copies if copy.ready), key=lambda copy: copy.users, default=model)
        return chosen if isinstance(chosen, type(model)) else model

    async def reload(self, *, model: str | None = None, index: str | None = None) -> None:
        """Let every engine load a model or an index again; return when all workers have the new one."""
        for link in self._links if index is None else self._links[:1]:
            await _get_engine(link).run("reload", model, index)

    async def measure(self) -> Gauges:
        return add_gauges([await _get_engine(link).run("measure") for link in self._links])

    def _update(self) -> None:
        """Take what the engines have sent: the models of one that is there, and those that no engine can compute."""
        present = [link for link in self._links if link.engine is not None]
        if present:
            self.models = present[0].models
            self.failed = set.intersection(*(link.failed for link in present))
        first = self._links[0]
        if first.engine is not None:
            self.indexes = {name: RemoteIndex(first.engine, name, dim, made_by) for name, dim, made_by in first.indexes}


def _get_engine(link: _Link) -> Engine:
    if link.engine is None:
        raise _make_absence_error()
    return link.engine


def _make_absence_error() -> Stopped:
    return Stopped("the engine is being started; try again in a moment.")


def main(options: dict[str, Any], report: Any) -> None:
    """Serve connections of the shared socket until SIGTERM."""
    ignore_cut_texts()
    raise_file_limit()
    service = RemoteService([Path(path) for path in options["engine_paths"]], options["settings"])
    limit = max(64 << 20, BODIES_LIMIT // options["workers"])
    web.serve(
        create_app(service, token=options["token"], bodies_limit=limit),
        host=options["host"],
        listener=socket.socket(fileno=options["listener_fd"]),
        announce=lambda line: None,
        drain_s=DRAIN_S,
        max_connections=MAX_CONNECTIONS,
        keep_alive_s=KEEP_ALIVE_S,
    )
