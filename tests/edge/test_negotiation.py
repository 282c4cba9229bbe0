"""Negotiation step by step on hand-made worlds: which messages nodes send, and which they reject with which code."""

from __future__ import annotations

from dataclasses import replace

from tests.edge.edge_interleavings import ROOMY, RULES, Action, Budget, Network
from tests.edge.edge_worlds import World, small_world
from tocsin.edge.messages import (
    EdgeCode,
    EdgeDeadlinePassed,
    MessageType,
    Parcel,
    PeerDied,
    PeerJoined,
    PeerMessage,
    PeerMessageReceived,
    PeriodElapsed,
    RejectPeerMessage,
    RoundId,
    SendPeerMessage,
)
from tocsin.edge.negotiation import Negotiator
from tocsin.edge.placement import OperatorPlacement, OperatorSelection
from tocsin.edge.rounds import Collecting, Timing
from tocsin.model.edge import EdgeNodeId, OperatorId, Transfer, Usage
from tocsin.policies.operators.transfer import ReplyUrgency, TransferRules
from tocsin.sim.edge.host import SizedHost

TOP, MIDDLE, BOTTOM = EdgeNodeId("n0"), EdgeNodeId("n1"), EdgeNodeId("n2")
A = OperatorId("A")
CHAIN = {"n1": "n0", "n2": "n1"}


def network(parents: dict[str, str], operators: dict[str, tuple[str, float]], **feeds: tuple[str, ...]) -> Network:
    """`operators` gives the node and the size in percent of each operator."""
    world = small_world(parents, {name: node for name, (node, _) in operators.items()}, feeds)
    return Network(world, {OperatorId(name): size for name, (_, size) in operators.items()}, Budget(99, 99))


def deliver_all(world: Network) -> list[tuple[str, str, str]]:
    """Deliver all messages in order; return (type, sender, receiver) of each."""
    log = []
    while world.messages:
        log.append((str(world.messages[0].type), str(world.messages[0].sender), str(world.messages[0].receiver)))
        world.do(Action("deliver", number=0))
    return log


def figure_12() -> Network:
    return network(CHAIN, {"A": ("n1", 10), "rest1": ("n1", 55), "rest0": ("n0", 59), "rest2": ("n2", 40)})


def test_overloaded_node_gives_an_operator_as_in_figures_12_and_13() -> None:
    world = figure_12()
    world.do(Action("period", MIDDLE))
    assert deliver_all(world) == [
        ("opOfferRequest", "n1", "n0"),
        ("opOfferRequest", "n1", "n2"),
        ("opOfferReply", "n0", "n1"),
        ("opOfferReply", "n2", "n1"),
        ("Clear", "n1", "n0"),
        ("opOfferTransferRequest", "n1", "n2"),
        ("opOfferTransferReply", "n2", "n1"),
        ("Clear", "n1", "n2"),
    ]
    assert A in world.nodes[BOTTOM].placement.here
    assert world.nodes[MIDDLE].host.usage() == Usage(55)
    assert not any(node.is_busy for node in world.nodes.values())


def full_below_full(rules: TransferRules) -> Network:
    places = {"a": "n2", "b": "n2", "c": "n1", "d": "n1"}
    sizes = {OperatorId(name): size for name, size in (("a", 15.0), ("b", 55.0), ("c", 12.0), ("d", 40.0))}
    return Network(small_world(CHAIN, places, {}), sizes, Budget(99, 99), rules)


def test_node_without_room_for_its_child_makes_room_at_once() -> None:
    world = full_below_full(ROOMY)
    world.do(Action("period", BOTTOM))
    assert deliver_all(world) == [
        ("opOfferRequest", "n2", "n1"),
        ("opOfferReply", "n1", "n2"),
        ("opOfferRequest", "n1", "n0"),
        ("Clear", "n2", "n1"),
        ("opOfferReply", "n0", "n1"),
        ("opOfferTransferRequest", "n1", "n0"),
        ("opOfferTransferReply", "n0", "n1"),
        ("Clear", "n1", "n0"),
    ]
    assert world.nodes[MIDDLE].host.usage() == Usage(40), "the child must give 20, so the node gives at most 20"
    world.do(Action("period", BOTTOM))
    deliver_all(world)
    assert [world.nodes[node].host.usage() for node in (TOP, MIDDLE, BOTTOM)] == [Usage(12), Usage(55), Usage(55)]


