"""Does what an application file names exist? The one check that needs to know what is already there.

Pure: the caller says which datasets, channels and feeds its catalog holds. `tocsin check` and `tocsin apply` drive it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tocsin.cluster.sql.problems import Position, Problem, did_you_mean
from tocsin.cluster.sql.statements import (
    Application,
    CreateChannel,
    CreateDataset,
    CreateFeed,
    DropChannel,
    DropDataset,
    DropFeed,
)
from tocsin.model.entities import DatasetKind


def check_references(
    application: Application,
    datasets: Mapping[str, DatasetKind],
    channels: Iterable[str] = (),
    feeds: Iterable[str] = (),
    file: str = "<text>",
) -> list[Problem]:
    """Problems of the file's statements, applied in order to a catalog that holds these things."""
    checking = _Checking(file, datasets, channels, feeds)
    for statement in application.statements:
        match statement:
            case CreateDataset(dataset):
                may_exist = statement.replace or statement.if_not_exists
                checking.create("dataset", dataset.name, statement.position, may_exist, dataset.kind)
            case CreateChannel(channel):
                checking.reads(statement)
                may_exist = statement.replace or statement.if_not_exists
                checking.create("channel", channel.name, statement.position, may_exist)
            case CreateFeed(feed):
                checking.fills(statement)
                may_exist = statement.replace or statement.if_not_exists
                checking.create("feed", feed.name, statement.position, may_exist)
            case DropDataset(name, position, if_exists):
                checking.drop("dataset", name, position, if_exists)
            case DropChannel(name, position, if_exists):
                checking.drop("channel", name, position, if_exists)
            case DropFeed(name, position, if_exists):
                checking.drop("feed", name, position, if_exists)
    return checking.problems


class _Checking:
    def __init__(
        self, file: str, datasets: Mapping[str, DatasetKind], channels: Iterable[str], feeds: Iterable[str]
    ) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._kinds = {name.upper(): kind for name, kind in datasets.items()}
        self._names = {
            "dataset": {name.upper(): name for name in datasets},
            "channel": {name.upper(): name for name in channels},
            "feed": {name.upper(): name for name in feeds},
        }

    def create(self, what: str, name: str, place: Position, may_exist: bool, kind: DatasetKind | None = None) -> None:
        if name.upper() in self._names[what] and not may_exist:
            self._note(place, f"{what} '{name}' exists already", "exists", "OR REPLACE or IF NOT EXISTS")
        self._names[what][name.upper()] = name
        if kind is not None:
            self._kinds[name.upper()] = kind

    def drop(self, what: str, name: str, place: Position, if_exists: bool) -> None:
        if self._names[what].pop(name.upper(), None) is None and not if_exists:
            hint = did_you_mean(name, self._names[what].values())
            self._note(place, f"{what} '{name}' does not exist{hint}", f"unknown-{what}", "IF EXISTS")

    def reads(self, statement: CreateChannel) -> None:
        for table in statement.query.references:
            place = Position.of(statement.query.text, table.start).inside(statement.query_position)
            known = self._dataset_exists(table.dataset, place)
            if known and table.is_new and self._kinds[table.dataset.upper()] is DatasetKind.STATIC:
                message = f"'{table.dataset}' is STATIC and never has new records: expected it without NEW"
                self._note(place, message, "new-of-static", table.dataset)

    def fills(self, statement: CreateFeed) -> None:
        name, place = statement.feed.dataset, statement.dataset_position
        if self._dataset_exists(name, place) and self._kinds[name.upper()] is DatasetKind.STATIC:
            self._note(
                place, f"'{name}' is STATIC: expected a STREAM or KEYED dataset", "feed-into-static", "a dataset"
            )

    def _dataset_exists(self, name: str, place: Position) -> bool:
        if name.upper() in self._names["dataset"]:
            return True
        hint = did_you_mean(name, self._names["dataset"].values())
        self._note(place, f"dataset '{name}' does not exist{hint}", "unknown-dataset", "a dataset")
        return False

    def _note(self, place: Position, message: str, code: str, expected: str) -> None:
        self.problems.append(Problem(self.file, place.line, place.column, message, expected, code))
