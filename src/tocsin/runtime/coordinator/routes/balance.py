"""Balance of the network: settings of placement and balancing, plans, and migrations [BAD §3.3]."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response

from tocsin.coordinator.arbiter import Decision
from tocsin.coordinator.events import BalanceChosen, PlacementChosen, PlanProposed, RequestedMove
from tocsin.coordinator.views import balance_view, migration_view
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.balance.settings import BalanceSettings, PlacementPolicy
from tocsin.runtime.coordinator.routes.authentication import require_admin, require_read
from tocsin.runtime.coordinator.routes.context import CoordinatorContext
from tocsin.runtime.http.answers import LARGE_BODY_BYTES, answer, read_json, request_body
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["balance"])


class PlacementChange(msgspec.Struct, forbid_unknown_fields=True):
    placement: PlacementPolicy | None = None
    """The placement policy of new subscribers."""
    replacement: PlacementPolicy | None = None
    """The placement policy of subscribers whose broker is dead or drained."""


BalanceChange = msgspec.defstruct(
    "BalanceChange",
    [
        ("on", bool | msgspec.UnsetType, msgspec.UNSET),
        ("period_s", float | msgspec.UnsetType, msgspec.UNSET),
        *((name, type(value) | msgspec.UnsetType, msgspec.UNSET) for name, value in asdict(BalanceSettings()).items()),
    ],
    kw_only=True,
    forbid_unknown_fields=True,
)
"""`on`, `period_s` and all settings of the policy; settings that are left out keep their values."""


class MoveRequest(msgspec.Struct):
    subscriber: str
    target: str

    def move(self) -> RequestedMove:
        return RequestedMove(SubscriberId(self.subscriber), BrokerId(self.target))


class PlanRequest(msgspec.Struct):
    policy: str | None = None
    """Name of a policy; see `GET /v1/plans`."""
    moves: Annotated[list[MoveRequest], msgspec.Meta(max_length=100_000)] | None = None
    """A list of moves instead of a policy."""
    generation: int | None = None
    """Generation of the snapshot that the moves are based on; the plan is refused if there is a newer one."""


@router.get("/v1/settings", response_class=Response)
async def get_settings(request: Request) -> Response:
    """The placement policies, which can be changed at run time."""
    rules = require_read(request).core.rules
    return answer({"placement": rules.placement, "replacement": rules.replacement})


@router.put("/v1/settings", openapi_extra=request_body(PlacementChange), response_class=Response)
async def put_settings(request: Request) -> Response:
    """Change the placement policies, also for later restarts. A policy that is left out does not change."""
    context = require_admin(request)
    change = await read_json(request, PlacementChange)
    await context.process.request(lambda number: PlacementChosen(number, change.placement, change.replacement))
    return await get_settings(request)


@router.get("/v1/balance", response_class=Response)
async def get_balance(request: Request) -> Response:
    """The settings of balancing and its last round."""
    return answer(balance_view(require_read(request).core))


@router.put("/v1/balance", openapi_extra=request_body(BalanceChange), response_class=Response)
async def put_balance(request: Request) -> Response:
    """Change settings from the next round on, also for later restarts. Settings that are left out do not change."""
    context = require_admin(request)
    change = msgspec.to_builtins(await read_json(request, BalanceChange))
    if not change:
        raise TocsinError(Code.BAD_REQUEST, "name at least one setting to change")
    on, period_s = change.pop("on", None), change.pop("period_s", None)
    await context.process.request(lambda number: BalanceChosen(number, on, period_s, change))
    return answer(balance_view(context.core))


@router.get("/v1/plans", response_class=Response)
async def list_policies(request: Request) -> Response:
    core = require_read(request).core
    return answer({"policies": core.planning.policy_names, "generation": core.registry.generation})


@router.post("/v1/plans", openapi_extra=request_body(PlanRequest), response_class=Response)
async def propose_plan(request: Request, dry_run: bool = True) -> Response:
    """The moves of a policy, or the given moves, each with the arbiter's verdict and its reason.

    The moves are carried out only with dry_run=false.
    """
    context = require_admin(request)
    plan = await read_json(request, PlanRequest, LARGE_BODY_BYTES)
    if (plan.policy is None) == (plan.moves is None):
        raise TocsinError(Code.BAD_REQUEST, "give either the name of a policy or a list of moves")
    moves = None if plan.moves is None else tuple(move.move() for move in plan.moves)
    return answer(await _propose(context, plan.policy, moves, dry_run, plan.generation))


@router.get("/v1/migrations", response_class=Response)
async def list_migrations(request: Request) -> Response:
    """Migrations in progress."""
    core = require_read(request).core
    migrations = [migration_view(migration) for migration in core.registry.migrations.values()]
    return answer({"migrations": migrations, "waiting": core.arbiter.waiting})


@router.post("/v1/migrations", openapi_extra=request_body(MoveRequest), response_class=Response)
async def migrate(request: Request) -> Response:
    """Move one subscriber. If the arbiter refuses the move, the error has its reason."""
    context = require_admin(request)
    move = (await read_json(request, MoveRequest)).move()
    decision = await _propose(context, None, (move,), False, None)
    [verdict] = decision["moves"]
    if not verdict["taken"]:
        raise TocsinError(Code.IN_USE, verdict["reason"])
    return answer(verdict, 202)


async def _propose(
    context: CoordinatorContext,
    policy: str | None,
    moves: tuple[RequestedMove, ...] | None,
    dry_run: bool,
    generation: int | None,
) -> dict[str, Any]:
    process = context.process
    await process.policies_compiled.wait()
    decision: Decision = await process.request(lambda number: PlanProposed(number, policy, moves, dry_run, generation))
    plan = decision.plan
    return {
        "generation": plan.generation,
        "policy": plan.policy,
        "urgency": str(plan.urgency),
        "dry_run": dry_run,
        "note": plan.note,
        "moves": [
            {
                "subscriber": verdict.move.subscriber,
                "source": verdict.move.source,
                "target": verdict.move.target,
                "load_bytes_per_s": verdict.move.load_bytes_per_s,
                "added_m": verdict.move.added_m,
                "taken": verdict.taken,
                "reason": verdict.reason,
            }
            for verdict in decision.verdicts
        ],
        "before": decision.before,
        "after": decision.after,
    }