def test_node_without_room_waits_for_its_own_overload_in_the_thesis() -> None:
    world = full_below_full(RULES)
    for _ in range(3):
        world.do(Action("period", BOTTOM))
        deliver_all(world)
    assert [world.nodes[node].host.usage() for node in (TOP, MIDDLE, BOTTOM)] == [Usage(0), Usage(52), Usage(70)]


def test_node_that_accepts_all_offered_operators_makes_no_room() -> None:
    world = full_below_full(ROOMY)
    world.sizes_pct |= {OperatorId("a"): 5.0, OperatorId("b"): 60.0}
    world.do(Action("period", BOTTOM))
    assert ("opOfferRequest", "n1", "n0") not in deliver_all(world)
    assert OperatorId("a") in world.nodes[MIDDLE].placement.here


def test_underloaded_node_takes_operators_from_overloaded_neighbour_as_in_figure_14() -> None:
    world = network(
        CHAIN, {"A": ("n0", 5), "rest0": ("n0", 50), "mine": ("n1", 38), "B": ("n2", 5), "rest2": ("n2", 58)}
    )
    world.do(Action("period", MIDDLE))
    log = deliver_all(world)
    assert [entry for entry in log if entry[1] == "n1" and entry[0] != "opOfferTransferReply"] == [
        ("opDemandRequest", "n1", "n0"),
        ("opDemandRequest", "n1", "n2"),
        ("opDemandTransferRequest", "n1", "n0"),
        ("opDemandTransferRequest", "n1", "n2"),
    ]
    assert {A, OperatorId("B")} <= world.nodes[MIDDLE].placement.here
    assert world.nodes[MIDDLE].host.usage() == Usage(48)


def test_normal_node_sends_no_message() -> None:
    world = network({"n1": "n0"}, {"A": ("n0", 50), "B": ("n1", 40)})
    assert world.nodes[TOP].handle(PeriodElapsed(), 0.0) == []


def test_busy_node_starts_no_round_and_replies_without_transfers() -> None:
    world = figure_12()
    world.do(Action("period", MIDDLE))
    assert world.nodes[MIDDLE].handle(PeriodElapsed(), 5.0) == []
    request = PeerMessage(MessageType.OP_DEMAND_REQUEST, TOP, MIDDLE, RoundId(TOP, 1), size_pct=50.0)
    (effect,) = world.nodes[MIDDLE].handle(PeerMessageReceived(request), 5.0)
    assert isinstance(effect, SendPeerMessage)
    assert (effect.message.type, effect.message.transfers) == (MessageType.OP_DEMAND_REPLY, ())


def test_overloaded_node_precedes_underloaded_node_in_simultaneous_rounds() -> None:
    world = network({"n1": "n0"}, {"A": ("n1", 10), "rest": ("n1", 55), "low": ("n0", 20)})
    world.do(Action("period", TOP))
    world.do(Action("period", MIDDLE))
    deliver_all(world)
    assert A in world.nodes[TOP].placement.here
    assert not any(node.is_busy for node in world.nodes.values())


def test_smaller_id_precedes_in_simultaneous_rounds_of_overloaded_nodes() -> None:
    world = network({"n1": "n0"}, {"A": ("n0", 10), "x": ("n0", 55), "B": ("n1", 10), "y": ("n1", 55)})
    world.do(Action("period", TOP))
    world.do(Action("period", MIDDLE))
    world.do(Action("deliver", number=0))
    assert isinstance(world.nodes[TOP].state.phase, Collecting)
    assert world.nodes[MIDDLE].state.phase is None, "the node withdrew its round and replied; it had no room to promise"
    deliver_all(world)
    assert not any(node.is_busy for node in world.nodes.values())


def alone(world: World, node: EdgeNodeId, sizes: dict[str, float], timing: Timing = Timing()) -> Negotiator:
    """One node of a world. The test plays its neighbours."""
    selection = OperatorSelection(world.graph, world.tree)
    here = {operator for operator, place in world.placement.items() if place == node}
    below = {
        operator
        for operator, place in world.placement.items()
        if place != node and world.tree.is_at_or_above(node, place)
    }
    host = SizedHost({OperatorId(name): size for name, size in sizes.items()}, here)
    peers = dict.fromkeys(world.tree.neighbours(node), 0)
    return Negotiator(OperatorPlacement(node, selection, here, below), host, peers, timing=timing)


