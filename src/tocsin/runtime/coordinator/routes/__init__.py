"""The coordinator's REST API and the brokers' link, under /v1. One module per subject."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.types import ASGIApp

import tocsin
from tocsin.runtime.coordinator.routes import balance, brokers, cluster, status, users
from tocsin.runtime.coordinator.routes.authentication import PART, authenticate
from tocsin.runtime.coordinator.routes.context import CoordinatorContext
from tocsin.runtime.http.answers import add_error_handlers
from tocsin.runtime.http.authentication import make_internal_handler
from tocsin.runtime.http.pages import serve_pages

__all__ = ["CoordinatorContext", "make_app", "make_routes"]


def make_app(context: CoordinatorContext, pages: Path | None = None) -> ASGIApp:
    """`pages` is the folder of the dashboard; None serves no dashboard."""
    return authenticate(make_routes(context, pages), context)


def make_routes(context: CoordinatorContext, pages: Path | None = None) -> FastAPI:
    """The routes without authentication."""
    app = FastAPI(
        title="Tocsin coordinator",
        version=tocsin.__version__,
        description="Users, brokers, placement and migrations. Calls under /v1 need a bearer token.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.context = context
    for module in (users, brokers, balance, status, cluster):
        app.include_router(module.router)
    if pages is not None:
        serve_pages(app, pages)
    add_error_handlers(app)
    app.add_exception_handler(Exception, make_internal_handler(PART))
    return app
