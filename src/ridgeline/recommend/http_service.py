"""A model behind REST and a page: type, click films you like, see the recommendations change.

    ridgeline recommend serve MODEL

| path                | answers                                                              |
|---------------------|----------------------------------------------------------------------|
| GET /api/health     | {"status": "ok"}                                                     |
| GET /api/stats      | what the model holds                                                 |
| GET /api/search     | ?q=TEXT&k=&genre=&year=                                              |
| GET /api/similar    | ?title=TITLE or ?item=ID                                             |
| GET /api/recommend  | ?user=ID                                                             |
| POST /api/new       | {"liked": [titles], "items": [ids], "text": "…"}                     |
| POST /api/batch     | {"users": [ids], "k": 10}                                            |
| GET /openapi.json   | the same for programs                                                |
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline import web
from ridgeline.errors import InputError
from ridgeline.recommend.data import user_row
from ridgeline.recommend.recommender import Recommender, Wish, years_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

MOST = 200  # answers to one question
MOST_USERS = 1_000  # of one batch
MOST_LIKED = 200
MOST_TEXT = 2_000  # characters

_HERE = "ridgeline.recommend"


def service(model: Recommender, *, token: str | None = None) -> web.App:
    """The routes, guarded by `web`: on loopback without a token, elsewhere with one."""
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    document = web.page(
        f"Recommend: {model.name}",
        web.render("serve.html", templates=_HERE, name=model.name, items=len(model.catalogue)),
        styles=[web.asset("serve.css", _HERE)],
        scripts=[web.asset("serve.js", _HERE)],
        live=True,
    )

    def answered(work: Callable[[Request, dict[str, Any]], Any]) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            body = await _body(request) if request.method == "POST" else {}
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
        return _told(model.search(_text(request.query_params.get("q", "")), _wish(request.query_params)))

    def similar(request: Request, _: dict[str, Any]) -> Any:
        item = request.query_params.get("item")
        wish = _wish(request.query_params)
        if item is not None:
            return _told(model.similar_to(int(_rows(model, [item])[0]), wish))
        return _told(model.similar(_text(request.query_params.get("title", "")), wish)[2])

    def recommend(request: Request, _: dict[str, Any]) -> Any:
        user = request.query_params.get("user")
        if user is None:
            raise InputError("no user was named; ask for ?user=ID.")
        return _told(model.recommend(user, _wish(request.query_params)))

    def new(request: Request, body: dict[str, Any]) -> Any:
        titles, items = _list(body, "liked", MOST_LIKED), _list(body, "items", MOST_LIKED)
        text = _text(body.get("text", ""))
        if not titles and not items and not text.strip():
            raise InputError("a new user needs something to go by; give liked, items or text.")
        found = [model.titles.find(str(title))[0] for title in titles]
        rows = np.array([*found, *_rows(model, items)], np.int64)
        return _told(model.for_items(rows, text, _wish(body)))

    def batch(request: Request, body: dict[str, Any]) -> Any:
        users = _list(body, "users", MOST_USERS)
        wish = _wish(body)
        rows = np.array([user_row(model.user_ids, user) for user in users], np.int64)
        if not len(rows):
            return {}
        items, scores = model.top(rows, wish.k)
        ids = model.catalogue.ids
        return {
            str(user): [{"item": ids[i].item(), "score": float(s)} for i, s in zip(line, value, strict=True) if i >= 0]
            for user, line, value in zip(users, items.tolist(), scores.tolist(), strict=True)
        }

    async def page(request: Request) -> Response:
        return web.page_response(document)

    async def openapi(request: Request) -> Response:
        return JSONResponse(_openapi(model.name))

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    reading = {"stats": stats, "search": search, "similar": similar, "recommend": recommend}
    writing = {"new": new, "batch": batch}
    return web.app(
        [
            Route("/", page),
            Route("/openapi.json", openapi),
            Route("/api/health", health),
            *(Route(f"/api/{name}", answered(work)) for name, work in reading.items()),
            *(Route(f"/api/{name}", answered(work), methods=["POST"]) for name, work in writing.items()),
        ],
        token=token,
    )


async def _body(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.body())
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError("the body holds half a character, such as \\ud800; send whole ones.") from None
    except (ValueError, RecursionError):
        raise InputError('the body is no JSON; send an object such as {"liked": ["Alien"]}.') from None
    if not isinstance(body, dict):
        raise InputError('the body is no JSON object; send one such as {"liked": ["Alien"]}.')
    return body


def _wish(given: Any) -> Wish:
    try:
        k = int(given.get("k", 10))
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"k is {given.get('k')!r}; give a whole number.") from None
    if not 1 <= k <= MOST:
        raise InputError(f"k is {k}; give 1 to {MOST}.")
    genre, year = given.get("genre") or None, given.get("year") or None
    if not isinstance(genre, str | None) or not isinstance(year, str | None):
        raise InputError("genre and year are texts, such as 'Drama' and '1980-1989'.")
    return Wish(k, genre, years_of(year))


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise InputError(f"the text is {type(given).__name__}; give a string.")
    if len(given) > MOST_TEXT:
        raise InputError(f"the text has {len(given):,} characters; give up to {MOST_TEXT:,}.")
    return given


def _list(body: dict[str, Any], name: str, most: int) -> list[Any]:
    found = body.get(name, [])
    if not isinstance(found, list) or not all(isinstance(v, str | int) for v in found):
        raise InputError(f"{name} is no list of names or numbers.")
    if len(found) > most:
        raise InputError(f"{name} has {len(found):,} entries; give up to {most:,}.")
    longest = max((len(v) for v in found if isinstance(v, str)), default=0)
    if longest > MOST_TEXT:
        raise InputError(f"{name} has an entry of {longest:,} characters; give up to {MOST_TEXT:,}.")
    return found


def _rows(model: Recommender, items: list[Any]) -> list[int]:
    ids = model.catalogue.ids.astype(str)
    rows = []
    for item in items:
        found = np.flatnonzero(ids == str(item))
        if not len(found):
            raise InputError(f"there is no item '{item}'; /api/search finds some.")
        rows.append(int(found[0]))
    return rows


def _told(found: list[Any]) -> list[dict[str, Any]]:
    return [a.to_json() for a in found]


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
            "/api/health": get("whether it lives"),
            "/api/stats": get("what the model holds"),
            "/api/search": get("items by what a text means", "q", *kind),
            "/api/similar": get("items like a title or an item", "title", "item", *kind),
            "/api/recommend": get("for a user of the data", "user", *kind),
            "/api/new": post("for somebody new: liked (titles), items (ids), text, k, genre, year"),
            "/api/batch": post("for many users: users (ids), k"),
        },
    }
