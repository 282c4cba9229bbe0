"""The data cluster's REST, WebSocket and server-sent-events API, under /v1. One module a resource."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

import tocsin
from tocsin.cluster.server.routes import (
    announcement_routes,
    applications,
    definitions,
    record_stream,
    records,
    results,
    status,
    subscriptions,
    taps,
    token_routes,
)
from tocsin.cluster.server.routes.api import Api
from tocsin.cluster.server.routes.door import PART, make_door
from tocsin.runtime.http.answers import add_error_handlers
from tocsin.runtime.http.authentication import make_internal_handler

__all__ = ["Api", "make_app", "make_routes"]


def make_app(api: Api) -> ASGIApp:
    return make_door(records.publishing_first(make_routes(api)), api)


def make_routes(api: Api) -> FastAPI:
    """The routes without the door around them."""
    app = FastAPI(
        title="Tocsin data cluster",
        version=tocsin.__version__,
        description="Datasets, channels, subscriptions and results on Spark. Calls under /v1 need a bearer token.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.api = api
    for module in (
        applications, definitions, records, record_stream, subscriptions, results, announcement_routes, status,
        taps, token_routes,
    ):  # fmt: skip
        app.include_router(module.router)
    add_error_handlers(app)
    app.add_exception_handler(Exception, make_internal_handler(PART))
    return app
