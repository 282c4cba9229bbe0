"""The search for a value that kills Spark: it goes on over restarts and needs few deaths."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tocsin.cluster.catalog.trials import OnTrial
from tocsin.cluster.deaths import find_killer


class Died(Exception):
    pass


class Machine:
    """Spark and the catalog's row, for a value that kills."""

    def __init__(self, killer: int | None) -> None:
        self.killer = killer
        self.stored: OnTrial | None = None

    def try_group(self, group: OnTrial) -> None:
        self.stored = group
        if self.killer is not None and group.first <= self.killer <= group.last:
            raise Died
        self.stored = None

    def search(self, values: Sequence[int]) -> tuple[int | None, int]:
        """(the killer, how often the machine died). The search begins after a first death."""
        deaths = 1
        while True:
            try:
                return find_killer("subscriptions", values, self.stored, deaths, self.try_group), deaths
            except Died:
                deaths += 1


@given(st.sets(st.integers(1, 5_000), min_size=1, max_size=300), st.data())
def test_killer_is_found_over_restarts_with_few_deaths(values: set[int], data: st.DataObject) -> None:
    killer = data.draw(st.sampled_from(sorted(values)))
    found, deaths = Machine(killer).search(sorted(values))
    assert found == killer and deaths == 3


def test_no_value_is_blamed_if_all_groups_survive() -> None:
    assert Machine(None).search(range(100)) == (None, 1)
    assert find_killer("subscriptions", [3, 4], OnTrial("records Reports", 3, 3), 9, lambda _: None) is None


def test_single_suspect_that_survives_is_not_blamed() -> None:
    """Spark was killed from outside during its trial, or a full disk kept the end of the trial from being stored."""
    machine = Machine(None)
    machine.stored = OnTrial("subscriptions", 7, 7)
    assert machine.search([7]) == (None, 1) and machine.stored is None
