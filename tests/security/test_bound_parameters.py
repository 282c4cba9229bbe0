"""A parameter with DEFAULT CURRENT_USER ONLY: its declaration, and the broker's part in keeping it to the user."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tocsin.broker import effects, events
from tocsin.broker.core import Broker
from tocsin.broker.hosted import Requester, SessionId
from tocsin.broker.state import Limits
from tocsin.cluster.sql.declarations import CreateChannel, parse_application
from tocsin.model.cursor import Cursor
from tocsin.model.entities import Channel
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.wire import link
from tocsin.wire import session as wire

NEAR = ChannelName("NearMe")
QUERY = "SELECT r.* FROM NEW Reports r WHERE r.owner = :me"


def declared(parameters: str) -> tuple[list[str], list[str]]:
    """(names of the bound parameters, codes of the problems) of a channel with these parameters."""
    application = parse_application(f"CREATE CONTINUOUS CHANNEL NearMe ({parameters}) AS {QUERY};")
    bound = [
        name
        for statement in application.statements
        if isinstance(statement, CreateChannel)
        for name in statement.channel.bound
    ]
    return bound, [problem.code for problem in application.problems]


def test_declaration_binds_a_parameter_to_the_user() -> None:
    assert declared("me STRING DEFAULT CURRENT_USER ONLY") == (["me"], [])
    assert declared("me string default current_user only") == (["me"], [])
    assert declared("me STRING") == ([], [])


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ("me STRING DEFAULT CURRENT_USER", "syntax"),
        ("me STRING DEFAULT 'ann' ONLY", "syntax"),
        ("me INT DEFAULT CURRENT_USER ONLY", "bound-type"),
    ],
)
def test_half_a_binding_is_refused(parameters: str, code: str) -> None:
    assert declared(parameters) == ([], [code])


def test_channel_stored_before_bindings_existed_still_loads() -> None:
    stored = '{"name":"C","kind":"CONTINUOUS","parameters":{"columns":[]},"query":"q","period_s":null,"retain_s":9.0}'
    assert msgspec.json.decode(stored, type=Channel).bound == ()


class BoundCluster:
    """A broker core, and a data cluster whose channel binds `user` if `bound` names it."""

    def __init__(self, *bound: str) -> None:
        register = link.Register(BrokerId("a"), "i1", "ws://a")
        self.core = Broker(BrokerId("a"), "i1", Limits(), lambda: 0.5, register)
        self.bound = bound
        self.orders: list[effects.RequestBackend] = []
        self.answers: dict[str, list[wire.ToSubscriber]] = {}
        self.reported: list[link.FromBroker] = []
        self._sessions: dict[SessionId, str] = {}

    def handle(self, event: events.Event) -> None:
        for effect in self.core.handle(event, 0.0):
            match effect:
                case effects.RequestBackend():
                    self.orders.append(effect)
                case effects.SendToSessions(sessions=sessions, message=message):
                    for session in sessions:
                        self.answers.setdefault(self._sessions[session], []).append(message)
                case effects.SendToCoordinator(message=sent):
                    self.reported.append(sent)

    def login(self, name: str) -> Requester:
        session = SessionId(len(self._sessions) + 1)
        self._sessions[session] = name
        requester = Requester(session=session)
        self.handle(events.LoginRequested(requester, SubscriberId(name), 0))
        return requester

    def subscribe(self, name: str, **parameters: Any) -> None:
        session = next(number for number, owner in self._sessions.items() if owner == name)
        request = wire.Subscribe(9, NEAR, parameters)
        self.handle(events.RequestReceived(Requester(session=session), SubscriberId(name), request))

    def answer_all(self) -> None:
        """Answer every order as the data cluster does: check the user, fill in the bound parameters."""
        while self.orders:
            order = self.orders.pop(0)
            values = dict(order.parameters)
            foreign = [name for name in self.bound if values.setdefault(name, order.user) != order.user]
            if foreign:
                self.handle(events.BackendRefused(order.key, "foreign_user", "not you"))
            else:
                identity = SubscriptionId(f"id-{values}")
                self.handle(events.BackendGranted(order.key, NEAR, identity, Cursor(1, 0), self.bound))

    def outcome(self, name: str) -> list[str]:
        """For each answer to `subscribe`: the parameters that the subscriber holds, or the code of the refusal."""
        outcomes = []
        for message in self.answers.get(name, []):
            if isinstance(message, wire.Subscribed):
                outcomes.append(str(message.held.parameters))
            elif isinstance(message, wire.Refused):
                outcomes.append(message.code)
        return outcomes

    def holders(self) -> dict[str, list[str]]:
        """Values of each backend subscription → the subscribers that receive its results."""
        return {
            backend.id.removeprefix("id-"): sorted(backend.frontends) for backend in self.core.state.backends.values()
        }


ANN = "{'user': 'ann'}"


def test_subscriber_may_omit_the_bound_parameter() -> None:
    cluster = BoundCluster("user")
    for name in ("ann", "bob"):
        cluster.login(name)
        cluster.subscribe(name)
    cluster.answer_all()
    assert cluster.holders() == {ANN: ["ann"], "{'user': 'bob'}": ["bob"]}
    assert cluster.outcome("ann") == [ANN]


def test_broker_refuses_another_users_name_without_asking_the_data_cluster() -> None:
    cluster = BoundCluster("user")
    for name in ("ann", "eve"):
        cluster.login(name)
    cluster.subscribe("ann", user="ann")
    cluster.answer_all()
    cluster.subscribe("eve", user="ann")
    assert cluster.orders == []
    assert cluster.outcome("eve") == ["foreign_user"]
    assert cluster.holders() == {ANN: ["ann"]}


@pytest.mark.parametrize("first", ["ann", "eve"])
def test_requests_before_the_first_answer_are_kept_apart(first: str) -> None:
    cluster = BoundCluster("user")
    for name in (first, "eve" if first == "ann" else "ann"):
        cluster.login(name)
        cluster.subscribe(name, user="ann")
    cluster.answer_all()
    assert cluster.holders() == {ANN: ["ann"]}
    assert cluster.outcome("eve") == ["foreign_user"]
    assert cluster.outcome("ann") == [ANN]


def test_adopted_subscription_with_another_users_name_is_not_served() -> None:
    cluster = BoundCluster("user")
    held = link.Frontend(SubscriptionId("old"), NEAR, {"user": "ann"}, "1-0")
    for name in ("eve", "ann"):
        state = link.SubscriberState(SubscriberId(name), [held])
        cluster.handle(events.CoordinatorMessageReceived(link.Adopt([state])))
    cluster.answer_all()
    assert cluster.holders() == {ANN: ["ann"]}


def test_prepared_subscription_with_another_users_name_does_not_stop_the_move() -> None:
    cluster = BoundCluster("user")
    held = link.Frontend(SubscriptionId("old"), NEAR, {"user": "ann"}, "1-0")
    prepare = link.Prepare("m1", link.SubscriberState(SubscriberId("eve"), [held]), 10.0)
    cluster.handle(events.CoordinatorMessageReceived(prepare))
    cluster.answer_all()
    assert link.Prepared("m1") in cluster.reported
    assert cluster.holders() == {}


def test_channel_that_becomes_bound_ends_other_users_subscriptions() -> None:
    cluster = BoundCluster()
    for name in ("eve", "ann", "mallory"):
        cluster.login(name)
        cluster.subscribe(name, user="ann")
    cluster.answer_all()
    assert cluster.holders() == {ANN: ["ann", "eve", "mallory"]}
    cluster.bound = ("user",)
    [backend] = cluster.core.state.backends.values()
    cluster.handle(events.HoldsMissing([backend.id]))
    cluster.answer_all()
    assert cluster.holders() == {ANN: ["ann"]}
    cluster.subscribe("eve", user="ann")
    cluster.answer_all()
    assert cluster.outcome("eve")[-1] == "foreign_user"
