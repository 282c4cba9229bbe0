"""Definitions: application files that declare datasets, channels and feeds, and the state of what is declared.

An application is a SQL file. `POST /v1/applications` checks the whole file before it changes anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from fastapi import APIRouter, Request, Response

from tocsin.cluster.applying import ApplicationRefused, apply, check
from tocsin.cluster.catalog import dataset_owner
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.live import LiveChannel, LiveDataset, LiveFeed
from tocsin.cluster.server.process import ClusterProcess
from tocsin.cluster.server.routes.authentication import require_admin, require_author, require_read
from tocsin.cluster.server.routes.context import ClusterContext
from tocsin.model.ids import ChannelName
from tocsin.model.schema import Schema
from tocsin.runtime.http.answers import LARGE_BODY_BYTES, answer, read_json, request_body

router = APIRouter(tags=["definitions"])

MOST_REFUSALS = 100
"""The most refused subscriptions that a channel's answer lists with their reasons."""


class ApplicationText(msgspec.Struct):
    text: str
    """The SQL."""
    file: str = "<text>"
    """The file's name in problems."""
    folder: str | None = None
    """The folder on the data cluster's machine to which relative paths of STATIC datasets refer."""


@router.post("/v1/applications", openapi_extra=request_body(ApplicationText), response_class=Response)
async def apply_application(request: Request, dry_run: bool = False) -> Response:
    """Carry out the statements of an application file; with `dry_run` only report its problems."""
    context = require_author(request)
    application = await read_json(request, ApplicationText, LARGE_BODY_BYTES)
    arguments = (context.cluster, application.text, application.file, application.folder)
    async with context.process.changing:
        if dry_run:
            problems = await asyncio.to_thread(check, *arguments)
            if problems:
                raise ApplicationRefused(problems)
            return answer({"problems": []})
        try:
            changes = await asyncio.to_thread(apply, *arguments)
        finally:
            await context.process.refresh()
    return answer({"changes": changes})


@router.get("/v1/datasets", response_class=Response)
def list_datasets(request: Request) -> Response:
    cluster = require_read(request).cluster
    return answer({"datasets": [_dataset(cluster, live) for live in cluster.datasets.all()]})


@router.get("/v1/datasets/{name}", response_class=Response)
def get_dataset(request: Request, name: str) -> Response:
    cluster = require_read(request).cluster
    return answer(_dataset(cluster, cluster.dataset(name)))


@router.delete("/v1/datasets/{name}", response_class=Response)
async def drop_dataset(request: Request, name: str) -> Response:
    """Drop a dataset. Refused while a channel or feed uses it."""
    context = require_author(request)
    return await _drop(context, lambda: context.cluster.datasets.drop(name))


@router.get("/v1/channels", response_class=Response)
def list_channels(request: Request) -> Response:
    context = require_read(request)
    facts = _facts(context.process)
    return answer({"channels": [_channel(context.process, live, facts) for live in context.cluster.channels.all()]})


@router.get("/v1/channels/{name}", response_class=Response)
def get_channel(request: Request, name: str) -> Response:
    context = require_read(request)
    return answer(_channel(context.process, context.cluster.channel(name), _facts(context.process)))


@router.delete("/v1/channels/{name}", response_class=Response)
async def drop_channel(request: Request, name: str) -> Response:
    """Drop a channel with its subscriptions and results."""
    context = require_author(request)
    return await _drop(context, lambda: context.cluster.channels.drop(name))


@router.post("/v1/channels/{name}/execute", response_class=Response)
async def execute_channel(request: Request, name: str) -> Response:
    """Run a channel now, over the records that are NEW since its last execution."""
    context = require_admin(request)
    execution = await context.process.execute(name)
    return answer({"execution": execution})


@router.get("/v1/feeds", response_class=Response)
def list_feeds(request: Request) -> Response:
    cluster = require_read(request).cluster
    return answer({"feeds": [_feed(live) for live in cluster.datasets.feeds()]})


@router.delete("/v1/feeds/{name}", response_class=Response)
async def drop_feed(request: Request, name: str) -> Response:
    context = require_author(request)
    return await _drop(context, lambda: context.cluster.datasets.drop_feed(name))


async def _drop(context: ClusterContext, drop: Callable[[], None]) -> Response:
    async with context.process.changing:
        await asyncio.to_thread(drop)
        await context.process.refresh()
    return answer({"dropped": True})


def _columns(schema: Schema) -> list[dict[str, str]]:
    return [{"name": column.name, "type": column.type} for column in schema.columns]


def _dataset(cluster: DataCluster, live: LiveDataset) -> dict[str, Any]:
    dataset = live.dataset
    files = cluster.catalog.files.of(dataset_owner(dataset.name))
    return {
        "name": dataset.name,
        "kind": dataset.kind,
        "columns": _columns(dataset.schema),
        "key": dataset.key,
        "order_by": dataset.order_by,
        "owned_by": dataset.owned_by,
        "retain_s": dataset.retain_s,
        "source": dataset.source,
        "version": live.writer.version,
        # KEYED: counts older records of a key too, until files are merged.
        "rows": sum(file.rows for file in files),
        "files": len(files),
        "bytes": sum(file.bytes for file in files),
        "backlog_bytes": 0 if live.gateway is None else live.gateway.backlog_bytes,
    }


class _ChannelFacts(NamedTuple):
    """What a page about channels needs once for all of them."""

    late_since_s: Mapping[ChannelName, float]
    dead_letters: Mapping[ChannelName, int]


def _facts(process: ClusterProcess) -> _ChannelFacts:
    late = {late.channel: late.since_s for late in process.late_channels()}
    return _ChannelFacts(late, process.cluster.catalog.dead_letters.counts())


def _channel(process: ClusterProcess, live: LiveChannel, facts: _ChannelFacts) -> dict[str, Any]:
    channel = live.prepared.channel
    return {
        "name": channel.name,
        "kind": channel.kind,
        "query": channel.query,
        "parameters": [
            column | ({"bound": "current_user"} if column["name"] in channel.bound else {})
            for column in _columns(channel.parameters)
        ],
        "columns": _columns(live.prepared.described),
        "warnings": live.prepared.warnings,
        "period_s": channel.period_s,
        "retain_s": channel.retain_s,
        "epoch": live.epoch,
        "positions": live.positions,
        "subscriptions": live.subscribers.count,
        "refused": len(live.refused),
        "refusals": [{"subscription": key, "reason": why} for key, why in islice(live.refused.items(), MOST_REFUSALS)],
        "dead_letters": facts.dead_letters.get(live.name, 0),
        "executions": live.executions,
        "empty": live.empty,
        "missed_ticks": process.missed(channel.name),
        # Unix time since when records or a tick wait for an execution; null if the channel is not late.
        "late_since_s": facts.late_since_s.get(channel.name),
        "failures": live.failures,
        "last_started_s": live.last_started_s,
        "last_duration_s": live.last_duration_s,
        "last_results": live.last_results,
        "last_error": live.last_error,
    }


def _feed(live: LiveFeed) -> dict[str, Any]:
    return {
        "name": live.feed.name,
        "dataset": live.feed.dataset,
        "format": live.feed.format,
        # Names only: a value may be a password of the source.
        "options": sorted(live.feed.options),
        "failure": live.query.failure(),
    }
