"""What each statement of an application file will do to a cluster that holds certain things. Pure: no Spark, no files.

A statement that would break something becomes a problem at its place; the others become steps with their action. The
statements are taken in order, each on top of those before it. `cluster.applying` drives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tocsin.cluster.sql.problems import Position, Problem
from tocsin.cluster.sql.references import check_references
from tocsin.cluster.sql.statements import (
    Application,
    CreateChannel,
    CreateDataset,
    CreateFeed,
    DropChannel,
    DropDataset,
    DropFeed,
    Statement,
)
from tocsin.cluster.sql.tokens import TokenKind, scan
from tocsin.model.entities import Channel, Dataset, DatasetKind, Feed


class Action(StrEnum):
    CREATED = "created"
    UNCHANGED = "unchanged"
    """It is there already, as declared; or it is not there and was to be dropped IF EXISTS."""
    REPLACED = "replaced"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Step:
    statement: Statement
    action: Action


@dataclass(slots=True)
class World:
    """What exists, by lower-case name."""

    datasets: dict[str, Dataset]
    channels: dict[str, Channel]
    reads: dict[str, frozenset[str]]
    """Channel → the datasets its query names, in lower case."""
    feeds: dict[str, Feed]

    def users_of(self, dataset: str) -> list[str]:
        key = dataset.lower()
        channels: list[str] = [channel.name for name, channel in self.channels.items() if key in self.reads[name]]
        return sorted(channels + [feed.name for feed in self.feeds.values() if feed.dataset.lower() == key])


def plan(application: Application, world: World, file: str) -> tuple[list[Step], list[Problem]]:
    """The steps to take, and every problem; with a problem among them nothing should be done. Changes `world`."""
    problems = list(application.problems) + _unknown_names(application, world, file)
    planning = _Planning(world, file, problems)
    steps = [
        Step(statement, action)
        for statement in application.statements
        if (action := planning.take(statement)) is not None
    ]
    return steps, sorted(problems, key=lambda problem: problem.position)


def _unknown_names(application: Application, world: World, file: str) -> list[Problem]:
    # Whether something may exist already depends on how it is defined, which `_Planning` looks at.
    lenient = tuple(
        replace(statement, if_not_exists=True)
        if isinstance(statement, CreateDataset | CreateChannel | CreateFeed)
        else statement
        for statement in application.statements
    )
    return check_references(
        Application(lenient, ()),
        {dataset.name: dataset.kind for dataset in world.datasets.values()},
        [channel.name for channel in world.channels.values()],
        [feed.name for feed in world.feeds.values()],
        file,
    )


class _Planning:
    def __init__(self, world: World, file: str, problems: list[Problem]) -> None:
        self.world = world
        self.file = file
        self.problems = problems

    def take(self, statement: Statement) -> Action | None:
        match statement:
            case CreateDataset():
                return self._create_dataset(statement)
            case CreateChannel():
                return self._create_channel(statement)
            case CreateFeed():
                return self._create_feed(statement)
            case DropDataset(name, position, _):
                if users := self.world.users_of(name):
                    self._note(position, f"dataset '{name}' is used by {', '.join(users)}: drop those first", "in-use")
                    return None
                return self._dropped(self.world.datasets.pop(name.lower(), None))
            case DropChannel(name, _, _):
                return self._dropped(self.world.channels.pop(name.lower(), None))
            case DropFeed(name, _, _):
                return self._dropped(self.world.feeds.pop(name.lower(), None))

    def _create_dataset(self, statement: CreateDataset) -> Action | None:
        dataset, key = statement.dataset, statement.dataset.name.lower()
        existing = self.world.datasets.get(key)
        action = Action.CREATED
        if existing is not None:
            differs = _dataset_differences(existing, dataset)
            reload = statement.replace and dataset.kind is DatasetKind.STATIC is existing.kind
            if reload:
                action = Action.REPLACED
            elif not differs or statement.if_not_exists:
                return Action.UNCHANGED
            else:
                self._exists("dataset", existing.name, differs, statement.position)
                return None
        self.world.datasets[key] = dataset
        return action

    def _create_channel(self, statement: CreateChannel) -> Action | None:
        channel, key = statement.channel, statement.channel.name.lower()
        existing = self.world.channels.get(key)
        differs = [] if existing is None else _channel_differences(existing, channel)
        action = self._created("channel", existing, differs, statement)
        if action in (Action.CREATED, Action.REPLACED):
            self.world.channels[key] = channel
            names = statement.query.datasets | statement.query.new_datasets
            self.world.reads[key] = frozenset(name.lower() for name in names)
        return action

    def _create_feed(self, statement: CreateFeed) -> Action | None:
        feed, key = statement.feed, statement.feed.name.lower()
        existing = self.world.feeds.get(key)
        differs = [] if existing is None else _feed_differences(existing, feed)
        action = self._created("feed", existing, differs, statement)
        if action in (Action.CREATED, Action.REPLACED):
            self.world.feeds[key] = feed
        return action

    def _created(
        self,
        what: str,
        existing: Channel | Feed | None,
        differs: Sequence[str],
        statement: CreateChannel | CreateFeed,
    ) -> Action | None:
        """What becomes of a CREATE that may be repeated or replaced; None after noting that it may not."""
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

    def _note(self, place: Position, message: str, code: str, expected: str | None = None) -> None:
        self.problems.append(Problem(self.file, place.line, place.column, message, expected, code))


def _dataset_differences(old: Dataset, new: Dataset) -> list[str]:
    compared = {
        "kinds": old.kind is new.kind,
        # A STATIC dataset declared without columns has those of its file.
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
        "parameters": old.parameters == new.parameters,
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
    """A query laid out differently, or with another comment, is the same query."""
    return [(token.kind, token.text) for token in scan(query).tokens]
