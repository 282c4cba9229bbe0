"""`tocsin check FILE` and `tocsin apply FILE`: check an application file, and apply it to a running network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.cli.console import (
    DEFAULT_COORDINATOR_URL,
    DEFAULT_URL,
    AsJson,
    Coordinator,
    Token,
    Url,
    fail_with_problems,
    failing_on_errors,
    note,
    show,
    table,
)

if TYPE_CHECKING:
    from tocsin.cli.topic_statements import PlannedTopic
    from tocsin.cluster.sql.declarations import TopicStatement

ApplicationFile = Annotated[Path, typer.Argument(help="An application file.", exists=True, dir_okay=False)]


def register(app: typer.Typer) -> None:
    app.command("apply")(apply)
    app.command("check")(check)


def check(
    file: ApplicationFile,
    quick: Annotated[bool, typer.Option("--quick", help="Check syntax and names only, without Spark.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check an application file. Checks syntax and names, and whether Spark can run the channels."""
    from tocsin.cluster.sql.declarations import parse_application
    from tocsin.cluster.sql.planning import Definitions, plan

    text = file.read_text(encoding="utf-8")
    with failing_on_errors(as_json):
        _, problems = plan(parse_application(text, str(file)), Definitions({}, {}, {}, {}), str(file))
        if not problems and not quick:  # Spark would only report the same problems half a minute later
            from tocsin.cluster.temporary import check_application

            note("starting Spark to compile the channels…")
            problems = check_application(text, file)
    if problems:
        fail_with_problems(as_json, problems, text)
    show(as_json, {"problems": [], "quick": quick}, lambda: print(f"{file}: no problems"))


def apply(
    file: ApplicationFile,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the file against the network and change nothing.")
    ] = False,
    url: Url = DEFAULT_URL,
    coordinator: Coordinator = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Apply an application file. The whole file is checked first: a file with a problem changes nothing.

    Datasets, channels and feeds go to the data cluster, topics to the coordinator.
    """
    from tocsin.cli.topic_statements import topic_statements
    from tocsin.cluster.sql.declarations import parse_application

    text = file.read_text(encoding="utf-8")
    topics = topic_statements(parse_application(text, str(file)))
    with failing_on_errors(as_json):
        run = _Run(file, text, url, coordinator, token, as_json)
        changes = run.apply(topics, dry_run=dry_run)
    for change in changes:
        for warning in change["warnings"]:
            note(f"warning: {change['kind']} {change['name']}: {warning}")

    def show_text() -> None:
        if dry_run:
            print(f"{file}: no problems")
        else:
            table(("", "", ""), ((change["action"], change["kind"], change["name"]) for change in changes))

    show(as_json, {"problems": []} if dry_run else {"changes": changes}, show_text)


@dataclass(frozen=True, slots=True)
class _Run:
    """One application of a file."""

    file: Path
    text: str
    url: str
    coordinator: str
    token: str | None
    as_json: bool

    def apply(self, topics: Sequence[TopicStatement], *, dry_run: bool) -> list[dict[str, Any]]:
        """Drop topics, apply the rest to the data cluster, create topics. Returns the changes."""
        from tocsin.cli.topic_statements import TopicPlan, plan_topics

        plan = TopicPlan([], [], [])
        if topics:
            from tocsin.cli.connection import ask, connect_coordinator

            with connect_coordinator(self.coordinator, self.token) as client:
                existing = ask(client, "GET", "/v1/topics", params={"pattern": "#"})["topics"]
            plan = plan_topics(topics, existing, str(self.file))
        if plan.problems:
            fail_with_problems(self.as_json, plan.problems, self.text)
        if dry_run or plan.first:
            self._change_cluster(dry_run=True)
        if dry_run:
            return []
        dropped = self._change_topics(plan.first, "nothing else was changed")
        changes = self._change_cluster(dry_run=False)
        created = self._change_topics(plan.last, "the data cluster has applied the file; apply it again")
        return [*dropped, *(change for change in changes if change["kind"] != "topic"), *created]

    def _change_cluster(self, *, dry_run: bool) -> list[dict[str, Any]]:
        import msgspec

        from tocsin.cli.connection import ErrorReply, ask, connect
        from tocsin.cluster.sql.problems import Problem

        body = {"text": self.text, "file": str(self.file), "folder": str(self.file.absolute().parent)}
        with connect(self.url, self.token) as client:
            try:
                reply = ask(client, "POST", f"/v1/applications?dry_run={str(dry_run).lower()}", json=body)
            except ErrorReply as error:
                problems = error.body["error"].get("problems") if isinstance(error.body, dict) else None
                if not problems:
                    raise
                fail_with_problems(self.as_json, msgspec.convert(problems, list[Problem]), self.text)
        changes: list[dict[str, Any]] = reply.get("changes", [])
        return changes

    def _change_topics(self, planned: Sequence[PlannedTopic], outcome: str) -> list[dict[str, Any]]:
        """Send the requests of the topics. A refusal becomes a problem at the line of its statement."""
        from tocsin.cli.connection import ask, connect_coordinator
        from tocsin.cluster.sql.problems import Problem
        from tocsin.wire.errors import TocsinError

        changes: list[dict[str, Any]] = []
        for topic in planned:
            if (request := topic.request()) is not None:
                method, path, body = request
                try:
                    with connect_coordinator(self.coordinator, self.token) as client:
                        ask(client, method, path, json=body)
                except TocsinError as error:
                    message = f"topic '{topic.name}': {error.message}"
                    problem = Problem.at(str(self.file), topic.position, message, str(error.code))
                    fail_with_problems(self.as_json, [problem], self.text, outcome)
            changes.append({"kind": "topic", "name": topic.name, "action": str(topic.action), "warnings": []})
        return changes
