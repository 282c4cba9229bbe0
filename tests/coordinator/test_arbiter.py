"""The arbiter's verdicts on proposed plans, and the order in which moves start."""

from __future__ import annotations

import pytest

from tests.coordinator.bench import B1, B2, B3, crowded
from tocsin.coordinator.events import Ticked
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.plan import Move, Plan, Urgency
from tocsin.wire import link as wire


def test_dry_run_shows_the_balance_after_and_changes_nothing() -> None:
    bench = crowded()
    decision = bench.propose(("ada", B2), ("bob", B2))
    assert [verdict.taken for verdict in decision.verdicts] == [True, True]
    assert decision.before.loads == (80.0, 0.0) and decision.after.loads == (40.0, 40.0)
    assert (decision.before.cov, decision.after.cov) == (1.0, 0.0)
    assert not bench.registry.migrations and not bench.sent(B2, wire.FromCoordinatorMessage)


def test_balance_counts_only_brokers_that_accept() -> None:
    """The balancing policies have the same rule: the load of a draining broker need not be even."""
    bench = crowded()
    bench.connect("max", B2, "max")
    bench.register(B3)
    bench.drain(B3)
    before = bench.propose(("ada", B2)).before
    assert before.loads == (80.0, 20.0, 0.0) and before.mean == 50.0 and before.cov == pytest.approx(0.6)


def test_stale_plan_is_refused_as_a_whole() -> None:
    bench = crowded()
    generation = bench.registry.generation
    bench.place("newcomer")
    decision = bench.propose(("ada", B2), dry_run=False, generation=generation)
    assert [verdict.taken for verdict in decision.verdicts] == [False]
    assert "plan again" in decision.verdicts[0].reason and not bench.registry.migrations


@pytest.mark.parametrize(
    ("move", "reason"),
    [
        (("nobody", B2), "no such subscriber"),
        (("ada", B1), "there already"),
        (("ada", B3), "no broker b3"),
        (("bob", B2), "moving to b2"),
    ],
)
def test_every_refused_move_has_a_reason(move: tuple[str, BrokerId], reason: str) -> None:
    bench = crowded()
    bench.move("bob", B2)
    [verdict] = bench.propose(move).verdicts
    assert not verdict.taken and reason in verdict.reason


def test_moves_wait_for_a_place_and_each_is_logged() -> None:
    bench = crowded(CoordinatorRules(migrations=1))
    bench.propose(("ada", B2), ("bob", B2), ("eve", B2), dry_run=False)
    assert bench.notes().count("move taken") == 3
    assert len(bench.registry.migrations) == 1 and bench.core.arbiter.waiting == 2
    [waiting] = bench.propose(("eve", B2)).verdicts
    assert not waiting.taken and "waits for another move" in waiting.reason
    [first] = bench.registry.migrations.values()
    bench.send(B2, wire.PrepareFailed(first.id, "not_ready", "no"))
    bench.handle(Ticked())
    [second] = bench.registry.migrations.values()
    assert second.subscriber != first.subscriber and bench.core.arbiter.waiting == 1


def test_more_urgent_plan_starts_first() -> None:
    bench = crowded(CoordinatorRules(migrations=1))
    moves = tuple(Move(SubscriberId(name), B1, B2, "even out") for name in ("ada", "bob"))
    bench.core.planning.planners["even"] = lambda snapshot: Plan(snapshot.generation, "even", Urgency.IMBALANCE, moves)
    bench.plan("even", dry_run=False)
    bench.move("joe", B2)
    assert list(bench.registry.moving) == ["ada"]
    bench.send(B2, wire.PrepareFailed(next(iter(bench.registry.migrations)), "not_ready", "no"))
    bench.handle(Ticked())
    assert list(bench.registry.moving) == ["joe"]


def test_balancing_plan_that_raises_the_highest_load_is_refused() -> None:
    bench = crowded()
    bench.propose(("ada", B2), ("bob", B2), dry_run=False)
    bench.core.planning.planners["mad"] = lambda snapshot: Plan(
        snapshot.generation, "mad", Urgency.OVERLOAD, (Move(SubscriberId("eve"), B1, B2, "because"),)
    )
    [verdict] = bench.plan("mad", dry_run=False).verdicts
    assert not verdict.taken and "raise the highest load" in verdict.reason
