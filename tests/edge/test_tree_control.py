"""The tree control: leases of nodes, starts of generations, entries of streams, and the state after a restart."""

from __future__ import annotations

import pytest

from tests.edge.edge_readings import STREAMS
from tocsin.edge.detours import DETOUR_S, FAILURES, WITHIN_S
from tocsin.edge.generations import ControlState, Generation, NodeReport, SourceSpec
from tocsin.edge.tree_control import (
    ControlLost,
    Effect,
    Event,
    GrantPublisher,
    LinkLost,
    NodeBeat,
    NodeReady,
    NodeRegistered,
    PublisherAttached,
    QueryDeployed,
    QueryDropped,
    RejectRequest,
    ResultsAccepted,
    SendBeatAnswer,
    SendFenced,
    SendGeneration,
    SendRun,
    SourcePositionReported,
    StoreControl,
    StreamDeclared,
    TimePassed,
    TreeControl,
)
from tocsin.model.edge import EdgeNodeId, OperatorId

ROOT, DISTRICT, LEAF = EdgeNodeId("root"), EdgeNodeId("district"), EdgeNodeId("leaf")
PARENTS = {ROOT: None, DISTRICT: ROOT, LEAF: DISTRICT}
QUERY = "CREATE EDGE QUERY Use AS SELECT meter, SUM(kwh) AS total FROM Readings GROUP BY meter, WINDOW(ts, '1 hour')"
SOURCE = SourceSpec("meters", "Readings", "file", "meters.csv")


