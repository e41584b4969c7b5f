"""A worker of a server: it does HTTP, JSON, checks and tokenizing, and asks the engine (engine.py) for the rest.

It runs the same application as a server of one process, over a `RemoteService` in place of a `Service`.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ridgeline import web
from ridgeline.embed import Tokens
from ridgeline.serve.app import BODIES_LIMIT, create_app
from ridgeline.serve.batcher import Stopped
from ridgeline.serve.catalog import Catalog, Settings
from ridgeline.serve.messages import Connection
from ridgeline.serve.metrics import Gauges, Metrics
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


class RemoteService(Catalog[RemoteIndex]):
    """The models and indexes of the engine, as a worker knows them; it connects again when the engine was restarted."""

    def __init__(self, path: Path, settings: Settings) -> None:
        super().__init__(settings)
        self.metrics = Metrics(self.measure)
        self._path = path
        self._engines: dict[Connection, Engine] = {}
        self._engine: Engine | None = None  # the one that sent the catalog
        self._keys: dict[str, int] = {}  # of the models
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def ready(self) -> bool:
        return self._engine is not None and super().ready

    def check_available(self) -> None:
        if self._engine is None:
            raise _make_absence_error()

    async def start(self, watch: bool) -> None:
        self._run_task(self._stay_connected())

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def reload(self, *, model: str | None = None, index: str | None = None) -> None:
        """Let the engine load a model or an index again; return when all workers have the new one."""
        await self._get_engine().run("reload", model, index)

    async def measure(self) -> Gauges:
        gauges: Gauges = await self._get_engine().run("measure")
        return gauges

    def _get_engine(self) -> Engine:
        if self._engine is None:
            raise _make_absence_error()
        return self._engine

    async def _stay_connected(self) -> None:
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
            self._engine = None
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
                if self._engine is engine and name in self.models:
                    self._run_task(self._release(engine, self._keys[name], self.models[name]))
                self.models[name], self._keys[name] = model, key
            self.models[name].ready = ready
        self.indexes = {name: RemoteIndex(engine, name, dim, made_by) for name, dim, made_by in indexes}
        self.failed, self._engine = failed, engine
        engine.tell("knows", version)

    async def _release(self, engine: Engine, key: int, model: ServedModel) -> None:
        """Tell the engine once no request uses a replaced model."""
        while model.users:
            await asyncio.sleep(0.05)
        engine.tell("released", key)

    def _run_task(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _make_absence_error() -> Stopped:
    return Stopped("the engine is being started; try again in a moment.")


def main(options: dict[str, Any], report: Any) -> None:
    """Serve connections of the shared socket until SIGTERM."""
    ignore_cut_texts()
    raise_file_limit()
    service = RemoteService(Path(options["engine_path"]), options["settings"])
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
