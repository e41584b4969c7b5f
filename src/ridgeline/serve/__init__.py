"""Embeddings, reranking and search over HTTP, as the clients of OpenAI, Cohere and Text Embeddings Inference speak.

    ridgeline.serve(["mini=models/all-MiniLM-L6-v2"], indexes=["films.index"], port=8000)

The package itself can be called, so that `ridgeline.serve(…)` and `from ridgeline.serve import create_app` both work.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.serve.app import create_app as create_app
    from ridgeline.serve.catalog import Settings as Settings
    from ridgeline.serve.server import serve as serve
    from ridgeline.serve.service import Service as Service

__getattr__, __dir__, __all__ = attach(
    __name__,
    {"app": ["create_app"], "catalog": ["Settings"], "server": ["serve"], "service": ["Service"]},
)


class _CallableModule(ModuleType):
    def __call__(self, *models: Any, **settings: Any) -> None:
        """Serve models and indexes until Ctrl-C; see `ridgeline.serve.serve`."""
        from ridgeline.serve.server import serve

        serve(*models, **settings)


sys.modules[__name__].__class__ = _CallableModule
