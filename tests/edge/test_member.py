"""A member: it obeys one generation at a time, and stops when the root has not answered for a lease."""

from __future__ import annotations

from tests.edge.edge_readings import STREAMS, in_seconds, readings
from tocsin.edge.generations import Generation
from tocsin.edge.layout import lowest_placement
from tocsin.edge.member import (
    Effect,
    FencedReceived,
    GenerationReceived,
    InGeneration,
    KeepPublishers,
    LeaseAnswered,
    Member,
    MemberTimePassed,
    NeedsNoLonger,
    OpenLinks,
    RegisterAgain,
    ReplayReadings,
    ReportReady,
    RunReceived,
    StopGeneration,
)
from tocsin.edge.next_generation import plans_of
from tocsin.edge.node import EmitResult, Event, ProcessNext, ReadingsArrived, ReplayFinished
from tocsin.edge.operators.contract import BEGINNING_OF_TIME_US, END_OF_TIME_US
from tocsin.model.edge import EdgeNodeId, Tree

ROOT, LEAF = EdgeNodeId("root"), EdgeNodeId("leaf")
TREE = Tree({LEAF: ROOT}, ROOT)
QUERY = (
    "CREATE EDGE QUERY Use LATENESS 2 SECONDS AS SELECT meter, window.start AS since, SUM(kwh) AS total FROM Readings "
    "GROUP BY meter, WINDOW(ts, '10 seconds')"
)
FLOOR_US = 10_000_000


def generation(
    number: int,
    publishers: dict[str, EdgeNodeId],
    floors_us: dict[str, int] | None = None,
    tree: Tree = TREE,
    awaited: dict[str, tuple[EdgeNodeId, tuple[str, ...]]] | None = None,
) -> Generation:
    entries = {"Readings": (tree.nodes[-1],), "Alarms": (tree.root,)}
    (plan,) = plans_of((QUERY,), STREAMS, entries, tree)
    return Generation(
        number=number,
        tree=tree,
        addresses={},
        streams=STREAMS,
        queries=(QUERY,),
        entries=entries,
        placement=lowest_placement(plan, tree),
        floors_us=floors_us or {},
        publishers=publishers,
        sources={},
        awaited=awaited or {},
        publisher_streams=dict.fromkeys(publishers, ("Readings",)),
    )


def test_generation_is_built_reported_and_run_once() -> None:
    member = Member(LEAF, 1_000_000)
    received = generation(7, {"p": LEAF, "other": ROOT}, {"Use": FLOOR_US})
    assert member.handle(GenerationReceived(received), 0.0) == [KeepPublishers(frozenset({"p"})), ReportReady(7)]
    assert member.runs == 0
    horizons_us = {"Readings": FLOOR_US - 1, "Alarms": END_OF_TIME_US}
    assert member.handle(RunReceived(7), 0.1) == [OpenLinks(7, ROOT), ReplayReadings(7, horizons_us)]
    assert member.runs == 7
    assert member.handle(RunReceived(7), 0.2) == []
    assert member.handle(GenerationReceived(received), 0.3) == [ReportReady(7)], "the root did not get the report"
    assert member.handle(RunReceived(6), 0.4) == []


def test_next_generation_drops_everything_of_the_one_before() -> None:
    member = Member(LEAF, 1_000_000)
    member.handle(GenerationReceived(generation(7, {})), 0.0)
    member.handle(RunReceived(7), 0.0)
    member.handle(InGeneration(7, ReadingsArrived("Readings", readings((1, "a", 1.0, 1)), "p")), 0.0)
    before = member.edge_node
    effects = member.handle(GenerationReceived(generation(9, {})), 0.5)
    assert effects == [StopGeneration(7), KeepPublishers(frozenset()), ReportReady(9)]
    assert member.edge_node is not before and member.edge_node is not None
    assert not member.edge_node.has_work
    assert member.handle(InGeneration(7, ProcessNext()), 0.6) == []
    assert member.dropped_events == 1
    assert member.handle(GenerationReceived(generation(8, {})), 0.7) == [], "an order that came late"


def test_node_without_an_answer_stops_and_never_runs_that_generation_again() -> None:
    member = Member(LEAF, 1_000_000, lease_s=3.0)
    member.handle(GenerationReceived(generation(7, {})), 10.0)
    assert not member.may_acknowledge(10.0), "the root has not answered yet"
    member.handle(LeaseAnswered(10.0, {}), 10.9)
    member.handle(RunReceived(7), 10.9)
    assert member.may_acknowledge(12.9) and not member.may_acknowledge(13.0), "counted from the sending of the beat"
    assert member.deadline_s() == 13.0
    assert member.handle(MemberTimePassed(), 13.0) == [StopGeneration(7), RegisterAgain()]
    assert member.handle(GenerationReceived(generation(7, {})), 13.1) == []
    assert member.handle(GenerationReceived(generation(8, {})), 13.2)[-1] == ReportReady(8)


def test_answer_after_the_lease_has_ended_does_not_renew_it() -> None:
    member = Member(LEAF, 1_000_000, lease_s=3.0)
    member.handle(GenerationReceived(generation(7, {})), 10.0)
    member.handle(LeaseAnswered(10.0, {}), 10.1)
    assert member.handle(LeaseAnswered(12.9, {}), 13.5) == [StopGeneration(7), RegisterAgain()]


def test_fenced_node_registers_again() -> None:
    member = Member(LEAF, 1_000_000)
    assert member.handle(FencedReceived(), 0.0) == [RegisterAgain()]
    member.handle(GenerationReceived(generation(7, {})), 0.0)
    assert member.handle(FencedReceived(), 0.1) == [StopGeneration(7), RegisterAgain()]


