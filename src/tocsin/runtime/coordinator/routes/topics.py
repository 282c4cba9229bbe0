"""Topics: create, list, delete and move them; and the watch by which clients follow their homes."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from fastapi import APIRouter, Request, Response

from tocsin.coordinator.effects import RequestRejection
from tocsin.coordinator.events import (
    ReceiverLocated,
    ReceiversRedirected,
    TopicCreated,
    TopicDeleted,
    TopicMoveOrdered,
    TopicsUsed,
)
from tocsin.coordinator.network_coordinates import landmarks
from tocsin.coordinator.topic_views import topic_entry
from tocsin.model.ids import BrokerId, DatasetName, TopicName
from tocsin.model.permission import RECEIVE, SEND, permits_topic
from tocsin.model.schema import is_name
from tocsin.model.snapshot import Place
from tocsin.model.topic import TopicDefinition, is_exact, matches, pattern_problem
from tocsin.model.topic_persistence import DEFAULT_RETAIN_BYTES, Persistence, majority
from tocsin.runtime.coordinator.cluster import recording_problem
from tocsin.runtime.coordinator.routes.authentication import caller_of, forbidden, require_admin
from tocsin.runtime.coordinator.routes.context import CoordinatorContext, checked_coordinate, context_of
from tocsin.runtime.coordinator.topic_changes import revision_of
from tocsin.runtime.http.answers import answer, read_json, request_body
from tocsin.runtime.http.callers import Caller
from tocsin.runtime.http.credentials import BROKERS
from tocsin.wire.errors import Code, TocsinError
from tocsin.wire.topic_directory import (
    TOPICS,
    WATCH,
    CreateRequest,
    MoveRequest,
    RedirectRequest,
    Refusal,
    TopicEntry,
    WatchAnswer,
    WatchRequest,
)

router = APIRouter(tags=["topics"])

_HOUR_S = 3_600.0


@router.post(TOPICS, openapi_extra=request_body(CreateRequest), response_class=Response)
async def create_topic(request: Request) -> Response:
    """Create a topic: `CREATE TOPIC name WITHIN within_s DELAY delay_s PROTECTED protected_per_s PERSISTENT … RECORD
    INTO record_into`. Its home is near `coordinate`, or near `lat` and `lon`, if they are given."""
    context = _require_author(request)
    body = await read_json(request, CreateRequest)
    if (body.lat is None) != (body.lon is None):
        raise TocsinError(Code.BAD_REQUEST, "lat and lon go together: send both or none")
    place = None if body.lat is None or body.lon is None else Place(body.lat, body.lon)
    coordinate = checked_coordinate(body.coordinate)
    dataset = await _dataset(context, caller_of(request), body.record_into)
    kept, service = _persistence(body), (body.delay_s, body.protected_per_s)
    definition = TopicDefinition(TopicName(body.topic), body.within_s, kept, dataset, *service)
    recording, replace = secrets.token_hex(12), body.replace
    record = await context.process.request(
        lambda number: TopicCreated(number, definition, place, coordinate, recording, replace)
    )
    return answer(topic_entry(context.core.registry, record), 201)


async def _dataset(context: CoordinatorContext, caller: Caller | None, name: str | None) -> DatasetName | None:
    """The dataset to record into. The caller must be allowed to publish to it, because the topic's senders then are."""
    if name is None:
        return None
    if not is_name(name):
        raise TocsinError(Code.BAD_REQUEST, f"record_into: {name[:128]!r} is not the name of a dataset")
    if caller is None or not caller.may_publish(name):
        raise forbidden(caller, f"publish:{name}")
    problem = await recording_problem(context.settings, context.signer, name)
    if problem is not None:
        raise problem
    return DatasetName(name)


def _persistence(body: CreateRequest) -> Persistence | None:
    """How to keep the topic; None for a volatile one. The coordinator checks the numbers."""
    options = (body.replicas, body.quorum, body.retain_bytes, body.retain_s)
    if not body.persistent and options == (None, None, None, None):
        return None
    replicas = 1 if body.replicas is None else body.replicas
    quorum = majority(replicas) if body.quorum is None else body.quorum
    retain_bytes = DEFAULT_RETAIN_BYTES if body.retain_bytes is None else body.retain_bytes
    return Persistence(replicas, quorum, retain_bytes, body.retain_s)


