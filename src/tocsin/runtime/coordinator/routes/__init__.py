"""The coordinator's REST API and the brokers' link, under /v1. One module a resource."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.types import ASGIApp

import tocsin
from tocsin.runtime.coordinator.routes import balance, brokers, cluster_relay, plans, status, token_routes, users, watch
from tocsin.runtime.coordinator.routes.api import Api
from tocsin.runtime.coordinator.routes.door import PART, make_door
from tocsin.runtime.http.answers import add_error_handlers
from tocsin.runtime.http.authentication import make_internal_handler
from tocsin.runtime.http.pages import serve_pages

__all__ = ["Api", "make_app", "make_routes"]


def make_app(api: Api, pages: Path | None = None) -> ASGIApp:
    """`pages` is a folder with the dashboard, if it is to be served."""
    return make_door(make_routes(api, pages), api)


def make_routes(api: Api, pages: Path | None = None) -> FastAPI:
    """The routes without the door around them."""
    app = FastAPI(
        title="Tocsin coordinator",
        version=tocsin.__version__,
        description="Users, brokers, placement and migrations. Calls under /v1 need a bearer token.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.api = api
    for module in (users, brokers, plans, balance, status, token_routes, watch, cluster_relay):
        app.include_router(module.router)
    if pages is not None:
        serve_pages(app, pages)
    add_error_handlers(app)
    app.add_exception_handler(Exception, make_internal_handler(PART))
    return app
