"""Drives a coordinator: one loop that handles events, writes what must not be forgotten, and only then speaks.

Whatever arrives while a transaction is being written is handled together after it, so many changes share one commit. A
store that cannot be written holds everything back until it can; brokers go on delivering meanwhile. If the logic itself
breaks, this process begins again from what is on disk and lets brokers register anew, rather than go on with a state
that may be wrong. If anything else breaks, the loop ends and says so (`ended`): whoever runs it ends the process, which
can be started again, while one that answers and does nothing cannot be told from one that is well.
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
    Effect,
    KeepAtCluster,
    Note,
    ReleaseAtCluster,
    RequestRejection,
    SendHandOver,
    SendToBroker,
    StoreEffect,
)
from tocsin.coordinator.events import Event, LinkClosed, Ticked
from tocsin.coordinator.planning import Planner, compile_policies
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.model.backoff import retry_delay_s
from tocsin.model.ids import BrokerId
from tocsin.runtime.coordinator.links import Link
from tocsin.runtime.coordinator.store import CoordinatorStore, Superseded
from tocsin.runtime.http.logs import logger
from tocsin.wire.errors import Code, TocsinError
from tocsin.wire.link import FromCoordinator, HandOver

_AT_ONCE = 10_000
"""Events handled before what they change is written."""
_STORED = StoreEffect.__args__

SignHandOver = Callable[[SendHandOver], str]


class CoordinatorProcess:
    def __init__(
        self,
        rules: CoordinatorRules,
        store: CoordinatorStore,
        epoch: str,
        sign: SignHandOver,
        *,
        planners: Mapping[str, Planner] | None = None,
        tick_s: float = 0.25,
        release_at_cluster: Callable[[BrokerId], None] = lambda broker: None,
        keep_at_cluster: Callable[[BrokerId], None] = lambda broker: None,
    ) -> None:
        """`release_at_cluster` is told which broker's subscriptions to let go; it posts `BrokerReleased` when done.
        `keep_at_cluster` is told whose it must not let go any more."""
        self.watch: Callable[[Coordinator | None, Iterable[Effect], float], None] = lambda core, effects, began_s: None
        """Is told what was done, once it is on disk, and when that began."""
        self._rules = rules
        self._store = store
        self._epoch = epoch
        self._sign = sign
        self._planners = dict(planners or {})
        self._tick_s = tick_s
        self._release_at_cluster = release_at_cluster
        self._keep_at_cluster = keep_at_cluster
        self._starts = count()
        self._link_numbers = count(1)
        self._asks = count(1)
        self._waiting: dict[int, asyncio.Future[object]] = {}
        self._links: dict[int, Link] = {}
        self._inbox: list[Event] = []
        self._awake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._log = logger()
        self._wall_s = time.time() - time.monotonic()
        self.core: Coordinator | None = None
        self.stopping = False
        self.superseded = False
        """Another coordinator has taken over: this one must end."""
        self.failure: Exception | None = None
        """What broke that cannot be mended here."""
        self.ended = asyncio.Event()
        """Nothing more is handled, for one of these two reasons."""
        self.may_plan = asyncio.Event()
        """The policies are compiled: the first time ever on a machine this takes seconds."""
        self.unwritable: str | None = None
        """Why nothing can be stored, or read again, at the moment."""
        self.commits = 0

    def now_s(self) -> float:
        """Wall time that never jumps: what it was at the start, and what has passed since."""
        return self._wall_s + time.monotonic()

    async def start(self) -> None:
        self.core = await asyncio.to_thread(self._load)
        loops = (self._to_the_end(self._run()), self._to_the_end(self._tick()), self._compile())
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    def _load(self) -> Coordinator:
        memory = self._store.load()
        epoch = f"{self._epoch}.{next(self._starts)}"
        return Coordinator(self._rules, epoch, memory=memory, now_s=self.now_s(), planners=self._planners)

    async def stop(self) -> None:
        self.stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in list(self._links.values()):
            link.close("the coordinator is stopping")
        self._refuse_waiting("the coordinator is stopping")

    # -- what arrives --------------------------------------------------------------------------------------------------

    def post(self, event: Event) -> None:
        self._inbox.append(event)
        self._awake.set()

    async def ask(self, make: Callable[[int], Event]) -> Any:
        """The answer to a request; raises what it was rejected with."""
        if self.stopping or self.core is None or self.ended.is_set():
            raise TocsinError(Code.NOT_READY, "the coordinator is stopping", retry_after_s=2)
        number = next(self._asks)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        self.post(make(number))
        try:
            answer = await waiting
        finally:
            self._waiting.pop(number, None)
        if isinstance(answer, RequestRejection):
            raise TocsinError(answer.code, answer.message, retry_after_s=answer.retry_after_s)
        return answer

    def add_link(self, link: Link) -> int:
        number = next(self._link_numbers)
        self._links[number] = link
        return number

    def remove_link(self, broker: BrokerId, number: int) -> None:
        self._links.pop(number, None)
        self.post(LinkClosed(broker, number))

    @property
    def links(self) -> int:
        return len(self._links)

    # -- the loop ------------------------------------------------------------------------------------------------------

    async def _to_the_end(self, loop: Coroutine[Any, Any, None]) -> None:
        try:
            await loop
        except Exception as error:
            self._log.error("the coordinator's loop broke", exc_info=error)
            self.failure = self.failure or error
        self.ended.set()
        self._refuse_waiting("the coordinator is stopping")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            self.post(Ticked(may_plan=self.may_plan.is_set()))

    async def _compile(self) -> None:
        await asyncio.to_thread(compile_policies)
        self.may_plan.set()

    async def _run(self) -> None:
        while True:
            await self._awake.wait()
            events, self._inbox = self._inbox[:_AT_ONCE], self._inbox[_AT_ONCE:]
            if not self._inbox:
                self._awake.clear()
            began_s = self.now_s()
            try:
                effects = self._handle(events)
            except Exception as error:
                self._log.error("the logic broke; beginning again from the store", exc_info=error)
                await self._begin_again()
                continue
            stored = [effect for effect in effects if isinstance(effect, _STORED)]
            if stored and not await self._commit(stored):
                return
            self._do(effects)
            self.watch(self.core, effects, began_s)

    def _handle(self, events: Iterable[Event]) -> list[Effect]:
        assert self.core is not None
        effects: list[Effect] = []
        for event in events:
            effects += self.core.handle(event, self.now_s())
        return effects

    async def _commit(self, stored: list[StoreEffect]) -> bool:
        """Until it is written: nothing else is true before. False if this process may not write any more."""
        failures = 0
        while True:
            try:
                await asyncio.to_thread(self._store.commit, stored)
            except Superseded as error:
                self._log.error("superseded", reason=str(error))
                self._refuse_waiting(str(error))
                self.superseded = True
                return False
            except (sa.exc.SQLAlchemyError, OSError) as error:
                failures += 1
                self.unwritable = f"the store cannot be written: {type(error).__name__}"
                self._log.error("the store cannot be written, trying again", failures=failures, exc_info=error)
                await asyncio.sleep(min(5.0, retry_delay_s(failures)))
            else:
                self.unwritable = None
                self.commits += 1
                return True

    async def _begin_again(self) -> None:
        """As often as it takes: a store that cannot be read now will be, as one that cannot be written."""
        failures = 0
        while True:
            for link in list(self._links.values()):
                link.close("the coordinator begins again: register again")
            self._refuse_waiting("something went wrong inside; try again")
            self._inbox.clear()
            await asyncio.sleep(min(5.0, retry_delay_s(failures + 1)))
            try:
                self.core = await asyncio.to_thread(self._load)
            except (sa.exc.SQLAlchemyError, OSError) as error:
                failures += 1
                self.unwritable = f"the store cannot be read: {type(error).__name__}"
                self._log.error("the store cannot be read, trying again", failures=failures, exc_info=error)
            else:
                self.unwritable = None
                return

    def _refuse_waiting(self, why: str) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(RequestRejection(Code.NOT_READY, why, retry_after_s=2))

    # -- what is to be done --------------------------------------------------------------------------------------------

    def _do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendToBroker(_, number, message):
                    self._send(number, message)
                case SendHandOver():
                    self._send(effect.link, self._hand_over(effect))
                case CloseLink(_, number, reason):
                    link = self._links.get(number)
                    if link is not None:
                        link.close(reason)
                case AnswerRequest(number, value):
                    waiting = self._waiting.get(number)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(value)
                case Note(event, fields, level):
                    getattr(self._log, level)(event, **fields)
                case ReleaseAtCluster(broker):
                    self._release_at_cluster(broker)
                case KeepAtCluster(broker):
                    self._keep_at_cluster(broker)

    def _send(self, number: int, message: FromCoordinator) -> None:
        link = self._links.get(number)
        if link is not None:
            link.send(message)

    def _hand_over(self, effect: SendHandOver) -> HandOver:
        return HandOver(
            effect.migration, effect.subscriber, effect.target, effect.address, self._sign(effect), effect.deadline_s
        )
