"""A REST API and a web page for one log; read-only.

    ridgeline audit serve LOG

| path                 | answers                                                                     |
|----------------------|-----------------------------------------------------------------------------|
| GET /api/status      | size, root, checkpoint, key, witnesses, writer, watcher, backlog             |
| GET /api/events      | ?after=INDEX&k=: the newest events with their scores                         |
| GET /api/alerts      | ?k=: the newest alerts with reasons and labels                               |
| GET /api/search      | ?q=TEXT&k=&since=24h&where=CONDITION                                         |
| GET /api/entry       | ?index=N: one event, the bytes of its entry, its inclusion proof, a checkpoint |
| GET /api/proof       | ?index=N: the same as a tlog-proof file, for `audit check-proof`             |
| GET /metrics         | for Prometheus                                                               |
| GET /openapi.json    | a description of this API                                                    |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ridgeline import web
from ridgeline.audit.ledger.moment import parse_moment
from ridgeline.audit.ledger.proof import prove
from ridgeline.audit.serve.live import Live
from ridgeline.audit.watch.prometheus import format_metrics
from ridgeline.errors import InputError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

MOST = 500  # most rows of one answer
MOST_TEXT = 2_000  # most characters of a query
_PACKAGE = "ridgeline.audit"


def make_service(live: Live, *, token: str | None = None) -> web.App:
    """Make the web application of a log; `token` is needed unless it listens on loopback only."""
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse, PlainTextResponse
    from starlette.routing import Route

    requests = web.RequestMetrics("audit")
    name = live.ledger.origin
    document = web.build_page(
        f"Audit: {name}",
        web.render_template("watch.html", templates=_PACKAGE, name=name, key=str(live.ledger.verifier)),
        styles=[web.read_asset("watch.css", _PACKAGE)],
        scripts=[
            web.read_asset("client.js"),
            web.read_asset("proof.js", _PACKAGE),
            web.read_asset("watch.js", _PACKAGE),
        ],
        live=True,
    )

    def answer_with(work: Callable[[Any], Any]) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            return JSONResponse(await run_in_threadpool(work, request.query_params))

        return handle

    def make_route(path: str, work: Callable[[Any], Any]) -> Route:
        return Route(path, requests.measure(path, answer_with(work)))

    def search(given: Any) -> Any:
        text, since, where = (given.get(word) or "" for word in ("q", "since", "where"))
        if len(text) > MOST_TEXT:
            raise InputError(f"the text has {len(text):,} characters; give up to {MOST_TEXT:,}.")
        return live.search(
            text, _number(given, "k", 10, 1, MOST), parse_moment(since) if since else None, where or None
        )

    def entry(given: Any) -> Any:
        return live.entry(_number(given, "index", None, 0, 1 << 62))

    async def proof(request: Request) -> Response:
        index = _number(request.query_params, "index", None, 0, 1 << 62)
        return PlainTextResponse(str(await run_in_threadpool(prove, live.ledger, index)))

    async def metrics(request: Request) -> Response:
        status = await run_in_threadpool(lambda: live.watcher() or {"size": live.ledger.checkpoint().size})
        return PlainTextResponse(format_metrics(status) + requests.format(), media_type="text/plain; version=0.0.4")

    async def page(request: Request) -> Response:
        return web.create_page_response(document)

    async def openapi(request: Request) -> Response:
        return JSONResponse(_openapi(name))

    handlers: dict[str, Callable[[Any], Any]] = {
        "status": lambda given: live.status(),
        "events": lambda given: live.events(_number(given, "after", 0, 0, 1 << 62), _number(given, "k", 50, 1, MOST)),
        "alerts": lambda given: live.alerts(_number(given, "k", 50, 1, MOST)),
        "search": search,
        "entry": entry,
    }
    return web.create_app(
        [
            Route("/", page),
            Route("/openapi.json", openapi),
            Route("/metrics", metrics),
            Route("/api/proof", proof),
            *(make_route(f"/api/{path}", work) for path, work in handlers.items()),
        ],
        token=token,
        body_limit=1 << 16,
        deadline_s=120.0,
    )


def _number(given: Any, name: str, default: int | None, least: int, most: int) -> int:
    text = given.get(name)
    if text is None and default is not None:
        return default
    try:
        number = int(text if text is not None else "")
    except ValueError:
        raise InputError(f"{name} is {text!r}; give a whole number.") from None
    if not least <= number <= most:
        raise InputError(f"{name} is {number}; give {least} to {most}.")
    return number


def _openapi(name: str) -> dict[str, Any]:
    def get(what: str, *parameters: str) -> dict[str, Any]:
        more = [{"name": p, "in": "query", "schema": {"type": "string"}} for p in parameters]
        return {"get": {"summary": what, "parameters": more, "responses": {"200": {"description": "the answer"}}}}

    return {
        "openapi": "3.1.0",
        "info": {"title": f"ridgeline audit: {name}", "version": "1"},
        "paths": {
            "/api/status": get("the status of the log and its watcher"),
            "/api/events": get("the newest events with their scores", "after", "k"),
            "/api/alerts": get("the newest alerts, with reasons and labels", "k"),
            "/api/search": get(
                "events by meaning and words, each with its relevance from 0 to 1", "q", "k", "since", "where"
            ),
            "/api/entry": get("one event with its proof", "index"),
            "/api/proof": get("a tlog-proof", "index"),
            "/metrics": get("for Prometheus"),
        },
    }
