"""The data cluster's REST, WebSocket and server-sent-events API, under /v1. One module a resource."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

import tocsin
from tocsin.cluster.server.routes import (
    announcements,
    definitions,
    records,
    results,
    status,
    subscriptions,
    taps,
    token_routes,
)
from tocsin.cluster.server.routes.authentication import PART, authenticate
from tocsin.cluster.server.routes.context import ClusterContext
from tocsin.runtime.http.answers import add_error_handlers
from tocsin.runtime.http.authentication import make_internal_handler

__all__ = ["ClusterContext", "make_app", "make_routes"]


def make_app(context: ClusterContext) -> ASGIApp:
    return authenticate(records.publishing_first(make_routes(context)), context)


def make_routes(context: ClusterContext) -> FastAPI:
    """The routes without authentication."""
    app = FastAPI(
        title="Tocsin data cluster",
        version=tocsin.__version__,
        description="Datasets, channels, subscriptions and results on Spark. Calls under /v1 need a bearer token.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.context = context
    for module in (definitions, records, subscriptions, results, announcements, status, taps, token_routes):
        app.include_router(module.router)
    add_error_handlers(app)
    app.add_exception_handler(Exception, make_internal_handler(PART))
    return app
