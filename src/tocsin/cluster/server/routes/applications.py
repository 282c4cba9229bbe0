"""Applications are SQL files: `POST /v1/applications` checks one as a whole and then does what it says."""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter, Request, Response

from tocsin.cluster.applying import ApplicationRefused, apply, check
from tocsin.cluster.server.routes.api import require_admin
from tocsin.runtime.http.answers import answer, read_json, request_body

router = APIRouter(tags=["applications"])


class ApplicationText(msgspec.Struct):
    text: str
    """The SQL."""
    file: str = "<text>"
    """What problems call it."""
    folder: str | None = None
    """Where relative paths of STATIC datasets start from, on the data cluster's machine."""


@router.post("/v1/applications", openapi_extra=request_body(ApplicationText), response_class=Response)
async def apply_application(request: Request, dry_run: bool = False) -> Response:
    """Create and drop what a file declares; with `dry_run` only say what is wrong with it."""
    api = require_admin(request)
    given = await read_json(request, ApplicationText)
    arguments = (api.cluster, given.text, given.file, given.folder)
    async with api.process.changing:
        if dry_run:
            problems = await asyncio.to_thread(check, *arguments)
            if problems:
                raise ApplicationRefused(problems)
            return answer({"problems": []})
        try:
            changes = await asyncio.to_thread(apply, *arguments)
        finally:
            await api.process.refresh()
    return answer({"changes": changes})
