"""`tocsin edge` runs nodes of the edge tier; `edge-apply`, `edge-status` and `edge-move` talk to the root of a tree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.cli.console import AsJson, failing_on_errors, note, show, table
from tocsin.cli.processes import run_on_event_loop, stop_event, unless_stopped

if TYPE_CHECKING:
    from tocsin.cli.connection import Client
    from tocsin.runtime.stack.edges import EdgeNodes

DEFAULT_ROOT_URL = "http://127.0.0.1:8900"

RootUrl = Annotated[str, typer.Option("--root", envvar="TOCSIN_EDGE_URL", help="Address of the root's process.")]
TreeToken = Annotated[
    str | None, typer.Option("--token", envvar="TOCSIN_EDGE_TOKEN", help="The secret of the tree, if it has one.")
]


def register(app: typer.Typer) -> None:
    app.command("edge")(edge)
    app.command("edge-apply")(apply)
    app.command("edge-move")(move)
    app.command("edge-status")(status)


def edge(
    files: Annotated[
        list[Path], typer.Argument(help="TOML files, one per node: `[node]`, `[rules]`, `[[source]]` and `[sink]`.")
    ],
    as_json: AsJson = False,
) -> None:
    """Run nodes of the edge tier until they are stopped: one in this process, several as one process each.

    The node without a parent is the root; it also controls the tree. See docs/edge.md for the file of a node.
    """
    import asyncio

    from tocsin.runtime.edge.settings import load_node_file
    from tocsin.runtime.http.listening import restrict_new_files
    from tocsin.runtime.http.logs import configure_logs
    from tocsin.runtime.stack.edges import EdgeNodes

    with failing_on_errors(as_json):
        nodes = [load_node_file(file) for file in files]
        restrict_new_files()
        if len(nodes) == 1:
            configure_logs(nodes[0].node.log_level, nodes[0].node.log_form)
            run_on_event_loop(lambda: _run_node(nodes[0], as_json))
        else:
            configure_logs("info", "auto")
            asyncio.run(_run_nodes(EdgeNodes([(file.node.name, file.path) for file in nodes]), as_json))


async def _run_node(file: Any, as_json: bool) -> None:
    import gc

    gc.disable()  # until `collect_garbage_rarely`: loading makes no garbage, and a restarted root is waited for
    from tocsin.runtime.edge.server import EdgeServer
    from tocsin.runtime.http.listening import collect_garbage_rarely
    from tocsin.web import PAGES

    def ready(address: str) -> None:
        collect_garbage_rarely()
        show(as_json, {"node": file.node.name, "address": address}, lambda: print_address(address))

    def print_address(address: str) -> None:
        print(f"Tocsin edge node {file.node.name}: {address}", flush=True)
        note("Press Ctrl-C to stop.")

    await EdgeServer(file, ready, pages=PAGES).run()


async def _run_nodes(nodes: EdgeNodes, as_json: bool) -> None:
    """Run the nodes until a signal."""

    async def start() -> bool:
        await nodes.start()
        return True

    stop = stop_event()
    try:
        if await unless_stopped(start(), stop):
            addresses = nodes.addresses()
            show(as_json, {"nodes": addresses}, lambda: _print_addresses(addresses))
            await stop.wait()
    finally:
        await nodes.stop()


def _print_addresses(addresses: dict[str, str]) -> None:
    for name, address in addresses.items():
        print(f"{name + ':':16} {address}", flush=True)
    note("Press Ctrl-C to stop.")


def _connect(url: str, token: str | None) -> Client:
    from tocsin.cli.connection import Client

    return Client(url, lambda: token)


def apply(
    file: Annotated[Path, typer.Argument(help="Statements: CREATE EDGE STREAM, CREATE EDGE QUERY, DROP EDGE QUERY.")],
    url: RootUrl = DEFAULT_ROOT_URL,
    token: TreeToken = None,
    as_json: AsJson = False,
) -> None:
    """Declare streams and deploy queries in a running tree. Statements apply in order, up to the first wrong one."""
    from tocsin.cli.connection import ask
    from tocsin.cli.console import fail

    with failing_on_errors(as_json), _connect(url, token) as client:
        try:
            text = file.read_text(encoding="utf-8")
        except OSError as error:
            fail(as_json, f"cannot read {file}: {error.strerror}")
        reply = ask(client, "POST", "/v1/edge/statements", json={"text": text})
    show(as_json, reply, lambda: print(f"{reply['statements']} statements applied"))


def status(url: RootUrl = DEFAULT_ROOT_URL, token: TreeToken = None, as_json: AsJson = False) -> None:
    """Show a tree: its nodes with their loads and operators, its queries, and results that wait to be published."""
    from tocsin.cli.connection import ask

    with failing_on_errors(as_json), _connect(url, token) as client:
        reply: dict[str, Any] = ask(client, "GET", "/v1/edge")
    show(as_json, reply, lambda: _print_status(reply))


def _print_status(reply: dict[str, Any]) -> None:
    titles = ("node", "parent", "state", "memory", "cpu", "network", "inbox", "rows/s", "late", "operators", "address")
    table(titles, [_row(node) for node in reply["nodes"]])
    print()
    queries = [(query["name"], query["dataset"], _time(query["floor"]), query["rows"]) for query in reply["queries"]]
    table(("query", "dataset", "complete up to", "rows"), queries)
    print(
        f"\ngeneration {reply['generation']} ({'runs' if reply['running'] else 'starts'}), "
        f"{reply['recoveries']} since the start of the root, {reply['outbox']} outbox entries"
    )


def _row(node: dict[str, Any]) -> list[object]:
    usage = node.get("usage")
    if usage is None:
        return [node["name"], node["parent"], node["state"], *[""] * 7, node["address"]]
    loads = [f"{usage[name]:.0f} %" for name in ("memory_pct", "cpu_pct", "network_pct")]
    figures = [node["inbox_bytes"], f"{node['rows_per_s']:.0f}", node["late_rows"], len(node["operators"])]
    return [node["name"], node["parent"], node["state"], *loads, *figures, node["address"]]


def _time(microseconds: int | None) -> str:
    from datetime import UTC, datetime

    if microseconds is None:
        return ""
    try:
        return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError):
        return "the end"


def move(
    operators: Annotated[list[str], typer.Argument(help="Operators, as `tocsin edge-status --json` shows them.")],
    to: Annotated[str, typer.Option("--to", help="The parent or a child of the node that holds them.")],
    url: RootUrl = DEFAULT_ROOT_URL,
    token: TreeToken = None,
    as_json: AsJson = False,
) -> None:
    """Move operators to a neighbour of their node, with those that must move along. Fails if it cannot begin now."""
    from tocsin.cli.connection import ask

    with failing_on_errors(as_json), _connect(url, token) as client:
        order = {"operators": operators, "destination": to}
        reply = ask(client, "POST", "/v1/edge/transfers", json=order)
    moved = ", ".join(reply["operators"])
    show(as_json, reply, lambda: print(f"{moved}: moving from {reply['source']} to {reply['destination']}"))
