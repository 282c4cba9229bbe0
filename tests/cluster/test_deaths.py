"""The search for a value that kills Spark: it goes on over restarts and needs few deaths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tocsin.cluster.catalog.trials import OnTrial
from tocsin.cluster.deaths import BY_ITSELF, FROM_OUTSIDE, GROUPS, GUILTY, find_killer


class Died(Exception):
    pass


class Machine:
    """Spark and the catalog's rows, for a value that kills."""

    def __init__(self, killer: int | None, by_itself: bool = True) -> None:
        self.killer = killer
        self.stored: OnTrial | None = None
        self.evidence: Counter[OnTrial] = Counter()
        self.killed_from_outside = 0
        """Kills from outside that are still to come, one during each trial."""
        self._worth = BY_ITSELF if by_itself else FROM_OUTSIDE

    def try_group(self, group: OnTrial) -> None:
        self.stored = group
        is_killed = self.killed_from_outside > 0
        self.killed_from_outside -= is_killed
        if is_killed or (self.killer is not None and group.first <= self.killer <= group.last):
            if group.is_single:
                self.evidence[group] += self._worth
            raise Died
        del self.evidence[group]
        self.stored = None

    def search(self, values: Sequence[int]) -> tuple[int | None, int]:
        """(the killer, how often the machine died). The search begins after a first death."""
        deaths = 1
        while True:
            evidence = 0 if self.stored is None else self.evidence[self.stored]
            try:
                return find_killer("subscriptions", values, self.stored, evidence, self.try_group), deaths
            except Died:
                deaths += 1


@given(st.sets(st.integers(1, 5_000), min_size=1, max_size=300), st.booleans(), st.data())
def test_killer_is_found_over_restarts_with_few_deaths(values: set[int], by_itself: bool, data: st.DataObject) -> None:
    killer = data.draw(st.sampled_from(sorted(values)))
    found, deaths = Machine(killer, by_itself).search(sorted(values))
    own_trials = 2 if by_itself else 6
    larger_groups = 0 if len(values) <= GROUPS else 1
    assert found == killer and deaths == 1 + larger_groups + own_trials


def test_no_value_is_blamed_if_all_groups_survive() -> None:
    assert Machine(None).search(range(100)) == (None, 1)
    assert find_killer("subscriptions", [3, 4], OnTrial("records Reports", 3, 3), 9, lambda _: None) is None


@given(st.integers(1, 200), st.integers(0, 5))
def test_innocent_value_is_not_blamed_for_kills_from_outside(values: int, kills: int) -> None:
    """Kills before the search, and up to five during its trials, as the supervisor of a machine may cause."""
    machine = Machine(None, by_itself=False)
    machine.killed_from_outside = kills
    assert machine.search(range(values)) == (None, 1 + kills)


def test_machine_that_kills_every_trial_blames_no_value() -> None:
    """The value has evidence against it, but Spark does not survive the other values either."""
    machine = Machine(None)
    machine.stored = OnTrial("subscriptions", 7, 7)
    machine.evidence[machine.stored] = GUILTY
    machine.killed_from_outside = 1
    found, _ = machine.search(range(20))
    assert found is None


def test_single_suspect_that_survives_is_not_blamed() -> None:
    """Spark was killed from outside during its trial, or a full disk kept the end of the trial from being stored."""
    machine = Machine(None)
    machine.stored = OnTrial("subscriptions", 7, 7)
    assert machine.search([7]) == (None, 1) and machine.stored is None
