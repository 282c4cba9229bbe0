"""A broker's REST and server-sent-events API, under /v1. WebSockets do not pass here: see `subscriber_socket`."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

import tocsin
from tocsin.runtime.broker.routes import asyncapi, status, stream, subscriptions, webhook
from tocsin.runtime.broker.routes.authentication import PART, authenticate
from tocsin.runtime.broker.routes.context import BrokerContext
from tocsin.runtime.http.answers import add_error_handlers
from tocsin.runtime.http.authentication import make_internal_handler

__all__ = ["BrokerContext", "make_app", "make_routes"]


def make_app(context: BrokerContext) -> ASGIApp:
    return authenticate(make_routes(context), context)


def make_routes(context: BrokerContext) -> FastAPI:
    """The routes without authentication."""
    app = FastAPI(
        title="Tocsin broker",
        version=tocsin.__version__,
        description="Subscriptions and their results. Calls under /v1 need a bearer token with the scope subscribe.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.context = context
    for module in (subscriptions, stream, webhook, status, asyncapi):
        app.include_router(module.router)
    add_error_handlers(app)
    app.add_exception_handler(Exception, make_internal_handler(PART))
    return app
