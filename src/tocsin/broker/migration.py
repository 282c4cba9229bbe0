"""Whom this broker serves, as the coordinator says: adoption, preparation, hand-over, release [BAD §3.3].

Make-before-break: the target holds a subscriber's subscriptions and has its results at hand before the source tells it
to move; the source serves it until it is told that the other session has begun. Every preparation has a deadline after
which it is undone, so a coordinator that dies half-way leaves nothing behind.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.broker.backends import Backends, Want
from tocsin.broker.catchup import CatchUp
from tocsin.broker.effects import CallWebhook, TellCoordinator
from tocsin.broker.entities import Backend, Frontend, SessionId, Subscriber
from tocsin.broker.events import LoginRequested
from tocsin.broker.fetching import Fetching
from tocsin.broker.outbox import Outbox
from tocsin.broker.sessions import Sessions, parsed_cursor
from tocsin.broker.world import World
from tocsin.model.ids import SubscriberId
from tocsin.wire import link
from tocsin.wire import session as wire
from tocsin.wire.errors import Code

ADOPTION_S = 5.0
"""How long a login waits for the coordinator to say what its subscriber holds."""


@dataclass(slots=True)
class _Preparation:
    subscriber: SubscriberId
    until_s: float
    webhook: link.Webhook | None
    wanted: list[link.Frontend]
    """What was not held when it began."""
    missing: int
    made: list[Frontend] = field(default_factory=list)
    """What is undone if nobody comes."""
    told: bool = False
    backends: list[Backend] = field(default_factory=list)


@dataclass(slots=True)
class _Arrival:
    """A login of somebody this broker does not know yet."""

    until_s: float
    logins: list[LoginRequested] = field(default_factory=list)
    answered: bool = False
    """The coordinator has said what it holds."""


class Migration:
    def __init__(
        self,
        world: World,
        backends: Backends,
        sessions: Sessions,
        catch_up: CatchUp,
        fetching: Fetching,
        outbox: Outbox,
    ) -> None:
        self._world = world
        self._backends = backends
        self._sessions = sessions
        self._catch_up = catch_up
        self._fetching = fetching
        self._outbox = outbox
        self._preparations: dict[str, _Preparation] = {}
        self._arrivals: dict[SubscriberId, _Arrival] = {}
        self._unasked: set[SubscriberId] = set()
        """Logged in, and let in without the coordinator's answer: it has not been asked, or may not have heard."""
        self._adopting = sessions.adopting
        self._unwanted: list[tuple[Subscriber, Frontend]] = []
        """Adopted after all, though it was unsubscribed before the data cluster had answered."""

    @property
    def idle(self) -> bool:
        return not (self._preparations or self._arrivals or self._adopting)

    def _tell(self, message: link.FromBroker) -> None:
        self._world.out.append(TellCoordinator(message))

    # -- arrivals and adoption -------------------------------------------------------------------------------------

    def login(self, event: LoginRequested) -> None:
        """At once if we know the subscriber or nobody can be asked about it."""
        name = event.subscriber
        if name in self._adopting or (name not in self._world.subscribers and self._outbox.connected):
            arrival = self._arrivals.get(name)
            if arrival is None:
                arrival = self._arrivals[name] = _Arrival(self._world.now_s + ADOPTION_S)
                arrival.answered = name in self._adopting
                if not arrival.answered:
                    self._tell(link.StateRequest(name))
            arrival.logins.append(event)
        else:
            if name not in self._world.subscribers:
                self._unasked.add(name)
            self._log_in(event)

    def registered(self) -> None:
        """Who came while nobody could be asked is asked about now: it may hold more than its program remembered. Also
        who has gone again and left something here: the coordinator takes us to hold all of it."""
        self._unasked &= self._world.subscribers.keys()
        for name in sorted(self._unasked):
            self._tell(link.StateRequest(name))

    def _log_in(self, event: LoginRequested) -> None:
        """It has come: what was prepared is its own now, also what the data cluster has not confirmed yet."""
        self._sessions.login(event)
        if event.asker.session not in self._world.sessions:
            return
        subscriber = self._world.subscriber(event.subscriber)
        for preparation in self._end_preparations(subscriber.id):
            subscriber.webhook = subscriber.webhook or preparation.webhook
            self._want(
                subscriber.id, [one for one in preparation.wanted if one.subscription not in subscriber.frontends]
            )

    def connection_lost(self, session: SessionId) -> None:
        """It went away while it waited."""
        for arrival in self._arrivals.values():
            arrival.logins = [login for login in arrival.logins if login.asker.session != session]

    def link_lost(self) -> None:
        # Of whom nothing is held yet we shall not say, when we register, that we hold it: the coordinator prepares it
        # again or has given it up, and would not think of telling us.
        for identity in [
            one for one, made in self._preparations.items() if made.subscriber not in self._world.subscribers
        ]:
            self._undo(identity)
        for name in list(self._arrivals):
            self._unasked.add(name)
            self._admit(name)

    def _admit(self, name: SubscriberId) -> None:
        arrival = self._arrivals.pop(name, None)
        for login in [] if arrival is None else arrival.logins:
            self._log_in(login)

    def adopt(self, message: link.Adopt) -> None:
        for state in message.subscribers:
            wanted = [
                one for one in state.subscriptions if not self._outbox.removing(state.subscriber, one.subscription)
            ]
            subscriber = self._world.subscriber(state.subscriber)
            subscriber.webhook = subscriber.webhook or state.webhook
            self._unasked.discard(state.subscriber)
            self._end_preparations(state.subscriber)
            self._hand_in_unnamed(subscriber, state)
            self._drop_given_up(subscriber, state)
            self._want(state.subscriber, wanted)
            if state.subscriber in self._arrivals:
                self._arrivals[state.subscriber].answered = True
            self._adopted(state.subscriber)

    def _want(self, name: SubscriberId, wanted: list[link.Frontend]) -> None:
        """For a subscriber that is ours to serve."""
        if not wanted:
            return
        self._sessions.given_up.get(name, set()).difference_update(one.subscription for one in wanted)
        self._adopting[name] = self._adopting.get(name, 0) + len(wanted)
        for one in wanted:
            want = Want(name, one.parameters, parsed_cursor(one.cursor), self._world.now_s)
            self._backends.want(one.channel, want)

    def _end_preparations(self, name: SubscriberId) -> list[_Preparation]:
        """It is ours to serve, or not at all any more: there is nothing left to be undone at a deadline."""
        ended = {one: preparation for one, preparation in self._preparations.items() if preparation.subscriber == name}
        for identity in ended:
            del self._preparations[identity]
            self._backends.withdraw(name, identity)
        return list(ended.values())

    def _hand_in_unnamed(self, subscriber: Subscriber, state: link.SubscriberState) -> None:
        """What was asked for here and the coordinator does not name it has not heard of yet, or has heard from
        elsewhere of an unsubscription that was before: then it would be forgotten with this broker."""
        named = {one.subscription for one in state.subscriptions}
        unnamed = [one for one in subscriber.frontends.values() if one.own and one.backend.id not in named]
        for frontend in unnamed:
            self._sessions.hand_in(subscriber.id, frontend)
        if unnamed:
            self._outbox.flush()

    def _drop_given_up(self, subscriber: Subscriber, state: link.SubscriberState) -> None:
        """What the coordinator brought here and does not name any more was unsubscribed where it was held before."""
        named = {one.subscription for one in state.subscriptions}
        for frontend in list(subscriber.frontends.values()):
            if not frontend.own and frontend.backend.id not in named:
                self._sessions.let_go(subscriber, frontend)

    def _adopted(self, name: SubscriberId) -> None:
        if name in self._adopting:
            return
        arrival = self._arrivals.get(name)
        if arrival is not None and arrival.answered:
            self._admit(name)
        subscriber = self._world.subscribers.get(name)
        if subscriber is None:
            return
        if subscriber.webhook is not None and subscriber.session is None:
            self._world.out.append(CallWebhook(name, subscriber.webhook))
        self._sessions.forget_if_empty(subscriber)

    # -- what the data cluster said --------------------------------------------------------------------------------

    def held(self, want: Want, frontend: Frontend) -> None:
        """A subscription that the coordinator wanted is held now."""
        if want.after is not None and want.after > frontend.acked:
            frontend.acked = want.after
        if want.migration is None:
            given_up = frontend.backend.id in self._sessions.given_up.get(want.subscriber, ()) and not frontend.own
            self._settled(want.subscriber)
            if given_up:
                self._unwanted.append((self._world.subscriber(want.subscriber), frontend))
            else:
                self._join_open_session(want, frontend)
            return
        preparation = self._preparations.get(want.migration)
        if preparation is None:
            return
        preparation.missing -= 1
        preparation.backends.append(frontend.backend)
        preparation.made.append(frontend)
        self._catch_up.prepare(frontend.backend, want.after or frontend.acked)

    def _join_open_session(self, want: Want, frontend: Frontend) -> None:
        """Its subscriber had logged in before this was known."""
        subscriber = self._world.subscribers.get(want.subscriber)
        session = None if subscriber is None else subscriber.session
        if session is not None and not frontend.live and frontend.sent is None:
            self._catch_up.begin(session, frontend, frontend.acked)
            frontend.tells_recovery = True
            self._catch_up.step(session)

    def refused(self, want: Want, code: str, message: str) -> None:
        if want.migration is None:
            self._settled(want.subscriber)
        elif want.migration in self._preparations:
            self._undo(want.migration)
            self._tell(link.PrepareFailed(want.migration, code, message))

    def _settled(self, name: SubscriberId) -> None:
        left = self._adopting.get(name, 0) - 1
        if left > 0:
            self._adopting[name] = left
        else:
            self._adopting.pop(name, None)
            self._sessions.given_up.pop(name, None)
            self._adopted(name)

    # -- as the target ---------------------------------------------------------------------------------------------

    def prepare(self, message: link.Prepare) -> None:
        """Also once more, when something changed at the source before we were ready."""
        name = message.state.subscriber
        earlier = self._preparations.pop(message.migration, None)
        self._backends.withdraw(name, message.migration)
        known = self._world.subscribers.get(name)
        if known is not None:
            self._drop_given_up(known, message.state)
        held = {} if known is None else known.frontends
        kept = [] if earlier is None else [one for one in earlier.made if held.get(one.backend.id) is one]
        wanted = [
            one for one in message.state.subscriptions
            if one.subscription not in held and not self._outbox.removing(name, one.subscription)
        ]  # fmt: skip
        if known is not None and known.session is not None and not known.session.is_webhook:
            self._want(name, wanted)  # it has come by itself, and the coordinator is about to hear of it
            return
        self._preparations[message.migration] = _Preparation(
            name, self._world.now_s + message.deadline_s, message.state.webhook, wanted, len(wanted), kept,
            backends=[frontend.backend for frontend in kept],
        )  # fmt: skip
        for one in wanted:
            cursor = parsed_cursor(one.cursor)
            want = Want(name, one.parameters, cursor, self._world.now_s, migration=message.migration)
            self._backends.want(one.channel, want)

    def check_preparations(self) -> None:
        """After every event: who is ready is reported, and what nobody wants any more is let go, which must not happen
        while others are still being given the same backend subscription."""
        unwanted, self._unwanted = self._unwanted, []
        for subscriber, frontend in unwanted:
            if subscriber.frontends.get(frontend.backend.id) is frontend and not frontend.own:
                self._sessions.let_go(subscriber, frontend)
                self._sessions.forget_if_empty(subscriber)
        for identity, preparation in self._preparations.items():
            if not preparation.told and preparation.missing == 0 and all(map(self._ready, preparation.backends)):
                preparation.told = True
                self._tell(link.Prepared(identity))

    def _ready(self, backend: Backend) -> bool:
        return self._fetching.settled(backend) and self._catch_up.prepared(backend)

    def abandon(self, message: link.Abandon) -> None:
        if message.migration in self._preparations:
            self._undo(message.migration)

    def _undo(self, identity: str) -> None:
        preparation = self._preparations.pop(identity)
        self._backends.withdraw(preparation.subscriber, identity)
        subscriber = self._world.subscribers.get(preparation.subscriber)
        if subscriber is None or subscriber.session is not None:
            return
        for frontend in preparation.made:
            if subscriber.frontends.get(frontend.backend.id) is frontend:
                self._sessions.let_go(subscriber, frontend)
        self._sessions.forget_if_empty(subscriber)

    # -- as the source ---------------------------------------------------------------------------------------------

    def hand_over(self, message: link.HandOver) -> None:
        subscriber = self._world.subscribers.get(message.subscriber)
        session = None if subscriber is None else subscriber.session
        if session is None or session.is_webhook:
            text = f"{message.subscriber} has no session here"
            self._tell(link.HandOverFailed(message.migration, "offline", text))
            return
        self._world.send(
            session,
            wire.Move(message.migration, message.broker, message.address, message.token, message.deadline_s),
        )

    def release(self, message: link.Release) -> None:
        """Also of whom nothing is here yet: it may be about to be."""
        self._forget(self._world.subscriber(message.subscriber))
        self._tell(link.Released(message.subscriber, message.migration))

    def _forget(self, subscriber: Subscriber) -> None:
        self._backends.withdraw(subscriber.id)
        self._unasked.discard(subscriber.id)
        self._adopting.pop(subscriber.id, None)
        self._sessions.given_up.pop(subscriber.id, None)
        self._end_preparations(subscriber.id)
        self._outbox.flush()
        subscriber.webhook = None
        if subscriber.session is not None:
            self._sessions.end(subscriber.session, "moved", "this subscriber is served by another broker now")
        for frontend in list(subscriber.frontends.values()):
            self._sessions.let_go(subscriber, frontend)
        self._sessions.forget_if_empty(subscriber)

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        now_s = self._world.now_s
        for identity in [one for one, preparation in self._preparations.items() if preparation.until_s <= now_s]:
            told = self._preparations[identity].told
            self._undo(identity)
            if not told:
                message = "the subscriptions were not caught up before the deadline"
                self._tell(link.PrepareFailed(identity, Code.NOT_READY, message))
        for name, arrival in [one for one in self._arrivals.items() if one[1].until_s <= now_s]:
            if not arrival.answered:
                self._unasked.add(name)
            self._admit(name)