def taker() -> Negotiator:
    """Node n1 of a chain with a load of 45 %; n0 offers it operator A."""
    return alone(small_world(CHAIN, {"A": "n0", "B": "n1"}, {}), MIDDLE, {"A": 10, "B": 45})


def parcels(size_pct: float = 10, number: int = 1, sender: EdgeNodeId = TOP) -> PeerMessage:
    return PeerMessage(
        MessageType.OP_OFFER_TRANSFER_REQUEST,
        sender,
        MIDDLE,
        RoundId(sender, 1),
        transfers=(Transfer((A,), MIDDLE, Usage(size_pct)),),
        handover=number,
        parcels=(Parcel(A, Usage(size_pct)),),
    )


def answers(node: Negotiator, message: PeerMessage, now_s: float = 0.0) -> list[PeerMessage | EdgeCode]:
    return [
        effect.message if isinstance(effect, SendPeerMessage) else effect.code
        for effect in node.handle(PeerMessageReceived(message), now_s)
    ]


def accepted(offer: PeerMessage, sender: EdgeNodeId) -> PeerMessage:
    """The reply of an underloaded neighbour that accepts all transfers."""
    reply = MessageType.OP_OFFER_REPLY
    return PeerMessage(reply, sender, MIDDLE, offer.round, ReplyUrgency.HIGH, transfers=offer.transfers)


def test_missing_replies_count_as_empty_after_the_deadline() -> None:
    world = small_world(CHAIN, {"A": "n1", "B": "n1"}, {})
    node = alone(world, MIDDLE, {"A": 10, "B": 55})
    requests = [effect.message for effect in node.handle(PeriodElapsed(), 0.0) if isinstance(effect, SendPeerMessage)]
    assert node.deadline_s() == 1.0
    offer = next(request for request in requests if request.receiver == BOTTOM)
    reply = accepted(offer, BOTTOM)
    assert answers(node, reply, 0.1) == []
    effects = node.handle(EdgeDeadlinePassed(), 1.0)
    sent = [effect.message for effect in effects if isinstance(effect, SendPeerMessage)]
    assert [(message.type, message.receiver) for message in sent] == [
        (MessageType.CLEAR, TOP),
        (MessageType.OP_OFFER_TRANSFER_REQUEST, BOTTOM),
    ]
    late = accepted(offer, TOP)
    answer = answers(node, late, 1.1)
    assert answer[0] is EdgeCode.STALE_ROUND
    assert isinstance(answer[1], PeerMessage)
    assert answer[1].type is MessageType.CLEAR


def test_promise_expires_without_a_decision() -> None:
    node = taker()
    offer = PeerMessage(
        MessageType.OP_OFFER_REQUEST, TOP, MIDDLE, RoundId(TOP, 1), transfers=(Transfer((A,), MIDDLE, Usage(10)),)
    )
    (reply,) = answers(node, offer)
    assert isinstance(reply, PeerMessage)
    assert reply.transfers
    assert answers(node, offer) == [reply], "a repeated request gets the same answer"
    assert node.is_busy
    assert node.handle(EdgeDeadlinePassed(), 3.0) == []
    assert not node.is_busy


def test_operators_grown_in_transit_are_refused_above_the_upper_threshold() -> None:
    (reply,) = answers(taker(), parcels(size_pct=16))
    assert isinstance(reply, PeerMessage)
    assert (reply.refusal, reply.transfers) == (EdgeCode.ABOVE_UPPER_THRESHOLD, ())


def test_refused_hand_over_stays_refused_when_room_becomes_free() -> None:
    """The giver may have resumed the operator already: a repeated message must not start a second copy."""
    node = taker()
    refused = answers(node, parcels(size_pct=16))
    node.host.release((OperatorId("B"),), TOP)
    assert answers(node, parcels(size_pct=16)) == refused
    assert A not in node.placement.here


def test_repeated_hand_over_gets_the_same_reply_and_older_one_none() -> None:
    node = taker()
    first = answers(node, parcels(number=4))
    assert answers(node, parcels(number=4)) == first
    assert answers(node, parcels(number=3)) == [EdgeCode.STALE_HANDOVER]