@router.get(TOPICS, response_class=Response)
async def list_topics(request: Request, pattern: str = "#") -> Response:
    """Topics that match a pattern, of those that the caller may read: all, or those of its scopes for topics."""
    context, caller = _require_any(request)
    _check_pattern(pattern)
    may_see = caller.may_read or caller.may_declare
    entries = _matching(context, [pattern], lambda name: may_see or _may_use(caller, name), latency=True)
    return answer({"topics": entries})


@router.delete(TOPICS + "/{topic:path}", response_class=Response)
async def delete_topic(request: Request, topic: str) -> Response:
    context = _require_author(request)
    await context.process.request(lambda number: TopicDeleted(number, TopicName(topic)))
    return answer({"deleted": True})


@router.post(TOPICS + "/move", openapi_extra=request_body(MoveRequest), response_class=Response)
async def move_topic(request: Request) -> Response:
    """Move a topic to another home. Answers at once; `GET /v1/topics` shows the progress."""
    context = require_admin(request)
    body = await read_json(request, MoveRequest)
    topic, target = TopicName(body.topic), BrokerId(body.target)
    begun = await context.process.request(lambda number: TopicMoveOrdered(number, topic, target))
    return answer({"moving": begun}, 202 if begun else 200)


@router.post(TOPICS + "/redirect", openapi_extra=request_body(RedirectRequest), response_class=Response)
async def redirect_receivers(request: Request) -> Response:
    """Send receivers of a topic from one edge of a site to another. Answers when both edges have been told."""
    context = require_admin(request)
    body = await read_json(request, RedirectRequest)
    where = (TopicName(body.topic), BrokerId(body.source), BrokerId(body.target), tuple(body.clients))
    await context.process.request(lambda number: ReceiversRedirected(number, *where))
    return answer({"redirecting": True}, 202)


@router.post(WATCH, openapi_extra=request_body(WatchRequest), response_class=Response)
async def watch_topics(request: Request) -> Response:
    """The homes of topics, now or when something changes, and a token for those homes."""
    context, caller = _require_any(request)
    body = await read_json(request, WatchRequest)
    for pattern in body.receive:
        _check_pattern(pattern)
    refused = await _use(context, caller, body)
    await _locate(context, caller, body)
    wait_s = 0.0 if refused or body.after is None else body.wait_s
    entries = await _changed(context, caller, body, wait_s)
    epoch, near = context.core.registry.topics.epoch, landmarks(context.core.registry)
    return answer(WatchAnswer(revision_of(entries), epoch, entries, _token(context, caller), refused, near))


async def _changed(context: CoordinatorContext, caller: Caller, body: WatchRequest, wait_s: float) -> list[TopicEntry]:
    """What this caller sees, as soon as it differs from what the caller knows, or after `wait_s` seconds."""
    changes, until_s = context.topic_changes, context.process.now_s() + wait_s
    with changes.watch(body.send, body.receive) as watch:
        while True:
            entries = _wanted(context, caller, body)
            left_s = until_s - context.process.now_s()
            known = revision_of(entries) == body.after or changes.is_storing(context.core, watch)
            if left_s <= 0 or not known:
                return entries
            await watch.wait(left_s)


async def _use(context: CoordinatorContext, caller: Caller, body: WatchRequest) -> dict[TopicName, Refusal]:
    """Create topics on first use. Returns the topics that the caller cannot publish to, with the reasons."""
    coordinate = checked_coordinate(body.coordinate)
    refused: dict[TopicName, Refusal] = {}
    unknown: list[TopicName] = []
    for name in body.send:
        if not permits_topic(caller.topic_scopes, SEND, name):
            refused[name] = Refusal(str(Code.FORBIDDEN), f"this needs a token with the scope send:{name}")
        elif name not in context.core.registry.topics.topics:
            unknown.append(name)
    if unknown:
        user, users = (None, _creators(body)) if caller.is_trusted_broker else (caller.subject or caller.name, {})
        rejected: dict[TopicName, RequestRejection] = await context.process.request(
            lambda number: TopicsUsed(number, tuple(unknown), coordinate=coordinate, user=user, users=users)
        )
        refused |= {name: Refusal(str(reason.code), reason.message) for name, reason in rejected.items()}
    return refused


