"""The coordinator's REST API and the brokers' link, under /v1. One module per subject."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.types import ASGIApp

from tocsin.runtime.coordinator.routes import balance, brokers, cluster, sites, status, tokens, topics, users
from tocsin.runtime.coordinator.routes.authentication import PART, authenticate
from tocsin.runtime.coordinator.routes.context import CoordinatorContext
from tocsin.runtime.http.application import make_application
from tocsin.runtime.http.pages import serve_pages

__all__ = ["CoordinatorContext", "make_app", "make_routes"]


def make_app(context: CoordinatorContext, pages: Path | None = None) -> ASGIApp:
    """`pages` is the folder of the dashboard; None serves no dashboard."""
    return authenticate(make_routes(context, pages), context)


def make_routes(context: CoordinatorContext, pages: Path | None = None) -> FastAPI:
    """The routes without authentication."""
    description = "Users, brokers, placement, migrations and topics. Calls under /v1 need a bearer token."
    modules = (users, tokens, brokers, topics, sites, balance, status, cluster)
    app = make_application(PART, description, context, (module.router for module in modules))
    if pages is not None:
        serve_pages(app, pages)
    return app
