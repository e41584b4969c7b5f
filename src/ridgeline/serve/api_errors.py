"""Errors of the HTTP interface, in the shape that the client of each path reads.

OpenAI   {"error": {"message", "type", "param", "code"}}
TEI      {"error": "…", "error_type": "validation"}, on its paths (/embed, /rerank, …)
Cohere   {"message": "…"}, on /v1/rerank and /v2/rerank; other clients read OpenAI's "error" there, which is beside it
"""

from __future__ import annotations

import traceback
from functools import partial
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, RidgelineError
from ridgeline.serve.batcher import Stopped

COHERE_PATHS = frozenset({"/v1/rerank", "/v2/rerank"})
TEI_PATHS = frozenset({"/", "/embed", "/embed_all", "/embed_sparse", "/rerank", "/similarity", "/tokenize", "/info"})
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "invalid_request_error",
    429: "rate_limit_error",
}
_TEI_TYPES = {413: "validation", 422: "validation", 429: "overloaded", 503: "unhealthy", 504: "timeout"}


class ApiError(RidgelineError):
    """An error with its HTTP status.

    code   a word for programs, like "model_not_found"
    param  the field of the request that is wrong
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.headers = status, code, param, headers or {}

    def __reduce__(self) -> Any:
        make = partial(ApiError, code=self.code, param=self.param, headers=self.headers)
        return make, (self.status, str(self))


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, code=code, param=param)


def explain_error(error: BaseException) -> ApiError:
    """Return any error as an ApiError; what is unknown says nothing about its cause."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InputError):
        return bad_request(str(error))
    if isinstance(error, Stopped):
        return ApiError(503, str(error), code="model_unavailable", headers={"retry-after": "1"})
    if isinstance(error, RidgelineError):
        return ApiError(500, str(error))
    return ApiError(500, "the server failed on this request; its log says why.")


def describe_error(error: BaseException) -> str:
    """Return what the log says of an error: a sentence of ours, else only kind and place, because a message of another
    library can hold the text of a client.
    """
    if isinstance(error, RidgelineError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    places = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(error).__name__} at {places}"


def format_error(path: str, status: int, message: str, code: str | None = None, param: str | None = None) -> Any:
    """Return the body of an error, in the shape of the path."""
    if path in TEI_PATHS:
        return {"error": message, "error_type": _TEI_TYPES.get(status, "validation" if status < 500 else "backend")}
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    error = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return {"message": message, **error} if path in COHERE_PATHS else error
