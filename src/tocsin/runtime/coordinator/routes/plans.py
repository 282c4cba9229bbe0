"""Plans and migrations: what policies would do, what is being done, and moves that an administrator asks for."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response

from tocsin.coordinator.arbiter import Decision
from tocsin.coordinator.events import PlanProposed, RequestedMove
from tocsin.coordinator.views import migration_view
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.runtime.coordinator.routes.api import Api, require_admin, require_read
from tocsin.runtime.http.answers import answer, read_json, request_body
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["plans"])


class WantedMove(msgspec.Struct):
    subscriber: str
    target: str


class WantedPlan(msgspec.Struct):
    policy: str | None = None
    """By name; see `GET /v1/plans`."""
    moves: Annotated[list[WantedMove], msgspec.Meta(max_length=100_000)] | None = None
    """Or the moves themselves."""
    generation: int | None = None
    """Of the snapshot the moves were thought up on: refused if it is no longer the present one."""


@router.get("/v1/plans", response_class=Response)
async def list_policies(request: Request) -> Response:
    core = require_read(request).core
    return answer({"policies": core.planning.policy_names, "generation": core.registry.generation})


@router.post("/v1/plans", openapi_extra=request_body(WantedPlan), response_class=Response)
async def propose_plan(request: Request, dry_run: bool = True) -> Response:
    """What a policy would do, or what these moves would: each with a reason. Carried out only with dry_run=false."""
    api = require_admin(request)
    wanted = await read_json(request, WantedPlan)
    if (wanted.policy is None) == (wanted.moves is None):
        raise TocsinError(Code.BAD_REQUEST, "give either the name of a policy or a list of moves")
    moves = None if wanted.moves is None else tuple(_move(one) for one in wanted.moves)
    return answer(await _propose(api, wanted.policy, moves, dry_run, wanted.generation))


@router.get("/v1/migrations", response_class=Response)
async def list_migrations(request: Request) -> Response:
    """Those under way."""
    core = require_read(request).core
    under_way = [migration_view(one) for one in core.registry.migrations.values()]
    return answer({"migrations": under_way, "waiting": core.arbiter.waiting})


@router.post("/v1/migrations", openapi_extra=request_body(WantedMove), response_class=Response)
async def migrate(request: Request) -> Response:
    """Move one subscriber. Refused with the reason if the arbiter refuses it."""
    api = require_admin(request)
    decision = await _propose(api, None, (_move(await read_json(request, WantedMove)),), False, None)
    [verdict] = decision["moves"]
    if not verdict["taken"]:
        raise TocsinError(Code.IN_USE, verdict["reason"])
    return answer(verdict, 202)


def _move(wanted: WantedMove) -> RequestedMove:
    return RequestedMove(SubscriberId(wanted.subscriber), BrokerId(wanted.target))


async def _propose(
    api: Api, policy: str | None, moves: tuple[RequestedMove, ...] | None, dry_run: bool, generation: int | None
) -> dict[str, Any]:
    await api.process.may_plan.wait()
    decision: Decision = await api.process.ask(lambda ask: PlanProposed(ask, policy, moves, dry_run, generation))
    plan = decision.plan
    return {
        "generation": plan.generation,
        "policy": plan.policy,
        "urgency": str(plan.urgency),
        "dry_run": dry_run,
        "note": plan.note,
        "moves": [
            {
                "subscriber": one.move.subscriber,
                "source": one.move.source,
                "target": one.move.target,
                "load_bytes_per_s": one.move.load_bytes_per_s,
                "taken": one.taken,
                "reason": one.reason,
            }
            for one in decision.verdicts
        ],
        "before": decision.before,
        "after": decision.after,
    }