def test_taker_neither_runs_nor_passes_on_unconfirmed_operators() -> None:
    node = taker()
    (reply,) = answers(node, parcels())
    assert isinstance(reply, PeerMessage)
    assert isinstance(node.host, SizedHost)
    assert A not in node.host.running
    assert all(A not in transfer.operators for transfer in node.placement.available_transfers())
    assert node.is_busy
    repeated = node.handle(EdgeDeadlinePassed(), 1.0)
    assert repeated == [SendPeerMessage(reply)]
    clear = PeerMessage(MessageType.CLEAR, TOP, MIDDLE, reply.round, handover=1)
    assert answers(node, clear) == []
    assert A in node.host.running
    assert any(A in transfer.operators for transfer in node.placement.available_transfers())


def test_giver_repeats_its_request_and_resumes_when_the_taker_dies() -> None:
    world = small_world({"n1": "n0"}, {"A": "n1", "B": "n1"}, {})
    node = alone(world, MIDDLE, {"A": 10, "B": 55})
    (offer,) = node.handle(PeriodElapsed(), 0.0)
    assert isinstance(offer, SendPeerMessage)
    accept = accepted(offer.message, TOP)
    (request,) = answers(node, accept, 0.1)
    assert isinstance(request, PeerMessage)
    for now_s in (1.1, 2.1):
        assert node.handle(EdgeDeadlinePassed(), now_s) == [SendPeerMessage(request)]
    assert isinstance(node.host, SizedHost)
    assert A not in node.host.running
    node.handle(PeerDied(TOP), 3.0)
    assert A in node.host.running
    assert not node.is_busy
    ghost = PeerMessage(MessageType.OP_OFFER_TRANSFER_REPLY, TOP, MIDDLE, offer.message.round, handover=1)
    assert answers(node, ghost, 4.0) == [EdgeCode.NOT_ADJACENT]
    node.handle(PeerJoined(TOP, 1), 5.0)
    assert answers(node, ghost, 5.0) == [EdgeCode.WRONG_EPOCH]
    assert answers(node, replace(ghost, sender_epoch=1), 5.0) == [EdgeCode.STALE_HANDOVER]


def test_operator_is_refused_while_its_feeder_moves_the_other_way() -> None:
    """u (at the child) feeds v (at the parent). If both swapped places, u's stream would have to flow down."""
    world = small_world({"n1": "n0"}, {"u": "n1", "v": "n0", "x": "n1"}, {"u": ("v",)})
    node = alone(world, MIDDLE, {"u": 10, "v": 10, "x": 5})
    v = OperatorId("v")
    coming = PeerMessage(
        MessageType.OP_OFFER_TRANSFER_REQUEST, TOP, MIDDLE, RoundId(TOP, 1), handover=1, parcels=(Parcel(v, Usage(10)),)
    )
    node.placement.freeze([OperatorId("u")], TOP)
    (refused,) = answers(node, coming)
    assert isinstance(refused, PeerMessage)
    assert refused.refusal is EdgeCode.INFEASIBLE
    node.placement.resume([OperatorId("u")])
    (accepted,) = answers(node, replace(coming, handover=2))
    assert isinstance(accepted, PeerMessage)
    assert accepted.refusal is None


def test_messages_of_strangers_and_unknown_operators_change_nothing() -> None:
    node = taker()
    stranger = replace(parcels(), sender=EdgeNodeId("n9"))
    assert answers(node, stranger) == [EdgeCode.NOT_ADJACENT]
    unknown = replace(parcels(number=7), parcels=(Parcel(OperatorId("??"), Usage(1)),))
    (reply,) = answers(node, unknown)
    assert isinstance(reply, PeerMessage)
    assert reply.refusal is EdgeCode.INFEASIBLE
    assert answers(node, replace(parcels(), handover=None)) == [EdgeCode.STALE_HANDOVER]
    stale = PeerMessage(MessageType.OP_OFFER_REPLY, TOP, MIDDLE, RoundId(MIDDLE, 3))
    assert node.handle(PeerMessageReceived(stale), 0.0) == [RejectPeerMessage(stale, EdgeCode.STALE_ROUND)]
    assert not node.is_busy
    assert node.placement.here == {OperatorId("B")}
