"""The decisions of the load balancing protocol: exact results on hand-made numbers, invariants on random ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tocsin.model.edge import EdgeNodeId, OperatorId, Transfer, Usage
from tocsin.policies.operators import transfer as policy
from tocsin.policies.operators.transfer import Band, Combine, LoadMeasure, Reply, ReplyUrgency, TransferRules

RULES = TransferRules()
PARENT, CHILD = EdgeNodeId("parent"), EdgeNodeId("child")


def move(size_pct: float, *operators: str, to: EdgeNodeId = PARENT) -> Transfer:
    return Transfer(tuple(map(OperatorId, operators)), to, Usage(size_pct))


def available(*transfers: Transfer) -> dict[tuple[EdgeNodeId, tuple[OperatorId, ...]], Transfer]:
    return {(transfer.destination, transfer.operators): transfer for transfer in transfers}


def test_thresholds_separate_underloaded_normal_and_overloaded_nodes() -> None:
    assert [RULES.band(Usage(load)) for load in (39.9, 40.0, 60.0, 60.1)] == [
        Band.UNDERLOADED,
        Band.NORMAL,
        Band.NORMAL,
        Band.OVERLOADED,
    ]
    assert RULES.thresholds.target_pct == 50.0


def test_overloaded_node_offers_only_transfers_that_leave_it_above_target() -> None:
    """Figure 12: at a load of 65 % only operator A of 10 % can move."""
    assert policy.offered([move(10, "A"), move(16, "B")], Usage(65), RULES) == (move(10, "A"),)


def test_acceptor_stays_below_the_upper_threshold_and_takes_operators_once() -> None:
    offers = [move(10, "A"), move(12, "A", "B"), move(6, "C"), move(4, "D")]
    assert policy.acceptable(offers, Usage(45), RULES) == (move(10, "A"), move(4, "D"))
    assert policy.acceptable(offers, Usage(59), RULES) == ()
    assert policy.acceptable([move(0.0, "E")], Usage(60.5), RULES) == ()


def test_underloaded_acceptor_gets_operators_before_a_normal_one() -> None:
    up, down = move(10, "A"), move(10, "A", to=CHILD)
    replies = [Reply(PARENT, ReplyUrgency.NORMAL, (up,)), Reply(CHILD, ReplyUrgency.HIGH, (down,))]
    assert policy.agreed(replies, Usage(65), available(up, down), RULES) == {CHILD: (down,)}


def test_overloaded_node_gives_operators_down_to_the_target() -> None:
    accepted = (move(8, "A"), move(8, "B"), move(5, "C"))
    plan = policy.agreed([Reply(PARENT, ReplyUrgency.NORMAL, accepted)], Usage(65), available(*accepted), RULES)
    assert plan == {PARENT: (accepted[0], accepted[2])}


def test_transfer_that_became_unavailable_is_not_made() -> None:
    unavailable = move(10, "A")
    assert policy.agreed([Reply(PARENT, ReplyUrgency.HIGH, (unavailable,))], Usage(70), {}, RULES) == {}


def test_giver_offers_a_demand_only_transfers_that_leave_it_above_target() -> None:
    transfers = [move(3, "A"), move(8, "B"), move(20, "C")]
    assert policy.givable(transfers, 12.0, Usage(57), RULES) == (transfers[0],)
    assert policy.givable(transfers, 12.0, Usage(70), RULES) == (transfers[0], transfers[1])
    assert policy.givable(transfers, 12.0, Usage(50), RULES) == ()


def test_underloaded_node_relieves_the_overloaded_giver_first_up_to_target() -> None:
    normal, urgent = move(9, "A", to=CHILD), move(12, "B", to=CHILD)
    replies = [Reply(PARENT, ReplyUrgency.NORMAL, (normal,)), Reply(CHILD, ReplyUrgency.HIGH, (urgent,))]
    assert policy.taken(replies, Usage(30), RULES) == {CHILD: (urgent,)}


def test_maximum_takes_the_scarcest_resource_and_weights_add_all() -> None:
    usage = Usage(memory_pct=20, cpu_pct=70, network_pct=10)
    maximum = LoadMeasure(1.0, 1.0, 1.0, Combine.MAXIMUM)
    weights = LoadMeasure(0.5, 0.3, 0.2, Combine.WEIGHTS)
    assert maximum.load_pct(usage) == 70
    assert weights.load_pct(usage) == 0.5 * 20 + 0.3 * 70 + 0.2 * 10
    assert TransferRules(measure=maximum).band(usage) is Band.OVERLOADED
    assert TransferRules().band(usage) is Band.UNDERLOADED


usages = st.builds(Usage, *(st.floats(0, 30) for _ in range(3)))
measures = st.sampled_from(
    [policy.MEMORY_ONLY, LoadMeasure(1, 1, 1, Combine.MAXIMUM), LoadMeasure(0.4, 0.4, 0.2, Combine.WEIGHTS)]
)
moves = st.lists(
    st.builds(
        Transfer,
        st.lists(st.sampled_from([OperatorId(name) for name in "ABCDEF"]), min_size=1, max_size=3, unique=True).map(
            tuple
        ),
        st.sampled_from([PARENT, CHILD]),
        usages,
    ),
    max_size=8,
)


@given(moves, usages, measures, st.floats(1, 4))
def test_no_decision_crosses_its_threshold_or_moves_an_operator_twice(
    transfers: list[Transfer], usage: Usage, measure: LoadMeasure, scale: float
) -> None:
    rules = TransferRules(measure=measure)
    before = Usage(usage.memory_pct * scale, usage.cpu_pct * scale, usage.network_pct * scale)
    replies = [
        Reply(peer, ReplyUrgency.NORMAL, tuple(transfer for transfer in transfers if transfer.destination == peer))
        for peer in (PARENT, CHILD)
    ]
    for plan, sign in (
        (policy.agreed(replies, before, available(*transfers), rules), -1),
        (policy.taken(replies, before, rules), 1),
        ({PARENT: policy.acceptable(transfers, before, rules)}, 2),
    ):
        moved = [transfer for chosen in plan.values() for transfer in chosen]
        operators = [operator for transfer in moved for operator in transfer.operators]
        after = before
        for transfer in moved:
            after = after - transfer.usage if sign < 0 else after + transfer.usage
        if sign == -1:
            assert len(operators) == len(set(operators))
            assert not moved or rules.load_pct(after) >= 50 - 1e-6
        else:
            assert not moved or rules.load_pct(after) <= (50 if sign == 1 else 59) + 1e-6
