"""A broker's logic: `handle(event, now_s) -> effects`. Sees no clock and no socket; asyncio or a simulator drives it.

This module only puts the parts together and passes events on; each part says what it is:

    sessions    what subscribers ask for            backends    what is held at the data cluster
    catchup     bringing sessions level             fetching    bringing new results here
    cache       results for whoever comes late      migration   whom to serve, as the coordinator says
    outbox      what must not be forgotten          reports     progress, heartbeats, load

Effects are to be carried out before the next event is handled, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tocsin.broker import events as seen
from tocsin.broker.backends import Backends, Want
from tocsin.broker.catchup import CatchUp
from tocsin.broker.effects import CloseSession, Effect, TellCoordinator
from tocsin.broker.entities import Backend, Frontend
from tocsin.broker.fetching import Fetching
from tocsin.broker.migration import Migration
from tocsin.broker.outbox import Outbox
from tocsin.broker.reports import Reports
from tocsin.broker.sessions import Sessions
from tocsin.broker.world import Limits, World
from tocsin.model.ids import BrokerId
from tocsin.wire import link
from tocsin.wire.errors import Code


class Broker:
    def __init__(
        self,
        broker: BrokerId,
        incarnation: str,
        limits: Limits,
        jitter: Callable[[], float],
        register: link.Register | None = None,
    ) -> None:
        """`register` is how this broker introduces itself; without one there is no coordinator."""
        self.world = world = World(broker, incarnation, limits, jitter)
        self._register = register
        self.accepting = True
        self.draining = False
        self._stopping = False
        self._outbox = Outbox(world, enabled=register is not None)
        self._backends = Backends(world, self._held, self._refused, self._gone)
        self._catch_up = CatchUp(world, self._backends.ask_again)
        self._sessions = Sessions(world, self._backends, self._catch_up, self._outbox)
        self._fetching = Fetching(world, self._catch_up, self._backends.ask_again)
        self._migration = Migration(
            world, self._backends, self._sessions, self._catch_up, self._fetching, self._outbox
        )  # fmt: skip
        self._reports = Reports(world, self._fetching, self._outbox)
        self._handlers: dict[type, Callable[[Any], None]] = {
            seen.LoginRequested: self._login,
            seen.RequestReceived: self._sessions.requested,
            seen.WebhookChosen: self._sessions.webhook_chosen,
            seen.SessionBlocked: self._blocked,
            seen.SessionDrained: self._drained,
            seen.SessionLost: self._lost,
            seen.BackendGranted: self._backends.granted,
            seen.BackendRefused: self._backends.refused,
            seen.ExecutionAnnounced: self._fetching.announced,
            seen.ProgressAnnounced: self._fetching.progressed,
            seen.AnnouncementsMissed: lambda event: self._fetching.missed(),
            seen.HoldsMissing: self._fetching.holds_missing,
            seen.GapFound: lambda event: self._fetcher(event.fetch).gap_found(event),
            seen.ResultsFetched: lambda event: self._fetcher(event.fetch).fetched(event),
            seen.FetchEnded: lambda event: self._fetcher(event.fetch).ended(event),
            seen.FetchFailed: lambda event: self._fetcher(event.fetch).failed(event),
            seen.LinkOpened: self._link_opened,
            seen.LinkLost: self._link_lost,
            seen.CoordinatorSaid: self._coordinator_said,
            seen.Ticked: self._tick,
            seen.StopRequested: self._stop,
        }

    @property
    def linked(self) -> bool:
        """Whether the coordinator has this broker registered at the moment."""
        return self._outbox.connected

    @property
    def idle(self) -> bool:
        """Nothing is held for anybody: after the last subscriber has left, nothing may be."""
        world = self.world
        parts = (self._catch_up, self._fetching, self._backends, self._migration, self._sessions)
        return (
            not (world.subscribers or world.sessions or world.backends or world.cache.used_bytes or world.pulls)
            and all(part.idle for part in parts)
        )  # fmt: skip

    def handle(self, event: seen.Event, now_s: float) -> list[Effect]:
        world = self.world
        world.now_s = now_s
        self._handlers[type(event)](event)
        self._fetching.start()
        self._catch_up.start_backfills()
        self._migration.check_preparations()
        world.cache.trim()
        out, world.out = world.out, []
        if self._register is None:
            out = [effect for effect in out if not isinstance(effect, TellCoordinator)]
        return out

    def _fetcher(self, fetch: int) -> Fetching | CatchUp:
        """Who began it: live fetches count upwards, backfills downwards."""
        return self._fetching if fetch > 0 else self._catch_up

    def load_report(self) -> link.LoadReport:
        return self._reports.load_report()

    # -- subscribers -----------------------------------------------------------------------------------------------

    def _login(self, event: seen.LoginRequested) -> None:
        welcome = self.accepting or event.migration is not None or event.asker.session is None or event.is_webhook
        if welcome and not self._stopping:
            self._migration.login(event)
            return
        message = "this broker takes no new sessions at the moment; ask the coordinator for another one"
        self._sessions.refuse_login(event, Code.NOT_READY, message, 1.0)
        if event.asker.session is not None:
            self.world.out.append(CloseSession(event.asker.session, "draining"))

    def _blocked(self, event: seen.SessionBlocked) -> None:
        session = self.world.sessions.get(event.session)
        if session is None:
            return
        if self.world.limits.slow == "disconnect" and not session.is_webhook:
            self._sessions.end(session, "slow", "results come faster than you read them; come back and resume")
            return
        self._catch_up.leave_live(session)
        session.flowing = False

    def _drained(self, event: seen.SessionDrained) -> None:
        session = self.world.sessions.get(event.session)
        if session is not None:
            session.flowing = True
            self._catch_up.step(session)

    def _lost(self, event: seen.SessionLost) -> None:
        self._migration.connection_lost(event.session)
        session = self.world.sessions.get(event.session)
        if session is not None:
            self._sessions.lost(session, event.reason)

    def _held(self, want: Want, backend: Backend, frontend: Frontend) -> None:
        if want.asker is None:
            self._migration.held(want, frontend)
        else:
            self._sessions.held(want, frontend)

    def _refused(self, want: Want, code: str, message: str) -> None:
        if want.asker is None:
            self._migration.refused(want, code, message)
        else:
            self._sessions.refused(want, code, message)

    def _gone(self, backend: Backend) -> None:
        self._fetching.forget(backend)
        self._catch_up.forget(backend)
        self._reports.backend_gone(backend.id, backend.rate.told_per_s)

    # -- the coordinator -------------------------------------------------------------------------------------------

    def _link_opened(self, _event: seen.LinkOpened) -> None:
        assert self._register is not None
        known = self._register
        online = [session.subscriber.id for session in self.world.sessions.values() if not session.is_webhook]
        message = link.Register(
            known.broker, known.incarnation, known.address, known.capacity, known.lat, known.lon, online,
            list(self.world.subscribers),
        )  # fmt: skip
        self.world.out.append(TellCoordinator(message))

    def _link_lost(self, _event: seen.LinkLost) -> None:
        self._outbox.connected = False
        self._sessions.link_lost()
        self._migration.link_lost()

    def _coordinator_said(self, event: seen.CoordinatorSaid) -> None:
        match event.message:
            case link.Registered() as message:
                self.accepting = message.accepting
                self._outbox.registered()
                self._migration.registered()
                self._reports.registered(message)
            case link.Stored(upto):
                self._outbox.stored(upto)
                self._sessions.stored(upto)
            case link.Adopt() as message:
                self._migration.adopt(message)
            case link.Prepare() as message:
                self._migration.prepare(message)
            case link.HandOver() as message:
                self._migration.hand_over(message)
            case link.Release() as message:
                self._migration.release(message)
            case link.Abandon() as message:
                self._migration.abandon(message)
            case link.Accepting(accepting, draining):
                self.accepting, self.draining = accepting, draining
            case link.Beat():
                pass

    # -- time ------------------------------------------------------------------------------------------------------

    def _tick(self, _event: seen.Ticked) -> None:
        self._backends.give_up_late()
        self._sessions.tick()
        self._migration.tick()
        self._reports.tick()

    def _stop(self, _event: seen.StopRequested) -> None:
        self._stopping = True
        for session in list(self.world.sessions.values()):
            self._sessions.end(session, "stopping", "this broker is stopping; come back, here or elsewhere")
