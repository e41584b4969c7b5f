"""A REST service and a web page for a model: the page recommends films for the films that a user clicks.

    ridgeline recommend serve MODEL

| path                      | answers                                                                          |
|---------------------------|----------------------------------------------------------------------------------|
| GET /api/health           | 200 {"status": "ok", "model", "version"} once a first search was answered, else 503 |
| GET /api/stats            | what the model holds                                                             |
| GET /api/search           | ?q=TEXT&k=&genre=&year=                                                          |
| GET /api/similar          | ?title=TITLE or ?item=ID                                                         |
| GET /api/recommend        | ?user=ID&diversify=0.3 (0 to 1: how much the results should differ)              |
| POST /api/new             | {"liked": [titles], "items": [ids], "text": "…", "text_weight": 0.5}             |
| POST /api/batch           | {"users": [ids], "k": 10}                                                        |
| POST /api/items           | {"items": [{"id", "title", "text"?, "genres"?, "year"?}]}: 201 {"added"}, 409    |
| GET PUT DELETE /api/items/ID | an item; 404                                                                  |
| POST /api/ratings         | {"ratings": [{"user", "item", "rating", "time"?}]}: 201 {"added", "waiting"}     |
| GET /api/ratings          | ?user=ID                                                                         |
| DELETE /api/ratings       | ?user=ID&item=ID                                                                 |
| GET /api/models           | the models: version, versions, requests, lists, hits (likes of items in a list)  |
| POST /api/models/NAME/rollback | {"version": N}: answer by an earlier version, with all changes              |
| GET /metrics              | for Prometheus                                                                   |
| GET /openapi.json         | the same for programs                                                            |

The header x-ridgeline-model names the model that answered; ?model=NAME asks for one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline import web
from ridgeline.errors import InputError, Locked, RidgelineError
from ridgeline.recommend.live import Change, Conflict, NotFound, TooLarge
from ridgeline.recommend.recommender import TEXT_WEIGHT, Options, Recommender, parse_years
from ridgeline.recommend.request_rates import RequestRates
from ridgeline.recommend.serving import Refitter, ServedModel, ServedModels, prepare_lists
from ridgeline.recommend.versions import RefitRules

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

MAX_RESULTS = 200  # of one request
MAX_USERS = 1_000  # of one batch
MAX_LIKED = 200
MAX_CHANGES = 1_000  # items or ratings of one request
MAX_TEXT_CHARS = 2_000  # characters
CHANGE_S = 30.0  # until a change is answered

EXAMPLES = {  # of bodies, by the start of the path
    "/api/items/": '{"title": "Alien", "year": 1979}',
    "/api/items": '{"items": [{"id": "x1", "title": "Alien"}]}',
    "/api/ratings": '{"ratings": [{"user": 1, "item": 2, "rating": 5}]}',
    "/api/models/": '{"version": 1}',
    "/api/batch": '{"users": [1, 2]}',
    "/api/new": '{"liked": ["Alien"]}',
}
FIRST_TEXT = "a first text"
MODEL_HEADER = "x-ridgeline-model"
STATUS_CODES = {Conflict: 409, NotFound: 404, TooLarge: 413}  # 400 for other mistakes

_PACKAGE = "ridgeline.recommend"
_log = logging.getLogger(_PACKAGE)


def create_app(
    models: Recommender | ServedModels,
    *,
    token: str | None = None,
    refit: RefitRules | None = None,
    rate: float | None = None,
) -> web.App:
    """Create the web application; on an address other than loopback it requires a token. `refit`: when to refit.

    `rate` is the number of requests per second of each client address; more get 429 (None: no limit).
    """
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    served = models if isinstance(models, ServedModels) else ServedModels([ServedModel("model", models)])
    first = served.first.snapshot
    metrics = web.RequestMetrics("recommend")
    rates = None if rate is None else RequestRates(rate)
    ready = asyncio.Event()

    def search_first() -> None:
        for model in served.models.values():
            prepare_lists(model.snapshot)
            if not model.snapshot.has_texts:
                continue
            try:
                model.snapshot.search(FIRST_TEXT)
            except RidgelineError as error:
                _log.warning("searches by text fail: %s", error)  # the other paths work

    async def warm_up() -> None:
        """Answer a first search, which loads the encoder; other requests are answered meanwhile."""
        await run_in_threadpool(search_first)
        ready.set()

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        task = asyncio.create_task(warm_up())
        with Refitter(served, refit or RefitRules()):
            yield
        task.cancel()

    document = web.build_page(
        f"Recommend: {first.name}",
        web.render_template("serve.html", templates=_PACKAGE, name=first.name, items=len(first.catalogue)),
        styles=[web.read_asset("serve.css", _PACKAGE)],
        scripts=[web.read_asset("client.js"), web.read_asset("serve.js", _PACKAGE)],
        live=True,
    )

    def answer_with(work: Callable[[Recommender, Request, dict[str, Any]], Any]) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            body = _parse_body(await request.body(), request.url.path) if request.method == "POST" else {}
            chosen = served.choose(request.query_params)
            chosen.count_request()
            answer = await run_in_threadpool(work, chosen.snapshot, request, body)
            if work is _recommend:
                served.note_list(chosen, request.query_params["user"], [entry["item"] for entry in answer])
            return JSONResponse(answer, headers={MODEL_HEADER: chosen.name})

        return handle

    async def change(prepare: Callable[[], Change], status: int) -> tuple[int, Any]:
        """Return (status, answer) of a change; a refusal has its own status."""
        try:
            result = await asyncio.wrap_future(served.submit(prepare()))
        except InputError as error:
            result = error
        except Locked:
            sentence = "another process writes to this model, so this one takes no changes; send them to that one."
            return 503, {"error": sentence}
        if isinstance(result, InputError):
            return _choose_status(result), {"error": str(result)}
        return status, result

    def change_with(prepare: Callable[[Request, dict[str, Any]], Change], status: int) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            content = await request.body()

            def parse() -> Change:
                has_body = request.method in ("POST", "PUT")
                return prepare(request, _parse_body(content, request.url.path) if has_body else {})

            code, answer = await change(parse, status)
            return JSONResponse(answer, code)

        return handle

    def change_plainly(path: str, prepare: Callable[[dict[str, Any]], Change]) -> web.PlainHandler:
        """Take a change without ASGI, in less CPU time: lists wait behind bursts of changes."""

        async def handle(content: bytes, _: Mapping[str, str]) -> web.Reply:
            start_s, status = time.perf_counter(), 500
            answer: Any
            try:
                async with asyncio.timeout(CHANGE_S):
                    status, answer = await change(lambda: prepare(_parse_body(content, path)), 201)
            except TimeoutError:
                status, answer = 504, {"error": f"no answer within {CHANGE_S:g} s."}
            except RidgelineError as error:
                answer = {"error": str(error)}
            finally:
                metrics.observe(path, status, time.perf_counter() - start_s)
            return web.Reply(status, bytes(JSONResponse(answer).body))

        return handle

    async def get_item(request: Request) -> Response:
        chosen = served.choose(request.query_params)
        try:
            item = await run_in_threadpool(chosen.snapshot.describe_item, request.path_params["id"])
        except NotFound as error:
            return JSONResponse({"error": str(error)}, 404)
        return JSONResponse(item, headers={MODEL_HEADER: chosen.name})

    def ratings(model: Recommender, request: Request, _: dict[str, Any]) -> Any:
        return model.list_ratings(_get_user(request))

    async def list_models(request: Request) -> Response:
        described = await run_in_threadpool(lambda: {m.name: m.describe() for m in served.models.values()})
        return JSONResponse({"models": described})

    async def roll_back(request: Request) -> Response:
        try:
            model = served.find(request.path_params["name"])
        except NotFound as error:
            return JSONResponse({"error": str(error)}, 404)
        version = _parse_body(await request.body(), request.url.path).get("version")
        if isinstance(version, bool) or not isinstance(version, int):
            raise InputError(f'the version is {version!r:.40}; give a number, such as {{"version": 1}}.')
        return JSONResponse({"model": model.name, "version": await run_in_threadpool(model.replace, version)})

    async def page(request: Request) -> Response:
        return web.create_page_response(document)

    async def openapi(request: Request) -> Response:
        return JSONResponse(_openapi(first.name))

    async def health(request: Request) -> Response:
        if ready.is_set():
            return JSONResponse({"status": "ok", "model": served.first.name, "version": served.first.version})
        return JSONResponse({"status": "starting"}, 503, {"retry-after": "1"})

    def limit(handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """Refuse the requests of a client that sends too many."""
        if rates is None:
            return handler

        async def handle(request: Request) -> Response:
            wait_s = rates.take(request.client.host if request.client else "", time.monotonic())
            if not wait_s:
                response: Response = await handler(request)
                return response
            sentence = f"this client sends more than {rates.per_second:g} requests per second; send them more slowly."
            return JSONResponse({"error": sentence}, 429, {"retry-after": str(math.ceil(wait_s))})

        return handle

    def measure(path: str, handler: Callable[[Request], Any], method: str) -> Route:
        return Route(path, metrics.measure(path, limit(handler)), methods=[method])

    plain = {"/api/items": _parse_new_items, "/api/ratings": _parse_new_ratings}
    item_path = "/api/items/{id:path}"
    return web.create_app(
        [
            Route("/", page),
            Route("/openapi.json", openapi),
            Route("/api/health", health),
            Route("/api/models", list_models),
            measure("/api/models/{name}/rollback", roll_back, "POST"),
            Route("/metrics", metrics.show),
            measure("/api/stats", answer_with(_get_stats), "GET"),
            measure("/api/search", answer_with(_search), "GET"),
            measure("/api/similar", answer_with(_find_similar), "GET"),
            measure("/api/recommend", answer_with(_recommend), "GET"),
            measure("/api/new", answer_with(_recommend_new), "POST"),
            measure("/api/batch", answer_with(_recommend_batch), "POST"),
            measure("/api/items", change_with(lambda _, body: _parse_new_items(body), 201), "POST"),
            measure(item_path, get_item, "GET"),
            measure(item_path, change_with(_parse_changed_item, 200), "PUT"),
            measure(item_path, change_with(lambda r, _: Change("remove_items", [r.path_params["id"]]), 200), "DELETE"),
            measure("/api/ratings", change_with(lambda _, body: _parse_new_ratings(body), 201), "POST"),
            measure("/api/ratings", answer_with(ratings), "GET"),
            measure("/api/ratings", change_with(_parse_removed_rating, 200), "DELETE"),
        ],
        token=token,
        open_paths=["/api/health"],
        lifespan=lifespan,
        # the limit of each client needs its address, which ASGI gives
        plain={path: change_plainly(path, parse) for path, parse in plain.items()} if rates is None else None,
    )


def _get_stats(model: Recommender, request: Request, _: dict[str, Any]) -> Any:
    return {
        "name": model.name,
        "users": len(model.user_ids),
        "items": len(model.catalogue),
        "ratings": len(model.seen.items),
        "encoder": model.encoder,
        "weights": model.hybrid.weights,
        "genres": model.catalogue.all_genres,
    }


def _search(model: Recommender, request: Request, _: dict[str, Any]) -> Any:
    text = _check_text(request.query_params.get("q", ""))
    return _to_json(model.search(text, _parse_options(request.query_params)))


def _find_similar(model: Recommender, request: Request, _: dict[str, Any]) -> Any:
    item = request.query_params.get("item")
    options = _parse_options(request.query_params)
    if item is not None:
        return _to_json(model.similar_to(model.find_item(item), options))
    return _to_json(model.similar(_check_text(request.query_params.get("title", "")), options)[2])


def _recommend(model: Recommender, request: Request, _: dict[str, Any]) -> Any:
    return _to_json(model.recommend(_get_user(request), _parse_options(request.query_params)))


def _recommend_new(model: Recommender, request: Request, body: dict[str, Any]) -> Any:
    titles, items = _parse_list(body, "liked", MAX_LIKED), _parse_list(body, "items", MAX_LIKED)
    text = _check_text(body.get("text", ""))
    if not titles and not items and not text.strip():
        raise InputError("a new user needs liked titles, items or a text; give one of them.")
    title_rows = [model.titles.find(str(title))[0] for title in titles]
    rows = np.array([*title_rows, *map(model.find_item, items)], np.int64)
    return _to_json(model.for_items(rows, text, _parse_options(body), text_weight=_parse_text_weight(body)))


def _recommend_batch(model: Recommender, request: Request, body: dict[str, Any]) -> Any:
    users = _parse_list(body, "users", MAX_USERS)
    options = _parse_options(body)
    rows = np.array([model.find_user(user) for user in users], np.int64)
    if not len(rows):
        return {}
    items, scores = model.top(rows, options.k)
    ids = model.catalogue.ids[np.maximum(items, 0)].tolist()
    return {
        str(user): [{"item": item, "score": float(s)} for i, item, s in zip(line, names, value, strict=True) if i >= 0]
        for user, line, names, value in zip(users, items.tolist(), ids, scores.tolist(), strict=True)
    }


def _get_user(request: Request) -> str:
    user = request.query_params.get("user")
    if user is None:
        raise InputError("no user is given; use ?user=ID.")
    return user


def _parse_new_items(body: dict[str, Any]) -> Change:
    return Change("add_items", _parse_objects(body, "items", EXAMPLES["/api/items"]))


def _parse_changed_item(request: Request, body: dict[str, Any]) -> Change:
    name = request.path_params["id"]
    if str(body.get("id", name)) != name:
        raise InputError(f"the body has the id '{body['id']!s:.80}' and the path '{name:.80}'; give one id.")
    return Change("put_item", [{**body, "id": name}])


def _parse_new_ratings(body: dict[str, Any]) -> Change:
    return Change("add_ratings", _parse_objects(body, "ratings", EXAMPLES["/api/ratings"]))


def _parse_removed_rating(request: Request, _: dict[str, Any]) -> Change:
    item = request.query_params.get("item")
    if item is None:
        raise InputError("no item is given; use ?user=ID&item=ID.")
    return Change("remove_ratings", [(_get_user(request), item)])


def _parse_objects(body: dict[str, Any], name: str, example: str) -> list[Any]:
    values = body.get(name)
    if not isinstance(values, list) or not values:
        raise InputError(f"the body has no list '{name}'; send one such as {example}.")
    if len(values) > MAX_CHANGES:
        raise TooLarge(f"the body has {len(values):,} {name}; send up to {MAX_CHANGES:,} at a time.")
    return values


def _find_example(path: str) -> str:
    """Return a body for the path of a request."""
    return next((body for start, body in EXAMPLES.items() if path.startswith(start)), EXAMPLES["/api/new"])


def _choose_status(error: InputError) -> int:
    return next((code for kind, code in STATUS_CODES.items() if isinstance(error, kind)), 400)


def _parse_body(content: bytes, path: str) -> dict[str, Any]:
    try:
        body = json.loads(content)
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError("the body holds half a character, such as \\ud800; send complete characters.") from None
    except (ValueError, RecursionError):
        raise InputError(f"the body is no JSON; send an object such as {_find_example(path)}.") from None
    if not isinstance(body, dict):
        raise InputError(f"the body is no JSON object; send one such as {_find_example(path)}.")
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
    diversify = parameters.get("diversify", 0)
    try:
        weight = float(diversify)
    except (TypeError, ValueError):
        raise InputError(f"diversify is {diversify!r:.40}; give a number from 0 to 1.") from None
    return Options(k, genre, parse_years(year), weight)


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


def _to_json(recommendations: list[Any]) -> list[dict[str, Any]]:
    return [a.to_json() for a in recommendations]


def _openapi(name: str) -> dict[str, Any]:
    def get(what: str, *parameters: str) -> dict[str, Any]:
        more = [{"name": p, "in": "query", "schema": {"type": "string"}} for p in parameters]
        return {"get": {"summary": what, "parameters": more, "responses": {"200": {"description": "the answer"}}}}

    def post(what: str) -> dict[str, Any]:
        body = {"content": {"application/json": {"schema": {"type": "object"}}}}
        return {"post": {"summary": what, "requestBody": body, "responses": {"200": {"description": "the answer"}}}}

    kind = ("k", "genre", "year", "diversify")
    return {
        "openapi": "3.1.0",
        "info": {"title": f"ridgeline recommend: {name}", "version": "1"},
        "paths": {
            "/api/health": get("whether the service can answer: 200, or 503 until it has answered a first search"),
            "/api/items": post("add items: id, title, text, genres, year"),
            "/api/ratings": {
                **get("the ratings of a user", "user"),
                **post("add ratings: user, item, rating, time; those of unknown items wait"),
            },
            "/api/models": get("the models with their versions, requests, lists and hits"),
            "/api/models/{name}/rollback": post("answer by an earlier version: version"),
            "/metrics": get("for Prometheus"),
            "/api/stats": get("what the model holds"),
            "/api/search": get("items by what a text means", "q", *kind),
            "/api/similar": get("items like a title or an item", "title", "item", *kind),
            "/api/recommend": get("for a user of the data", "user", *kind),
            "/api/new": post("for a new user: liked (titles), items (ids), text, text_weight, k, genre, year"),
            "/api/batch": post("for many users: users (ids), k"),
        },
    }
