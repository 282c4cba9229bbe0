"""Plans what each statement of an application file does to a cluster with given definitions.

Each statement becomes a planned statement with its action, or a problem at its position if it would break something or
names something that does not exist. Statements are planned in order, each on top of those before it. Pure: no Spark, no
files. `cluster.applying` and `tocsin check` call `plan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tocsin.cluster.sql.declarations import (
    Application,
    CreateChannel,
    CreateDataset,
    CreateFeed,
    CreateTopic,
    DropChannel,
    DropDataset,
    DropFeed,
    DropTopic,
    Statement,
)
from tocsin.cluster.sql.problems import Position, Problem, did_you_mean
from tocsin.cluster.sql.tokens import TokenKind, scan
from tocsin.model.entities import Channel, Dataset, DatasetKind, Feed


class Action(StrEnum):
    CREATED = "created"
    UNCHANGED = "unchanged"
    """The object exists already as declared, or a DROP … IF EXISTS names an object that does not exist."""
    REPLACED = "replaced"
    CHANGED = "changed"
    """The definition changes in place, and the records stay: a dataset gets, or loses, OWNED BY."""
    DROPPED = "dropped"
    LEFT = "left to the coordinator"
    """A topic: the data cluster has only checked the dataset of its RECORD INTO."""


@dataclass(frozen=True, slots=True)
class PlannedStatement:
    statement: Statement
    action: Action


@dataclass(slots=True)
class Definitions:
    """The datasets, channels and feeds of a cluster, by lower-case name."""

    datasets: dict[str, Dataset]
    channels: dict[str, Channel]
    reads: dict[str, frozenset[str]]
    """Channel → the datasets that its query reads, in lower case."""
    feeds: dict[str, Feed]

    def users_of(self, dataset: str) -> list[str]:
        """The channels that read the dataset and the feeds that fill it, sorted."""
        key = dataset.lower()
        channels: list[str] = [channel.name for name, channel in self.channels.items() if key in self.reads[name]]
        return sorted(channels + [feed.name for feed in self.feeds.values() if feed.dataset.lower() == key])


def plan(application: Application, definitions: Definitions, file: str) -> tuple[list[PlannedStatement], list[Problem]]:
    """The planned statements, and all problems. If there are problems, apply nothing. Changes `definitions`."""
    planning = _Planning(definitions, file, application.problems)
    statements = [
        PlannedStatement(statement, action)
        for statement in application.statements
        if (action := planning.add(statement)) is not None
    ]
    return statements, sorted(planning.problems, key=lambda problem: problem.position)


class _Planning:
    def __init__(self, definitions: Definitions, file: str, problems: Iterable[Problem]) -> None:
        self.definitions = definitions
        self.file = file
        self.problems = list(problems)
        # The names as if every statement had succeeded, so that one problem does not cause others further on.
        self._kinds = {dataset.name.upper(): dataset.kind for dataset in definitions.datasets.values()}
        self._names: dict[str, dict[str, str]] = {
            "dataset": {dataset.name.upper(): dataset.name for dataset in definitions.datasets.values()},
            "channel": {channel.name.upper(): channel.name for channel in definitions.channels.values()},
            "feed": {feed.name.upper(): feed.name for feed in definitions.feeds.values()},
        }

    def add(self, statement: Statement) -> Action | None:
        """Plan one statement. None if it has a problem that leaves it without an action."""
        match statement:
            case CreateDataset():
                return self._create_dataset(statement)
            case CreateChannel():
                return self._create_channel(statement)
            case CreateFeed():
                return self._create_feed(statement)
            case DropDataset(name, position, if_exists):
                self._check_dropped("dataset", name, position, if_exists)
                if users := self.definitions.users_of(name):
                    self._note(position, f"dataset '{name}' is used by {', '.join(users)}: drop those first", "in-use")
                    return None
                return self._dropped(self.definitions.datasets.pop(name.lower(), None))
            case DropChannel(name, position, if_exists):
                self._check_dropped("channel", name, position, if_exists)
                return self._dropped(self.definitions.channels.pop(name.lower(), None))
            case DropFeed(name, position, if_exists):
                self._check_dropped("feed", name, position, if_exists)
                return self._dropped(self.definitions.feeds.pop(name.lower(), None))
            case CreateTopic(topic, _, position):
                if topic.record_into is not None:
                    self._check_filled(topic.record_into, position, "record-into-static")
                return Action.LEFT
            case DropTopic():
                return Action.LEFT

    def _create_dataset(self, statement: CreateDataset) -> Action | None:
        dataset, key = statement.dataset, statement.dataset.name.lower()
        self._names["dataset"][key.upper()] = dataset.name
        self._kinds[key.upper()] = dataset.kind
        existing = self.definitions.datasets.get(key)
        action = Action.CREATED
        if existing is not None:
            differs = _dataset_differences(existing, dataset)
            reload = statement.replace and dataset.kind is DatasetKind.STATIC is existing.kind
            if reload:
                action = Action.REPLACED
            elif statement.if_not_exists or (not differs and existing.owned_by == dataset.owned_by):
                return Action.UNCHANGED
            elif not differs:
                action = Action.CHANGED
            else:
                self._exists("dataset", existing.name, differs, statement.position)
                return None
        self.definitions.datasets[key] = dataset
        return action

    def _create_channel(self, statement: CreateChannel) -> Action | None:
        channel, key = statement.channel, statement.channel.name.lower()
        self._check_reads(statement)
        self._names["channel"][key.upper()] = channel.name
        existing = self.definitions.channels.get(key)
        differs = [] if existing is None else _channel_differences(existing, channel)
        action = self._created("channel", existing, differs, statement)
        if action in (Action.CREATED, Action.REPLACED):
            self.definitions.channels[key] = channel
            names = statement.query.datasets | statement.query.new_datasets
            self.definitions.reads[key] = frozenset(name.lower() for name in names)
        return action

    def _create_feed(self, statement: CreateFeed) -> Action | None:
        feed, key = statement.feed, statement.feed.name.lower()
        self._check_filled(feed.dataset, statement.dataset_position, "feed-into-static")
        self._names["feed"][key.upper()] = feed.name
        existing = self.definitions.feeds.get(key)
        differs = [] if existing is None else _feed_differences(existing, feed)
        action = self._created("feed", existing, differs, statement)
        if action in (Action.CREATED, Action.REPLACED):
            self.definitions.feeds[key] = feed
        return action

    def _created(
        self,
        what: str,
        existing: Channel | Feed | None,
        differs: Sequence[str],
        statement: CreateChannel | CreateFeed,
    ) -> Action | None:
        """The action of a CREATE; None, with a problem, if another definition exists and it may not be replaced."""
        if existing is None:
            return Action.CREATED
        if not differs or statement.if_not_exists:
            return Action.UNCHANGED
        if not statement.replace:
            self._exists(what, existing.name, differs, statement.position, or_replace=True)
            return None
        return Action.REPLACED

    def _dropped(self, existing: object) -> Action:
        return Action.UNCHANGED if existing is None else Action.DROPPED

    def _exists(
        self, what: str, name: str, differs: Iterable[str], position: Position, *, or_replace: bool = False
    ) -> None:
        advice = f"DROP {what.upper()} {name} first"
        if or_replace:
            advice += ", or say CREATE OR REPLACE"
        message = f"{what} '{name}' exists already with another definition ({', '.join(differs)} differ): {advice}"
        self._note(position, message, "exists", advice)

    def _check_dropped(self, what: str, name: str, position: Position, if_exists: bool) -> None:
        if self._names[what].pop(name.upper(), None) is None and not if_exists:
            hint = did_you_mean(name, self._names[what].values())
            self._note(position, f"{what} '{name}' does not exist{hint}", f"unknown-{what}", "IF EXISTS")

    def _check_reads(self, statement: CreateChannel) -> None:
        for table in statement.query.references:
            position = Position.of(statement.query.text, table.start).inside(statement.query_position)
            exists = self._check_dataset(table.dataset, position)
            if exists and table.is_new and self._kinds[table.dataset.upper()] is DatasetKind.STATIC:
                message = f"'{table.dataset}' is STATIC and never has new records: expected it without NEW"
                self._note(position, message, "new-of-static", table.dataset)

    def _check_filled(self, name: str, position: Position, code: str) -> None:
        if self._check_dataset(name, position) and self._kinds[name.upper()] is DatasetKind.STATIC:
            message = f"'{name}' is STATIC: expected a STREAM or KEYED dataset"
            self._note(position, message, code, "a dataset")

    def _check_dataset(self, name: str, position: Position) -> bool:
        if name.upper() in self._names["dataset"]:
            return True
        hint = did_you_mean(name, self._names["dataset"].values())
        self._note(position, f"dataset '{name}' does not exist{hint}", "unknown-dataset", "a dataset")
        return False

    def _note(self, position: Position, message: str, code: str, expected: str | None = None) -> None:
        self.problems.append(Problem.at(self.file, position, message, code, expected))


def _dataset_differences(old: Dataset, new: Dataset) -> list[str]:
    """The differences that concern the records. The owner is not compared: it decides only which user may write."""
    compared = {
        "kinds": old.kind is new.kind,
        # A STATIC dataset declared without columns has the columns of its file.
        "columns": old.schema == new.schema or (not new.schema.columns and new.kind is DatasetKind.STATIC),
        "keys": old.key == new.key,
        "orders": old.order_by == new.order_by,
        "retentions": old.retain_s == new.retain_s,
        "files": old.source == new.source,
    }
    return [name for name, same in compared.items() if not same]


def _channel_differences(old: Channel, new: Channel) -> list[str]:
    compared = {
        "kinds": old.kind is new.kind,
        "parameters": (old.parameters, old.bound) == (new.parameters, new.bound),
        "queries": _words(old.query) == _words(new.query),
        "periods": old.period_s == new.period_s,
        "retentions": old.retain_s == new.retain_s,
    }
    return [name for name, same in compared.items() if not same]


def _feed_differences(old: Feed, new: Feed) -> list[str]:
    compared = {
        "datasets": old.dataset.lower() == new.dataset.lower(),
        "formats": old.format.lower() == new.format.lower(),
        "options": dict(old.options) == dict(new.options),
    }
    return [name for name, same in compared.items() if not same]


def _words(query: str) -> list[tuple[TokenKind, str]]:
    """The tokens: two queries that differ only in blanks and comments are the same query."""
    return [(token.kind, token.text) for token in scan(query).tokens]
