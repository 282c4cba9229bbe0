"""Which backend subscriptions this broker holds: asked for once however many want them, released with the last.

The data cluster names them (canonical parameters need the channel's signature), so wishes wait for its answer. Two
spellings of the same values are asked for once each and turn out to be the same subscription.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tocsin.broker.effects import AskBackend, ReleaseBackend
from tocsin.broker.entities import Asker, Backend, Frontend, Key, Subscriber
from tocsin.broker.events import BackendGranted, BackendRefused
from tocsin.broker.load import Rate
from tocsin.broker.world import World
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriberId
from tocsin.wire.errors import Code

_encode = msgspec.json.Encoder(order="deterministic").encode


def key_of(channel: ChannelName, parameters: dict[str, Any]) -> Key:
    return channel.lower(), _encode(parameters)


@dataclass(frozen=True, slots=True)
class Want:
    """Somebody who is to hold a subscription as soon as the data cluster has named it."""

    subscriber: SubscriberId
    parameters: dict[str, Any]
    after: Cursor | None
    """Where it stands; None for the present."""
    since_s: float
    asker: Asker | None = None
    """Who is answered. Without one it comes from the coordinator, and waits for as long as it takes."""
    request: int = 0
    migration: str | None = None

    @property
    def is_coming(self) -> bool:
        return self.asker is not None or self.migration is not None


@dataclass(slots=True)
class _Asked:
    channel: ChannelName
    parameters: dict[str, Any]
    wants: list[Want] = field(default_factory=list)


class Backends:
    def __init__(
        self,
        world: World,
        held: Callable[[Want, Backend, Frontend], None],
        refused: Callable[[Want, str, str], None],
        gone: Callable[[Backend], None],
    ) -> None:
        """`held` and `refused` are told what became of each want, `gone` of a backend subscription nobody here wants
        any more."""
        self._world = world
        self._held = held
        self._refused = refused
        self._gone = gone
        self._asked: dict[Key, _Asked] = {}
        self._known: dict[Key, Backend] = {}

    @property
    def idle(self) -> bool:
        return not self._asked and not self._known

    def want(self, channel: ChannelName, want: Want) -> None:
        key = key_of(channel, want.parameters)
        if (backend := self._known.get(key)) is not None and backend.held:
            self._attach(want, backend)
            return
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = _Asked(channel, want.parameters)
            self._world.out.append(AskBackend(key, channel, want.parameters))
        asked.wants.append(want)

    def granted(self, event: BackendGranted) -> None:
        asked = self._asked.pop(event.key, None)
        wants = [] if asked is None else [want for want in asked.wants if self._still_wanted(want)]
        backend = self._world.backends.get(event.subscription)
        if backend is None:
            if not wants:
                self._world.out.append(ReleaseBackend(event.channel, event.subscription))
                return
            # With nobody else to serve, the first fetch may as well begin where those stand who are here or about to
            # come. Who was only adopted may stay away: its results are fetched when it comes.
            starts = [want.after for want in wants if want.is_coming and want.after is not None]
            start = min([event.cursor, *(one for one in starts if one.epoch == event.cursor.epoch)])
            name = self._world.spellings.get(event.channel.lower(), event.channel)
            rate = Rate(self._world.limits.rate_window_s)
            backend = Backend(event.subscription, name, start, start, rate=rate)
            self._world.backends[backend.id] = backend
        backend.held, backend.asked_in = True, None
        if wants or backend.frontends:
            backend.keys.add(event.key)
            self._known[event.key] = backend
        # What was executed between the data cluster's answer and now may have been announced before we knew the name.
        self._world.pulls[backend.id] = None
        for want in wants:
            self._attach(want, backend)

    def _still_wanted(self, want: Want) -> bool:
        return want.asker is None or want.asker.session is None or want.asker.session in self._world.sessions

    def refused(self, event: BackendRefused) -> None:
        asked = self._asked.pop(event.key, None)
        for want in [] if asked is None else asked.wants:
            self._refused(want, event.code, event.message)

    def ask_again(self, backend: Backend) -> None:
        """The data cluster does not know that we hold it: its channel was dropped and may have been created again, or
        somebody released it in our name. Until it says yes it is not fetched, nor promised to anybody else."""
        backend.held = False
        for frontend in backend.frontends.values():
            key = key_of(backend.channel, frontend.parameters)
            if key not in self._asked:
                self._asked[key] = _Asked(backend.channel, frontend.parameters)
                self._world.out.append(AskBackend(key, backend.channel, frontend.parameters))
            return

    def withdraw(self, subscriber: SubscriberId, migration: str | None = None) -> None:
        """What was asked for in this one's name, or for this migration of it, is not wanted any more."""
        for asked in self._asked.values():
            asked.wants = [
                want for want in asked.wants
                if want.subscriber != subscriber or (migration is not None and want.migration != migration)
            ]  # fmt: skip

    def give_up_late(self) -> None:
        """Subscribers do not wait for a data cluster that is away; the coordinator's wishes do."""
        limit_s = self._world.now_s - self._world.limits.request_s
        for asked in self._asked.values():
            late = [want for want in asked.wants if want.asker is not None and want.since_s < limit_s]
            if late:
                asked.wants = [want for want in asked.wants if want not in late]
            for want in late:
                message = "the data cluster does not answer at the moment; try again"
                self._refused(want, Code.NOT_READY, message)

    def _attach(self, want: Want, backend: Backend) -> None:
        subscriber = self._world.subscriber(want.subscriber)
        frontend = subscriber.frontends.get(backend.id)
        if frontend is None:
            start = backend.position if want.after is None else want.after
            frontend = Frontend(backend, want.parameters, start)
            subscriber.frontends[backend.id] = frontend
            backend.frontends[subscriber.id] = frontend
        self._held(want, backend, frontend)

    def detach(self, subscriber: Subscriber, frontend: Frontend) -> None:
        """The last frontend subscription to leave takes the backend subscription with it [BAD §3.1]."""
        backend = frontend.backend
        subscriber.frontends.pop(backend.id, None)
        backend.frontends.pop(subscriber.id, None)
        if backend.frontends or self._world.backends.pop(backend.id, None) is None:
            return
        for key in backend.keys:
            self._known.pop(key, None)
        self._world.cache.forget(backend)
        self._world.pulls.pop(backend.id, None)
        self._gone(backend)
        self._world.out.append(ReleaseBackend(backend.channel, backend.id))
