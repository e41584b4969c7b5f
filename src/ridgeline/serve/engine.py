"""The engine of a server with workers: the process that has the models, their batchers and the indexes.

    worker → engine   ("hello",)
                      ("do", number, operation, arguments)   ("cancel", number)
                      ("knows", version)                      it has this version of the catalog
                      ("released", key)                       it does not use this model any more
    engine → worker   ("done", number, result)                ("failed", number, error)
                      ("catalog", version, models, indexes, failed)

A worker gets every model as it is loaded, without weights: tokenizer, prompts, limits. A model that was replaced stays
open until all workers have released it, so that a request is read and computed by one and the same model.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ridgeline.embed import Tokens, TooLong
from ridgeline.errors import InputError, RidgelineError
from ridgeline.serve.api_errors import ApiError, describe_error
from ridgeline.serve.batcher import Batcher, Request, Stopped
from ridgeline.serve.messages import Connection
from ridgeline.serve.process_setup import SWITCH_S
from ridgeline.serve.served_model import ServedModel
from ridgeline.serve.service import Service

KNOW_S = 60.0  # a worker that has not taken a new catalog by then hangs
DEVICE_LOST = 70  # exit code: the device does not answer any more
_log = logging.getLogger("ridgeline.serve")


@dataclass(eq=False)
class _Worker:
    """A connected worker: its operations in progress, and the models that it has."""

    tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    requests: dict[int, tuple[ServedModel, Request]] = field(default_factory=dict)
    keys: set[int] = field(default_factory=set)
    version: int = -1  # of its catalog


class Engine:
    """Answers workers from a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        service.publish, service.is_used, service.give_up = self._publish, self._is_used, _exit_with_device
        self._workers: dict[Connection, _Worker] = {}
        self._models: dict[int, ServedModel] = {}  # by key, those in use
        self._version = 0
        self._changed = asyncio.Condition()
        self._operations: dict[str, Callable[..., Awaitable[Any]]] = {
            "search": lambda name, *more: service.get_index(name).search(*more),
            "add": lambda name, *more: service.get_index(name).add(*more),
            "remove": lambda name, ids: service.get_index(name).remove(ids),
            "count_rows": lambda name: service.get_index(name).count_rows(),
            "reload": lambda model, index: service.reload(model=model, index=index),
            "measure": service.measure,
        }

    async def run(self, listener: socket.socket, stop: asyncio.Event, *, watch: bool = False) -> None:
        """Answer workers until `stop`, then finish what was accepted."""
        await self._service.start(watch)
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: Connection(self._receive, self._forget_worker), sock=listener
        )
        await stop.wait()
        server.close()
        await self._service.stop()
        for connection in list(self._workers):
            connection.close()

    def _receive(self, connection: Connection, message: Any) -> None:
        kind, *more = message
        if kind == "hello":
            self._workers[connection] = _Worker()
            self._send_catalog(connection)
            return
        worker = self._workers[connection]
        if kind == "do":
            number, operation, arguments = more
            if operation == "compute":
                self._compute(connection, number, *arguments)
                return
            task = asyncio.ensure_future(self._answer(connection, number, operation, arguments))
            worker.tasks[number] = task
            task.add_done_callback(lambda done: worker.tasks.pop(number, None))
        elif kind == "cancel":
            self._cancel(worker, more[0])
        elif kind == "knows":
            worker.version = more[0]
            self._wake()
        elif kind == "released":
            worker.keys.discard(more[0])

    async def _answer(self, connection: Connection, number: int, operation: str, arguments: Sequence[Any]) -> None:
        try:
            result = await self._operations[operation](*arguments)
        except Exception as error:
            self._fail(connection, number, operation, error)
        else:
            connection.send("done", number, result)

    def _compute(self, connection: Connection, number: int, key: int, output: str, ids: Any, offsets: Any) -> None:
        """Queue the texts of a request. There are thousands of them in a second: they need no task each."""
        worker, model = self._workers[connection], self._models.get(key)
        if model is None:
            self._fail(connection, number, "compute", Stopped("the model was replaced; try again."))
            return

        def deliver(results: Sequence[Any] | None, error: BaseException | None) -> None:
            if worker.requests.pop(number, None) is None:
                return  # it was cancelled
            model.users -= 1
            if request.was_sent:
                return
            if error is None:
                connection.send("done", number, results)
            else:
                self._fail(connection, number, "compute", error)

        def send(results: Sequence[Any]) -> bool:
            return connection.send_from_thread(loop, "done", number, results)

        loop = asyncio.get_running_loop()
        try:
            self._service.check_queue(model)
            request = cast(Batcher, model.batcher).submit(Tokens(ids, offsets), output, deliver, send)
        except RidgelineError as error:
            self._fail(connection, number, "compute", error)
            return
        model.users += 1
        worker.requests[number] = model, request

    def _cancel(self, worker: _Worker, number: int) -> None:
        if number in worker.tasks:
            worker.tasks[number].cancel()
        elif number in worker.requests:
            model, request = worker.requests.pop(number)
            model.users -= 1
            cast(Batcher, model.batcher).cancel(request)

    def _fail(self, connection: Connection, number: int, operation: str, error: BaseException) -> None:
        if not isinstance(error, RidgelineError):
            _log.error("the operation %s failed (%s)", operation, describe_error(error))
        connection.send("failed", number, _make_portable(error))

    def _forget_worker(self, connection: Connection) -> None:
        """Stop the work for a worker that is gone: no process reads its answers."""
        worker = self._workers.pop(connection, None)
        if worker is not None:
            for number in (*worker.tasks, *worker.requests):
                self._cancel(worker, number)
            self._wake()

    def _send_catalog(self, connection: Connection) -> None:
        """Send the models and indexes; a model that the worker has, only by its key."""
        worker, models = self._workers[connection], {}
        for name, model in self._service.models.items():
            key = id(model)  # unique as long as the model is in self._models
            self._models[key] = model
            models[name] = (key, model.ready, None if key in worker.keys else model)
            worker.keys.add(key)
        indexes = [(index.name, index.dim, index.model) for index in self._service.indexes.values()]
        connection.send("catalog", self._version, models, indexes, self._service.failed)

    async def _publish(self) -> None:
        """Send the catalog to all workers; return when they have it."""
        self._version += 1
        version = self._version
        for connection in self._workers:
            self._send_catalog(connection)
        try:
            async with asyncio.timeout(KNOW_S), self._changed:
                await self._changed.wait_for(lambda: all(w.version >= version for w in self._workers.values()))
        except TimeoutError:
            _log.error("a worker has not taken the new catalog within %g s", KNOW_S)

    def _is_used(self, model: ServedModel) -> bool:
        if any(id(model) in worker.keys for worker in self._workers.values()):
            return True
        self._models.pop(id(model), None)
        return False

    def _wake(self) -> None:
        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        self._waking = asyncio.ensure_future(notify())


def _exit_with_device() -> None:
    """Leave at once: after some errors of CUDA, only a new process can compute. The supervisor starts one."""
    _log.error("the device does not answer any more; the engine is started again")
    os._exit(DEVICE_LOST)


def _make_portable(error: BaseException) -> Exception:
    """Return an error that another process can read, without what a message of another library may hold."""
    if isinstance(error, ApiError):
        return error
    for kind in (TooLong, InputError, Stopped, RidgelineError):
        if isinstance(error, kind):
            return kind(str(error))
    return ApiError(500, "the server failed on this request; its log says why.")


def main(options: dict[str, Any], report: Any) -> None:
    """Load the models, say so to the supervisor, then answer workers until SIGTERM."""
    sys.setswitchinterval(SWITCH_S)
    try:
        service = Service(options["models"], options["indexes"], options["settings"])
    except RidgelineError as error:
        report("refused", str(error))
        sys.exit(2)
    listener = socket.socket(fileno=options["engine_fd"])
    report("loaded", "")
    asyncio.run(_run(service, listener, options["watch"]))


async def _run(service: Service, listener: socket.socket, watch: bool) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await Engine(service).run(listener, stop, watch=watch)
