"""Drives a coordinator: one loop that handles events, stores the changes, and only then sends messages and answers.

Events that arrive during a transaction are handled together after it, so many changes share one commit. While the store
cannot be written, all messages and answers wait; brokers keep delivering. If the core raises, the process loads a new
core from the store and makes the brokers register again, because the old state may be wrong. If anything else raises,
the loop ends and sets `ended`: the server then ends the process, so that a supervisor can start it again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from itertools import count
from typing import Any

import sqlalchemy as sa

from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.effects import (
    AnswerRequest,
    CloseLink,
    CloseNeighbour,
    Effect,
    KeepAtCluster,
    Note,
    ReleaseAtCluster,
    RequestRejection,
    SendHandOver,
    SendHosting,
    SendToBroker,
    SendToNeighbour,
    StoreEffect,
)
from tocsin.coordinator.events import Event, LinkClosed, LinkMessageReceived, Ticked
from tocsin.coordinator.planning import Planner
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.coordinator.site_hosting import Admits
from tocsin.coordinator.turn import Proves
from tocsin.model.backoff import retry_delay_s
from tocsin.model.ids import BrokerId
from tocsin.runtime.coordinator.broker_link import BrokerLink
from tocsin.runtime.coordinator.compilation import compile_beside
from tocsin.runtime.coordinator.neighbours import NeighbourConnections
from tocsin.runtime.coordinator.store import CoordinatorStore, Superseded
from tocsin.runtime.http.logs import logger
from tocsin.wire.errors import Code, NotLeading, TocsinError
from tocsin.wire.link import FromCoordinator, HandOver
from tocsin.wire.neighbour_link import Hosting

_BATCH_EVENTS = 10_000
"""Most events handled before their changes are stored."""
_RETRY_MOST_S = 5.0
_LEASE_LOOK_S = 0.05
_STORE_EFFECTS = StoreEffect.__args__


class CoordinatorProcess:
    def __init__(
        self,
        rules: CoordinatorRules,
        store: CoordinatorStore,
        epoch: str,
        sign: Callable[[SendHandOver], str],
        *,
        proves: Proves = lambda broker, subscriber, token: True,
        admits: Admits = lambda site, topic, token: False,
        host: Callable[[SendHosting], Hosting] = lambda effect: Hosting(effect.number, effect.address, effect.home, {}),
        planners: Mapping[str, Planner] | None = None,
        tick_s: float = 0.25,
        release_at_cluster: Callable[[BrokerId], None] = lambda broker: None,
        keep_at_cluster: Callable[[BrokerId], None] = lambda broker: None,
        refusal: Callable[[], NotLeading | None] = lambda: None,
    ) -> None:
        """`sign` returns the token of a hand-over, `host` the answer with the tokens of a neighbour's receivers.
        `proves` checks that a token proves a session at a broker, `admits` that a neighbour's token permits a topic.

        `release_at_cluster` releases a broker's subscriptions at the data cluster and later posts `BrokerReleased`;
        `keep_at_cluster` cancels that. `refusal` says why this process may not lead at the moment.
        """
        self.on_handled: Callable[[Coordinator | None, Iterable[Effect], float], None] = lambda core, effects, at_s: (
            None
        )
        """Called with the effects of each batch of events once they are stored, and with the time the batch began."""
        self._rules = rules
        self._store = store
        self._epoch = epoch
        self._sign = sign
        self._proves = proves
        self._admits = admits
        self._host = host
        self._planners = dict(planners or {})
        self._tick_s = tick_s
        self._release_at_cluster = release_at_cluster
        self._keep_at_cluster = keep_at_cluster
        self._refusal = refusal
        self._starts = count()
        self._link_numbers = count(1)
        self._request_numbers = count(1)
        self._requests: dict[int, asyncio.Future[object]] = {}
        self._links: dict[int, BrokerLink] = {}
        self._inbox: list[Event] = []
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._log = logger()
        self._wall_s = time.time() - time.monotonic()
        self.core: Coordinator | None = None
        self.stopping = False
        self.superseded = False
        """True if another coordinator has taken over the store. Then this process must end."""
        self.failure: Exception | None = None
        """The error that ended the loop."""
        self.ended = asyncio.Event()
        """Set when the loop has ended, because of `superseded` or `failure`."""
        self.policies_compiled = asyncio.Event()
        """Set when the policies are compiled, which takes seconds the first time on a machine."""
        self.store_error: str | None = None
        """The reason why the store cannot be written or read now; None if it can."""
        self.commits = 0
        self.neighbours: NeighbourConnections | None = None
        """The connections to neighbouring sites; set by the server."""

    def now_s(self) -> float:
        """Wall time that never jumps: the wall time at the start plus the monotonic time since."""
        return self._wall_s + time.monotonic()

    async def start(self) -> None:
        self.core = await asyncio.to_thread(self._load)
        loops = (self._supervise(self._run()), self._supervise(self._tick()), self._compile())
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    def _load(self) -> Coordinator:
        memory = self._store.load()
        epoch = f"{self._epoch}.{next(self._starts)}"
        options: dict[str, Any] = {"planners": self._planners, "proves": self._proves, "admits": self._admits}
        return Coordinator(self._rules, epoch, memory=memory, now_s=self.now_s(), **options)

    async def stop(self) -> None:
        self.stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.neighbours is not None:
            await self.neighbours.stop()
        self._close_links("the coordinator is stopping")
        self._refuse_requests("the coordinator is stopping")

    # -- events and requests -------------------------------------------------------------------------------------------

    def post(self, event: Event) -> None:
        self._inbox.append(event)
        self._wake.set()

    async def request(self, make: Callable[[int], Event]) -> Any:
        """Post the event that `make` returns for a request number, and return the core's answer.

        Raises TocsinError if the core rejects the request, or if the process is not ready.
        """
        if self.stopping or self.core is None or self.ended.is_set():
            raise TocsinError(Code.NOT_READY, "the coordinator is stopping", retry_after_s=2)
        if (refusal := self._refusal()) is not None:
            raise refusal
        number = next(self._request_numbers)
        future = self._requests[number] = asyncio.get_running_loop().create_future()
        self.post(make(number))
        try:
            answer = await future
        finally:
            self._requests.pop(number, None)
        if isinstance(answer, RequestRejection):
            raise TocsinError(answer.code, answer.message, retry_after_s=answer.retry_after_s)
        return answer

    async def run_link(self, link: BrokerLink) -> None:
        """Pass the link's messages to the core until the link ends."""
        number = next(self._link_numbers)
        self._links[number] = link
        try:
            await link.run(lambda message: self.post(LinkMessageReceived(link.broker, number, message)))
        finally:
            del self._links[number]
            self.post(LinkClosed(link.broker, number))

    def _close_links(self, reason: str) -> None:
        for link in list(self._links.values()):
            link.close(reason)
        if self.neighbours is not None:
            self.neighbours.close_all()

    def _refuse_requests(self, reason: str) -> None:
        for future in self._requests.values():
            if not future.done():
                future.set_result(RequestRejection(Code.NOT_READY, reason, retry_after_s=2))

    # -- the loop ------------------------------------------------------------------------------------------------------

    async def _supervise(self, loop: Coroutine[Any, Any, None]) -> None:
        """Run a loop; when it returns or raises, set `ended`."""
        try:
            await loop
        except Exception as error:
            self._log.error("the coordinator's loop failed", exc_info=error)
            self.failure = self.failure or error
        self.ended.set()
        self._refuse_requests("the coordinator is stopping")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            self.post(Ticked(may_plan=self.policies_compiled.is_set()))

    async def _compile(self) -> None:
        await compile_beside()
        self.policies_compiled.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            events, self._inbox = self._inbox[:_BATCH_EVENTS], self._inbox[_BATCH_EVENTS:]
            if not self._inbox:
                self._wake.clear()
            began_s = self.now_s()
            try:
                effects = self._handle(events)
            except Exception as error:
                self._log.error("the core failed; loading a new one from the store", exc_info=error)
                await self._restart_core()
                continue
            to_store = [effect for effect in effects if isinstance(effect, _STORE_EFFECTS)]
            if to_store and not await self._commit(to_store):
                return
            await self._until_leading()
            self._carry_out(effects)
            self.on_handled(self.core, effects, began_s)

    def _handle(self, events: Iterable[Event]) -> list[Effect]:
        assert self.core is not None
        effects: list[Effect] = []
        for event in events:
            effects += self.core.handle(event, self.now_s())
        return effects

    async def _commit(self, effects: list[StoreEffect]) -> bool:
        """Retry until the effects are stored. Return False if another coordinator has taken over the store."""
        failures = 0
        while True:
            try:
                await asyncio.to_thread(self._store.commit, effects)
            except Superseded as error:
                self._log.error("superseded", reason=str(error))
                self._refuse_requests(str(error))
                self.superseded = True
                return False
            except (sa.exc.SQLAlchemyError, OSError) as error:
                failures += 1
                self._report_store_error("written", failures, error)
                await asyncio.sleep(retry_delay_s(failures, longest_s=_RETRY_MOST_S))
            else:
                self.store_error = None
                self.commits += 1
                return True

    async def _until_leading(self) -> None:
        """Wait while the lease is not renewed: nothing may be sent that the next leader would contradict."""
        while self._refusal() is not None:
            await asyncio.sleep(_LEASE_LOOK_S)

    def lose_lease(self) -> None:
        """Another coordinator has taken the lease: this process must end."""
        self._log.error("superseded", reason="another coordinator has taken the lease")
        self.superseded = True
        self.ended.set()
        self._close_links("another coordinator leads")
        self._refuse_requests("another coordinator leads")

    async def _restart_core(self) -> None:
        """Close all links, refuse all requests and load a new core. Retry while the store cannot be read."""
        failures = 0
        while True:
            self._close_links("the coordinator restarts its core: register again")
            self._refuse_requests("an internal error occurred; try again")
            self._inbox.clear()
            await asyncio.sleep(retry_delay_s(failures + 1, longest_s=_RETRY_MOST_S))
            try:
                self.core = await asyncio.to_thread(self._load)
            except (sa.exc.SQLAlchemyError, OSError) as error:
                failures += 1
                self._report_store_error("read", failures, error)
            else:
                self.store_error = None
                return

    def _report_store_error(self, action: str, failures: int, error: Exception) -> None:
        self.store_error = f"the store cannot be {action}: {type(error).__name__}"
        self._log.error(f"the store cannot be {action}; retrying", failures=failures, exc_info=error)

    # -- effects -------------------------------------------------------------------------------------------------------

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendToBroker(_, number, message):
                    self._send(number, message)
                case SendHandOver():
                    self._send(effect.link, self._hand_over(effect))
                case CloseLink(_, number, reason):
                    if (link := self._links.get(number)) is not None:
                        link.close(reason)
                case SendToNeighbour(number, neighbour_message):
                    if self.neighbours is not None:
                        self.neighbours.send(number, neighbour_message)
                case SendHosting(connection):
                    if self.neighbours is not None:
                        self.neighbours.send(connection, self._host(effect))
                case CloseNeighbour(number, reason):
                    if self.neighbours is not None:
                        self.neighbours.close(number, reason)
                case AnswerRequest(number, value):
                    future = self._requests.get(number)
                    if future is not None and not future.done():
                        future.set_result(value)
                case Note(event, fields, level):
                    getattr(self._log, level)(event, **fields)
                case ReleaseAtCluster(broker):
                    self._release_at_cluster(broker)
                case KeepAtCluster(broker):
                    self._keep_at_cluster(broker)

    def _send(self, number: int, message: FromCoordinator) -> None:
        if (link := self._links.get(number)) is not None:
            link.send(message)

    def _hand_over(self, effect: SendHandOver) -> HandOver:
        return HandOver(
            effect.migration, effect.subscriber, effect.target, effect.address, self._sign(effect), effect.deadline_s
        )
