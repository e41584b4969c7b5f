"""The HTTP interface: OpenAI's embeddings, Text Embeddings Inference, reranking as Cohere has it, search.

| path                          | as                                                   |
|-------------------------------|------------------------------------------------------|
| POST /v1/embeddings           | OpenAI: texts or token ids, float or base64          |
| GET /v1/models                | OpenAI                                               |
| POST /embed, /embed_all, …    | Text Embeddings Inference                            |
| POST /                        | TEI: /embed, /similarity or /rerank, by the fields   |
| POST /v1/rerank, /v2/rerank   | Cohere                                               |
| POST /v1/search               | texts or vectors → nearest rows of an index          |
| POST /v1/indexes/NAME/add     | add rows; …/remove removes them                      |
| POST /admin/reload            | load a model or an index again                       |
| GET /health, /info, /metrics  | readiness, the models, Prometheus                    |
| GET /, /openapi.json          | a page to try it, the description for programs       |
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

import ridgeline
from ridgeline import web
from ridgeline.embed import TooLong
from ridgeline.errors import InputError, MissingExtra, RidgelineError
from ridgeline.serve import request_fields as fields
from ridgeline.serve.api_errors import TEI_PATHS, ApiError, bad_request, describe_error, explain_error, format_error
from ridgeline.serve.openapi import TEI_RERANK, describe_api, get_fields
from ridgeline.serve.process_setup import MAX_CONNECTIONS
from ridgeline.serve.tracing import trace_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from starlette.requests import Request
    from starlette.responses import Response

    from ridgeline.embed import Tokens
    from ridgeline.serve.catalog import AnyIndex
    from ridgeline.serve.served_model import ServedEmbedder, ServedModel
    from ridgeline.serve.service import Service
    from ridgeline.serve.worker import RemoteService

Body = dict[str, Any]
Answer = Callable[[Body], Awaitable[Any]]
_Handler = Callable[[bytes, Mapping[str, str], Body], Awaitable[web.Reply]]  # body, headers, parameters of the path

BODY_LIMIT = 32 << 20
BODIES_LIMIT = 1 << 30  # of all requests in progress
DEADLINE_S = 600.0  # of a request without X-Request-Timeout
MAX_VALUES = 1 << 24  # of an answer with a vector per token
LOOP_CHARACTERS = 4096  # of one request, tokenized in the event loop; more of them would hold up the others
MAX_CHARACTERS = 1 << 20  # of an answer with a description per token
_PACKAGE = "ridgeline.serve"
_log = logging.getLogger(_PACKAGE)


def create_app(
    service: Service | RemoteService, *, token: str | None = None, watch: bool = False, bodies_limit: int = BODIES_LIMIT
) -> web.App:
    """Create the web application; on an address other than loopback it requires a token.

    bodies_limit  bytes of the bodies of all requests in progress
    """
    try:
        from starlette.routing import Route
    except ImportError:
        raise MissingExtra("the server", "serve") from None
    api = _Api(service)

    @asynccontextmanager
    async def run_service(app: Any) -> AsyncIterator[None]:
        await service.start(watch)
        try:
            yield
        finally:
            await service.stop()

    plain: dict[str, web.PlainHandler] = {}

    def post(path: str, answer: Answer) -> Any:
        handle = _make_handler(service, path, answer)
        if "{" not in path:
            plain[path] = _make_plain_handler(handle)
        return Route(path, _make_endpoint(handle), methods=["POST"])

    routes = [
        Route("/", api.show_page),
        Route("/health", api.show_health),
        Route("/info", api.show_info),
        Route("/metrics", service.metrics.show),
        Route("/openapi.json", api.show_description),
        Route("/v1/models", api.list_models),
        Route("/v1/models/{name:path}", api.show_model),
        post("/v1/embeddings", api.embed_openai),
        post("/", api.answer_root),
        post("/embed", api.embed),
        post("/embed_all", api.embed_all),
        post("/embed_sparse", api.embed_sparse),
        post("/similarity", api.compare),
        post("/tokenize", api.tokenize),
        post("/rerank", api.rerank),
        post("/v1/rerank", api.rerank_cohere),
        post("/v2/rerank", api.rerank_cohere),
        post("/v1/search", api.search),
        post("/v1/indexes/{name:path}/add", api.add),
        post("/v1/indexes/{name:path}/remove", api.remove),
        post("/admin/reload", api.reload),
    ]
    return web.create_app(
        routes,
        token=token,
        body_limit=BODY_LIMIT,
        bodies_limit=bodies_limit,
        deadline_s=fields.MAX_TIMEOUT_S + 10,
        concurrency=MAX_CONNECTIONS,
        open_paths=["/health"],
        lifespan=run_service,
        format_error=format_error,
        plain=plain,
    )


class _Api:
    """What each path answers. A handler takes the fields of the body and returns what becomes JSON."""

    def __init__(self, service: Service | RemoteService) -> None:
        self.service = service
        self._description = describe_api()

    async def embed_openai(self, body: Body) -> Any:
        model = self.service.get_embedder(fields.get_string(body, "model"))
        encoding = fields.get_string(body, "encoding_format", "float")
        if encoding not in ("float", "base64"):
            raise bad_request("'encoding_format' must be float or base64.", "encoding_format")
        dimensions = fields.get_integer(body, "dimensions", None, 1, model.dim)
        with self._use(model):
            tokens = await self._read_input(model, fields.get_input(body), body)
            vectors = _cut(await model.encode(tokens), dimensions)
        rows = _encode_base64(vectors) if encoding == "base64" else list(vectors)
        count = len(tokens.ids)
        return {
            "object": "list",
            "data": [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)],
            "model": model.name,
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }

    async def answer_root(self, body: Body) -> Any:
        """Answer as the path that takes these fields: clients of Hugging Face know an address, and no path."""
        if "query" in body or "texts" in body:
            return await self.rerank(body)
        if isinstance(body.get("inputs"), dict):
            path, answer = "/similarity", self.compare
        else:
            path, answer = "/embed", self.embed
        fields.check_fields(body, *get_fields(path))
        return await answer(body)

    async def embed(self, body: Body) -> Any:
        model = self._choose_tei(body)
        if not fields.get_flag(body, "normalize", True):
            raise bad_request("'normalize': false is not available; vectors have length 1.", "normalize")
        dimensions = fields.get_integer(body, "dimensions", None, 1, model.dim)
        with self._use(model):
            return _cut(await model.encode(await self._read_tei(model, body)), dimensions)

    async def embed_all(self, body: Body) -> Any:
        model = self._choose_tei(body)
        with self._use(model):
            tokens = await self._read_tei(model, body)
            if (count := len(tokens.ids) * model.hidden) > MAX_VALUES:
                raise bad_request(f"the answer would have {count:,} numbers; send fewer texts.", "inputs")
            return await model.encode_each(tokens, "tokens")

    async def embed_sparse(self, body: Body) -> Any:
        model = self._choose_tei(body)
        with self._use(model):
            rows = await model.encode_each(await self._read_tei(model, body), "sparse")
        return [
            [{"index": int(i), "value": float(v)} for i, v in zip(indices, values, strict=True)]
            for indices, values in rows
        ]

    async def compare(self, body: Body) -> Any:
        inputs, parameters = (fields.get_object(body, name) for name in ("inputs", "parameters"))
        fields.check_fields(inputs, ("source_sentence", "sentences"), ())
        fields.check_fields(parameters, (), ("truncate", "truncation_direction", "prompt_name"))
        texts = [fields.get_text(inputs, "source_sentence"), *fields.get_texts(inputs, "sentences")]
        model = self.service.get_embedder(fields.get_string(body, "model") or None)
        with self._use(model):
            tokens = await self._tokenize_tei(model, texts, parameters)
            vectors = await model.encode(tokens)
        return vectors[1:] @ vectors[0]

    async def tokenize(self, body: Body) -> Any:
        texts = fields.get_texts(body, "inputs")
        model = self.service.get_embedder(fields.get_string(body, "model") or None)
        if (count := sum(map(len, texts))) > MAX_CHARACTERS:
            raise bad_request(f"the texts have {count:,} characters; send up to {MAX_CHARACTERS:,}.", "inputs")
        texts = _add_prompt(model, texts, body)
        special = fields.get_flag(body, "add_special_tokens", True)
        return await asyncio.to_thread(model.describe_tokens, texts, special)

    async def rerank(self, body: Body) -> Any:
        if "documents" in body:  # vLLM and others take Cohere's fields at this path
            fields.check_fields(body, *get_fields("/v2/rerank"))
            return await self.rerank_cohere(body)
        fields.check_fields(body, *TEI_RERANK)
        documents, raw = fields.get_texts(body, "texts"), fields.get_flag(body, "raw_scores")
        with_text = fields.get_flag(body, "return_text")
        _check_direction(body)
        _, scores = await self._score(body, documents, truncate=fields.get_flag(body, "truncate"), raw=raw)
        return [
            {"index": i, "score": float(scores[i]), **({"text": documents[i]} if with_text else {})}
            for i in _sort_scores(scores)[: fields.get_integer(body, "top_n", None, 1, fields.MAX_TEXTS)]
        ]

    async def rerank_cohere(self, body: Body) -> Any:
        documents, with_text = fields.get_documents(body, "documents"), fields.get_flag(body, "return_documents")
        top = fields.get_integer(body, "top_n", len(documents), 1, fields.MAX_TEXTS)
        most = fields.get_integer(body, "max_tokens_per_doc", None, 1, 2**31 - 1)
        model = self.service.get_reranker(fields.get_string(body, "model") or None)
        if most is not None and most < model.max_tokens:
            raise bad_request(f"'max_tokens_per_doc' below {model.max_tokens} is not available.", "max_tokens_per_doc")
        name, scores = await self._score(body, documents, truncate=fields.get_flag(body, "truncate", True))
        return {
            "model": name,
            "results": [
                {
                    "index": i,
                    "relevance_score": float(scores[i]),
                    **({"document": {"text": documents[i]}} if with_text else {}),
                }
                for i in _sort_scores(scores)[:top]
            ],
        }

    async def search(self, body: Body) -> Any:
        served = self.service.get_index(fields.get_string(body, "index"))
        k = fields.get_integer(body, "k", 10, 1, fields.MAX_RESULTS) or 10
        where = fields.get_string(body, "where") if body.get("where") is not None else None
        recall = body.get("recall")
        if recall is not None and (isinstance(recall, bool) or not isinstance(recall, int | float)):
            raise bad_request("'recall' must be a number, like 0.95.", "recall")
        queries = await self._read_vectors(served, body)
        scores, ids = await served.search(queries, k, where, recall)
        return {
            "results": [
                [{"id": i, "score": s} for i, s in zip(row, values, strict=True) if i >= 0]
                for row, values in zip(ids.tolist(), scores.tolist(), strict=True)
            ]
        }

    async def add(self, body: Body) -> Any:
        served = self.service.get_index(body["name"])
        ids = fields.get_ids(body, "ids")
        vectors = await self._read_vectors(served, body)
        if len(ids) != len(vectors):
            raise bad_request(f"there are {len(ids)} ids and {len(vectors)} vectors.", "ids")
        meta = fields.get_columns(body, "meta")
        return {"count": await served.add(vectors, ids, meta)}

    async def remove(self, body: Body) -> Any:
        served = self.service.get_index(body["name"])
        return {"removed": await served.remove(fields.get_ids(body, "ids"))}

    async def reload(self, body: Body) -> Any:
        model, index = (fields.get_string(body, name) or None for name in ("model", "index"))
        if (model is None) == (index is None):
            raise bad_request("give a 'model' or an 'index', one of the two.")
        await self.service.reload(model=model, index=index)
        return {"reloaded": model or index}

    async def list_models(self, request: Request) -> Response:
        return _respond(
            _make_reply({"object": "list", "data": [self._describe_model(name) for name in self.service.model_names]})
        )

    async def show_model(self, request: Request) -> Response:
        try:
            return _respond(_make_reply(self._describe_model(request.path_params["name"])))
        except RidgelineError as error:
            return _respond(_make_error_reply(request.url.path, explain_error(error)))

    def _describe_model(self, name: str) -> Body:
        created = self.service.find_model(name).created
        return {"id": name, "object": "model", "created": created, "owned_by": "ridgeline"}

    async def show_health(self, request: Request) -> Response:
        if self.service.ready:
            return _respond(_make_reply({"status": "ok"}))
        return _respond(_make_reply({"status": "starting"}, 503, {"retry-after": "1"}))

    async def show_info(self, request: Request) -> Response:
        """Answer as TEI does, for the first model; `models` lists all."""
        models = list(self.service.models.values())
        first = models[0] if models else None
        return _respond(
            _make_reply(
                {
                    "model_id": first.name if first else None,
                    "model_dtype": first.dtype if first else None,
                    "model_type": {first.kind: {}} if first else {},
                    "max_input_length": first.max_tokens if first else None,
                    "max_batch_tokens": first.max_batch_tokens if first else None,
                    "max_client_batch_size": fields.MAX_TEXTS,
                    "max_concurrent_requests": self.service.settings.max_queue,
                    "auto_truncate": False,
                    "version": ridgeline.__version__,
                    "models": [
                        {
                            "name": m.name,
                            "kind": m.kind,
                            "dim": m.dim,
                            "dtype": m.dtype,
                            "device": m.device,
                            "batch_invariant": m.batch_invariant,
                            "max_input_length": m.max_tokens,
                            "ready": m.ready,
                        }
                        for m in models
                    ],
                    "indexes": [
                        {"name": i.name, "rows": await i.count_rows(), "dim": i.dim}
                        for i in self.service.indexes.values()
                    ],
                }
            )
        )

    async def show_description(self, request: Request) -> Response:
        return _respond(_make_reply(self._description))

    async def show_page(self, request: Request) -> Response:
        indexes: list[AnyIndex] = list(self.service.indexes.values())
        document = web.build_page(
            "Ridgeline serve",
            web.render_template(
                "serve.html",
                templates=_PACKAGE,
                models=list(self.service.models.values()),
                embedders=[m for m in self.service.models.values() if m.kind == "embedding"],
                indexes=indexes,
                rows_of_indexes=[(index, await index.count_rows()) for index in indexes],
            ),
            styles=[web.read_asset("serve.css", _PACKAGE)],
            scripts=[web.read_asset("client.js"), web.read_asset("serve.js", _PACKAGE)],
            live=True,
        )
        return web.create_page_response(document)

    @contextmanager
    def _use(self, model: ServedModel) -> Iterator[None]:
        """Take one place in the queue of a model, and keep the model open."""
        self.service.check_queue(model)
        model.users += 1
        try:
            yield
        except TooLong as error:
            message = f'{model.hide_folder(str(error))} Or send "truncate": true.'
            raise bad_request(message, "input", "context_length_exceeded") from None
        except InputError as error:
            raise bad_request(model.hide_folder(str(error))) from None
        finally:
            model.users -= 1

    async def _read_input(self, model: ServedEmbedder, value: list[str] | list[list[int]], body: Body) -> Tokens:
        truncate = fields.get_flag(body, "truncate")
        if isinstance(value[0], list):
            return model.take_tokens(value, truncate, bare=not fields.get_flag(body, "add_special_tokens", True))
        if not fields.get_flag(body, "add_special_tokens", True):
            raise bad_request("'add_special_tokens': false is for token ids only.", "add_special_tokens")
        return await _tokenize(model, value, truncate)

    def _choose_tei(self, body: Body) -> ServedEmbedder:
        return self.service.get_embedder(fields.get_string(body, "model") or None)

    async def _read_tei(self, model: ServedEmbedder, body: Body) -> Tokens:
        value = fields.get_input(body, "inputs")
        if isinstance(value[0], list):
            _check_direction(body)
            if fields.get_string(body, "prompt_name"):
                raise bad_request("'prompt_name' is for texts; put the prompt into the token ids.", "prompt_name")
            return await self._read_input(model, value, body)
        return await self._tokenize_tei(model, value, body)

    async def _tokenize_tei(self, model: ServedEmbedder, texts: list[str], options: Body) -> Tokens:
        _check_direction(options)
        texts = _add_prompt(model, texts, options)
        return await _tokenize(model, texts, fields.get_flag(options, "truncate"))

    async def _read_vectors(self, served: Any, body: Body) -> Any:
        """Return the vectors of a request: as given, or of its texts."""
        if (body.get("input") is None) == (body.get("vectors") is None):
            raise bad_request("give 'input' or 'vectors', one of the two.")
        if body.get("vectors") is not None:
            return fields.get_vectors(body, "vectors", served.dim)
        model = self.service.choose_text_model(served, fields.get_string(body, "model") or None)
        with self._use(model):
            tokens = await _tokenize(model, fields.get_texts(body, "input"), fields.get_flag(body, "truncate"))
            return await model.encode(tokens)

    async def _score(
        self, body: Body, documents: list[str], *, truncate: bool, raw: bool = False
    ) -> tuple[str, NDArray[np.float32]]:
        """Return the name of the model, and a score for each document."""
        model = self.service.get_reranker(fields.get_string(body, "model") or None)
        query = fields.get_text(body, "query")
        with self._use(model):
            size = len(query) + sum(map(len, documents))
            tokens = await _run_beside_loop(size, model.tokenize, query, documents, truncate=truncate)
            return model.name, await model.score(tokens, raw=raw)


async def _run_beside_loop(size: int, tokenize: Callable[..., Tokens], *texts: Any, truncate: bool) -> Tokens:
    """Tokenize; texts of many characters in a thread, so that the event loop goes on."""
    if size < LOOP_CHARACTERS:
        return tokenize(*texts, truncate=truncate)
    return await asyncio.to_thread(tokenize, *texts, truncate=truncate)


async def _tokenize(model: ServedEmbedder, texts: list[str], truncate: bool) -> Tokens:
    return await _run_beside_loop(sum(map(len, texts)), model.tokenize, texts, truncate=truncate)


def _make_handler(service: Service | RemoteService, path: str, answer: Answer) -> _Handler:
    """Return the handler of a path: it reads the body, keeps the deadline, counts, and explains errors."""
    path = path.replace(":path", "")
    required, optional = get_fields(path)

    async def handle(content: bytes, headers: Mapping[str, str], parameters: Body) -> web.Reply:
        start_s, status = time.perf_counter(), 499  # the client left
        with trace_request(path, headers) as span:
            try:
                fields.check_encoding(headers.get("content-encoding"))
                body = fields.parse_json(content)
                fields.check_fields(body, required, optional)
                body.update(parameters)
                seconds = fields.parse_timeout(headers.get("x-request-timeout")) or DEADLINE_S
                reply = _make_reply(await _run_until_deadline(answer(body), seconds))
                status = reply.status
            except Exception as error:
                if not isinstance(error, RidgelineError):
                    _log.error("a request to %s failed (%s)", path, describe_error(error))
                reply = _make_error_reply(path, explain_error(error))
                status = reply.status
            finally:
                span.set_attribute("http.response.status_code", status)
                # After the answer is written, and before the loop reads a next request.
                seconds = time.perf_counter() - start_s
                asyncio.get_running_loop().call_soon(service.metrics.requests.observe, path, status, seconds)
        return reply

    return handle


def _make_plain_handler(handle: _Handler) -> web.PlainHandler:
    async def handle_plain(content: bytes, headers: Mapping[str, str]) -> web.Reply:
        return await handle(content, headers, {})

    return handle_plain


def _make_endpoint(handle: _Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        content = await request.body()
        return _respond(await _run_until_left(request, handle(content, request.headers, request.path_params)))

    return endpoint


async def _run_until_deadline(work: Awaitable[Any], seconds: float) -> Any:
    """Await an answer; stop if the deadline passes, so that its texts leave the queue."""
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            return await work
    except TimeoutError:
        if deadline.expired():
            raise ApiError(504, f"there is no answer within {seconds:g} s.", code="timeout") from None
        raise


async def _run_until_left(request: Request, work: Awaitable[web.Reply]) -> web.Reply:
    """Await an answer; stop if the client leaves."""
    task = asyncio.ensure_future(work)
    left = asyncio.ensure_future(_wait_until_left(request))
    try:
        done, _ = await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task in done else web.Reply(499, b"")
    finally:
        task.cancel()
        left.cancel()


async def _wait_until_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _make_reply(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Reply:
    import orjson

    return web.Reply(status, orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), headers or {})


def _make_error_reply(path: str, error: ApiError) -> web.Reply:
    status = error.status
    if path in TEI_PATHS and status == 400:
        status = 413 if error.code == "context_length_exceeded" else 422
    return _make_reply(format_error(path, status, str(error), error.code, error.param), status, error.headers)


def _respond(reply: web.Reply) -> Response:
    from starlette.responses import Response

    return Response(reply.body, reply.status, dict(reply.headers), "application/json")


def _encode_base64(vectors: NDArray[np.float32]) -> list[Any]:
    """Return each vector as a string of JSON."""
    import orjson

    from ridgeline.native import encode_base64

    return [orjson.Fragment(text) for text in encode_base64(np.ascontiguousarray(vectors, np.float32), b'"', b'"')]


def _cut(vectors: Any, dimensions: int | None) -> Any:
    """Keep the first components and scale to length 1 (Matryoshka)."""
    if dimensions is None or dimensions == vectors.shape[1]:
        return vectors
    short = vectors[:, :dimensions]
    lengths = np.linalg.norm(short, axis=1, keepdims=True)
    return np.ascontiguousarray(short / np.maximum(lengths, np.finfo(np.float32).tiny))


def _check_direction(options: Body) -> None:
    if fields.get_string(options, "truncation_direction", "Right").lower() != "right":
        raise bad_request("'truncation_direction' must be Right.", "truncation_direction")


def _add_prompt(model: ServedEmbedder, texts: list[str], options: Body) -> list[str]:
    name = fields.get_string(options, "prompt_name")
    return model.add_prompt(texts, name) if name else texts


def _sort_scores(scores: Any) -> list[int]:
    order: list[int] = np.argsort(-np.asarray(scores), kind="stable").tolist()
    return order
