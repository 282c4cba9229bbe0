"""All people of the demo: starts and ends them, counts what they do, and collects their errors."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence

from tocsin.client import ClientError
from tocsin.demo.person import DemoPerson, PeopleCounts, Surroundings
from tocsin.demo.samples import Activity
from tocsin.sim.city.interactions import CityPerson
from tocsin.sim.city.streets import Points


class DemoPeople:
    def __init__(
        self, surroundings: Surroundings, people: Sequence[CityPerson], report_progress: Callable[[str], None]
    ) -> None:
        self._counts = surroundings.counts
        self._report_progress = report_progress
        self._over = asyncio.Event()
        self._people = [DemoPerson(surroundings, person) for person in people]
        self._tasks: list[asyncio.Task[None]] = []
        self.requested = sum(len(person.subscribes) for person in people)
        """Subscribe requests of the whole day."""
        self.errors: set[str] = set()

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._follow(person)) for person in self._people]

    async def stop(self) -> None:
        """Log all people out."""
        self._over.set()
        _, late = await asyncio.wait(self._tasks, timeout=15.0)
        for task in late:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def counts(self) -> PeopleCounts:
        return self._counts

    @property
    def online(self) -> int:
        return sum(person.is_online for person in self._people)

    def activity(self) -> Activity:
        """The hand-overs, logins and logouts so far. A hand-over is a session at another broker than the last one."""
        activity = Activity()
        for person in self._people:
            activity.session_changes.update(person.session_changes)
            for source, target in itertools.pairwise(person.brokers):
                if source != target:
                    activity.hand_overs += 1
                    activity.moves.update((source, target))
        return activity

    async def finished(self, limit_s: float) -> None:
        """Wait until all people have reached the end of their timelines or failed. A time-out is an error."""
        deadline_s = time.monotonic() + limit_s
        while late := self._unfinished():
            if time.monotonic() >= deadline_s:
                first = late[0]
                self.errors.add(f"{len(late)} people are late by {limit_s:g} s, {first.name} with {first.doing}")
                return
            await asyncio.sleep(0.25)

    def _unfinished(self) -> list[DemoPerson]:
        followed = zip(self._people, self._tasks, strict=True)
        return [person for person, task in followed if not (person.is_at_end or task.done())]

    def move(self, positions: Points) -> None:
        """Set the position of each person, in degrees."""
        for person, (lat, lon) in zip(self._people, positions.tolist(), strict=True):
            person.place = (lat, lon)

    def send_positions(self) -> None:
        """Send the position of each person that is logged in and has no outstanding answer."""
        for person in self._people:
            person.send_position()

    async def freeze(self, limit_s: float) -> dict[str, tuple[float, float]]:
        """Store the last position of each person, and return the positions. A position that is not stored is an
        error."""
        problems = await asyncio.gather(*(person.store_last_position(limit_s) for person in self._people))
        for person, problem in zip(self._people, problems, strict=True):
            if problem is not None:
                self.errors.add(f"the last position of {person.name} was not stored: {problem}")
        return {person.name: person.place for person in self._people}

    async def _follow(self, person: DemoPerson) -> None:
        try:
            await person.follow()
            await person.unless_failed(self._over.wait())
        except Exception as error:  # every error that ends a subscriber is reported, also a bug of the client
            problem = f"{type(error).__name__}: {error.message if isinstance(error, ClientError) else repr(error)}"
            if problem not in self.errors:
                self._report_progress(f"{person.name} ended with an error, with {person.doing}: {problem}")
            self.errors.add(problem)
        finally:
            await person.log_out()
