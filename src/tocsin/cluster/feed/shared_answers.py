"""Answers of a gateway with a shared log: what the catalog stores of them, and how its decisions change them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from tocsin.cluster.catalog.placing import (
    CursorElsewhere,
    Fate,
    IdempotentRequest,
    LogRequest,
    RecordingStep,
    Replayed,
)
from tocsin.cluster.feed.gateway import Prepared
from tocsin.cluster.feed.outcomes import Accepted, CursorConflict, KeyConflict, Refused
from tocsin.cluster.feed.records import Decoded


def log_request(request: Prepared, records: Decoded, answer: Accepted) -> LogRequest:
    def stored_answer(duplicates: int) -> bytes:
        return msgspec.json.encode(_without(answer, duplicates))

    digests, recorded = request.digests, request.recorded
    return LogRequest(
        records.count,
        records.digests,
        stored_answer,
        None if digests is None else IdempotentRequest(*digests),
        None if recorded is None else RecordingStep(recorded.recording, recorded.after, recorded.upto),
    )


def _without(answer: Accepted, duplicates: int) -> Accepted:
    return replace(answer, accepted=answer.accepted - duplicates, duplicates=duplicates) if duplicates else answer


_decode_accepted = msgspec.json.Decoder(Accepted).decode


def revised_answers(
    answers: Sequence[Accepted], bodies: Sequence[bytes | None], fates: Sequence[Fate]
) -> dict[int, Accepted | Refused]:
    """The answers of a group that change, by their place in it. `bodies` are the digests of bodies with a key."""
    revised: dict[int, Accepted | Refused] = {}
    for place, (answer, body, fate) in enumerate(zip(answers, bodies, fates, strict=True)):
        if isinstance(fate, CursorElsewhere):
            revised[place] = CursorConflict(fate.upto)
        elif isinstance(fate, Replayed):
            same = fate.body == body
            revised[place] = replace(_decode_accepted(fate.answer), replayed=True) if same else KeyConflict()
        elif fate.duplicates:
            revised[place] = _without(answer, fate.duplicates)
    return revised
