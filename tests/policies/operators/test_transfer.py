"""The decisions of the load balancing protocol, on hand-made numbers and with invariants on random ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tocsin.model.edge import EdgeNodeId, OperatorId, Transfer, Usage
from tocsin.policies.operators import transfer as policy
from tocsin.policies.operators.transfer import Band, Combine, LoadMeasure, Reply, TransferRules, ReplyUrgency

RULES = TransferRules()
PARENT, CHILD = EdgeNodeId("parent"), EdgeNodeId("child")


def move(size_pct: float, *operators: str, to: EdgeNodeId = PARENT) -> Transfer:
    return Transfer(tuple(map(OperatorId, operators)), to, Usage(size_pct))


def available(*transfers: Transfer) -> dict[tuple[EdgeNodeId, tuple[OperatorId, ...]], Transfer]:
    return {(one.destination, one.operators): one for one in transfers}


def test_a_node_is_overloaded_above_the_upper_and_underloaded_below_the_lower_threshold() -> None:
    assert [RULES.band(Usage(load)) for load in (39.9, 40.0, 60.0, 60.1)] == [
        Band.UNDERLOADED, Band.NORMAL, Band.NORMAL, Band.OVERLOADED,
    ]  # fmt: skip
    assert RULES.thresholds.target_pct == 50.0


def test_an_overloaded_node_offers_only_what_does_not_take_it_below_the_target() -> None:
    """Figure 12: 65 % used, operator A of 10 % is the only one that can go."""
    assert policy.offered([move(10, "A"), move(16, "B")], Usage(65), RULES) == (move(10, "A"),)


def test_an_acceptor_stays_one_percent_under_the_upper_threshold_and_takes_an_operator_once() -> None:
    offers = [move(10, "A"), move(12, "A", "B"), move(6, "C"), move(4, "D")]
    assert policy.acceptable(offers, Usage(45), RULES) == (move(10, "A"), move(4, "D"))
    assert policy.acceptable(offers, Usage(59), RULES) == ()
    assert policy.acceptable([move(0.0, "E")], Usage(60.5), RULES) == ()


def test_the_underloaded_acceptor_is_served_before_the_normal_one() -> None:
    up, down = move(10, "A"), move(10, "A", to=CHILD)
    replies = [Reply(PARENT, ReplyUrgency.NORMAL, (up,)), Reply(CHILD, ReplyUrgency.HIGH, (down,))]
    assert policy.agreed(replies, Usage(65), available(up, down), RULES) == {CHILD: (down,)}


def test_an_overloaded_node_gives_no_more_than_takes_it_to_the_target() -> None:
    wanted = (move(8, "A"), move(8, "B"), move(5, "C"))
    plan = policy.agreed([Reply(PARENT, ReplyUrgency.NORMAL, wanted)], Usage(65), available(*wanted), RULES)
    assert plan == {PARENT: (wanted[0], wanted[2])}


def test_what_has_become_unavailable_is_not_given() -> None:
    gone = move(10, "A")
    assert policy.agreed([Reply(PARENT, ReplyUrgency.HIGH, (gone,))], Usage(70), {}, RULES) == {}


def test_a_demand_is_answered_by_what_leaves_the_giver_at_the_target() -> None:
    theirs = [move(3, "A"), move(8, "B"), move(20, "C")]
    assert policy.givable(theirs, 12.0, Usage(57), RULES) == (theirs[0],)
    assert policy.givable(theirs, 12.0, Usage(70), RULES) == (theirs[0], theirs[1])
    assert policy.givable(theirs, 12.0, Usage(50), RULES) == ()


def test_an_underloaded_node_relieves_the_overloaded_giver_first_and_stops_at_the_target() -> None:
    normal, urgent = move(9, "A", to=CHILD), move(12, "B", to=CHILD)
    replies = [Reply(PARENT, ReplyUrgency.NORMAL, (normal,)), Reply(CHILD, ReplyUrgency.HIGH, (urgent,))]
    assert policy.taken(replies, Usage(30), RULES) == {CHILD: (urgent,)}


def test_the_scarcest_resource_decides_under_maximum_and_all_count_under_weights() -> None:
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
    mine = Usage(usage.memory_pct * scale, usage.cpu_pct * scale, usage.network_pct * scale)
    replies = [
        Reply(peer, ReplyUrgency.NORMAL, tuple(one for one in transfers if one.destination == peer))
        for peer in (PARENT, CHILD)
    ]
    for plan, sign in (
        (policy.agreed(replies, mine, available(*transfers), rules), -1),
        (policy.taken(replies, mine, rules), 1),
        ({PARENT: policy.acceptable(transfers, mine, rules)}, 2),
    ):
        moved = [one for chosen in plan.values() for one in chosen]
        operators = [operator for one in moved for operator in one.operators]
        after = mine
        for one in moved:
            after = after - one.usage if sign < 0 else after + one.usage
        if sign == -1:
            assert len(operators) == len(set(operators))
            assert not moved or rules.load_pct(after) >= 50 - 1e-6
        else:
            assert not moved or rules.load_pct(after) <= (50 if sign == 1 else 59) + 1e-6