def test_new_floor_says_which_readings_are_no_longer_needed() -> None:
    member = Member(LEAF, 1_000_000)
    member.handle(GenerationReceived(generation(7, {})), 0.0)
    horizons_us = {"Readings": 29_999_999, "Alarms": END_OF_TIME_US}
    assert member.handle(LeaseAnswered(0.0, {"Use": 30_000_000}), 0.0) == [NeedsNoLonger(horizons_us)]
    assert member.handle(LeaseAnswered(0.5, {"Use": 30_000_000}), 0.5) == []


def alone(awaited: dict[str, tuple[EdgeNodeId, tuple[str, ...]]] | None = None) -> Member:
    """A tree of one node, with results of `Use` up to 10 s, whose publisher `p` has readings to replay."""
    member = Member(ROOT, 1_000_000, lease_s=100.0, silence_s=20.0)
    single = Tree({}, ROOT)
    member.handle(GenerationReceived(generation(3, {"p": ROOT}, {"Use": FLOOR_US}, single, awaited)), 0.0)
    member.handle(RunReceived(3), 0.0)
    return member


def feed(member: Member, *events: Event, now_s: float = 1.0) -> list[Effect]:
    effects: list[Effect] = []
    for event in events:
        member.handle(LeaseAnswered(now_s, {"Use": FLOOR_US}), now_s)
        effects += member.handle(InGeneration(3, event), now_s)
        while member.edge_node is not None and member.edge_node.has_work:
            effects += member.handle(InGeneration(3, ProcessNext()), now_s)
    return effects


def rows(effects: list[Effect]) -> list[tuple[object, ...]]:
    return in_seconds([effect.batch for effect in effects if isinstance(effect, EmitResult) and effect.batch])


def test_replay_gives_exactly_the_windows_above_the_floor() -> None:
    member = alone()
    kept = [readings((21, "a", 1.0, 1)), readings((12, "a", 2.0, 1), (9, "a", 4.0, 1))]
    effects = feed(member, *(ReadingsArrived("Readings", batch, "p") for batch in kept))
    assert effects == [], "no result and no watermark before the whole replay"
    effects = feed(member, ReplayFinished(), ReadingsArrived("Readings", readings((33, "a", 8.0, 1)), "p"))
    assert rows(effects) == [("a", 10.0, 2.0), ("a", 20.0, 1.0)], "the window [0, 10) exists already"
    assert EmitResult("Use", None, 31_000_000) in effects
    assert member.edge_node is not None and member.edge_node.dataflow.late_rows() == {}


def test_entry_waits_for_silent_publishers_of_a_dead_node_until_the_limit() -> None:
    member = alone({"orphan": (ROOT, ("Readings",))})
    effects = feed(member, ReplayFinished(), ReadingsArrived("Readings", readings((33, "a", 8.0, 1)), "p"))
    assert not any(isinstance(effect, EmitResult) for effect in effects)
    late = feed(member, ReadingsArrived("Readings", readings((12, "a", 1.0, 1)), "orphan"))
    assert EmitResult("Use", None, 10_000_000) in late, "12 s behind by 2 s"
    feed(member, ReadingsArrived("Readings", readings((34, "a", 8.0, 1)), "p"), now_s=19.0)
    member.handle(LeaseAnswered(20.9, {"Use": FLOOR_US}), 20.9)
    assert member.handle(MemberTimePassed(), 20.9) == []
    effects = member.handle(MemberTimePassed(), 21.0)
    assert rows(effects) == [("a", 10.0, 1.0)]
    assert EmitResult("Use", None, 32_000_000) in effects


def test_publisher_silent_before_a_generation_does_not_delay_the_next() -> None:
    member = alone()
    feed(member, ReplayFinished(), ReadingsArrived("Readings", readings((33, "a", 8.0, 1)), "p"))
    feed(member, ReadingsArrived("Readings", readings((34, "a", 8.0, 1)), "q"), now_s=25.0)
    single = Tree({}, ROOT)
    member.handle(GenerationReceived(generation(4, {"p": ROOT, "q": ROOT}, {"Use": FLOOR_US}, single)), 25.0)
    member.handle(RunReceived(4), 25.0)
    for publisher, at_s in (("p", 33), ("q", 34)):
        member.handle(InGeneration(4, ReadingsArrived("Readings", readings((at_s, "a", 8.0, 1)), publisher)), 25.0)
    member.handle(InGeneration(4, ReplayFinished()), 25.0)
    effects: list[Effect] = []
    while member.edge_node is not None and member.edge_node.has_work:
        effects += member.handle(InGeneration(4, ProcessNext()), 25.0)
    assert EmitResult("Use", None, 32_000_000) in effects, "q decides, not p"


def test_late_rows_of_earlier_generations_are_not_forgotten() -> None:
    member = alone()
    feed(member, ReplayFinished(), ReadingsArrived("Readings", readings((33, "a", 8.0, 1)), "p"))
    feed(member, ReadingsArrived("Readings", readings((12, "a", 1.0, 1), (13, "a", 1.0, 1)), "p"))
    assert member.late_rows == 2
    assert StopGeneration(3) in member.handle(FencedReceived(), 2.0)
    assert member.late_rows == 2
    member.handle(GenerationReceived(generation(4, {"p": ROOT}, {"Use": FLOOR_US}, Tree({}, ROOT))), 2.0)
    assert member.late_rows == 2


def test_beginning_of_time_is_the_horizon_of_a_query_without_results() -> None:
    member = Member(LEAF, 1_000_000)
    member.handle(GenerationReceived(generation(7, {})), 0.0)
    effects = member.handle(RunReceived(7), 0.0)
    assert isinstance(effects[1], ReplayReadings)
    assert effects[1].horizons_us["Readings"] <= BEGINNING_OF_TIME_US
