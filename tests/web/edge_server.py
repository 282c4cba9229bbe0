"""Serves the page of the edge tier with answers of GET /v1/edge that a test sets. `tests/demo` runs a real tree."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tocsin.demo.edge_tree import named_tree
from tocsin.model.edge import EdgeNodeId
from tocsin.runtime.http.pages import serve_pages
from tocsin.web import PAGES

SECRET = "the-secret-of-the-tree"
QUERIES = ("UserUse", "NeighbourhoodUse", "DistrictUse")


def edge_answer(nodes: int = 7, generation: int = 4) -> dict[str, Any]:
    """A calm tree with the operators of figure 3 at the nodes where they begin."""
    tree = named_tree(nodes)
    listed = []
    for number, name in enumerate(sorted(tree.nodes, key=lambda node: len(tree.path_up(node)))):
        children = tree.children[name]
        kinds = ("map", "partial") if not children else ("final", "having") if name == tree.root else ("merge",)
        operators = [f"{query}/{kind}@{name}" for query in QUERIES for kind in kinds]
        if name == tree.root:
            operators = [operator.partition("@")[0] for operator in operators]
        usage = {"memory_pct": 8.0 + 3 * number, "cpu_pct": 22.0 + 4 * number, "network_pct": 5.0 + number}
        figures = {"rows_per_s": 1_040.0 if not children else 61.0, "bytes_up": 90_000, "raw_bytes": 1_800_000}
        described = {"name": name, "parent": tree.parents.get(EdgeNodeId(name)), "state": "alive", "address": ""}
        counts = {"inbox_bytes": 2_048, "late_rows": 0}
        listed.append({**described, "usage": usage, **figures, **counts, "operators": operators})
    queries = [
        {"name": name, "sql": f"SELECT … {name}", "dataset": name, "floor": 1_795_030_228_000_000, "rows": 1_234}
        for name in QUERIES
    ]
    return {
        "generation": generation,
        "running": True,
        "generation_started_s": 0.0,
        "recoveries": generation,
        "nodes": listed,
        "queries": queries,
        "outbox": 0,
    }


def node_of(answer: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(node for node in answer["nodes"] if node["name"] == name)
    return found


class EdgePageServer:
    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.is_broken = False
        self.app = FastAPI()
        self.app.add_route("/v1/edge", self.describe)
        serve_pages(self.app, PAGES, "edge.html")
        self.address = ""

    async def describe(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {SECRET}":
            return JSONResponse({"error": {"code": "unauthenticated", "message": "send the secret"}}, 401)
        if self.is_broken:
            return JSONResponse({"error": {"code": "not_ready", "message": "later"}}, 503)
        return JSONResponse(self.answer)


@contextmanager
def served_edge(server: EdgePageServer) -> Iterator[EdgePageServer]:
    config = uvicorn.Config(server.app, port=0, log_level="error", timeout_graceful_shutdown=1)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        thread.join(0.01)
    server.address = f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    yield server
    running.should_exit = True
    thread.join(10)
