"""Rules that an administrator changes while the coordinator runs. They are stored as facts and survive a restart."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from tocsin.coordinator.effects import RequestRejection, StoreFact
from tocsin.coordinator.events import BalanceChosen, PlacementChosen
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.coordinator.turn import Turn
from tocsin.policies.balance.settings import PlacementPolicy
from tocsin.wire.errors import Code


def choose_placement(turn: Turn, event: PlacementChosen) -> CoordinatorRules:
    rules = turn.rules
    if event.placement is not None:
        rules = replace(rules, placement=event.placement)
        turn.do(StoreFact("placement", str(event.placement)))
    if event.replacement is not None:
        rules = replace(rules, replacement=event.replacement)
        turn.do(StoreFact("replacement", str(event.replacement)))
    return rules


def choose_balance(turn: Turn, event: BalanceChosen) -> CoordinatorRules | RequestRejection:
    rules = turn.rules
    try:
        # The type of the caller's message has checked the kinds of the values.
        settings = replace(rules.balance, **event.changes)  # type: ignore[arg-type]
    except ValueError as error:
        return RequestRejection(Code.BAD_REQUEST, str(error))
    if event.period_s is not None and not 0.1 <= event.period_s <= 86_400:
        return RequestRejection(Code.BAD_REQUEST, "period_s: expected 0.1 to 86,400 seconds between rounds")
    rules = replace(
        rules,
        balance=settings,
        balancing=rules.balancing if event.on is None else event.on,
        balance_s=event.period_s or rules.balance_s,
    )
    stored = {"on": rules.balancing, "period_s": rules.balance_s, "settings": asdict(settings)}
    turn.do(StoreFact("balance", json.dumps(stored)))
    turn.note("balancing was set", on=rules.balancing, period_s=rules.balance_s, changes=dict(event.changes))
    return rules


def restore_choices(rules: CoordinatorRules, facts: dict[str, str]) -> CoordinatorRules:
    """The rules with the choices that an earlier process stored."""
    rules = _restore_balance(rules, json.loads(facts.get("balance", "{}")))
    return replace(
        rules,
        placement=PlacementPolicy(facts.get("placement", rules.placement)),
        replacement=PlacementPolicy(facts.get("replacement", rules.replacement)),
    )


def _restore_balance(rules: CoordinatorRules, stored: dict[str, Any]) -> CoordinatorRules:
    """Restore the stored balancing settings. An unknown or invalid one is replaced by the process's own setting."""
    if not stored:
        return rules
    names = asdict(rules.balance).keys()
    try:
        changes = {name: value for name, value in stored["settings"].items() if name in names}
        settings = replace(rules.balance, **changes)
    except (ValueError, TypeError):
        settings = rules.balance
    return replace(rules, balancing=bool(stored["on"]), balance_s=float(stored["period_s"]), balance=settings)