async def _locate(context: CoordinatorContext, caller: Caller, body: WatchRequest) -> None:
    """In a site that chooses edges by distance, the first receiver of a topic decides which edge is near."""
    coordinate = checked_coordinate(body.coordinate)
    if coordinate is None or not context.core.rules.site_by_distance or not caller.uses_edges:
        return
    topics = context.core.registry.topics.topics
    received = [entry.topic for entry in _wanted(context, caller, body) if entry.receive]
    new = tuple(name for name in received if topics[name].first_receiver is None)
    if new:
        await context.process.request(lambda number: ReceiverLocated(number, new, coordinate))


def _creators(body: WatchRequest) -> dict[TopicName, str]:
    """The users for which a broker asks."""
    count = len(body.send)
    return {body.send[index]: user for user, topics in body.creators.items() for index in topics if 0 <= index < count}


def _wanted(context: CoordinatorContext, caller: Caller, body: WatchRequest) -> list[TopicEntry]:
    def may_receive(name: TopicName) -> bool:
        return permits_topic(caller.topic_scopes, RECEIVE, name)

    entries = {entry.topic: entry for entry in _matching(context, body.receive, may_receive, edge=caller.uses_edges)}
    topics = context.core.registry.topics.topics
    for name in body.send:
        if name in topics and name not in entries and permits_topic(caller.topic_scopes, SEND, name):
            entries[name] = topic_entry(context.core.registry, topics[name], receive=False)
    return list(entries.values())


def _matching(
    context: CoordinatorContext,
    patterns: list[str],
    may_see: Callable[[TopicName], bool],
    *,
    latency: bool = False,
    edge: bool = False,
) -> list[TopicEntry]:
    topics = context.core.registry.topics.topics
    exact = [TopicName(pattern) for pattern in patterns if is_exact(pattern)]
    wild = [pattern for pattern in patterns if not is_exact(pattern)]
    names = dict.fromkeys(name for name in exact if name in topics)
    if wild:
        names |= dict.fromkeys(name for name in topics if any(matches(pattern, name) for pattern in wild))
    registry = context.core.registry
    return [topic_entry(registry, topics[name], latency=latency, edge=edge) for name in names if may_see(name)]


def _token(context: CoordinatorContext, caller: Caller) -> str:
    """A token for the homes, with the caller's scopes for topics. It ends no later than the caller's own."""
    claims, lifetime_s = caller.claims, context.settings.session_hours * _HOUR_S
    if claims is not None and claims.expires_s is not None:
        lifetime_s = min(lifetime_s, claims.expires_s - context.process.now_s())
    origin = "" if claims is None else claims.origin or claims.identity
    subject = caller.subject or caller.name
    token, _ = context.sign(subject, caller.topic_scopes, lifetime_s, audience=BROKERS, origin=origin)
    return token


def _may_use(caller: Caller, name: TopicName) -> bool:
    return any(permits_topic(caller.topic_scopes, action, name) for action in (SEND, RECEIVE))


def _check_pattern(pattern: str) -> None:
    problem = pattern_problem(pattern)
    if problem is not None:
        raise TocsinError(Code.BAD_REQUEST, problem)


def _require_author(request: Request) -> CoordinatorContext:
    caller = caller_of(request)
    if caller is None or not caller.may_declare:
        raise forbidden(caller, "author")
    return context_of(request)


def _require_any(request: Request) -> tuple[CoordinatorContext, Caller]:
    """A caller that may read everything, or has a scope for topics."""
    caller = caller_of(request)
    if caller is None or not (caller.may_read or caller.may_declare or caller.topic_scopes):
        raise forbidden(caller, "send:<topic> or receive:<topic>")
    return context_of(request), caller
