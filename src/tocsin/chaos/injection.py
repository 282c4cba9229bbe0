"""Injects the faults of a chaos run into a running network, from outside its processes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from tocsin.chaos.crowd import ChaosCrowd, Member
from tocsin.chaos.disk import allow_writes, refuse_writes, tear_last_writes
from tocsin.chaos.faults import PROCESS_FAULTS, Fault, FaultKind
from tocsin.chaos.faulty_process import Control, write_control
from tocsin.chaos.processes import jvm_of
from tocsin.chaos.relay import Relays
from tocsin.runtime.stack.stack import Stack
from tocsin.runtime.stack.supervisor import Child
from tocsin.wire.errors import TocsinError

_SLOW_FSYNC_S = 0.3
_LOST_ANSWERS = 3
_TARGET_S = 90.0
"""How long a fault waits for its target: an earlier fault may have ended the process or its connections."""


class Injector:
    def __init__(
        self,
        stack: Stack,
        root: Path,
        relays: Relays,
        crowd: ChaosCrowd,
        coordinator: httpx.AsyncClient,
        rng: random.Random,
    ) -> None:
        """`root` is the data root. `coordinator` is a client of its API that does not pass a relay."""
        self._stack = stack
        self._root = root
        self._relays = relays
        self._crowd = crowd
        self._coordinator = coordinator
        self._rng = rng
        self.faults: Counter[str] = Counter()
        """Faults that took effect, by name."""
        self.answers: Counter[str] = Counter()
        """The coordinator's answers to requests, counted."""
        self.migrations = 0

    async def inject(self, fault: Fault) -> None:
        """Inject a fault, end it after its time, and count it if it took effect."""
        if await self._take_effect(fault):
            self.faults[fault.name] += 1

    async def _take_effect(self, fault: Fault) -> bool:
        stack = self._stack
        match fault.kind:
            case FaultKind.KILL | FaultKind.RESTART | FaultKind.PAUSE:
                return await self._signal(self._child(fault.target), fault)
            case FaultKind.KILL_BOTH:
                broker = stack.brokers[self._rng.choice(list(stack.brokers))]
                await self._wait_until_up(stack.coordinator, broker)
                both = [child.signal(signal.SIGKILL) for child in (stack.coordinator, broker)]
                return all(both)
            case FaultKind.KILL_JVM:
                await self._wait_until_up(stack.cluster)
                return _send(jvm_of(stack.cluster.pid), signal.SIGKILL)
            case FaultKind.FREEZE_JVM:
                return await self._freeze_jvm(fault.lasting_s)
            case FaultKind.TORN_WRITE:
                return await self._tear_writes()
            case FaultKind.FULL_DISK:
                return await self._fill_disk(fault.lasting_s)
            case FaultKind.SLOW_DISK:
                return await self._control(Control(fsync_delay_s=_SLOW_FSYNC_S), fault.lasting_s)
            case FaultKind.CLOCK_STEP:
                return await self._control(Control(clock_ahead_s=fault.step_s), fault.lasting_s)
            case FaultKind.PARTITION | FaultKind.LOST_ANSWER:
                return await self._break_link(fault)
            case _:
                return await self._disturb_subscribers(fault)

    async def _disturb_subscribers(self, fault: Fault) -> bool:
        chosen = [member for member in self._crowd.members if self._rng.random() < fault.share]
        match fault.kind:
            case FaultKind.MIGRATE:
                return await self._migrate(chosen)
            case FaultKind.DRAIN:
                await self._wait_until_up(self._stack.coordinator)
                happened = await self._post(f"/v1/brokers/{fault.target}/drain", {"on": True})
                await asyncio.sleep(fault.lasting_s)
                await self._post_until_accepted(f"/v1/brokers/{fault.target}/drain", {"on": False})
                return happened
            case FaultKind.DROP:
                for member in chosen:
                    self._crowd.drop(member)
            case _:
                await asyncio.gather(*(self._crowd.leave_for(member, fault.lasting_s) for member in chosen))
        return bool(chosen)

    # -- processes ---------------------------------------------------------------------------------------------------

    def _child(self, name: str) -> Child:
        stack = self._stack
        return {"coordinator": stack.coordinator, "cluster": stack.cluster, **stack.brokers}[name]

    async def _wait_until_up(self, *children: Child) -> None:
        with suppress(TocsinError):
            await asyncio.gather(*(child.ready(_TARGET_S) for child in children))

    async def _signal(self, child: Child, fault: Fault) -> bool:
        assert fault.kind in PROCESS_FAULTS
        await self._wait_until_up(child)
        if fault.kind is not FaultKind.PAUSE:
            return child.signal(signal.SIGKILL if fault.kind is FaultKind.KILL else signal.SIGTERM)
        happened = child.signal(signal.SIGSTOP)
        await asyncio.sleep(fault.lasting_s)
        child.signal(signal.SIGCONT)
        return happened

    async def _freeze_jvm(self, lasting_s: float) -> bool:
        await self._wait_until_up(self._stack.cluster)
        jvm = jvm_of(self._stack.cluster.pid)
        happened = _send(jvm, signal.SIGSTOP)
        await asyncio.sleep(lasting_s)
        _send(jvm, signal.SIGCONT)
        return happened

    # -- the disk and the clock of the data cluster ------------------------------------------------------------------

    async def _tear_writes(self) -> bool:
        """Kill the data cluster, and tear its last writes before the supervisor starts it again."""
        cluster = self._stack.cluster
        await self._wait_until_up(cluster)
        starts = cluster.starts
        if not cluster.signal(signal.SIGKILL):
            return False
        while cluster.pid is not None and cluster.starts == starts:
            await asyncio.sleep(0.005)
        return cluster.starts == starts and tear_last_writes(self._root) > 0

    async def _fill_disk(self, lasting_s: float) -> bool:
        await self._wait_until_up(self._stack.cluster)
        pid = self._stack.cluster.pid
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            refuse_writes(pid)
            await asyncio.sleep(lasting_s)
        with suppress(ProcessLookupError):
            allow_writes(pid)
        return True

    async def _control(self, control: Control, lasting_s: float) -> bool:
        await self._wait_until_up(self._stack.cluster)
        write_control(self._root, control)
        await asyncio.sleep(lasting_s)
        write_control(self._root, Control())
        return self._stack.cluster.pid is not None

    # -- connections and subscribers ---------------------------------------------------------------------------------

    async def _break_link(self, fault: Fault) -> bool:
        source, _, target = fault.target.partition(">")
        relay = self._relays.by_link[source, target]
        if fault.kind is FaultKind.PARTITION:
            return await relay.partition(fault.lasting_s, _TARGET_S)
        return await relay.lose_answers(_LOST_ANSWERS, _TARGET_S)

    async def _migrate(self, members: list[Member]) -> bool:
        """Request a move of each member to another live broker. Return whether the coordinator accepted any."""
        await self._wait_until_up(self._stack.coordinator, *self._stack.brokers.values())
        try:
            brokers = (await self._coordinator.get("/v1/brokers")).json()["brokers"]
            alive = [broker["broker"] for broker in brokers if broker["state"] == "alive"]
        except (httpx.HTTPError, LookupError, ValueError):
            return False
        requests = []
        for member in members:
            here = None if member.subscriber is None else member.subscriber.broker
            if elsewhere := [name for name in alive if name != here]:
                body = {"subscriber": member.user, "target": self._rng.choice(elsewhere)}
                requests.append(self._post("/v1/migrations", body))
        accepted = sum(await asyncio.gather(*requests))
        self.migrations += accepted
        return accepted > 0

    async def _post(self, path: str, body: dict[str, Any]) -> bool:
        """Return False if the coordinator is down or refuses: the faults make both likely."""
        try:
            response = await self._coordinator.post(path, json=body)
        except httpx.HTTPError as error:
            self.answers[f"none: {type(error).__name__}"] += 1
            return False
        outcome = "done" if response.is_success else str(response.json().get("error", {}).get("message"))
        self.answers[f"{response.status_code} {outcome}"] += 1
        return response.is_success

    async def _post_until_accepted(self, path: str, body: dict[str, Any]) -> None:
        for _ in range(60):
            if await self._post(path, body):
                return
            await asyncio.sleep(1.0)


def _send(pid: int | None, number: int) -> bool:
    """Send a signal. False if the process does not exist."""
    if pid is None:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
