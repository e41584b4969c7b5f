"""The OpenAPI description of the HTTP interface. The handlers check the fields of a body against it."""

from __future__ import annotations

from typing import Any

import ridgeline
from ridgeline.serve.request_fields import MAX_RESULTS, MAX_TEXTS

_TEXT = {"type": "string", "minLength": 1}
_TEXTS = {"oneOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_TEXTS}]}
_IDS = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
_INPUT = {"oneOf": [*_TEXTS["oneOf"], _IDS, {"type": "array", "items": _IDS, "minItems": 1, "maxItems": MAX_TEXTS}]}
_VECTOR = {"type": "array", "items": {"type": "number"}, "minItems": 1}
_VECTORS = {"type": "array", "items": _VECTOR, "minItems": 1, "maxItems": MAX_TEXTS}
_FLAG = {"type": "boolean"}
_NAME = {"type": "string"}
_IDS_ARE_BARE = {"add_special_tokens": _FLAG}  # false: the ids have none on purpose
_TEI = {"inputs": _INPUT, "truncate": _FLAG, "truncation_direction": _NAME, "prompt_name": _NAME, "model": _NAME}

_COHERE: dict[str, Any] = {
    "model": _NAME,
    "query": _TEXT,
    "documents": {"type": "array", "items": {}, "minItems": 1, "maxItems": MAX_TEXTS},
    "top_n": {"type": "integer", "minimum": 1},
    "return_documents": _FLAG,
    "truncate": _FLAG,
}
_COHERE_2 = {**_COHERE, "max_tokens_per_doc": {"type": "integer", "minimum": 1}, "priority": {"type": "integer"}}
_RERANK: dict[str, Any] = {
    "query": _TEXT,
    "texts": _TEXTS,
    "raw_scores": _FLAG,
    "return_text": _FLAG,
    "top_n": {"type": "integer", "minimum": 1},
    "truncate": _FLAG,
    "truncation_direction": _NAME,
    "model": _NAME,
}
TEI_RERANK = ["query", "texts"], [name for name in _RERANK if name not in ("query", "texts")]  # required, optional

# path → (summary, required fields, all fields, answer)
_POSTS: dict[str, tuple[str, list[str], dict[str, Any], dict[str, Any]]] = {
    "/v1/embeddings": (
        "Vectors of texts or token ids, as OpenAI",
        ["model", "input"],
        {
            "model": _NAME,
            "input": _INPUT,
            "encoding_format": {"type": "string", "enum": ["float", "base64"]},
            "dimensions": {"type": "integer", "minimum": 1},
            "user": _NAME,
            "truncate": _FLAG,
            **_IDS_ARE_BARE,
        },
        {"type": "object", "required": ["object", "data", "model", "usage"]},
    ),
    "/embed": (
        "Vectors, as Text Embeddings Inference",
        ["inputs"],
        {**_TEI, **_IDS_ARE_BARE, "normalize": _FLAG, "dimensions": {"type": "integer", "minimum": 1}},
        {"type": "array", "items": _VECTOR},
    ),
    "/embed_all": ("The vector of every token", ["inputs"], _TEI, {"type": "array"}),
    "/embed_sparse": ("Sparse vectors", ["inputs"], _TEI, {"type": "array"}),
    "/similarity": (
        "Cosine of one sentence to others",
        ["inputs"],
        {
            "inputs": {
                "type": "object",
                "required": ["source_sentence", "sentences"],
                "properties": {"source_sentence": _TEXT, "sentences": _TEXTS},
            },
            "parameters": {"type": "object"},
            "model": _NAME,
        },
        {"type": "array", "items": {"type": "number"}},
    ),
    "/tokenize": (
        "Tokens with their numbers, texts and places",
        ["inputs"],
        {"inputs": _TEXTS, "add_special_tokens": _FLAG, "prompt_name": _NAME, "model": _NAME},
        {"type": "array"},
    ),
    "/rerank": (
        "Scores of texts for a query, best first, as Text Embeddings Inference; with `documents`, as /v2/rerank",
        ["query"],
        {**_RERANK, **_COHERE_2},
        {},
    ),
    "/v1/rerank": (
        "Scores of documents for a query, best first, as Cohere",
        ["query", "documents"],
        {**_COHERE, "max_chunks_per_doc": {"type": "integer"}},
        {"type": "object", "required": ["results"]},
    ),
    "/v2/rerank": (
        "Scores of documents for a query, best first, as Cohere's second version",
        ["query", "documents"],
        _COHERE_2,
        {"type": "object", "required": ["results"]},
    ),
    "/v1/search": (
        "The nearest rows of an index, for texts or vectors",
        ["index"],
        {
            "index": _NAME,
            "input": _TEXTS,
            "vectors": _VECTORS,
            "k": {"type": "integer", "minimum": 1, "maximum": MAX_RESULTS},
            "where": _NAME,
            "recall": {"type": "number"},
            "model": _NAME,
            "truncate": _FLAG,
        },
        {"type": "object", "required": ["results"]},
    ),
    "/v1/indexes/{name}/add": (
        "Add rows to an index, in memory",
        ["ids"],
        {
            "ids": _IDS,
            "input": _TEXTS,
            "vectors": _VECTORS,
            "meta": {"type": "object"},
            "model": _NAME,
            "truncate": _FLAG,
        },
        {"type": "object", "required": ["count"]},
    ),
    "/v1/indexes/{name}/remove": (
        "Remove rows from an index, in memory",
        ["ids"],
        {"ids": _IDS},
        {"type": "object", "required": ["removed"]},
    ),
    "/admin/reload": (
        "Load a model or an index again; the old one answers until the new one is ready",
        [],
        {"model": _NAME, "index": _NAME},
        {"type": "object", "required": ["reloaded"]},
    ),
}
_POSTS["/"] = (
    "What /embed, /similarity or /rerank answers for these fields, as Text Embeddings Inference",
    [],
    {
        **_POSTS["/embed"][2],
        **_POSTS["/rerank"][2],
        **_POSTS["/similarity"][2],
        "inputs": {"oneOf": [*_INPUT["oneOf"], _POSTS["/similarity"][2]["inputs"]]},
    },
    {},
)
_GETS = {
    "/v1/models": "The models, as OpenAI",
    "/health": "200 once every model has encoded a first text, else 503",
    "/info": "The models, as Text Embeddings Inference",
    "/metrics": "Metrics for Prometheus",
    "/openapi.json": "This description",
}
_ERRORS = {
    "400": "A field is missing, unknown or out of range",
    "401": "The token is missing or wrong",
    "404": "There is no such model or index; the message lists those there are",
    "413": "The body or a text is too long",
    "415": "The body is compressed",
    "422": "A field is wrong (paths of Text Embeddings Inference)",
    "429": "The queue is full; Retry-After says when to try again",
    "503": "The model is being loaded again",
    "504": "X-Request-Timeout has passed",
}


def get_fields(path: str) -> tuple[list[str], list[str]]:
    """Return the required fields of a path's body, and the optional ones."""
    _, required, properties, _ = _POSTS[path]
    return required, [name for name in properties if name not in required]


def describe_api() -> dict[str, Any]:
    """Return the OpenAPI document."""
    errors = {status: {"description": text} for status, text in _ERRORS.items()}
    paths: dict[str, Any] = {
        path: {"get": {"summary": summary, "responses": {"200": {"description": summary}}}}
        for path, summary in _GETS.items()
    }
    for path, (summary, required, properties, answer) in _POSTS.items():
        schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            schema["required"] = required
        operation: dict[str, Any] = {
            "summary": summary,
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
            "responses": {
                "200": {"description": summary, "content": {"application/json": {"schema": answer}}},
                **errors,
            },
        }
        if "{name}" in path:
            operation["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": _NAME}]
        paths[path] = {"post": operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Ridgeline serve", "version": ridgeline.__version__},
        "paths": paths,
    }
