"""The data cluster's REST, WebSocket and server-sent-events API, under /v1. One module a resource."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

from tocsin.cluster.server.routes import (
    announcements,
    broker_users,
    dead_letters,
    definitions,
    own_records,
    records,
    results,
    status,
    subscriptions,
    taps,
    token_routes,
    topic_records,
)
from tocsin.cluster.server.routes.authentication import PART, authenticate
from tocsin.cluster.server.routes.context import ClusterContext
from tocsin.runtime.http.application import make_application

__all__ = ["ClusterContext", "make_app", "make_routes"]


def make_app(context: ClusterContext) -> ASGIApp:
    return authenticate(records.publishing_first(make_routes(context)), context)


def make_routes(context: ClusterContext) -> FastAPI:
    """The routes without authentication."""
    description = "Datasets, channels, subscriptions and results on Spark. Calls under /v1 need a bearer token."
    of_records = (records, own_records, topic_records, results, announcements, dead_letters, taps)
    modules = (definitions, *of_records, subscriptions, broker_users, status, token_routes)
    return make_application(PART, description, context, (module.router for module in modules))
