"""The topics of an application file: what has to change at the coordinator, and the requests for it.

`plan_topics` compares the statements with the topics that exist and needs no network. `tocsin apply` sends the drops
before the data cluster changes anything, and creates topics last, when the datasets of RECORD INTO exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tocsin.cluster.sql.declarations import Application, CreateTopic, DropTopic, TopicStatement
from tocsin.cluster.sql.planning import Action
from tocsin.cluster.sql.problems import Position, Problem, did_you_mean
from tocsin.model.ids import DatasetName, TopicName
from tocsin.model.topic import TopicDefinition
from tocsin.model.topic_persistence import Persistence


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    statement: TopicStatement
    action: Action

    @property
    def name(self) -> TopicName:
        statement = self.statement
        return statement.topic.name if isinstance(statement, CreateTopic) else statement.name

    @property
    def position(self) -> Position:
        return self.statement.position

    def request(self) -> tuple[str, str, dict[str, Any] | None] | None:
        """(method, path, body) of the request to the coordinator; None if nothing changes."""
        if self.action is Action.UNCHANGED:
            return None
        if isinstance(self.statement, CreateTopic):
            return "POST", "/v1/topics", create_body(self.statement.topic) | {"replace": self.action is Action.CHANGED}
        return "DELETE", f"/v1/topics/{quote(self.name)}", None


@dataclass(frozen=True, slots=True)
class TopicPlan:
    first: list[PlannedTopic]
    """Drops: they come before the changes of the data cluster, which may drop the datasets of these topics."""
    last: list[PlannedTopic]
    problems: list[Problem]


def topic_statements(application: Application) -> list[TopicStatement]:
    return [statement for statement in application.statements if isinstance(statement, CreateTopic | DropTopic)]


def plan_topics(statements: Sequence[TopicStatement], existing: Iterable[Mapping[str, Any]], file: str) -> TopicPlan:
    """Plan the statements in order. `existing` are the topics as the coordinator lists them."""
    plan = TopicPlan([], [], [])
    present = {TopicName(entry["topic"]): definition_of_entry(entry) for entry in existing}
    created: set[TopicName] = set()
    for statement in statements:
        action, problem = _action(statement, present)
        if problem is not None:
            plan.problems.append(Problem.at(file, statement.position, *problem))
            continue
        planned = PlannedTopic(statement, action)
        if isinstance(statement, CreateTopic):
            if action is not Action.UNCHANGED:
                present[planned.name] = statement.topic
            created.add(planned.name)
        else:
            present.pop(planned.name, None)
        (plan.last if planned.name in created else plan.first).append(planned)
    return plan


def _action(
    statement: TopicStatement, present: Mapping[TopicName, TopicDefinition]
) -> tuple[Action, tuple[str, str, str] | None]:
    """(action, the problem as message, code and advice)."""
    if isinstance(statement, DropTopic):
        if statement.name in present:
            return Action.DROPPED, None
        if statement.if_exists:
            return Action.UNCHANGED, None
        hint = did_you_mean(statement.name, present)
        return Action.UNCHANGED, (f"topic '{statement.name}' does not exist{hint}", "unknown-topic", "IF EXISTS")
    topic, old = statement.topic, present.get(statement.topic.name)
    if old is None:
        return Action.CREATED, None
    differs = _differences(old, topic)
    if not differs or statement.if_not_exists:
        return Action.UNCHANGED, None
    in_place = "replicas and quorums" not in differs
    if statement.replace and in_place:
        return Action.CHANGED, None
    advice = f"DROP TOPIC {topic.name} first" + (", or say CREATE OR REPLACE" if in_place else "")
    message = f"topic '{topic.name}' exists already with another definition ({', '.join(differs)} differ): {advice}"
    return Action.UNCHANGED, (message, "exists", advice)


def _differences(old: TopicDefinition, new: TopicDefinition) -> list[str]:
    kept, keep = old.persistence, new.persistence
    compared = {
        "bounds": old.within_s == new.within_s,
        "delays": old.delay_s == new.delay_s,
        "protected rates": old.protected_per_s == new.protected_per_s,
        "replicas and quorums": _copies(kept) == _copies(keep),
        "retentions": _retention(kept) == _retention(keep),
        "datasets": (old.record_into or "").lower() == (new.record_into or "").lower(),
    }
    return [name for name, same in compared.items() if not same]


def _copies(kept: Persistence | None) -> tuple[int, int] | None:
    return None if kept is None else (kept.replicas, kept.quorum)


def _retention(kept: Persistence | None) -> tuple[int, float | None] | None:
    return None if kept is None else (kept.retain_bytes, kept.retain_s)


def definition_of_entry(entry: Mapping[str, Any]) -> TopicDefinition:
    """The definition of a topic that the coordinator lists."""
    kept = None
    if entry["persistent"]:
        kept = Persistence(len(entry["replicas"]), entry["quorum"], entry["retain_bytes"], entry["retain_s"])
    into = entry["record_into"]
    name = TopicName(entry["topic"])
    dataset = None if into is None else DatasetName(into)
    return TopicDefinition(name, entry["within_s"], kept, dataset, entry["delay_s"], entry["protected_per_s"])


def create_body(definition: TopicDefinition) -> dict[str, Any]:
    """The body of POST /v1/topics."""
    body: dict[str, Any] = {"topic": definition.name, "within_s": definition.within_s}
    body |= {"delay_s": definition.delay_s, "protected_per_s": definition.protected_per_s}
    body["record_into"] = definition.record_into
    if definition.persistence is not None:
        kept = definition.persistence
        body |= {"persistent": True, "replicas": kept.replicas, "quorum": kept.quorum}
        body |= {"retain_bytes": kept.retain_bytes, "retain_s": kept.retain_s}
    return body
