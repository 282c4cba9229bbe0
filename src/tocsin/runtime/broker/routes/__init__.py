"""A broker's REST and server-sent-events API, under /v1. WebSockets do not pass here: see `subscriber_socket`."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

from tocsin.runtime.broker.routes import asyncapi, records, status, stream, subscriptions, webhook
from tocsin.runtime.broker.routes.authentication import PART, authenticate
from tocsin.runtime.broker.routes.context import BrokerContext
from tocsin.runtime.http.application import make_application

__all__ = ["BrokerContext", "make_app", "make_routes"]


def make_app(context: BrokerContext) -> ASGIApp:
    return authenticate(make_routes(context), context)


def make_routes(context: BrokerContext) -> FastAPI:
    """The routes without authentication."""
    description = "Subscriptions and their results. Calls under /v1 need a bearer token with the scope subscribe."
    modules = (subscriptions, stream, records, webhook, status, asyncapi)
    return make_application(PART, description, context, (module.router for module in modules))
