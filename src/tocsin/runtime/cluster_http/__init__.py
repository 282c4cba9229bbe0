"""The data cluster's REST, WebSocket and server-sent-events API, under /v1. One module a resource."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

import tocsin
from tocsin.runtime.cluster_http import (
    announcement_routes,
    applications,
    definitions,
    record_stream,
    records,
    results,
    status,
    subscriptions,
    token_routes,
)
from tocsin.runtime.cluster_http.answers import answer, error_answer, error_body
from tocsin.runtime.cluster_http.api import Api
from tocsin.runtime.cluster_http.door import Door, make_internal_handler
from tocsin.wire.errors import Code, TocsinError

__all__ = ["Api", "make_app", "make_routes"]


def make_app(api: Api) -> ASGIApp:
    return Door(make_routes(api), api)


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
        token_routes,
    ):  # fmt: skip
        app.include_router(module.router)
    app.add_exception_handler(TocsinError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, make_internal_handler())
    return app


def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, TocsinError)
    return error_answer(error)


def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return answer(error_body(Code.BAD_REQUEST, f"{where}: {first['msg']}"), 400)


def _http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = Code.NOT_FOUND if error.status_code == 404 else Code.BAD_REQUEST
    return answer(error_body(code, str(error.detail)), error.status_code, dict(error.headers or {}))
