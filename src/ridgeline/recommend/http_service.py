"""A REST service and a web page for a model: the page recommends films for the films that a user clicks.

    ridgeline recommend serve MODEL

| path                | answers                                                              |
|---------------------|----------------------------------------------------------------------|
| GET /api/health     | 200 {"status": "ok"} once a first search was answered, else 503      |
| GET /api/stats      | what the model holds                                                 |
| GET /api/search     | ?q=TEXT&k=&genre=&year=                                              |
| GET /api/similar    | ?title=TITLE or ?item=ID                                             |
| GET /api/recommend  | ?user=ID                                                             |
| POST /api/new       | {"liked": [titles], "items": [ids], "text": "…", "text_weight": 0.5} |
| POST /api/batch     | {"users": [ids], "k": 10}                                            |
| GET /metrics        | for Prometheus                                                       |
| GET /openapi.json   | the same for programs                                                |
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline import web
from ridgeline.errors import InputError, RidgelineError
from ridgeline.recommend.data import find_user_row
from ridgeline.recommend.recommender import TEXT_WEIGHT, Options, Recommender, parse_years

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

MAX_RESULTS = 200  # of one request
MAX_USERS = 1_000  # of one batch
MAX_LIKED = 200
MAX_TEXT_CHARS = 2_000  # characters

FIRST_TEXT = "a first text"

_PACKAGE = "ridgeline.recommend"
_log = logging.getLogger(_PACKAGE)


def create_app(model: Recommender, *, token: str | None = None) -> web.App:
    """Create the web application; on an address other than loopback it requires a token."""
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    metrics = web.RequestMetrics("recommend")
    ready = asyncio.Event()

    async def warm_up() -> None:
        """Answer a first search, which loads the encoder; other requests are answered meanwhile."""
        try:
            await run_in_threadpool(model.search, FIRST_TEXT)
        except RidgelineError as error:
            _log.warning("searches by text fail: %s", error)  # the other paths work
        ready.set()

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        task = asyncio.create_task(warm_up())
        yield
        task.cancel()

    document = web.build_page(
        f"Recommend: {model.name}",
        web.render_template("serve.html", templates=_PACKAGE, name=model.name, items=len(model.catalogue)),
        styles=[web.read_asset("serve.css", _PACKAGE)],
        scripts=[web.read_asset("client.js"), web.read_asset("serve.js", _PACKAGE)],
        live=True,
    )

    def answer_with(work: Callable[[Request, dict[str, Any]], Any]) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            body = await _read_body(request) if request.method == "POST" else {}
            return JSONResponse(await run_in_threadpool(work, request, body))

        return handle

    def stats(request: Request, _: dict[str, Any]) -> Any:
        return {
            "name": model.name,
            "users": len(model.user_ids),
            "items": len(model.catalogue),
            "ratings": len(model.seen.items),
            "encoder": model.encoder,
            "weights": model.hybrid.weights,
            "genres": model.catalogue.all_genres,
        }

    def search(request: Request, _: dict[str, Any]) -> Any:
        return _to_json(
            model.search(_check_text(request.query_params.get("q", "")), _parse_options(request.query_params))
        )

    def similar(request: Request, _: dict[str, Any]) -> Any:
        item = request.query_params.get("item")
        options = _parse_options(request.query_params)
        if item is not None:
            return _to_json(model.similar_to(int(_find_item_rows(model, [item])[0]), options))
        return _to_json(model.similar(_check_text(request.query_params.get("title", "")), options)[2])

    def recommend(request: Request, _: dict[str, Any]) -> Any:
        user = request.query_params.get("user")
        if user is None:
            raise InputError("no user is given; use ?user=ID.")
        return _to_json(model.recommend(user, _parse_options(request.query_params)))

    def new(request: Request, body: dict[str, Any]) -> Any:
        titles, items = _parse_list(body, "liked", MAX_LIKED), _parse_list(body, "items", MAX_LIKED)
        text = _check_text(body.get("text", ""))
        if not titles and not items and not text.strip():
            raise InputError("a new user needs liked titles, items or a text; give one of them.")
        title_rows = [model.titles.find(str(title))[0] for title in titles]
        rows = np.array([*title_rows, *_find_item_rows(model, items)], np.int64)
        return _to_json(model.for_items(rows, text, _parse_options(body), text_weight=_parse_text_weight(body)))

    def batch(request: Request, body: dict[str, Any]) -> Any:
        users = _parse_list(body, "users", MAX_USERS)
        options = _parse_options(body)
        rows = np.array([find_user_row(model.user_ids, user) for user in users], np.int64)
        if not len(rows):
            return {}
        items, scores = model.top(rows, options.k)
        ids = model.catalogue.ids
        return {
            str(user): [{"item": ids[i].item(), "score": float(s)} for i, s in zip(line, value, strict=True) if i >= 0]
            for user, line, value in zip(users, items.tolist(), scores.tolist(), strict=True)
        }

    async def page(request: Request) -> Response:
        return web.create_page_response(document)

    async def openapi(request: Request) -> Response:
        return JSONResponse(_openapi(model.name))

    async def health(request: Request) -> Response:
        if ready.is_set():
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "starting"}, 503, {"retry-after": "1"})

    def measure(name: str, work: Callable[[Request, dict[str, Any]], Any], method: str) -> Route:
        path = f"/api/{name}"
        return Route(path, metrics.measure(path, answer_with(work)), methods=[method])

    reading = {"stats": stats, "search": search, "similar": similar, "recommend": recommend}
    writing = {"new": new, "batch": batch}
    return web.create_app(
        [
            Route("/", page),
            Route("/openapi.json", openapi),
            Route("/api/health", health),
            Route("/metrics", metrics.show),
            *(measure(name, work, "GET") for name, work in reading.items()),
            *(measure(name, work, "POST") for name, work in writing.items()),
        ],
        token=token,
        open_paths=["/api/health"],
        lifespan=lifespan,
    )


async def _read_body(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.body())
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError("the body holds half a character, such as \\ud800; send complete characters.") from None
    except (ValueError, RecursionError):
        raise InputError('the body is no JSON; send an object such as {"liked": ["Alien"]}.') from None
    if not isinstance(body, dict):
        raise InputError('the body is no JSON object; send one such as {"liked": ["Alien"]}.')
    return body


def _parse_options(parameters: Any) -> Options:
    try:
        k = int(parameters.get("k", 10))
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"k is {parameters.get('k')!r}; give a whole number.") from None
    if not 1 <= k <= MAX_RESULTS:
        raise InputError(f"k is {k}; give 1 to {MAX_RESULTS}.")
    genre, year = parameters.get("genre") or None, parameters.get("year") or None
    if not isinstance(genre, str | None) or not isinstance(year, str | None):
        raise InputError("genre and year are texts, such as 'Drama' and '1980-1989'.")
    return Options(k, genre, parse_years(year))


def _parse_text_weight(body: dict[str, Any]) -> float:
    weight = body.get("text_weight", TEXT_WEIGHT)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise InputError(f"text_weight is {weight!r:.40}; give a number from 0 to 1.")
    return float(weight)


def _check_text(value: Any) -> str:
    if not isinstance(value, str):
        raise InputError(f"the text is {type(value).__name__}; give a string.")
    if len(value) > MAX_TEXT_CHARS:
        raise InputError(f"the text has {len(value):,} characters; give up to {MAX_TEXT_CHARS:,}.")
    return value


def _parse_list(body: dict[str, Any], name: str, limit: int) -> list[Any]:
    entries = body.get(name, [])
    if not isinstance(entries, list) or not all(isinstance(v, str | int) for v in entries):
        raise InputError(f"{name} is no list of names or numbers.")
    if len(entries) > limit:
        raise InputError(f"{name} has {len(entries):,} entries; give up to {limit:,}.")
    longest = max((len(v) for v in entries if isinstance(v, str)), default=0)
    if longest > MAX_TEXT_CHARS:
        raise InputError(f"{name} has an entry of {longest:,} characters; give up to {MAX_TEXT_CHARS:,}.")
    return entries


def _find_item_rows(model: Recommender, items: list[Any]) -> list[int]:
    ids = model.catalogue.ids.astype(str)
    rows = []
    for item in items:
        matches = np.flatnonzero(ids == str(item))
        if not len(matches):
            raise InputError(f"there is no item '{item}'; /api/search finds some.")
        rows.append(int(matches[0]))
    return rows


def _to_json(recommendations: list[Any]) -> list[dict[str, Any]]:
    return [a.to_json() for a in recommendations]


def _openapi(name: str) -> dict[str, Any]:
    def get(what: str, *parameters: str) -> dict[str, Any]:
        more = [{"name": p, "in": "query", "schema": {"type": "string"}} for p in parameters]
        return {"get": {"summary": what, "parameters": more, "responses": {"200": {"description": "the answer"}}}}

    def post(what: str) -> dict[str, Any]:
        body = {"content": {"application/json": {"schema": {"type": "object"}}}}
        return {"post": {"summary": what, "requestBody": body, "responses": {"200": {"description": "the answer"}}}}

    kind = ("k", "genre", "year")
    return {
        "openapi": "3.1.0",
        "info": {"title": f"ridgeline recommend: {name}", "version": "1"},
        "paths": {
            "/api/health": get("whether the service can answer: 200, or 503 until it has answered a first search"),
            "/metrics": get("for Prometheus"),
            "/api/stats": get("what the model holds"),
            "/api/search": get("items by what a text means", "q", *kind),
            "/api/similar": get("items like a title or an item", "title", "item", *kind),
            "/api/recommend": get("for a user of the data", "user", *kind),
            "/api/new": post("for a new user: liked (titles), items (ids), text, text_weight, k, genre, year"),
            "/api/batch": post("for many users: users (ids), k"),
        },
    }
