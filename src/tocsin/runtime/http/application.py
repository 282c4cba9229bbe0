"""The FastAPI application that every server builds around its routes."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter, FastAPI

import tocsin
from tocsin.runtime.http.answers import add_error_handlers
from tocsin.runtime.http.authentication import internal_error


def make_application(part: str, description: str, context: object, routers: Iterable[APIRouter]) -> FastAPI:
    """The routes without authentication. Routes find `context` in `app.state`; `part` names the server in errors."""
    app = FastAPI(
        title=f"Tocsin {part}",
        version=tocsin.__version__,
        description=description,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.context = context
    for router in routers:
        app.include_router(router)
    add_error_handlers(app)
    app.add_exception_handler(Exception, lambda request, error: internal_error(error, request.url.path, part))
    return app
