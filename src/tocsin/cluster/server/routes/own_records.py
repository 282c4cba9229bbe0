"""Records of subscribers: `POST /v1/datasets/{name}/own-records`, sent by brokers [BAD §6.1.2].

The data cluster checks that the broker acts for the user of each record (`proven_users`), and that the record is that
user's own. The gateway stores the records like published ones: the answer comes when they are on disk. One bad record
does not fail the others of its request, because they belong to other users.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from fastapi import APIRouter, Request, Response

from tocsin.cluster.feed.gateway import Accepted, Backlogged, RecordForm, Refused, Unavailable
from tocsin.cluster.server.routes.authentication import caller_of, require_broker, require_trusted_broker
from tocsin.cluster.server.routes.context import ClusterContext
from tocsin.cluster.server.routes.records import REFUSAL_CODES, commit_records
from tocsin.model.ids import BrokerId
from tocsin.runtime.http.answers import answer, decode_json, encode, read_body, request_body
from tocsin.wire import cluster as wire
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["records"])

Columns = dict[str, msgspec.Raw]


@router.post(wire.OWN_RECORDS, openapi_extra=request_body(list[wire.OwnRecord]), response_class=Response)
async def store_own_records(request: Request, name: str, broker: str | None = None) -> Response:
    """Store each user's own record. The answer names the refused ones by their index.

    `broker` is the broker that acts for the users, by default the one that the token names.
    """
    require_trusted_broker(request)
    context, identity = require_broker(request, broker)
    live = context.cluster.dataset(name)
    owner = live.dataset.owned_by
    if owner is None:
        message = f"{live.name} takes no records of subscribers: it is not a KEYED dataset with OWNED BY"
        raise TocsinError(Code.NOT_A_FEED_TARGET, message)
    limit_bytes = context.commit_of(name).gateway.limits.body_bytes
    with context.room_for_records(caller_of(request).id) as take_room:
        records = decode_json(await read_body(request, limit_bytes, take_room), list[wire.OwnRecord])
        if len(records) > wire.MOST_OWN_RECORDS:
            raise TocsinError(Code.TOO_LARGE, f"at most {wire.MOST_OWN_RECORDS:,} records at a time")
        own, refused = own_records(records, owner, _acts_for(request, context, identity))
        refused += await _store(context, name, own)
    refused.sort(key=lambda refusal: refusal.index)
    return answer(wire.OwnRecordsAnswer(len(records) - len(refused), refused))


def _acts_for(request: Request, context: ClusterContext, broker: BrokerId) -> Callable[[str], bool]:
    """Whether the caller may store the record of a user: administrators of every user, brokers of proven users."""
    if caller_of(request).is_admin:
        return lambda user: True
    return lambda user: context.proven.proves(broker, user)


def own_records(
    records: list[wire.OwnRecord], owner: str, acts_for: Callable[[str], bool] = lambda user: True
) -> tuple[dict[int, Columns], list[wire.RefusedRecord]]:
    """(record by index, with its owner filled in; a refusal for each record that the caller may not store)."""
    own: dict[int, Columns] = {}
    refused: list[wire.RefusedRecord] = []
    for index, record in enumerate(records):
        if not acts_for(record.user):
            message = f"nothing proves that this broker acts for {record.user!r}"
            refused.append(wire.RefusedRecord(index, Code.UNPROVEN_USER, message))
            continue
        written = record.record.setdefault(owner, msgspec.Raw(encode(record.user)))
        if _text(written) == record.user:
            own[index] = record.record
        else:
            message = f"{owner} must be {record.user!r}: a subscriber stores only its own record"
            refused.append(wire.RefusedRecord(index, Code.FORBIDDEN, message))
    return own, refused


def _text(written: msgspec.Raw) -> str | None:
    """The text that JSON spells; None if it spells anything else."""
    try:
        return msgspec.json.decode(written, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


async def _store(context: ClusterContext, name: str, own: dict[int, Columns]) -> list[wire.RefusedRecord]:
    """Store the records and return the refused ones. Raises if none can be stored at the moment."""
    if not own:
        return []
    outcome = await commit_records(context, name, encode(list(own.values())), RecordForm.JSON)
    if isinstance(outcome, Backlogged | Unavailable):
        raise TocsinError(REFUSAL_CODES[type(outcome)], outcome.reason, retry_after_s=outcome.retry_after_s)
    if isinstance(outcome, Accepted) or len(own) == 1:
        return _refused(list(own), outcome)
    # One record makes the gateway refuse them all, such as one that is too large. Alone, each gets its own outcome.
    outcomes = await asyncio.gather(
        *(commit_records(context, name, encode([record]), RecordForm.JSON) for record in own.values())
    )
    return [refusal for index, outcome in zip(own, outcomes, strict=True) for refusal in _refused([index], outcome)]


def _refused(indexes: list[int], outcome: Accepted | Refused) -> list[wire.RefusedRecord]:
    """The refused records of one body. `indexes` are the indexes of its records in the broker's request."""
    if not isinstance(outcome, Accepted):
        return [wire.RefusedRecord(index, REFUSAL_CODES[type(outcome)], outcome.reason) for index in indexes]
    return [
        wire.RefusedRecord(
            indexes[refusal.index],
            Code.BAD_RECORDS,
            refusal.reason if refusal.field is None else f"{refusal.field}: {refusal.reason}",
        )
        for refusal in outcome.refused
    ]