class Root:
    """A control with a clock. Nodes answer every generation at once, unless they are silent."""

    def __init__(self, state: ControlState | None = None, now_s: float = 100.0) -> None:
        self.control = TreeControl(ROOT, state)
        self.now_s = now_s
        self.silent: set[EdgeNodeId] = set()
        self.effects: list[Effect] = []

    def handle(self, event: Event) -> list[Effect]:
        effects = self.control.handle(event, self.now_s)
        self.effects += effects
        for effect in effects:
            if isinstance(effect, SendGeneration) and effect.node not in self.silent:
                effects = effects + self.handle(NodeReady(effect.node, effect.generation.number))
        return effects

    def register(self, node: EdgeNodeId, run: int = 1, streams: tuple[str, ...] = ()) -> list[Effect]:
        return self.handle(NodeRegistered(node, PARENTS[node], run, f"http://{node}", streams))

    def wait(self, seconds: float) -> None:
        """Let time pass; all nodes that are not silent beat."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.25
            for node in [node for node in self.control.living if node not in self.silent]:
                self.handle(NodeBeat(node, self.control.state.nodes[node].run, self.now_s, self.number))
            self.handle(TimePassed())

    @property
    def number(self) -> int:
        return self.control.state.generation

    @property
    def generation(self) -> Generation:
        assert self.control.generation is not None
        return self.control.generation


def running_tree() -> Root:
    root = Root()
    root.handle(StreamDeclared("Readings", STREAMS["Readings"]))
    root.handle(QueryDeployed(QUERY))
    root.register(ROOT)
    root.register(DISTRICT)
    root.register(LEAF, streams=("Readings",))
    root.wait(2)
    assert root.control.is_running
    return root


def test_nodes_that_register_together_share_one_generation() -> None:
    root = running_tree()
    assert root.number == 2, "the first node, then all others a second later"
    assert root.generation.tree.parents == {DISTRICT: ROOT, LEAF: DISTRICT}
    assert root.generation.entries == {"Readings": (LEAF,)}
    assert set(root.generation.placement.values()) == {LEAF}


def test_node_whose_parent_is_unknown_waits_for_it() -> None:
    root = Root()
    root.register(ROOT)
    root.handle(NodeRegistered(LEAF, DISTRICT, 1, "http://leaf", ("Readings",), (SOURCE,)))
    root.wait(2)
    assert root.generation.tree.nodes == (ROOT,)
    assert root.generation.sources == {}, "the root does not read the source of a node that is about to join"
    root.register(DISTRICT)
    root.wait(2)
    assert set(root.generation.tree.nodes) == {ROOT, DISTRICT, LEAF}
    assert root.generation.sources["meters"][0] == LEAF


def test_state_is_stored_before_any_node_hears_of_the_generation() -> None:
    root = Root()
    effects = root.control.handle(NodeRegistered(ROOT, None, 1, "http://root"), 5.0)
    kinds = [type(effect) for effect in effects]
    assert kinds == [StoreControl, StoreControl, SendGeneration]
    assert isinstance(effects[1], StoreControl) and effects[1].state.generation == 1


def test_no_node_runs_before_all_are_ready() -> None:
    root = running_tree()
    root.silent = {LEAF}
    root.effects.clear()
    root.handle(LinkLost(LEAF, root.number, DISTRICT))
    root.wait(2)
    assert not root.control.is_running
    assert not any(isinstance(effect, SendRun) for effect in root.effects)
    effects = root.handle(NodeReady(LEAF, root.number))
    assert {effect.node for effect in effects if isinstance(effect, SendRun)} == {ROOT, DISTRICT, LEAF}


def test_node_is_dead_four_seconds_after_its_last_beat_and_not_before() -> None:
    root = running_tree()
    number = root.number
    root.silent = {DISTRICT}
    root.wait(3.75)
    assert root.number == number
    root.wait(0.25)
    assert root.number == number + 1
    assert root.generation.tree.parents == {LEAF: ROOT}, "the child is attached to the nearest living ancestor"


def test_no_generation_starts_while_a_node_has_no_control_connection() -> None:
    """A dying leaf: its parent reports the broken link at once, and its publishers move before its lease has ended."""
    root = running_tree()
    number = root.number
    root.handle(PublisherAttached(LEAF, "p", "Readings", number))
    root.silent = {LEAF}
    root.handle(LinkLost(DISTRICT, number, LEAF))
    root.now_s += 0.1
    root.handle(ControlLost(LEAF, 1))
    root.wait(3)
    assert root.number == number, "the others go on"
    assert root.handle(PublisherAttached(DISTRICT, "p", "Readings", number)) and root.number == number
    root.effects.clear()
    root.wait(1)
    assert root.number == number + 1 and set(root.generation.tree.nodes) == {ROOT, DISTRICT}
    assert GrantPublisher(DISTRICT, "p", "Readings") in root.effects, "one generation for the death and the publisher"


def test_generation_starts_when_the_last_node_is_connected_again() -> None:
    root = running_tree()
    number = root.number
    root.silent = {LEAF}
    root.handle(ControlLost(LEAF, 1))
    root.handle(LinkLost(LEAF, number, DISTRICT))
    root.wait(1)
    deadline_s = root.control.deadline_s()
    assert root.number == number and deadline_s is not None and deadline_s > root.now_s, "the driver does not spin"
    root.silent = set()
    root.register(LEAF, streams=("Readings",))
    assert root.number == number + 1 and root.control.is_running
    root.handle(ControlLost(LEAF, 0))
    root.handle(LinkLost(LEAF, root.number, DISTRICT))
    root.wait(1)
    assert root.number == number + 2, "the connection of an earlier run does not count"


def test_dead_entry_is_replaced_by_its_nearest_living_ancestor() -> None:
    root = running_tree()
    root.handle(NodeRegistered(LEAF, DISTRICT, 2, "http://leaf", ("Readings",), (SOURCE,)))
    root.wait(2)
    root.handle(PublisherAttached(LEAF, "p", "Readings", root.number))
    root.handle(SourcePositionReported("meters", 17))
    assert root.generation.sources == {"meters": (LEAF, SOURCE, 0)}
    root.silent = {LEAF}
    root.wait(4.5)
    assert root.generation.entries == {"Readings": (DISTRICT,)}
    assert root.generation.sources == {"meters": (DISTRICT, SOURCE, 17)}
    assert root.generation.awaited == {"p": (DISTRICT, ("Readings",))}
    assert root.generation.publishers == {"p": LEAF}, "the dead node owns the publisher until it attaches elsewhere"
    root.silent = set()
    root.handle(NodeRegistered(LEAF, DISTRICT, 3, "http://leaf", ("Readings",), (SOURCE,)))
    root.wait(2)
    assert (root.generation.entries, root.generation.awaited) == ({"Readings": (LEAF,)}, {})
    assert root.generation.sources["meters"][0] == LEAF


def test_publishers_of_a_node_that_stays_dead_are_not_awaited_for_ever() -> None:
    root = running_tree()
    root.handle(PublisherAttached(LEAF, "p", "Readings", root.number))
    root.silent = {LEAF}
    root.wait(30)
    root.handle(QueryDeployed(QUERY.replace("Use", "Again")))
    root.wait(2)
    assert root.generation.awaited == {}


def test_new_publisher_at_an_entry_is_granted_at_once() -> None:
    root = running_tree()
    number = root.number
    effects = root.handle(PublisherAttached(LEAF, "p", "Readings", number))
    assert [type(effect) for effect in effects] == [StoreControl, GrantPublisher]
    root.wait(2)
    assert root.number == number


def test_moved_publisher_is_granted_after_its_former_owner_has_discarded_it() -> None:
    root = running_tree()
    root.handle(PublisherAttached(LEAF, "p", "Readings", root.number))
    root.silent = {LEAF}
    root.effects.clear()
    root.handle(PublisherAttached(DISTRICT, "p", "Readings", root.number))
    root.wait(2)
    assert root.generation.publishers == {"p": DISTRICT}
    assert root.generation.entries == {"Readings": (DISTRICT, LEAF)}
    assert not any(isinstance(effect, GrantPublisher) for effect in root.effects), "the former owner is not ready"
    root.handle(NodeReady(LEAF, root.number))
    assert GrantPublisher(DISTRICT, "p", "Readings") in root.effects


def test_publisher_of_a_dead_node_needs_no_second_generation() -> None:
    root = running_tree()
    root.handle(PublisherAttached(LEAF, "p", "Readings", root.number))
    root.silent = {LEAF}
    root.wait(5)
    number = root.number
    assert root.generation.awaited == {"p": (DISTRICT, ("Readings",))}
    root.effects.clear()
    root.handle(PublisherAttached(DISTRICT, "p", "Readings", number))
    assert [type(effect) for effect in root.effects] == [StoreControl, GrantPublisher], "the new owner is stored first"
    root.wait(3)
    assert root.number == number
    root.handle(PublisherAttached(ROOT, "p", "Readings", number))
    root.wait(2)
    assert root.number == number + 1, "now its owner lives and must discard its batches first"
    assert root.generation.publishers == {"p": ROOT}


def test_publisher_of_a_dead_node_is_granted_to_the_awaiting_node_only() -> None:
    root = running_tree()
    root.handle(PublisherAttached(LEAF, "p", "Readings", root.number))
    root.silent = {LEAF}
    root.wait(5)
    number = root.number
    root.effects.clear()
    root.handle(PublisherAttached(ROOT, "p", "Readings", number))
    assert root.number == number + 1 and root.generation.publishers == {"p": ROOT}
    kinds = [type(effect) for effect in root.effects]
    assert kinds.index(SendGeneration) < kinds.index(GrantPublisher), "the root was no entry before"


def test_publisher_of_another_generation_is_rejected() -> None:
    root = running_tree()
    (rejected,) = root.handle(PublisherAttached(LEAF, "p", "Readings", root.number - 1))
    assert isinstance(rejected, RejectRequest) and rejected.code == "STALE_GENERATION"


def test_silent_node_that_returns_is_fenced_until_it_has_a_new_run() -> None:
    root = running_tree()
    root.silent = {LEAF}
    root.wait(5)
    assert root.handle(NodeBeat(LEAF, 1, root.now_s, root.number - 1)) == [SendFenced(LEAF, 1, 1)]
    assert root.register(LEAF, run=1) == [SendFenced(LEAF, 1, 1)]
    root.silent = set()
    root.register(LEAF, run=2, streams=("Readings",))
    root.wait(2)
    assert LEAF in root.generation.tree.nodes
    assert root.handle(NodeBeat(LEAF, 1, root.now_s, 0)) == [SendFenced(LEAF, 1, 2)]


def test_node_that_reconnects_within_its_lease_keeps_its_generation() -> None:
    root = running_tree()
    number = root.number
    effects = root.register(LEAF, run=1)
    assert [type(effect) for effect in effects] == [SendGeneration, SendRun]
    root.wait(2)
    assert root.number == number


def test_beat_is_answered_with_the_floors() -> None:
    root = running_tree()
    root.handle(ResultsAccepted("Use", 7_200_000_000, root.number))
    effects = root.handle(NodeBeat(LEAF, 1, 55.5, root.number))
    assert effects == [SendBeatAnswer(LEAF, 55.5, {"Use": 7_200_000_000})]


def test_generations_start_at_least_a_second_apart() -> None:
    root = running_tree()
    root.handle(LinkLost(LEAF, root.number, DISTRICT))
    first = root.number
    root.handle(LinkLost(LEAF, root.number, DISTRICT))
    assert root.number == first
    deadline_s = root.control.deadline_s()
    assert deadline_s is not None and deadline_s <= root.now_s + 1
    root.wait(1)
    assert root.number == first + 1


def lose_link_again_and_again(root: Root, times: int) -> None:
    for _ in range(times):
        root.handle(LinkLost(LEAF, root.number, DISTRICT))
        root.handle(LinkLost(DISTRICT, root.number, LEAF))
        root.wait(1.5)


def test_child_goes_around_a_link_that_fails_again_and_again() -> None:
    root = running_tree()
    lose_link_again_and_again(root, FAILURES - 1)
    assert root.generation.tree.parents[LEAF] == DISTRICT, "both ends report the same failure"
    lose_link_again_and_again(root, 1)
    assert root.generation.tree.parents == {DISTRICT: ROOT, LEAF: ROOT}
    number = root.number
    root.wait(5)
    assert root.number == number and root.control.is_running
    root.wait(DETOUR_S)
    root.handle(QueryDeployed(QUERY.replace("Use", "Again")))
    root.wait(2)
    assert root.generation.tree.parents[LEAF] == DISTRICT, "the link gets another try after a while"


def test_rare_failures_of_a_link_do_not_add_up() -> None:
    root = running_tree()
    for _ in range(2 * FAILURES):
        lose_link_again_and_again(root, 1)
        root.wait(WITHIN_S)
    assert root.generation.tree.parents[LEAF] == DISTRICT


def test_parent_that_has_started_again_gets_its_child_back() -> None:
    root = running_tree()
    lose_link_again_and_again(root, FAILURES)
    assert root.generation.tree.parents[LEAF] == ROOT
    root.register(DISTRICT, run=2)
    root.wait(2)
    assert root.generation.tree.parents[LEAF] == DISTRICT


def test_no_detour_leads_around_the_root() -> None:
    root = running_tree()
    for _ in range(2 * FAILURES):
        root.handle(LinkLost(DISTRICT, root.number, ROOT))
        root.wait(1.5)
    assert root.generation.tree.parents == {DISTRICT: ROOT, LEAF: DISTRICT}


def test_results_of_an_earlier_generation_are_refused() -> None:
    root = running_tree()
    number = root.number
    root.handle(LinkLost(LEAF, number, DISTRICT))
    root.wait(0.5)
    assert root.number == number + 1
    assert not root.control.may_accept(number)
    with pytest.raises(RuntimeError):
        root.control.handle(ResultsAccepted("Use", 1, number), root.now_s)


def test_restarted_root_waits_for_the_leases_of_nodes_that_do_not_register() -> None:
    before = running_tree()
    before.handle(ResultsAccepted("Use", 5, before.number))
    root = Root(before.control.state, now_s=500.0)
    root.handle(TimePassed())
    root.register(ROOT, run=2)
    root.register(DISTRICT)
    root.wait(3.75)
    assert root.number == before.number and root.control.generation is None
    root.wait(0.25)
    assert root.number == before.number + 1
    assert set(root.generation.tree.nodes) == {ROOT, DISTRICT}
    assert root.generation.floors_us == {"Use": 5}
    assert root.generation.queries == (QUERY,)
    assert root.register(LEAF, run=1) == [SendFenced(LEAF, 1, 1)], "its old generation may still run there"


def test_restarted_root_starts_at_once_when_all_members_have_registered() -> None:
    before = running_tree()
    root = Root(before.control.state, now_s=500.0)
    for node in (ROOT, DISTRICT, LEAF):
        root.register(node, streams=("Readings",) if node == LEAF else ())
    assert root.number == before.number + 1


def test_restarted_root_does_not_wait_for_a_node_that_was_dead_before() -> None:
    before = running_tree()
    before.silent = {LEAF}
    before.wait(6)
    assert set(before.generation.tree.nodes) == {ROOT, DISTRICT}
    root = Root(before.control.state, now_s=500.0)
    root.register(ROOT, run=2)
    assert root.control.generation is None, "the district may still act in the old generation"
    root.register(DISTRICT)
    assert root.number == before.number + 1
    assert root.register(LEAF, run=2) and LEAF in root.control.living


def test_beats_that_waited_while_the_root_stood_still_count() -> None:
    root = running_tree()
    number = root.number
    root.now_s += 30
    root.handle(TimePassed())
    root.handle(NodeBeat(LEAF, 1, root.now_s, number))
    assert root.number == number and LEAF in root.control.living


def test_operators_stay_where_they_are_as_far_as_possible() -> None:
    root = running_tree()
    moved = tuple(operator for operator in root.generation.placement if operator != "Use/map@leaf")
    root.handle(NodeBeat(DISTRICT, 1, root.now_s, root.number, NodeReport(operators=moved)))
    root.handle(ResultsAccepted("Use", 5, root.number))
    root.handle(LinkLost(LEAF, root.number, DISTRICT))
    root.now_s += 0.4
    root.handle(TimePassed())
    assert root.generation.placement[OperatorId("Use/aggregate")] == DISTRICT
    assert root.generation.placement[OperatorId("Use/map@leaf")] == LEAF
    root.silent = {DISTRICT}
    root.wait(6)
    assert root.generation.placement[OperatorId("Use/aggregate")] == LEAF, "its node is dead: the lowest place"


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (QueryDeployed("CREATE EDGE QUERY Rows AS SELECT ts, kwh FROM Readings"), "UNORDERED"),
        (QueryDeployed(QUERY), "EXISTS"),
        (QueryDeployed("CREATE EDGE QUERY X AS SELECT a FROM Nowhere ORDER BY a"), "UNKNOWN_STREAM"),
        (QueryDropped("X"), "UNKNOWN_QUERY"),
        (StreamDeclared("readings", STREAMS["Alarms"]), "EXISTS"),
        (NodeRegistered(EdgeNodeId("stray"), None, 1, ""), "WRONG_PARENT"),
    ],
)
def test_wrong_request_is_rejected_without_a_generation(event: Event, code: str) -> None:
    root = running_tree()
    number = root.number
    (rejected,) = root.handle(event)
    assert isinstance(rejected, RejectRequest) and rejected.code == code
    root.wait(2)
    assert root.number == number


def test_dropped_query_loses_its_floor() -> None:
    root = running_tree()
    root.handle(ResultsAccepted("Use", 5, root.number))
    root.handle(QueryDropped("Use"))
    root.wait(2)
    assert (root.generation.queries, root.generation.floors_us) == ((), {})
